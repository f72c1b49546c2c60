//! P9 in resident memory: it stays under the ceiling while an attacker invents keys. Each attack runs in
//! a process of its own, so that the memory of other tests is not counted.
//!
//! The attacker invents `SOAK_KEYS` keys, or 120,000.

#![cfg(target_os = "linux")]
// Many tests only charge and do not read the decision.
#![allow(clippy::unwrap_used, unused_must_use)]

use std::env;
use std::fs;
use std::process::Command;
use std::time::Duration;

use tollgate::{Limit, Limiter, ManualClock, Scope};

const MAX_BYTES: usize = 4 << 20;

/// Limits of 10. After an hour all units are back.
const LIMITS: [&str; 6] = [
    "fixed-window limit=10 window=1h",
    "sliding-window-log limit=10 window=1h",
    "sliding-window-counter limit=10 window=30m",
    "token-bucket capacity=10 refill=10/h",
    "leaky-bucket capacity=10 leak=10/h mode=policing",
    "leaky-bucket capacity=10 leak=10/h mode=shaping",
];

#[test]
fn memory_of_invented_keys_stays_under_the_ceiling() {
    LIMITS.into_iter().for_each(|text| assert_resident("attack", text, MAX_BYTES));
}

#[test]
fn memory_of_logs_of_any_size_is_bounded() {
    let text = "sliding-window-log limit=65536 window=1h";
    assert_resident("few_large_logs", text, MAX_BYTES);
    // A quarter more, because the allocator cannot reuse every gap that a log of another size leaves.
    assert_resident("logs_that_come_and_go", text, MAX_BYTES + MAX_BYTES / 4);
}

#[test]
fn room_for_allocates_at_once_in_huge_pages_that_are_reused() {
    output_of("room", LIMITS[0]);
}

#[test]
fn limiter_with_one_key_takes_at_most_192_kib() {
    for text in LIMITS {
        let printed = output_of("one_key", text);
        let grown = printed.lines().find_map(|line| line.split_once("resident: ")?.1.parse().ok());
        let grown: usize = grown.unwrap();
        assert!(grown <= 192 << 10, "{text}: {grown} bytes resident");
    }
}

fn assert_resident(test: &str, text: &str, most: usize) {
    let printed = output_of(test, text);
    let grown = printed.lines().find_map(|line| line.split_once("resident: ")?.1.parse().ok());
    let grown: Option<usize> = grown;
    assert!(grown.is_some(), "{text}: no number in {printed}");
    let grown = grown.unwrap();
    assert!(grown <= most, "{test}, {text}: {grown} bytes resident of {most}");
    // With less, the attack has not filled the memory.
    assert!(grown > MAX_BYTES / 2, "{test}, {text}: {grown} bytes resident of {MAX_BYTES}");
}

/// Runs one of the ignored tests below in a process of its own, with this limit. Returns what it prints.
fn output_of(test: &str, text: &str) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", test, "--ignored", "--nocapture"])
        .env("ATTACKED_LIMIT", text)
        .output()
        .unwrap();
    let (printed, failed) = (String::from_utf8(output.stdout).unwrap(), output.stderr);
    assert!(output.status.success(), "{text}: {printed}{}", String::from_utf8_lossy(&failed));
    printed
}

/// Makes an empty limiter with a ceiling of 4 MiB. Also returns the resident bytes before it was made.
fn attacked() -> Option<(usize, ManualClock, Limiter, Scope)> {
    let limit: Limit = env::var("ATTACKED_LIMIT").ok()?.parse().unwrap();
    warm_up();
    let before = resident_bytes();
    let clock = ManualClock::at_us(1_000_000_800_000_000);
    let limiter = Limiter::builder().clock(&clock).max_bytes(MAX_BYTES).build();
    let scope = limiter.scope("limit", limit).unwrap();
    Some((before, clock, limiter, scope))
}

#[test]
#[ignore = "run by a test above in a process of its own"]
fn few_large_logs() {
    let Some((before, clock, _, scope)) = attacked() else { return };
    for keys in [0..20, 100..800] {
        for _ in 0..400_000 / (keys.end - keys.start) {
            clock.advance(Duration::from_micros(1));
            keys.clone().for_each(|key| charge(&scope, key));
        }
    }
    println!("\nresident: {}", resident_bytes().saturating_sub(before));
}

#[test]
#[ignore = "run by a test above in a process of its own"]
fn logs_that_come_and_go() {
    let Some((before, clock, limiter, scope)) = attacked() else { return };
    let mut most = 0;
    for size in [3, 6, 12, 24, 48, 96, 192, 384] {
        let keys = 300_000 / size;
        for key in size * 1_000_000..size * 1_000_000 + keys {
            charge_apart(&clock, &scope, key, size);
            // Some logs stay, and fragment the memory.
            if key % 16 > 0 && key % 2_000 > 1_000 {
                scope.reset_now(&key.to_be_bytes()).unwrap();
            }
        }
        most = most.max(resident_bytes().saturating_sub(before));
        clock.advance(Duration::from_secs(2 * 3_600));
    }
    assert!(limiter.usage().bytes <= MAX_BYTES);
    println!("\nresident: {most}");
}

#[test]
#[ignore = "run by a test above in a process of its own"]
fn attack() {
    let keys: u64 = env::var("SOAK_KEYS").map_or(120_000, |keys| keys.parse().unwrap());
    let Some((before, clock, limiter, scope)) = attacked() else { return };
    let victim = || scope.check("a throttled victim with a long name").now().unwrap();
    let client = |spent: u64| {
        let checked = scope.check("honest").cost(spent).now().unwrap();
        assert!(checked.is_allowed());
    };
    (0..10).for_each(|_| assert!(victim().is_allowed()));
    client(3);
    let mut most = 0;
    for key in 0..keys {
        charge_apart(&clock, &scope, key, 5);
        if key.is_multiple_of(5_000) {
            most = most.max(resident_bytes().saturating_sub(before));
            assert!(!victim().is_allowed(), "a client that has spent its limit stays refused");
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

#[test]
#[ignore = "run by a test above in a process of its own"]
fn one_key() {
    let Ok(text) = env::var("ATTACKED_LIMIT") else { return };
    warm_up();
    let before = resident_bytes();
    let limiter = Limiter::memory();
    let scope = limiter.scope("limit", text.parse::<Limit>().unwrap()).unwrap();
    charge(&scope, 1);
    println!("\nresident: {}", resident_bytes().saturating_sub(before));
    assert!(limiter.usage().bytes <= 192 << 10, "{:?}", limiter.usage());
}

#[test]
#[ignore = "run by a test above in a process of its own"]
fn room() {
    const KEYS: u64 = 200_000;
    let Ok(text) = env::var("ATTACKED_LIMIT") else { return };
    warm_up();
    let (before, huge_before) = (memory("RssAnon"), memory("AnonHugePages"));
    let grown = || memory("RssAnon") - before;
    let make = || Limiter::builder().max_bytes(16 << 20).room_for(KEYS as usize).build();
    let limiter = make();
    let fetched = grown();
    let bytes = limiter.usage().bytes;
    assert!((bytes * 9 / 10..bytes * 11 / 10).contains(&fetched), "{fetched} of {bytes} bytes");
    let pages = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
    if cfg!(target_arch = "x86_64") && pages.is_ok_and(|pages| !pages.contains("[never]")) {
        let huge = memory("AnonHugePages") - huge_before;
        assert!(huge >= 2 << 20, "{huge} bytes in huge pages, of {fetched}");
    }
    let scope = limiter.scope("limit", text.parse::<Limit>().unwrap()).unwrap();
    (0..KEYS / 2).for_each(|key| charge(&scope, key));
    let used = grown();
    assert!(used < fetched + fetched / 20, "{used} bytes with keys, {fetched} without");
    drop((scope, limiter));
    for _ in 0..4 {
        // A limiter that allocates at once, and one that grows.
        drop(make());
        let limiter = Limiter::builder().max_bytes(16 << 20).build();
        let scope = limiter.scope("limit", text.parse::<Limit>().unwrap()).unwrap();
        (0..KEYS).for_each(|key| charge(&scope, key));
    }
    let later = grown();
    assert!(later < used + used / 2, "{later} bytes after eight limiters, {used} after one");
}

fn charge(scope: &Scope, key: u64) {
    scope.check(&key.to_be_bytes()).now().unwrap();
}

/// Makes each charge at another time. A log takes more memory for the fifth.
fn charge_apart(clock: &ManualClock, scope: &Scope, key: u64, charges: u64) {
    for _ in 0..charges {
        clock.advance(Duration::from_micros(1));
        charge(scope, key);
    }
}

/// Uses a limiter once, so that the memory which any process takes at first is not counted.
fn warm_up() {
    let limiter = Limiter::builder().max_bytes(64 << 10).build();
    let scope = limiter.scope("limit", LIMITS[0].parse::<Limit>().unwrap()).unwrap();
    (0..1_000).for_each(|key| charge(&scope, key));
    assert!(resident_bytes() > 0);
}

/// New keys of the attacker replace earlier ones, of which all units are back.
fn come_and_go(clock: &ManualClock, scope: &Scope, keys: u64) {
    for wave in 1..4 {
        clock.advance(Duration::from_secs(2 * 3_600));
        for key in 0..keys / 8 {
            charge_apart(clock, scope, wave * keys + key, 5);
        }
    }
}

/// The resident memory of this process without its program and files.
fn resident_bytes() -> usize {
    memory("RssAnon")
}

/// The bytes in the line `name` of `status` or `smaps_rollup` of this process.
fn memory(name: &str) -> usize {
    let read = |file: &str| fs::read_to_string(format!("/proc/self/{file}")).unwrap();
    let text = read("status") + &read("smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).unwrap();
    let kib: usize = line.trim().trim_end_matches(" kB").parse().unwrap();
    kib * 1_024
}
