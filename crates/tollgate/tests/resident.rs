//! P9 as the machine sees it: the memory that an attacker inventing keys makes resident stays under
//! the ceiling. Each attack runs in a process of its own, so that nothing else is counted.
//!
//! `SOAK_KEYS` says how many keys the attacker invents, instead of 120,000.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use tollgate::{Limit, Limiter, ManualClock, Scope};

const MAX_BYTES: usize = 4 << 20;

/// Each with room for 10, which is there again an hour later.
const LIMITS: [&str; 6] = [
    "fixed-window limit=10 window=1h",
    "sliding-window-log limit=10 window=1h",
    "sliding-window-counter limit=10 window=30m",
    "token-bucket capacity=10 refill=10/h",
    "leaky-bucket capacity=10 leak=10/h mode=policing",
    "leaky-bucket capacity=10 leak=10/h mode=shaping",
];

#[test]
fn an_attackers_keys_stay_under_the_ceiling() {
    for text in LIMITS {
        let output = Command::new(env::current_exe().unwrap())
            .args(["--exact", "attack", "--ignored", "--nocapture"])
            .env("ATTACKED_LIMIT", text)
            .output()
            .unwrap();
        let (said, failed) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
        assert!(output.status.success(), "{text}: {said}{}", String::from_utf8_lossy(&failed));
        let grown = said.lines().find_map(|line| line.split_once("resident: ")?.1.parse().ok());
        let grown: usize = grown.unwrap_or_else(|| panic!("{text}: no number in {said}"));
        assert!(grown <= MAX_BYTES, "{text}: {grown} bytes resident of {MAX_BYTES}");
        // Otherwise the attack did not get there.
        assert!(grown > MAX_BYTES / 2, "{text}: {grown} bytes resident of {MAX_BYTES}");
    }
}

#[test]
#[ignore = "a part of the test above, which runs it"]
fn attack() {
    let keys: u64 = env::var("SOAK_KEYS").map_or(120_000, |keys| keys.parse().unwrap());
    warm_up();
    let before = resident_bytes();
    let clock = ManualClock::at_us(1_000_000_800_000_000);
    let limiter = Limiter::builder().clock(&clock).max_bytes(MAX_BYTES).build();
    let limit: Limit = env::var("ATTACKED_LIMIT").unwrap().parse().unwrap();
    let scope = limiter.scope("limit", limit).unwrap();
    let victim = || scope.check("a throttled victim with a long name").now().unwrap();
    let client = |spent: u64| {
        let checked = scope.check("honest").cost(spent).now().unwrap();
        assert!(checked.is_allowed());
    };
    (0..10).for_each(|_| assert!(victim().is_allowed()));
    client(3);
    let mut most = 0;
    for key in 0..keys {
        // Three charges, so that a log takes memory too.
        (0..3).for_each(|_| charge(&scope, key));
        if key.is_multiple_of(5_000) {
            most = most.max(resident_bytes().saturating_sub(before));
            assert!(!victim().is_allowed(), "a throttled victim stays throttled");
        }
    }
    assert!(limiter.usage().overflowed > 0, "the ceiling was reached");
    client(7);
    assert_eq!(
        scope.peek("honest").now().unwrap().remaining(),
        0,
        "an honest client is unaffected"
    );
    come_and_go(&clock, &scope, keys);
    most = most.max(resident_bytes().saturating_sub(before));
    println!("\nresident: {most}");
}

fn charge(scope: &Scope, key: u64) {
    scope.check(&key.to_be_bytes()).now().unwrap();
}

/// What a process takes anyway, as soon as it does something.
fn warm_up() {
    let limiter = Limiter::builder().max_bytes(64 << 10).build();
    let scope = limiter.scope("limit", LIMITS[0].parse::<Limit>().unwrap()).unwrap();
    (0..1_000).for_each(|key| charge(&scope, key));
    assert!(resident_bytes() > 0);
}

/// The attacker's keys are whole again, and others take their place.
fn come_and_go(clock: &ManualClock, scope: &Scope, keys: u64) {
    for wave in 1..4 {
        clock.advance(Duration::from_secs(2 * 3_600));
        for key in 0..keys / 8 {
            (0..3).for_each(|_| charge(scope, wave * keys + key));
        }
    }
}

/// The memory of this process that is really there, without the program itself.
fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1_024
}
