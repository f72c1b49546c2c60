//! The limiter on a store that fails, is too slow, or answers after the caller has dropped the request.

use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate_conformance::store::{LIMITS, START_US, scope};
use tollgate_core::{ChargeReceipt, ExtendAnswer, SettleAnswer};
use tollgate_limiter::store::{
    Call, Charge, CheckRequest, ExtendRequest, JointRequest, KeyState, RemoteStore, SettleRequest,
    Wake,
};
use tollgate_limiter::{
    AcquireOutcome, Answer, Decision, Error, Health, Hold, JointDecision, JointHoldDecision,
    Limiter, ManualClock, OnFailure, Scope, StoreError,
};

use crate::store::ExampleStore;

const MINUTE: Duration = Duration::from_secs(60);

/// An example store that fails while the test sets it to.
#[derive(Clone, Debug)]
pub(crate) struct FailingStore {
    inner: ExampleStore,
    is_failing: Arc<AtomicBool>,
    has_holds: bool,
}

impl FailingStore {
    fn unless_failing<T>(&self, call: impl FnOnce(&ExampleStore) -> Answer<T>) -> Answer<T> {
        if self.is_failing.load(Ordering::Relaxed) {
            return Answer::pending(async { Err(failure().into()) });
        }
        call(&self.inner)
    }
}

fn failure() -> StoreError {
    StoreError::unreachable("example", "connection refused")
}

impl RemoteStore for FailingStore {
    fn check(&self, request: CheckRequest) -> Answer<Decision> {
        self.unless_failing(|store| store.check(request))
    }

    fn check_all(&self, request: JointRequest) -> Answer<JointDecision> {
        self.unless_failing(|store| store.check_all(request))
    }

    fn refund(
        &self,
        charge: Charge,
        receipt: ChargeReceipt,
        call: Call,
        wake: Wake,
    ) -> Answer<u64> {
        self.unless_failing(|store| store.refund(charge, receipt, call, wake))
    }

    fn reset(&self, charge: Charge, call: Call, wake: Wake) -> Answer<()> {
        self.unless_failing(|store| store.reset(charge, call, wake))
    }

    fn state(&self, charge: Charge, call: Call) -> Answer<KeyState> {
        self.unless_failing(|store| store.state(charge, call))
    }

    fn has_holds(&self) -> bool {
        self.has_holds
    }

    fn settle(&self, request: SettleRequest) -> Answer<Vec<SettleAnswer>> {
        self.unless_failing(|store| store.settle(request))
    }

    fn extend(&self, request: ExtendRequest) -> Answer<Vec<ExtendAnswer>> {
        self.unless_failing(|store| store.extend(request))
    }

    fn health(&self) -> Health {
        self.inner.health()
    }
}

/// Returns a limiter on a store that works, and the flag that makes the store fail.
fn open() -> (Limiter, Arc<AtomicBool>) {
    let (store, is_failing) = failing(true);
    (on(store), is_failing)
}

pub(crate) fn failing(has_holds: bool) -> (FailingStore, Arc<AtomicBool>) {
    let is_failing = Arc::new(AtomicBool::new(false));
    let inner = ExampleStore::start();
    (FailingStore { inner, is_failing: Arc::clone(&is_failing), has_holds }, is_failing)
}

fn on(store: impl RemoteStore) -> Limiter {
    let builder = Limiter::builder().clock(&ManualClock::at_us(START_US));
    builder.store(|_| Ok(store)).unwrap().deadline(Duration::from_secs(30)).build()
}

/// Makes a request of 4 units by `check`, by `check_all` and by `batch`. Returns whether each was allowed, and what
/// remains.
async fn in_each_way(scope: &Scope) -> [Result<(bool, u64), Error>; 3] {
    let degraded = |decision: &Decision| {
        assert!(decision.is_degraded() && decision.receipt().is_none());
        (decision.is_allowed(), decision.remaining())
    };
    let check = || scope.check("a").cost(4);
    let one = check().await.map(|decision| degraded(&decision));
    let all = scope.limiter().check_all(&[check()]).await.map(|all| degraded(&all.each()[0]));
    let batch = scope.limiter().batch(&[&[check()]]).await.unwrap().remove(0);
    [one, all, batch.map(|all| degraded(&all.each()[0]))]
}

#[tokio::test]
async fn reservation_on_a_store_without_holds_is_an_error() {
    let limiter = on(failing(false).0);
    let scope = scope(&limiter, LIMITS[0]);
    assert_eq!(scope.reserve("a").await.unwrap_err(), Error::HoldsUnsupported);
    let parts = [scope.reserve("a").into()];
    assert_eq!(limiter.reserve_all(&parts).await.unwrap_err(), Error::HoldsUnsupported);
    let checks = [scope.check("a").into()];
    assert!(limiter.reserve_all(&checks).await.unwrap().is_allowed());
    let checked = scope.peek("a").await.unwrap();
    assert_eq!(checked.remaining(), 9);
    scope.reset("a").await.unwrap();
    assert_eq!(scope.reserve("a").now().unwrap_err(), Error::MustWait);
    assert_eq!(scope.peek("a").await.unwrap().remaining(), 10);
    let jobs = limiter.scope("jobs", JOBS).unwrap_err();
    assert_eq!(jobs, Error::HoldsUnsupported, "a concurrency limit is of no use there");
}

/// A limit of 10 at a time.
const JOBS: &str = "concurrency limit=10 for=1m";

/// The server does nothing until it is released, so a drop that waited for it would never return.
#[tokio::test]
async fn dropped_hold_is_released_without_waiting_for_the_store() {
    let store = ExampleStore::start();
    let limiter = on(store.clone());
    let jobs = scope(&limiter, JOBS);
    let hold = jobs.reserve("a").cost(4).await.unwrap().into_hold();
    let stalled = stall(&store);
    let mut before = pin!(jobs.peek("a").into_future());
    assert!(is_ready(before.as_mut()).is_pending());
    drop(hold);
    drop(stalled);
    // The server answers in order.
    assert_eq!(before.await.unwrap().remaining(), 6);
    assert_eq!(jobs.peek("a").await.unwrap().remaining(), 10);
}

/// The answer is dropped before the server has decided, and after.
#[tokio::test]
async fn unread_reservation_of_a_concurrency_limit_is_released() {
    for is_decided in [false, true] {
        let store = ExampleStore::start();
        let limiter = on(store.clone());
        let jobs = scope(&limiter, JOBS);
        let stalled = (!is_decided).then(|| stall(&store));
        let unread = jobs.reserve("a").cost(4).into_future();
        if is_decided {
            assert_eq!(jobs.peek("a").await.unwrap().remaining(), 6);
        }
        drop(unread);
        drop(stalled);
        assert_eq!(jobs.peek("a").await.unwrap().remaining(), 10, "{is_decided}");
    }
    // Any other hold may have been used, and is left to expire.
    let limiter = on(ExampleStore::start());
    let window = scope(&limiter, LIMITS[0]);
    drop(window.reserve("a").cost(4).into_future());
    assert_eq!(window.peek("a").await.unwrap().remaining(), 6);
}

/// The store has made the reservation after its deadline, when the caller has the error or the decision of the policy.
#[tokio::test(start_paused = true)]
async fn reservation_that_timed_out_is_released() {
    for is_joint in [false, true] {
        for on_failure in [OnFailure::Closed, OnFailure::Open] {
            let store = ExampleStore::start();
            let limiter = on(store.clone());
            let jobs = scope(&limiter, JOBS).on_failure(on_failure);
            let hasty = jobs.clone().deadline(Duration::from_millis(20));
            let stalled = stall(&store);
            let reserve = hasty.reserve("a").cost(4);
            let answer = match is_joint {
                false => reserve.await.map(|one| one.decision().is_degraded()),
                true => {
                    let joint = limiter.reserve_all(&[reserve.into()]).await;
                    joint.map(|joint| joint.decision().is_degraded())
                }
            };
            match (on_failure, answer) {
                (OnFailure::Open, Ok(is_degraded)) => assert!(is_degraded),
                (_, Err(Error::Store(StoreError::Timeout { .. }))) => {}
                (_, other) => panic!("{on_failure:?}: {other:?}"),
            }
            drop(stalled);
            let peek = jobs.deadline(PATIENCE);
            assert_eq!(on_paused_clock(peek.peek("a")).await.unwrap().remaining(), 10);
        }
    }
}

/// On a store across the network the waiters are woken when the store has answered.
#[tokio::test]
async fn settled_hold_of_several_limits_wakes_the_waiters_of_each_key() {
    let limiter = on(ExampleStore::start());
    let scope = |name: &str| limiter.scope(name, "fixed-window limit=10 window=366d").unwrap();
    let (first, second) = (scope("first"), scope("second"));
    let parts = [first.reserve("a").cost(10).into(), second.reserve("a").cost(10).into()];
    let hold = limiter.reserve_all(&parts).await.unwrap().into_hold().unwrap();
    // The window ends in a year: only a wake lets the waiters check again.
    let settled = async {
        while limiter.waiting() < 2 {
            tokio::task::yield_now().await;
        }
        hold.settle(|_| 5).await.unwrap()
    };
    let acquire = async |scope: &Scope| {
        let acquired = tokio::time::timeout(PATIENCE, scope.acquire("a").cost(5).into_future());
        acquired.await.unwrap().unwrap()
    };
    let (one, other, _) = tokio::join!(acquire(&first), acquire(&second), settled);
    for acquired in [one, other] {
        assert!(matches!(acquired, AcquireOutcome::Admitted { .. }), "{acquired:?}");
    }
}

#[tokio::test]
async fn open_policy_admits_as_if_nothing_was_spent_and_charges_nothing() {
    let (limiter, is_failing) = open();
    for text in LIMITS {
        let scope = scope(&limiter, text).on_failure(OnFailure::Open);
        assert_eq!(scope.check("a").cost(3).await.unwrap().remaining(), 7, "{text}");
        is_failing.store(true, Ordering::Relaxed);
        assert_eq!(in_each_way(&scope).await, [Ok((true, 6)), Ok((true, 6)), Ok((true, 6))]);
        is_failing.store(false, Ordering::Relaxed);
        let decision = scope.check("a").await.unwrap();
        assert_eq!((decision.is_degraded(), decision.remaining()), (false, 6), "{text}");
    }
}

/// Two limits of 10 with these policies, and the flag that makes their store fail.
fn pair(policies: [OnFailure; 2]) -> ([Scope; 2], Arc<AtomicBool>) {
    let (limiter, is_failing) = open();
    let scope = |name: &str| limiter.scope(name, "fixed-window limit=10 window=1d").unwrap();
    let [first, second] = policies;
    ([scope("first").on_failure(first), scope("second").on_failure(second)], is_failing)
}

async fn reserve_both([first, second]: &[Scope; 2]) -> Result<JointHoldDecision, Error> {
    let parts = [first.reserve("a").cost(4).into(), second.reserve("a").cost(5).into()];
    first.limiter().reserve_all(&parts).await
}

#[tokio::test]
async fn open_policy_admits_a_reservation_that_is_nowhere_and_settles_it_without_a_charge() {
    let (scopes, is_failing) = pair([OnFailure::Open; 2]);
    is_failing.store(true, Ordering::Relaxed);
    let one = scopes[0].reserve("a").cost(4).await.unwrap();
    assert!(one.decision().is_degraded() && one.hold().unwrap().is_degraded());
    let reserved = reserve_both(&scopes).await.unwrap();
    assert!(reserved.decision().is_degraded());
    let hold = reserved.into_hold().unwrap();
    assert!(hold.holds().iter().all(Hold::is_degraded));
    assert!(hold.extend(|_| (4, MINUTE)).await.unwrap().is_granted());
    assert_eq!(hold.holds()[0].expires_at_us(), START_US + 60_000_000);
    // Also when the store works again: it does not know the hold.
    is_failing.store(false, Ordering::Relaxed);
    let settled = hold.settle(|_| 8).await.unwrap();
    assert!(settled.iter().all(|one| one.is_degraded() && one.receipt().is_none()));
    assert_eq!(one.into_hold().unwrap().settle(8).await.unwrap().charged_units(), 0);
    assert_eq!(scopes[0].peek("a").await.unwrap().remaining(), 10);
}

#[tokio::test]
async fn closed_policy_makes_a_reservation_an_error_also_beside_a_limit_with_another_policy() {
    for policies in [[OnFailure::Closed; 2], [OnFailure::Open, OnFailure::Closed]] {
        let (scopes, is_failing) = pair(policies);
        is_failing.store(true, Ordering::Relaxed);
        assert_eq!(reserve_both(&scopes).await.unwrap_err(), failure().into());
        let one = scopes[1].reserve("a").await;
        assert_eq!(one.unwrap_err(), failure().into());
    }
}

#[tokio::test]
async fn local_policy_holds_units_on_the_share_of_this_process() {
    let (scopes, is_failing) = pair([OnFailure::Local { processes: Some(2) }; 2]);
    is_failing.store(true, Ordering::Relaxed);
    let reserved = reserve_both(&scopes).await.unwrap();
    assert!(reserved.decision().is_degraded());
    assert_eq!(reserved.decision().each()[0].remaining(), 1, "4 of 5 are held");
    assert!(!scopes[0].check("a").cost(2).await.unwrap().is_allowed());
    let hold = reserved.into_hold().unwrap();
    assert!(hold.holds().iter().all(Hold::is_degraded));
    let refused = hold.extend(|_| (1, MINUTE)).await.unwrap();
    assert!(!refused.is_granted() && refused.each()[0].decided().is_allowed());
    assert!(hold.extend(|_| (0, MINUTE)).await.unwrap().is_granted());
    let settled = hold.settle(|_| 3).await.unwrap();
    assert!(settled.iter().all(|one| one.charged_units() == 3 && one.is_degraded()));
    assert!(settled.iter().all(|one| one.receipt().is_none()), "the store knows no such charge");
    assert!(scopes[0].check("a").cost(2).await.unwrap().is_allowed());
    // A single reservation is held there too, and its units are free when it is released.
    let one = scopes[1].reserve("a").cost(2).await.unwrap();
    assert!(!scopes[1].check("a").await.unwrap().is_allowed());
    one.into_hold().unwrap().release().await.unwrap();
    assert!(scopes[1].check("a").await.unwrap().is_allowed());
    is_failing.store(false, Ordering::Relaxed);
    assert_eq!(scopes[0].peek("a").await.unwrap().remaining(), 10);
}

#[tokio::test]
async fn settlement_on_a_failed_store_is_an_error_and_the_units_stay_held() {
    let (scopes, is_failing) = pair([OnFailure::Open; 2]);
    let hold = reserve_both(&scopes).await.unwrap().into_hold().unwrap();
    is_failing.store(true, Ordering::Relaxed);
    assert_eq!(hold.extend(|_| (1, MINUTE)).await.unwrap_err(), failure().into());
    assert_eq!(hold.settle_part(|_| 1).await.unwrap_err(), failure().into());
    is_failing.store(false, Ordering::Relaxed);
    assert_eq!(scopes[0].peek("a").await.unwrap().remaining(), 6);
    // The caller tries again.
    assert_eq!(hold.settle(|_| 1).await.unwrap()[0].charged_units(), 1);
    assert_eq!(scopes[0].peek("a").await.unwrap().remaining(), 9);
}

#[tokio::test]
async fn closed_policy_returns_the_error_of_the_store() {
    let (limiter, is_failing) = open();
    is_failing.store(true, Ordering::Relaxed);
    for text in LIMITS {
        let scope = scope(&limiter, text).on_failure(OnFailure::Closed);
        let error = || Err(failure().into());
        assert_eq!(in_each_way(&scope).await, [error(), error(), error()], "{text}");
    }
}

/// The share is 5 units, half of 10, so one request of 4 fits.
#[tokio::test]
async fn local_policy_admits_the_share_of_this_process() {
    let (limiter, is_failing) = open();
    is_failing.store(true, Ordering::Relaxed);
    for text in LIMITS {
        let scope = scope(&limiter, text).on_failure(OnFailure::Local { processes: Some(2) });
        assert_eq!(in_each_way(&scope).await, [Ok((true, 1)), Ok((false, 1)), Ok((false, 1))]);
    }
}

#[tokio::test]
async fn refunds_resets_and_listings_that_fail_are_errors_under_every_policy() {
    let (limiter, is_failing) = open();
    for policy in [OnFailure::Open, OnFailure::Closed, OnFailure::Local { processes: Some(1) }] {
        is_failing.store(false, Ordering::Relaxed);
        let scope = scope(&limiter, LIMITS[1]).on_failure(policy);
        let receipt = scope.check("a").await.unwrap().into_receipt().unwrap();
        is_failing.store(true, Ordering::Relaxed);
        assert_eq!(scope.refund("a", receipt).await, Err(failure().into()), "{policy:?}");
        assert_eq!(scope.reset("a").await, Err(failure().into()), "{policy:?}");
        assert_eq!(scope.entries("a").await, Err(failure().into()), "{policy:?}");
    }
}

/// Keeps the server busy until the returned sender is dropped.
fn stall(store: &ExampleStore) -> Sender<()> {
    let (release, released) = mpsc::channel();
    store.send(Box::new(move |_| released.recv().unwrap_or(()))).unwrap();
    release
}

/// The check that timed out was charged, and its charge stays.
#[tokio::test(start_paused = true)]
async fn late_answer_is_a_timeout() {
    let store = ExampleStore::start();
    let limiter = on(store.clone());
    let after = Duration::from_millis(20);
    let scope = scope(&limiter, LIMITS[0]).on_failure(OnFailure::Closed).deadline(after);
    let stalled = stall(&store);
    let began = tokio::time::Instant::now();
    let timeout = || StoreError::Timeout { server: String::from("example"), after };
    assert_eq!(scope.check("a").cost(4).await, Err(timeout().into()));
    assert_eq!(began.elapsed().as_millis(), 20);
    drop(stalled);
    assert_eq!(on_paused_clock(scope.deadline(PATIENCE).peek("a")).await.unwrap().remaining(), 6);
}

#[tokio::test(start_paused = true)]
async fn deadline_of_3_ms_sends_no_request() {
    let limiter = on(ExampleStore::start());
    let scope = scope(&limiter, LIMITS[0]).on_failure(OnFailure::Closed).deadline(PATIENCE);
    let refused = on_paused_clock(scope.check("a").within(Duration::from_millis(3))).await;
    assert!(matches!(refused, Err(Error::Store(StoreError::Timeout { .. }))), "{refused:?}");
    assert_eq!(on_paused_clock(scope.peek("a")).await.unwrap().remaining(), 10);
}

/// 3 ms of a caller's deadline are reserved for returning the answer.
#[tokio::test(start_paused = true)]
async fn batch_takes_no_longer_than_its_callers_deadline() {
    let store = ExampleStore::start();
    let limiter = on(store.clone());
    let scope = scope(&limiter, LIMITS[0]).on_failure(OnFailure::Open).deadline(PATIENCE);
    let _stalled = stall(&store);
    let began = tokio::time::Instant::now();
    let check = || [scope.check("a").within(Duration::from_millis(20))];
    let answers = limiter.batch(&[&check(), &check(), &check()]).await.unwrap();
    assert!(answers.iter().all(|answer| answer.as_ref().unwrap().is_degraded()));
    assert_eq!(began.elapsed().as_millis(), 17);
}

/// How long a test waits for an answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Polls an answer without letting the paused clock advance, or the deadline would pass first.
async fn on_paused_clock<T>(answer: impl IntoFuture<Output = T>) -> T {
    let mut answer = pin!(answer.into_future());
    loop {
        match is_ready(answer.as_mut()) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}

fn is_ready<T>(answer: Pin<&mut impl Future<Output = T>>) -> Poll<T> {
    answer.poll(&mut Context::from_waker(Waker::noop()))
}

/// The answer is dropped before the server has decided, and after.
#[tokio::test]
async fn unread_answer_is_refunded_and_wakes_the_next_waiter() {
    for is_decided in [false, true] {
        let store = ExampleStore::start();
        let limiter = on(store.clone());
        let scope = scope(&limiter, "fixed-window limit=1 window=1h");
        let unread = scope.check("a").refunded_if_dropped().into_future();
        let mut waiting = pin!(scope.acquire("a").into_future());
        assert!(is_ready(waiting.as_mut()).is_pending());
        // The server answers in order, so the peek is answered after the waiter's check.
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 0);
        assert!(is_ready(waiting.as_mut()).is_pending());
        let stalled = (!is_decided).then(|| stall(&store));
        let second = scope.check("a").refunded_if_dropped().into_future();
        drop((unread, second));
        drop(stalled);
        let admitted = tokio::time::timeout(PATIENCE, waiting).await.unwrap().unwrap();
        assert!(admitted.is_admitted(), "{is_decided}");
    }
}
