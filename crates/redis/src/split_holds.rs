//! Settlements and extensions of holds that are in different places: on different servers, or in different slots of a
//! cluster.
//!
//! A settlement is never refused, so its parts are sent to all places at once. The places of an extension are extended one
//! after the other; if one refuses, the extensions before it are taken back.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{
    ExtendAnswer, Extension, HoldGrowth, HoldReference, LimitDecision, SettleAnswer, Verdict,
};
use tollgate_limiter::StoreError;
use tollgate_limiter::store::Call;

use super::servers::Servers;
use super::waiting::{FollowUp, Receiver, WaitingRequest};
use super::wire::{Reply, ServerCharge, StoreRequest};

/// Sends a settlement or an extension, whose keys may be in different places. It is sent even if the receiver is dropped
/// before.
pub(super) fn submit(
    servers: &Arc<Servers>,
    request: StoreRequest,
    call: &Call,
    follow_up: FollowUp,
) -> Receiver {
    if !servers.is_split(&request) {
        return servers.submit(request, call, follow_up);
    }
    let (waiting, receiver) = WaitingRequest::new(servers.shared(), request, call);
    let groups = servers.grouped(waiting.request.charges());
    let task = decide(Arc::clone(servers), waiting.follow_up(follow_up), groups);
    servers.shared().executor.spawn_movable(task);
    receiver
}

/// Decides a request one hold at a time, because the slot of the keys is being moved.
pub(super) async fn decide_each(servers: Arc<Servers>, waiting: WaitingRequest) {
    let groups = (0..waiting.request.charges().len()).map(|part| vec![part]).collect();
    decide(servers, waiting, groups).await;
}

async fn decide(servers: Arc<Servers>, waiting: WaitingRequest, groups: Vec<Vec<usize>>) {
    let split = SplitHolds { servers, call: waiting.call(), deadline: waiting.deadline };
    let reply = match &waiting.request {
        StoreRequest::Settle { .. } => split.settle(&waiting.request, &groups).await,
        StoreRequest::Extend { charges, growths, .. } => {
            split.extend(&waiting.request, (charges, growths), &groups).await
        }
        _ => Err(StoreError::Gone),
    };
    waiting.reply(reply);
}

/// A request on holds in several places.
struct SplitHolds {
    servers: Arc<Servers>,
    call: Call,
    deadline: Instant,
}

impl SplitHolds {
    /// Sends a part of the request, with the deadline of the whole request.
    fn submit(&self, request: StoreRequest) -> Receiver {
        let (waiting, receiver) = WaitingRequest::new(self.servers.shared(), request, &self.call);
        self.servers.put(waiting.no_later_than(self.deadline));
        receiver
    }

    async fn settle(
        &self,
        request: &StoreRequest,
        groups: &[Vec<usize>],
    ) -> Result<Reply, StoreError> {
        let receivers: Vec<Receiver> =
            groups.iter().map(|group| self.submit(request.of_parts(group))).collect();
        let mut answers: Vec<Option<SettleAnswer>> = Vec::new();
        answers.resize_with(request.charges().len(), || None);
        let mut failed = None;
        for (group, receiver) in groups.iter().zip(receivers) {
            match receiver.await {
                Ok(Ok(Reply::Settled(settled))) => {
                    let parts = group.iter().zip(settled);
                    parts.for_each(|(&part, answer)| answers[part] = Some(answer));
                }
                Ok(Err(error)) => failed = failed.or(Some(error)),
                _ => failed = failed.or(Some(StoreError::Gone)),
            }
        }
        let answers = answers.into_iter().collect::<Option<_>>();
        answers.map(Reply::Settled).ok_or(failed.unwrap_or(StoreError::Gone))
    }

    async fn extend(
        &self,
        request: &StoreRequest,
        (charges, growths): (&[ServerCharge], &[(HoldReference, HoldGrowth)]),
        groups: &[Vec<usize>],
    ) -> Result<Reply, StoreError> {
        let mut answers: Vec<Option<ExtendAnswer>> = vec![None; charges.len()];
        for (index, group) in groups.iter().enumerate() {
            let extended = match self.submit(request.of_parts(group)).await {
                Ok(Ok(Reply::Extended(extended))) => extended,
                failed => {
                    self.take_back(charges, growths, &groups[..index]);
                    return Err(failed.ok().and_then(Result::err).unwrap_or(StoreError::Gone));
                }
            };
            let is_granted = extended.iter().all(is_granted);
            group.iter().zip(extended).for_each(|(&part, answer)| answers[part] = Some(answer));
            if !is_granted {
                self.take_back(charges, growths, &groups[..index]);
                self.peek_others(charges, &mut answers).await;
                break;
            }
        }
        let answers = answers.into_iter().collect::<Option<_>>();
        answers.map(Reply::Extended).ok_or(StoreError::Gone)
    }

    /// Takes the extensions of these groups back, without waiting for the replies.
    fn take_back(
        &self,
        charges: &[ServerCharge],
        growths: &[(HoldReference, HoldGrowth)],
        groups: &[Vec<usize>],
    ) {
        for &part in groups.iter().flatten() {
            let (charges, growths) = (vec![charges[part].clone()], vec![growths[part]]);
            let request = StoreRequest::Shrink { charges, growths, at_us: self.call.at_us };
            self.servers.give_back(request, FollowUp::Nothing);
        }
    }

    /// Answers the other parts, by a peek: parts whose extension is taken back, and parts that were sent to no server.
    async fn peek_others(&self, charges: &[ServerCharge], answers: &mut [Option<ExtendAnswer>]) {
        for (charge, answer) in charges.iter().zip(answers) {
            if let Some(own) = answer.filter(|own| !is_granted(own)) {
                *answer = Some(own);
                continue;
            }
            let peek = StoreRequest::Peek { charge: charge.clone(), at_us: self.call.at_us };
            let peeked = match self.submit(peek).await {
                Ok(Ok(Reply::Decision(decision))) => Some(decision),
                _ => None,
            };
            *answer = match (peeked, *answer) {
                (Some(decision), None) => Some(refused(*decision.decided())),
                (Some(decision), Some(_)) => Some(refused(allowed(*decision.decided()))),
                (None, Some(own)) => Some(refused(own.decision)),
                (None, None) => None,
            };
        }
    }
}

fn is_granted(answer: &ExtendAnswer) -> bool {
    matches!(answer.extension, Extension::Granted { .. })
}

fn allowed(decision: LimitDecision) -> LimitDecision {
    LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision }
}

fn refused(decision: LimitDecision) -> ExtendAnswer {
    ExtendAnswer { decision, extension: Extension::Refused }
}
