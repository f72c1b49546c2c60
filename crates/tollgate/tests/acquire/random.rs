//! Acquires that give up at random points, beside plain checks: no charge leaks, and every waiter is woken.

use std::collections::HashMap;
use std::future::IntoFuture;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use proptest::prelude::*;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tollgate::{AcquireFuture, AcquireOutcome, Cost, Limit, Scope};
use tollgate_core::ChargeReceipt;
use tollgate_core::{State, UnitRequest};

use crate::setup::{START_US, ms, scope};

#[derive(Clone, Copy, Debug)]
enum Patience {
    Endless,
    /// Refused by the limiter.
    MaxWaitMs(u64),
    /// Dropped after this time.
    DroppedAfterMs(u64),
    /// Dropped when woken after this number of polls.
    DroppedAfterPolls(u32),
}

#[derive(Clone, Copy, Debug)]
enum Act {
    Acquire { cost: u64, patience: Patience },
    Check { cost: u64 },
}

/// A change of a caller's charge, as seen from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// A poll, or a plain check, spent its units.
    Charged,
    /// The caller was admitted.
    Delivered,
    /// The caller was refused, or gave up.
    Gone,
}

#[derive(Clone, Copy, Debug)]
struct Event {
    what: What,
    caller: usize,
    at_us: u64,
}

/// The events, in order.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Vec<Event>>>);

impl Journal {
    fn note(&self, what: What, caller: usize, began: Instant) {
        let at_us = START_US + began.elapsed().as_micros() as u64;
        self.0.lock().unwrap().push(Event { what, caller, at_us });
    }
}

fn acts() -> impl Strategy<Value = Vec<(u64, Act)>> {
    let patience = prop_oneof![
        3 => Just(Patience::Endless),
        2 => (0..300_u64).prop_map(Patience::MaxWaitMs),
        4 => (0..200_u64).prop_map(Patience::DroppedAfterMs),
        4 => (0..5_u32).prop_map(Patience::DroppedAfterPolls),
    ];
    let cost = prop_oneof![4 => Just(1), 4 => 1..6_u64];
    let acquire = (cost, patience).prop_map(|(cost, patience)| Act::Acquire { cost, patience });
    let act = prop_oneof![6 => acquire, 1 => (1..4_u64).prop_map(|cost| Act::Check { cost })];
    prop::collection::vec((prop_oneof![2 => Just(0), 1 => 0..40_u64], act), 1..30)
}

/// An acquire that records what each of its polls did, and may give up after a number of polls.
struct Watched<'a> {
    scope: &'a Scope,
    caller: usize,
    acquiring: Option<AcquireFuture<'a>>,
    polls_left: u32,
    journal: Journal,
    began: Instant,
}

impl Watched<'_> {
    fn note(&self, what: What) {
        self.journal.note(what, self.caller, self.began);
    }

    fn spent(&self) -> Duration {
        self.scope.peek("key").now().unwrap().reset_after()
    }
}

impl Future for Watched<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.polls_left == 0 {
            // The acquire is dropped with this future, in `drop` below.
            return Poll::Ready(());
        }
        self.polls_left -= 1;
        let before = self.scope.peek("key").now().unwrap();
        let polled = Pin::new(self.acquiring.as_mut().unwrap()).poll(context);
        let after = self.scope.peek("key").now().unwrap();
        if before != after {
            self.note(What::Charged);
        }
        let Poll::Ready(result) = polled else { return Poll::Pending };
        if let AcquireOutcome::Admitted { .. } = result.unwrap() {
            self.acquiring = None;
            self.note(What::Delivered);
        }
        Poll::Ready(())
    }
}

impl Drop for Watched<'_> {
    fn drop(&mut self) {
        if self.acquiring.is_some() {
            let before = self.spent();
            self.acquiring = None;
            assert!(self.spent() <= before, "giving up spent something");
            self.note(What::Gone);
        }
    }
}

async fn act(scope: &Scope, caller: usize, act: Act, journal: Journal, began: Instant) {
    let (cost, patience) = match act {
        Act::Acquire { cost, patience } => (cost, patience),
        Act::Check { cost } => {
            if scope.check("key").cost(cost).now().unwrap().is_allowed() {
                journal.note(What::Charged, caller, began);
                journal.note(What::Delivered, caller, began);
            }
            return;
        }
    };
    let mut acquire = scope.acquire("key").cost(cost);
    if let Patience::MaxWaitMs(most_ms) = patience {
        acquire = acquire.max_wait(ms(most_ms));
    }
    let polls_left =
        if let Patience::DroppedAfterPolls(polls) = patience { polls } else { u32::MAX };
    let acquiring = Some(acquire.into_future());
    let watched = Watched { scope, caller, acquiring, polls_left, journal, began };
    match patience {
        // The journal has the outcome.
        Patience::DroppedAfterMs(after_ms) => {
            let _ = tokio::time::timeout(ms(after_ms), watched).await;
        }
        _ => watched.await,
    }
}

async fn play(scope: &Scope, acts: &[(u64, Act)]) -> Vec<Event> {
    let journal = Journal::default();
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for (caller, &(pause_ms, what)) in acts.iter().enumerate() {
        tokio::time::sleep(ms(pause_ms)).await;
        let (scope, journal) = (scope.clone(), journal.clone());
        tasks.spawn(async move { act(&scope, caller, what, journal, began).await });
        tokio::task::yield_now().await;
    }
    let all = tokio::time::timeout(Duration::from_secs(3_600), tasks.join_all()).await;
    all.expect("a waiter was never woken");
    Arc::into_inner(journal.0).unwrap().into_inner().unwrap()
}

/// A replay of the journal by one caller. It must be admitted at every charge, and refunds the charges that
/// were not delivered.
struct Replay<'a> {
    limit: Limit,
    acts: &'a [(u64, Act)],
    state: State,
    receipts: HashMap<usize, ChargeReceipt>,
    /// The time and cost of each charge, without the refunded ones.
    charges: Vec<(u64, u64)>,
}

impl Replay<'_> {
    fn step(&mut self, event: &Event) -> Result<(), TestCaseError> {
        let Event { what, caller, at_us } = *event;
        let (Act::Acquire { cost, .. } | Act::Check { cost }) = self.acts[caller].1;
        match what {
            What::Charged => {
                let ask = UnitRequest::new(Cost::new(cost).unwrap());
                let checked = self.limit.check(&mut self.state, at_us, ask);
                let receipt = checked.receipt;
                prop_assert!(receipt.is_some(), "one caller would have been refused: {event:?}");
                let earlier = self.receipts.insert(caller, receipt.unwrap());
                prop_assert!(earlier.is_none(), "charged twice: {event:?}");
                self.charges.push((at_us, cost));
            }
            What::Delivered => {
                let charged = self.receipts.contains_key(&caller);
                prop_assert!(charged, "delivered without a charge: {event:?}");
            }
            What::Gone => {
                if let Some(receipt) = self.receipts.remove(&caller)
                    && self.limit.refund(&mut self.state, at_us, receipt) > 0
                {
                    // A shaping limit refunds only its last charge.
                    self.charges.pop();
                }
            }
        }
        Ok(())
    }

    fn is_within_bound(&self) -> Result<(), TestCaseError> {
        for (first, &(from_us, _)) in self.charges.iter().enumerate() {
            let mut units = 0;
            for &(to_us, cost) in &self.charges[first..] {
                units += cost;
                let bound = self.limit.bound_over(to_us - from_us + 1);
                prop_assert!(units <= bound.max_units, "{units} in {bound:?}");
            }
        }
        Ok(())
    }
}

/// Whether the acquires were charged in the order in which they arrived.
fn is_in_order(acts: &[(u64, Act)], journal: &[Event]) -> bool {
    let is_acquire = |caller: usize| matches!(acts[caller].1, Act::Acquire { .. });
    let charged = journal.iter().filter(|event| event.what == What::Charged);
    charged.map(|event| event.caller).filter(|&caller| is_acquire(caller)).is_sorted()
}

/// Whether every acquire was admitted, was refused or gave up.
fn has_every_acquire_ended(acts: &[(u64, Act)], journal: &[Event]) -> bool {
    let ended = |caller: usize| {
        journal.iter().any(|event| event.caller == caller && event.what != What::Charged)
    };
    let is_acquire = |act: &Act| matches!(act, Act::Acquire { .. });
    acts.iter().enumerate().all(|(caller, (_, act))| !is_acquire(act) || ended(caller))
}

fn holds(limit: &str, acts: &[(u64, Act)]) -> Result<(), TestCaseError> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let began = Instant::now();
        let scope = scope(limit);
        let journal = play(&scope, acts).await;
        prop_assert_eq!(scope.limiter().waiting(), 0);
        prop_assert!(is_in_order(acts, &journal), "{:?}", journal);
        prop_assert!(has_every_acquire_ended(acts, &journal), "{:?}", journal);
        let limit = *scope.limit();
        let (receipts, charges) = (HashMap::new(), Vec::new());
        let mut replay = Replay { limit, acts, state: limit.fresh(), receipts, charges };
        for event in &journal {
            replay.step(event)?;
        }
        replay.is_within_bound()?;
        // After the replay the state is the same: refused and dropped acquires left nothing behind.
        let now_us = START_US + began.elapsed().as_micros() as u64;
        let want = limit.peek(&replay.state, now_us, UnitRequest::new(Cost::ONE));
        prop_assert_eq!(*scope.peek("key").now().unwrap().decided(), want);
        Ok(())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.max(1_000)))]

    #[test]
    fn dropped_acquires_charge_nothing_and_block_no_waiter(
        limit in prop::sample::select(vec![
            "fixed-window limit=5 window=60ms",
            "sliding-window-log limit=5 window=60ms",
            "sliding-window-counter limit=5 window=60ms",
            "token-bucket capacity=5 refill=1/12ms",
            "token-bucket capacity=5 refill=3/70ms",
            "leaky-bucket capacity=5 leak=1/12ms mode=policing",
            "leaky-bucket capacity=5 leak=1/12ms mode=shaping",
            "leaky-bucket capacity=5 leak=3/70ms mode=shaping",
        ]),
        acts in acts(),
    ) {
        holds(limit, &acts)?;
    }
}
