//! A check in flight to the store.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::runtime::Handle;
use tollgate_limiter::{Answer, Decision, HoldDecision};

use super::store_answer::StoreAnswer;
use super::waiting::WaitingSlot;
use tollgate_identity::Findings;
use tollgate_rules::{ReservationAnswer, RulesAnswer, RulesHold, Ruling};

/// A check in flight to the store. It holds a waiting slot if the store may delay the request.
pub(super) struct PendingCheck {
    /// `None` after the answer.
    query: Option<StoreQuery>,
    slot: Option<WaitingSlot>,
    pub(super) findings: Findings,
}

/// The store's answer, with what was known before it.
pub(super) struct CheckReply {
    pub(super) answer: StoreAnswer,
    pub(super) slot: Option<WaitingSlot>,
    pub(super) findings: Findings,
}

/// A request to the store, with its answer.
pub(super) enum StoreQuery {
    Limit {
        answer: Answer<Decision>,
        cost: u64,
        /// The request's key, if its charge may be refunded.
        key: Option<Box<[u8]>>,
    },
    Reservation {
        answer: Answer<HoldDecision>,
        cost: u64,
        key: Box<[u8]>,
    },
    Rules(RulesAnswer),
    RulesReservation(ReservationAnswer),
}

impl PendingCheck {
    pub(super) fn new(query: StoreQuery, slot: Option<WaitingSlot>) -> PendingCheck {
        PendingCheck { query: Some(query), slot, findings: Findings::default() }
    }
}

impl Future for PendingCheck {
    type Output = CheckReply;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<CheckReply> {
        let this = self.get_mut();
        let Some(query) = &mut this.query else { return Poll::Pending };
        let answer = ready!(query.poll(context));
        this.query = None;
        let (slot, findings) = (this.slot.take(), mem::take(&mut this.findings));
        Poll::Ready(CheckReply { answer, slot, findings })
    }
}

impl StoreQuery {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<StoreAnswer> {
        Poll::Ready(match self {
            StoreQuery::Limit { answer, cost, key } => {
                match ready!(Pin::new(answer).poll(context)) {
                    Ok(decision) => {
                        let (cost, key) = (*cost, key.take());
                        StoreAnswer::Limit { decision, hold: None, cost, key }
                    }
                    Err(error) => StoreAnswer::Undecided(error),
                }
            }
            StoreQuery::Reservation { answer, cost, key } => {
                match ready!(Pin::new(answer).poll(context)) {
                    Ok(reserved) => StoreAnswer::reserved(reserved, *cost, mem::take(key)),
                    Err(error) => StoreAnswer::Undecided(error),
                }
            }
            StoreQuery::Rules(answer) => {
                let ruling = ready!(Pin::new(answer).poll(context));
                ruling.map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules)
            }
            StoreQuery::RulesReservation(answer) => {
                let ruling = ready!(Pin::new(answer).poll(context));
                ruling.map_or_else(StoreAnswer::Undecided, StoreAnswer::Rules)
            }
        })
    }
}

/// If a request is dropped before the store has answered, gives back what the store may have granted to the request:
/// the hold, or the charges of rules that may delay the request. The charge of a single limit stays, or is refunded by
/// the store.
impl Drop for PendingCheck {
    fn drop(&mut self) {
        let (query, Ok(runtime)) = (self.query.take(), Handle::try_current()) else { return };
        match query {
            Some(StoreQuery::Reservation { answer, .. }) => {
                runtime.spawn(async move {
                    if let Ok((_, Some(hold))) = answer.await.map(HoldDecision::into_parts) {
                        // If this fails, the hold is charged in full at its expiry.
                        drop(hold.release().await);
                    }
                });
            }
            Some(StoreQuery::Rules(answer)) if self.slot.is_some() => {
                runtime.spawn(async move { answer.await.map(Ruling::give_back) });
            }
            Some(StoreQuery::RulesReservation(answer)) => {
                let gives_back = self.slot.is_some();
                runtime.spawn(async move {
                    let Ok(mut ruling) = answer.await else { return };
                    let released = ruling.take_hold().map(RulesHold::release);
                    if gives_back {
                        ruling.give_back();
                    }
                    if let Some(released) = released {
                        drop(released.await);
                    }
                });
            }
            _ => {}
        }
    }
}
