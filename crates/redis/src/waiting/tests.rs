use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::oneshot::error::TryRecvError;
use tollgate_core::{
    Cost, HoldId, HoldReference, HoldTime, HoldUse, Limit, Reservation, UnitRequest,
};
use tollgate_limiter::store::{self, Fallback, Name};
use tollgate_limiter::store::{DecisionSource, Demand};
use tollgate_limiter::{Decision, JointDecision};

use super::*;
use crate::refunds::{Refunds, UnreadCharge, UnreadHolds};
use crate::wire::ServerCharge;

fn shared() -> Arc<StoreContext> {
    let fallback = Arc::new(Fallback::new(None));
    Arc::new(StoreContext::new(Duration::from_millis(10), fallback).unwrap())
}

fn charge() -> ServerCharge {
    let name = Arc::new(Name::new("api", []));
    let limit = "token-bucket capacity=1 refill=1/h".parse::<Limit>().unwrap();
    let original = store::Charge::new(name, b"a", limit, Demand::of(UnitRequest::new(Cost::ONE)));
    ServerCharge { key: b"tollgate:{a}:api".as_slice().into(), original }
}

fn check() -> StoreRequest {
    StoreRequest::Check { charge: charge(), at_us: None }
}

fn reset() -> StoreRequest {
    StoreRequest::Reset { charge: charge() }
}

fn waiting(shared: &Arc<StoreContext>, request: StoreRequest) -> (WaitingRequest, Receiver) {
    let (deadline, on_failure) = (Duration::from_millis(10), OnFailure::Closed);
    WaitingRequest::new(shared, request, &Call { at_us: None, deadline, on_failure })
}

/// The reply to a check of a fresh key.
fn allowed() -> Result<Reply, StoreError> {
    let charge = charge();
    let checked = charge.limit().check(&mut charge.limit().fresh(), 0, UnitRequest::new(Cost::ONE));
    Ok(Reply::Decision(Decision::of_key(checked, charge.original.fingerprint())))
}

/// The reply to a check of a key that has spent its only unit.
fn refused() -> Result<Reply, StoreError> {
    let (charge, ask) = (charge(), UnitRequest::new(Cost::ONE));
    let mut state = charge.limit().fresh();
    let _ = charge.limit().check(&mut state, 0, ask);
    let checked = charge.limit().check(&mut state, 0, ask);
    Ok(Reply::Decision(Decision::of_key(checked, charge.original.fingerprint())))
}

fn timeout() -> StoreError {
    StoreError::Timeout { server: "a".to_owned(), after: Duration::from_millis(10) }
}

fn failed(shared: &StoreContext) -> u64 {
    shared.failures().by_kind().iter().map(|(_, count)| count).sum()
}

/// Counts how often it wakes.
fn counting_wake() -> (Arc<AtomicUsize>, Wake) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    (count, Arc::new(move || _ = counted.fetch_add(1, Ordering::Relaxed)))
}

/// A check that is refunded unless its reply is read, and the refunds that were sent.
fn refundable(
    shared: &Arc<StoreContext>,
) -> (WaitingRequest, Receiver, Arc<UnreadCharge>, Arc<Mutex<Vec<StoreRequest>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&sent);
    let refunds = Arc::new(Refunds::new(move |refund, _| to.lock().push(refund), &shared.fallback));
    let unread = Arc::new(UnreadCharge::new(&refunds, &charge(), None, Arc::new(|| ())));
    let (waiting, receiver) = waiting(shared, check());
    let units = UnreadUnits::Charge(Arc::clone(&unread));
    let waiting = waiting.follow_up(FollowUp::GiveBackUnlessRead(units));
    (waiting, receiver, unread, sent)
}

type SentRequests = Arc<Mutex<Vec<StoreRequest>>>;

/// A reservation, the reply that admits it, and the releases that were sent.
fn reservation(
    shared: &Arc<StoreContext>,
) -> (WaitingRequest, Receiver, Result<Reply, StoreError>, SentRequests) {
    let hold_for = HoldTime::from_us(60_000_000).unwrap();
    let reservation = Reservation { id: HoldId(7), cost: Cost::ONE, hold_for };
    let (one, original) = (charge(), charge().original);
    let demand = Demand::of_reservation(reservation);
    let held = store::Charge::new(Arc::clone(original.name()), b"a", *original.limit(), demand);
    let charges = vec![ServerCharge { original: held, ..one.clone() }];
    let decision = one.limit().peek(&one.limit().fresh(), 0, UnitRequest::new(Cost::ONE));
    let decision = Decision::uncharged(decision, DecisionSource::Store);
    let hold = HoldReference { id: HoldId(7), expires_us: 60_000_000 };
    let joint = JointDecision::of_one(decision, 1).with_holds(vec![Some(hold)]);
    let sent = Arc::new(Mutex::new(Vec::new()));
    let to = Arc::clone(&sent);
    let refunds =
        Arc::new(Refunds::new(move |release, _| to.lock().push(release), &shared.fallback));
    let call = Call { at_us: None, deadline: shared.deadline, on_failure: OnFailure::Closed };
    let unread = UnreadUnits::Holds(Arc::new(UnreadHolds::new(&refunds, &charges, call)));
    let (waiting, receiver) = waiting(shared, StoreRequest::CheckAll { charges, at_us: None });
    let waiting = waiting.follow_up(FollowUp::GiveBackUnlessRead(unread));
    (waiting, receiver, Ok(Reply::JointDecision(joint)), sent)
}

fn is_release_of(request: &StoreRequest, id: u64) -> bool {
    let StoreRequest::Settle { uses, .. } = request else { return false };
    let none = HoldUse { units: 0, is_last: true };
    matches!(uses[..], [(hold, used)] if hold.id == HoldId(id) && used == none)
}

#[test]
fn hold_is_released_when_its_caller_is_gone_or_had_a_timeout_before() {
    let shared = shared();
    let (waiting, receiver, admitted, sent) = reservation(&shared);
    drop(receiver);
    waiting.reply(admitted);
    assert!(matches!(&sent.lock()[..], [release] if is_release_of(release, 7)));
    let (mut waiting, _receiver, admitted, sent) = reservation(&shared);
    waiting.fail_in_place(timeout());
    waiting.reply(admitted);
    assert!(matches!(&sent.lock()[..], [release] if is_release_of(release, 7)));
}

#[test]
fn hold_stays_when_its_caller_reads_the_answer() {
    let shared = shared();
    let (waiting, mut receiver, admitted, sent) = reservation(&shared);
    waiting.reply(admitted);
    assert!(matches!(receiver.try_recv(), Ok(Ok(Reply::JointDecision(_)))));
    assert!(sent.lock().is_empty());
}

#[test]
fn timed_out_request_is_answered_once_when_its_reply_comes_late() {
    let shared = shared();
    for late in [allowed(), Err(StoreError::refused("LOADING"))] {
        let failed_before = failed(&shared);
        let (mut waiting, mut receiver) = waiting(&shared, check());
        waiting.fail_in_place(timeout());
        waiting.fail_in_place(StoreError::Gone);
        assert_eq!(receiver.try_recv().unwrap().unwrap_err(), timeout());
        waiting.reply(late);
        assert_eq!(failed(&shared), failed_before + 1);
    }
}

#[test]
fn replied_request_is_not_failed_when_it_is_dropped() {
    let shared = shared();
    let (waiting, mut receiver) = waiting(&shared, check());
    waiting.reply(allowed());
    assert!(matches!(receiver.try_recv(), Ok(Ok(Reply::Decision(_)))));
    assert_eq!(failed(&shared), 0);
}

#[test]
fn dropped_request_fails_as_gone() {
    let shared = shared();
    let (waiting, mut receiver) = waiting(&shared, check());
    drop(waiting);
    assert_eq!(receiver.try_recv().unwrap().unwrap_err(), StoreError::Gone);
    assert_eq!(shared.failures().last, Some(StoreError::Gone));
    assert_eq!(failed(&shared), 1);
}

#[test]
fn withdrawn_request_counts_as_no_failure() {
    let shared = shared();
    let (waiting, receiver, unread, sent) = refundable(&shared);
    assert!(!waiting.is_abandoned());
    drop(receiver);
    assert!(waiting.is_abandoned());
    waiting.withdraw();
    drop(unread);
    assert_eq!(failed(&shared), 0);
    assert!(sent.lock().is_empty());
}

#[test]
fn late_refusal_is_remembered() {
    let shared = shared();
    let (mut waiting, _receiver) = waiting(&shared, check());
    waiting.fail_in_place(timeout());
    assert!(shared.recall(&charge()).is_none());
    waiting.reply(refused());
    assert!(shared.recall(&charge()).is_some());
}

#[test]
fn late_charge_is_refunded_once_if_it_is_refundable() {
    let shared = shared();
    let (mut waiting, _receiver, unread, sent) = refundable(&shared);
    waiting.fail_in_place(timeout());
    waiting.reply(allowed());
    assert!(sent.lock().is_empty(), "the caller's future still shares the charge");
    drop(unread);
    assert!(matches!(sent.lock()[..], [StoreRequest::Refund { .. }]));
}

#[test]
fn charge_is_refunded_if_the_receiver_is_gone_and_kept_if_it_is_not() {
    for is_gone in [true, false] {
        let shared = shared();
        let (waiting, receiver, unread, sent) = refundable(&shared);
        let receiver = (!is_gone).then_some(receiver);
        waiting.reply(allowed());
        drop(unread);
        assert_eq!(sent.lock().len(), usize::from(is_gone));
        assert_eq!(receiver.is_some_and(|mut it| it.try_recv().is_ok()), !is_gone);
    }
}

#[test]
fn failed_reset_forgets_the_refusal_and_wakes_and_its_late_reply_wakes_again() {
    let shared = shared();
    waiting(&shared, check()).0.reply(refused());
    assert!(shared.recall(&charge()).is_some());
    let (woken, wake) = counting_wake();
    let (waiting, mut receiver) = waiting(&shared, reset());
    let mut waiting = waiting.follow_up(FollowUp::Wake(wake));
    assert!(matches!(receiver.try_recv(), Err(TryRecvError::Empty)));
    waiting.fail_in_place(timeout());
    assert!(shared.recall(&charge()).is_none());
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    waiting.reply(Ok(Reply::Reset));
    assert_eq!(woken.load(Ordering::Relaxed), 2);
}
