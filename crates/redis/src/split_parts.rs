//! The parts of a request whose keys are in different places.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_limiter::Decision;
use tollgate_limiter::store::Call;

use super::servers::Servers;
use super::waiting::{FollowUp, Receiver, WaitingRequest};
use super::wire::{Reply, ServerCharge, StoreRequest};

/// Sends the parts of one request, with its deadline and its failure policy.
pub(super) struct PartSender {
    pub(super) servers: Arc<Servers>,
    pub(super) call: Call,
    deadline: Instant,
}

impl PartSender {
    pub(super) fn new(servers: Arc<Servers>, whole: &WaitingRequest) -> PartSender {
        PartSender { servers, call: whole.call(), deadline: whole.deadline }
    }

    pub(super) fn submit(&self, request: StoreRequest, follow_up: FollowUp) -> Receiver {
        let (waiting, receiver) = WaitingRequest::new(self.servers.shared(), request, &self.call);
        self.servers.put(waiting.no_later_than(self.deadline).follow_up(follow_up));
        receiver
    }

    /// Peeks at the charges with these indexes, all at once. Returns the index and the decision of each; if a server
    /// fails, the decision that `instead` returns.
    pub(super) async fn peek_all(
        &self,
        charges: &[ServerCharge],
        indexes: Vec<usize>,
        instead: impl Fn(&ServerCharge) -> Decision,
    ) -> Vec<(usize, Decision)> {
        let peek = |at: usize| {
            let request =
                StoreRequest::Peek { charge: charges[at].clone(), at_us: self.call.at_us };
            (at, self.submit(request, FollowUp::Nothing))
        };
        let receivers: Vec<_> = indexes.into_iter().map(peek).collect();
        let mut decisions = Vec::with_capacity(receivers.len());
        for (at, receiver) in receivers {
            decisions.push(match receiver.await {
                Ok(Ok(Reply::Decision(decision))) => (at, decision),
                _ => (at, instead(&charges[at])),
            });
        }
        decisions
    }

    /// Returns the decision on a key that has spent nothing.
    pub(super) fn decide_unspent(&self, charge: &ServerCharge) -> Decision {
        self.servers.shared().fallback.decide_unspent(&charge.original, &self.call)
    }
}
