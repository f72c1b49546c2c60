//! If nothing else arrives, each waiter is admitted at the first time at which its limit allows it after the
//! waiters ahead, or refused on arrival if that is too late.

use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{AcquireOutcome, Cost, Limit};
use tollgate_core::UnitRequest;

use crate::setup::{START_US, ms, scope};

#[derive(Clone, Debug)]
struct Caller {
    pause_ms: u64,
    cost: u64,
    max_wait_ms: Option<u64>,
}

/// When a caller's wait ended, in milliseconds from the start, and whether it was admitted.
type Outcome = (u64, bool);

fn callers() -> impl Strategy<Value = Vec<Caller>> {
    let max_wait = prop_oneof![1 => Just(None), 4 => (0..400_u64).prop_map(Some)];
    let caller = (prop_oneof![Just(0), 0..80_u64], 1..6_u64, max_wait);
    let caller =
        caller.prop_map(|(pause_ms, cost, max_wait_ms)| Caller { pause_ms, cost, max_wait_ms });
    prop::collection::vec(caller, 1..40)
}

/// The expected outcomes: each caller in turn, as early as the limit allows after the one before it.
fn expected(limit: &Limit, callers: &[Caller]) -> Vec<Outcome> {
    let mut state = limit.fresh();
    let (mut now_ms, mut line_ms) = (0, 0);
    let mut decide = |caller: &Caller| {
        now_ms += caller.pause_ms;
        let Some(cost) = Cost::new(caller.cost).ok().filter(|cost| cost.units() <= limit.size())
        else {
            return (now_ms, false);
        };
        let ask = UnitRequest::new(cost);
        let mut at_ms = line_ms.max(now_ms);
        let at = |at_ms: u64| START_US + at_ms * 1_000;
        let before = limit.peek(&state, at(at_ms), ask);
        at_ms += before.retry_after_us().unwrap_or(0).div_ceil(1_000);
        let delay_ms = limit.peek(&state, at(at_ms), ask).delay_us().div_ceil(1_000);
        let goes_ms = at_ms + delay_ms;
        if caller.max_wait_ms.is_some_and(|most_ms| goes_ms - now_ms > most_ms) {
            return (now_ms, false);
        }
        assert!(limit.check(&mut state, at(at_ms), ask).decision.is_allowed());
        line_ms = at_ms;
        (goes_ms, true)
    };
    callers.iter().map(&mut decide).collect()
}

async fn acquired(limit: &str, callers: Vec<Caller>) -> Vec<Outcome> {
    let scope = scope(limit);
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    let count = callers.len();
    for (index, caller) in callers.into_iter().enumerate() {
        tokio::time::sleep(ms(caller.pause_ms)).await;
        let scope = scope.clone();
        tasks.spawn(async move {
            let mut acquire = scope.acquire("key").cost(caller.cost);
            if let Some(max_wait_ms) = caller.max_wait_ms {
                acquire = acquire.max_wait(ms(max_wait_ms));
            }
            let is_admitted = matches!(acquire.await.unwrap(), AcquireOutcome::Admitted { .. });
            (index, (began.elapsed().as_millis() as u64, is_admitted))
        });
        // Waiters that are due at this instant go first.
        for _ in 0..count * 3 {
            tokio::task::yield_now().await;
        }
    }
    let all = tokio::time::timeout(Duration::from_secs(3_600), tasks.join_all()).await;
    let mut all = all.expect("a waiter was never woken");
    assert_eq!(scope.limiter().waiting(), 0);
    all.sort_unstable();
    all.into_iter().map(|(_, outcome)| outcome).collect()
}

fn run(limit: &str, callers: Vec<Caller>) -> Vec<Outcome> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_time().start_paused(true).build().unwrap().block_on(acquired(limit, callers))
}

proptest! {
    #[test]
    fn acquires_are_refused_at_once_or_admitted_at_the_first_possible_time(
        limit in prop::sample::select(vec![
            "fixed-window limit=5 window=60ms",
            "sliding-window-log limit=5 window=60ms",
            "token-bucket capacity=5 refill=1/12ms",
            "leaky-bucket capacity=5 leak=1/12ms mode=policing",
            "leaky-bucket capacity=5 leak=1/12ms mode=shaping",
        ]),
        callers in callers(),
    ) {
        let want = expected(&limit.parse().unwrap(), &callers);
        prop_assert_eq!(run(limit, callers), want);
    }

    /// Without `max_wait`, because waits under these limits are not whole milliseconds.
    #[test]
    fn acquires_are_at_most_a_millisecond_late_when_waits_are_fractional(
        limit in prop::sample::select(vec![
            "sliding-window-counter limit=5 window=60ms",
            "token-bucket capacity=5 refill=3/70ms",
            "leaky-bucket capacity=5 leak=3/70ms mode=policing",
        ]),
        callers in callers(),
    ) {
        let callers: Vec<Caller> =
            callers.into_iter().map(|caller| Caller { max_wait_ms: None, ..caller }).collect();
        let want = expected(&limit.parse().unwrap(), &callers);
        prop_assert_eq!(run(limit, callers), want);
    }
}
