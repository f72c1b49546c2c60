//! Settlements and extensions of holds that are in different places: on different servers, or in different slots of a
//! cluster.
//!
//! A settlement is never refused, so its parts are sent to all places at once. The places of an extension are extended one
//! after the other; if one refuses, the extensions before it are taken back.

use std::sync::Arc;

use tollgate_core::{ExtendAnswer, Extension, HoldGrowth, HoldReference, HoldUse, SettleAnswer};
use tollgate_limiter::StoreError;
use tollgate_limiter::store::Call;

use super::refunds::{UnreadExtensions, UnreadUnits, granted};
use super::servers::Servers;
use super::split_parts::PartSender;
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
    let split = SplitHolds { sender: PartSender::new(servers, &waiting) };
    let reply = match &waiting.request {
        StoreRequest::Settle { charges, uses, .. } => split.settle(charges, uses, &groups).await,
        StoreRequest::Extend { charges, growths, .. } => {
            split.extend(charges, growths, &groups).await
        }
        _ => Err(StoreError::Gone),
    };
    waiting.reply(reply);
}

/// A request on holds in several places.
struct SplitHolds {
    sender: PartSender,
}

impl SplitHolds {
    async fn settle(
        &self,
        charges: &[ServerCharge],
        uses: &[(HoldReference, HoldUse)],
        groups: &[Vec<usize>],
    ) -> Result<Reply, StoreError> {
        let settle = |group: &Vec<usize>| {
            let (charges, uses) = (picked(charges, group), picked(uses, group));
            let request = StoreRequest::Settle { charges, uses, at_us: self.sender.call.at_us };
            self.sender.submit(request, FollowUp::Nothing)
        };
        let receivers: Vec<Receiver> = groups.iter().map(settle).collect();
        let mut answers: Vec<Option<SettleAnswer>> = Vec::new();
        answers.resize_with(charges.len(), || None);
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
        charges: &[ServerCharge],
        growths: &[(HoldReference, HoldGrowth)],
        groups: &[Vec<usize>],
    ) -> Result<Reply, StoreError> {
        let mut answers: Vec<Option<ExtendAnswer>> = vec![None; charges.len()];
        for group in groups {
            let (own, own_growths) = (picked(charges, group), picked(growths, group));
            let extended = match self.extend_group(own, own_growths).await {
                Ok(extended) => extended,
                Err(error) => {
                    self.take_back(charges, growths, &answers);
                    return Err(error);
                }
            };
            if extended.iter().all(ExtendAnswer::is_granted) {
                group.iter().zip(extended).for_each(|(&part, answer)| answers[part] = Some(answer));
                continue;
            }
            self.take_back(charges, growths, &answers);
            group.iter().zip(extended).for_each(|(&part, answer)| answers[part] = Some(answer));
            self.peek_others(charges, growths, &mut answers).await;
            break;
        }
        let answers = answers.into_iter().collect::<Option<_>>();
        answers.map(Reply::Extended).ok_or(StoreError::Gone)
    }

    /// Extends the holds of one place, all or none. If the reply comes too late, the extensions are taken back.
    async fn extend_group(
        &self,
        charges: Vec<ServerCharge>,
        growths: Vec<(HoldReference, HoldGrowth)>,
    ) -> Result<Vec<ExtendAnswer>, StoreError> {
        let servers = Arc::clone(&self.sender.servers);
        let take_back = move |request| servers.give_back(request, FollowUp::Nothing);
        let at_us = self.sender.call.at_us;
        let unread = UnreadExtensions::new(take_back, &charges, &growths, at_us);
        let follow_up = FollowUp::GiveBackUnlessRead(UnreadUnits::Extensions(Arc::new(unread)));
        let request = StoreRequest::Extend { charges, growths, at_us };
        match self.sender.submit(request, follow_up).await {
            Ok(Ok(Reply::Extended(extended))) => Ok(extended),
            failed => Err(failed.ok().and_then(Result::err).unwrap_or(StoreError::Gone)),
        }
    }

    /// Takes the extensions back that were granted, without waiting for the replies.
    fn take_back(
        &self,
        charges: &[ServerCharge],
        growths: &[(HoldReference, HoldGrowth)],
        answers: &[Option<ExtendAnswer>],
    ) {
        for (charge, (&growth, answer)) in charges.iter().zip(growths.iter().zip(answers)) {
            if let Some(extended) = answer.as_ref().and_then(|own| granted(growth, own)) {
                let (charge, at_us) = (charge.clone(), self.sender.call.at_us);
                let request = StoreRequest::TakeBack { charge, extended, at_us };
                self.sender.servers.give_back(request, FollowUp::Nothing);
            }
        }
    }

    /// Answers the other parts, by peeks: parts whose extension is taken back, and parts that were sent to no server.
    async fn peek_others(
        &self,
        charges: &[ServerCharge],
        growths: &[(HoldReference, HoldGrowth)],
        answers: &mut [Option<ExtendAnswer>],
    ) {
        let is_other = |answer: &Option<ExtendAnswer>| answer.is_none_or(|own| own.is_granted());
        let others = (0..charges.len()).filter(|&at| is_other(&answers[at])).collect();
        let unspent = |charge: &ServerCharge| self.sender.decide_unspent(charge);
        for (at, peeked) in self.sender.peek_all(charges, others, unspent).await {
            let decision = *peeked.decided();
            // An extension that adds no units is never refused.
            let would_fit = answers[at].is_some() || growths[at].1.more.is_none();
            answers[at] = Some(match would_fit || decision.is_allowed() {
                true => ExtendAnswer::refused_for_another(decision),
                false => ExtendAnswer { decision, extension: Extension::Refused },
            });
        }
    }
}

fn picked<T: Clone>(all: &[T], parts: &[usize]) -> Vec<T> {
    parts.iter().map(|&part| all[part].clone()).collect()
}
