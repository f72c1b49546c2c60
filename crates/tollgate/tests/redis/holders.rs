//! Processes that hold units and are frozen or killed: what they hold ends exactly at its expiry.

use std::env;
use std::time::{Duration, Instant};

use redis::Connection;
use tollgate::{Hold, Limiter, Scope};
use tollgate_launcher::Flavour;

use crate::child::{ChildTest, say};
use crate::setup::{PATIENCE, admin, at, open, remaining, scope, start, time_us};

/// How long a holder holds units. While it runs, it extends its holds.
const HELD_FOR: Duration = Duration::from_secs(2);

/// How often a holder extends its holds.
const EXTENDED_EVERY: Duration = Duration::from_millis(20);

/// The environment variable with the URL of a holder's server.
const URL: &str = "TOLLGATE_HOLDER_URL";

/// The test that a holder runs.
const HOLDER: &str = "holders::holder";

/// A limit that is held as a whole.
struct HeldLimit {
    text: &'static str,
    units: u64,
    /// Whether a unit is free at most a second after the expiry: a place at once, a unit of a bucket or a log when it has
    /// drained or left the window. The units of the others are charged, and do not come back during a test.
    is_free_soon: bool,
}

const fn held(text: &'static str, units: u64, is_free_soon: bool) -> HeldLimit {
    HeldLimit { text, units, is_free_soon }
}

const HELD: [HeldLimit; 6] = [
    held("concurrency limit=1 for=1h", 1, true),
    held("token-bucket capacity=100 refill=10/s", 100, true),
    held("leaky-bucket capacity=100 leak=10/s mode=policing", 100, true),
    held("sliding-window-log limit=100 window=1s", 100, true),
    held("fixed-window limit=100 window=366d", 100, false),
    held("sliding-window-counter limit=100 window=366d", 100, false),
];

/// Reserves one unit again and again, until it is admitted. Each refusal says when the unit comes back: all of them must
/// say the same instant by the server's clock, and the unit must be admitted at that instant and not before. Returns the
/// number of refusals, and the hold.
async fn until_freed(scope: &Scope, admin: &mut Connection) -> (u64, Hold) {
    // The holder may have sent an extension just before it was stopped. The server has made it before this answer.
    remaining(scope, "a").await;
    let (mut earliest_us, mut latest_us, mut refusals) = (0, i64::MAX, 0);
    let began = Instant::now();
    loop {
        let before_us = time_us(admin);
        let reserved = scope.reserve("a").await.unwrap();
        let after_us = time_us(admin);
        let Some(wait) = reserved.retry_after() else {
            let early_us = earliest_us - after_us;
            assert!(early_us <= 0, "{}: {early_us} us early", scope.name());
            return (refusals, reserved.into_hold().unwrap());
        };
        let wait_us = wait.as_micros() as i64;
        earliest_us = earliest_us.max(before_us + wait_us);
        latest_us = latest_us.min(after_us + wait_us);
        assert!(earliest_us <= latest_us, "{}: {earliest_us} or {latest_us}", scope.name());
        refusals += 1;
        assert!(began.elapsed() < PATIENCE);
    }
}

/// Starts a holder on a server, and returns it when it has extended its holds.
fn started(url: &str) -> ChildTest {
    let mut holder = ChildTest::start(HOLDER, &[(URL, url)]);
    assert_eq!(holder.next_line(), "extended");
    holder
}

/// Asserts that the units of each limit come back when the holder's last extension has expired, and not before. Returns
/// the holds that were reserved when they came back.
async fn assert_freed_at_expiry(limiter: &Limiter, admin: &mut Connection) -> Vec<Hold> {
    let (mut reserved, mut refusals) = (Vec::new(), 0);
    for HeldLimit { text, is_free_soon, .. } in HELD {
        let scope = scope(limiter, text);
        if is_free_soon {
            let (refused, hold) = until_freed(&scope, admin).await;
            refusals += refused;
            reserved.push(hold);
        } else {
            assert_eq!(remaining(&scope, "a").await, 0, "{text}: the hold was not charged");
        }
    }
    assert!(refusals > 0, "the holds had expired before the process was stopped");
    reserved
}

#[tokio::test]
async fn units_of_a_frozen_holder_end_at_their_expiry_and_its_later_answers_say_expired() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (mut admin, limiter) = (admin(&server), open(&server));
        let mut holder = started(&server.url());
        holder.freeze();
        let reserved = assert_freed_at_expiry(&limiter, &mut admin).await;
        holder.thaw();
        for HeldLimit { text, .. } in HELD {
            let mut line = holder.next_line();
            while line == "extended" {
                line = holder.next_line();
            }
            assert_eq!(line, format!("{text}: Some(Expired) Some(Expired) 0"), "{flavour}");
        }
        // The holder has ended and dropped its holds by now. The place is still held by this process.
        assert_eq!(remaining(&scope(&limiter, HELD[0].text), "a").await, 0, "{flavour}");
        assert_eq!(reserved[0].extend(0, HELD_FOR).await.unwrap().ended(), None, "{flavour}");
        for HeldLimit { text, .. } in &HELD[4..] {
            assert_eq!(remaining(&scope(&limiter, text), "a").await, 0, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn units_of_a_killed_holder_end_at_their_expiry() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (mut admin, limiter) = (admin(&server), open(&server));
        let mut holder = started(&server.url());
        holder.kill();
        assert_freed_at_expiry(&limiter, &mut admin).await;
    }
}

#[tokio::test]
#[ignore = "run by the tests above in a process of its own"]
async fn holder() {
    let Ok(url) = env::var(URL) else { return };
    let limiter = at(&url);
    let mut holds = Vec::new();
    for HeldLimit { text, units, .. } in HELD {
        let scope = scope(&limiter, text);
        let reserved = scope.reserve("a").cost(units).hold_for(HELD_FOR).await.unwrap();
        holds.push(reserved.into_hold().unwrap());
    }
    let mut ended = vec![None; holds.len()];
    while ended.contains(&None) {
        for (hold, ended) in holds.iter().zip(&mut ended) {
            *ended = hold.extend(0, HELD_FOR).await.unwrap().ended();
        }
        say("extended");
        tokio::time::sleep(EXTENDED_EVERY).await;
    }
    for ((HeldLimit { text, .. }, hold), extended) in HELD.iter().zip(holds).zip(ended) {
        let settled = hold.settle(1).await.unwrap();
        say(&format!("{text}: {extended:?} {:?} {}", settled.ended(), settled.charged_units()));
    }
}
