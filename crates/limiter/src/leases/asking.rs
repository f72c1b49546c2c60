//! The check that a request to the store decides.

use std::fmt;
use std::sync::Arc;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_core::{CheckResult, LeaseAnswer};

use crate::answer::UnreadAnswer;
use crate::decision::Decision;
use crate::error::Error;
use crate::store::{Call, Charge, RemoteStore, UnreadPolicy};

/// The outcome of waiting, for one check.
#[derive(Debug)]
pub(crate) enum WaitOutcome {
    /// The decision. It is undone if the caller has given up.
    Decided(UnreadAnswer<Decision>),
    /// The store failed to decide this check.
    Failed(Error),
    /// Nothing is decided: check the store, as without leases.
    Store,
}

/// A check whose caller waits, and which a request can decide.
pub(super) struct AskingCheck {
    call: Call,
    if_unread: UnreadPolicy,
    /// When its deadline passes.
    until: Instant,
    caller: oneshot::Sender<WaitOutcome>,
}

impl fmt::Debug for AskingCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AskingCheck").field("call", &self.call).finish_non_exhaustive()
    }
}

impl AskingCheck {
    /// Returns the check, and the outcome for its caller to wait for.
    pub(super) fn new(
        (call, if_unread): (Call, UnreadPolicy),
    ) -> (AskingCheck, oneshot::Receiver<WaitOutcome>) {
        let (caller, outcome) = oneshot::channel();
        let until = Instant::now() + call.deadline;
        (AskingCheck { call, if_unread, until, caller }, outcome)
    }

    /// Returns when the check's deadline passes.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Returns the terms of a request that decides this check: it has the rest of the check's deadline.
    pub(super) fn call(&self) -> Call {
        Call { deadline: self.until.saturating_duration_since(Instant::now()), ..self.call }
    }

    /// Sends the outcome to the caller. A caller that has given up drops it, which undoes it.
    pub(super) fn answer(self, outcome: WaitOutcome) {
        let _ = self.caller.send(outcome);
    }

    /// Answers the check with the store's answer to the request that had it as its need.
    pub(super) fn answer_from(
        self,
        store: &Arc<dyn RemoteStore>,
        charge: &Charge,
        answer: Result<LeaseAnswer, Error>,
    ) {
        let LeaseAnswer { decision, receipt, .. } = match answer {
            Ok(answer) => answer,
            Err(error) => return self.answer(WaitOutcome::Failed(error)),
        };
        let decision = Decision::of_key(CheckResult { decision, receipt }, charge.fingerprint());
        let (store, charge, call) = (Arc::clone(store), charge.clone(), self.call);
        let unread = self.if_unread.clone().guard(decision, move |receipt, wake| {
            drop(store.refund(charge.clone(), receipt, call, wake));
        });
        self.answer(WaitOutcome::Decided(unread));
    }
}
