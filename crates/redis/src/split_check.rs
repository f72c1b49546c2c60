//! Checks of several limits whose keys are in different places: on different servers, or in different slots of a cluster.
//! No single script can decide such a check. The places are charged one after the other, and the charges are refunded if
//! one place refuses.
//!
//! Each limit decides by itself, so such a check never admits too much. While the check is under way, other requests
//! cannot spend the units that it has charged and may give back. If a server fails meanwhile, units that cannot be
//! given back stay spent.

use std::mem;
use std::sync::{Arc, Weak};

use tollgate_core::{
    CombinedDecision, DecisionPart, HoldReference, Limit, Mode, Role, TightestLimit, Verdict,
};
use tollgate_limiter::store::{self, Call};
use tollgate_limiter::{Decision, JointDecision, StoreError};

use super::address::Deployment;
use super::servers::Servers;
use super::shared::StoreContext;
use super::split_holds;
use super::split_parts::PartSender;
use super::waiting::{FollowUp, Receiver, WaitingRequest};
use super::wire::{Reply, ServerCharge, StoreRequest};

/// Makes the servers of a deployment, without connecting to them.
pub(super) fn servers(shared: &Arc<StoreContext>, deployment: Deployment) -> Arc<Servers> {
    Arc::new_cyclic(|servers: &Weak<Servers>| {
        let (servers, executor) = (Weak::clone(servers), Arc::clone(&shared.executor));
        let split = move |waiting| {
            if let Some(servers) = servers.upgrade() {
                executor.spawn_movable(decide_each(servers, waiting));
            }
        };
        Servers::new(shared, deployment, split)
    })
}

/// Sends a request whose keys may be in different places. It is sent even if the receiver is dropped before.
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
    let task = decide(Arc::clone(servers), waiting.follow_up(follow_up));
    servers.shared().executor.spawn_movable(task);
    receiver
}

/// Decides a check of several limits that are in different places.
async fn decide(servers: Arc<Servers>, waiting: WaitingRequest) {
    let groups = match &waiting.request {
        StoreRequest::CheckAll { charges, .. } => servers.grouped(charges),
        _ => Vec::new(),
    };
    SplitCheck::new(servers, &waiting).decide(groups, waiting).await;
}

/// Decides a request of several limits one limit at a time, because the slot of their keys is being moved.
async fn decide_each(servers: Arc<Servers>, waiting: WaitingRequest) {
    if waiting.request.is_on_open_holds() {
        return split_holds::decide_each(servers, waiting).await;
    }
    let count = waiting.request.charges().len();
    let groups = (0..count).map(|charge| vec![charge]).collect();
    SplitCheck::new(servers, &waiting).decide(groups, waiting).await;
}

/// A check of several limits while its places are charged.
struct SplitCheck {
    sender: PartSender,
    /// The decision on each charge, once it is made.
    answers: Vec<Option<Decision>>,
    /// The hold of each charge whose units were set aside.
    holds: Vec<Option<HoldReference>>,
    /// The decisions of the places that were charged.
    results: Vec<CombinedDecision>,
}

impl SplitCheck {
    fn new(servers: Arc<Servers>, waiting: &WaitingRequest) -> SplitCheck {
        let (mut answers, count) = (Vec::new(), waiting.request.charges().len());
        answers.resize_with(count, || None);
        let sender = PartSender::new(servers, waiting);
        SplitCheck { sender, answers, holds: vec![None; count], results: Vec::new() }
    }

    /// Decides the check. The places are taken in this order:
    ///
    /// 1. places with peeks only: if one of them refuses the check, nothing was charged yet
    /// 2. places whose charges can be given back
    /// 3. places with shaping limits, whose charges can be given back only while no later request was charged
    /// 4. places that cannot refuse, so that they are charged only for checks that all other places admit
    async fn decide(mut self, mut groups: Vec<Vec<usize>>, waiting: WaitingRequest) {
        let reply = match &waiting.request {
            StoreRequest::CheckAll { charges, .. } => {
                groups.sort_by_key(|group| {
                    let (is_last, is_charged) =
                        (!can_refuse(charges, group), has_charge(charges, group));
                    (is_last, is_charged, is_shaping(charges, group))
                });
                let decided = self.charge_all(charges, &groups, &waiting).await;
                decided.and_then(|combined| self.reply(combined).ok_or(StoreError::Gone))
            }
            _ => Err(StoreError::Gone),
        };
        waiting.reply(reply);
    }

    /// Charges one place after the other, up to the first that refuses or fails.
    async fn charge_all(
        &mut self,
        charges: &[ServerCharge],
        groups: &[Vec<usize>],
        whole: &WaitingRequest,
    ) -> Result<CombinedDecision, StoreError> {
        for (index, group) in groups.iter().enumerate() {
            match self.charge(charges, group, whole.follow_up_of_parts(group)).await {
                Ok(combined) if combined.verdict.is_allowed() => self.results.push(combined),
                Ok(_) => {
                    self.give_back(charges, &groups[..index]);
                    self.holds.fill(None);
                    let others = groups[..index].iter().chain(&groups[index + 1..]).flatten();
                    self.peek_others(charges, others.copied().collect()).await;
                    return self.refusal(charges).ok_or(StoreError::Gone);
                }
                // A failure of shadow limits must not fail the check.
                Err(_) if group.iter().all(|&at| charges[at].demand().role == Role::Shadow) => {
                    self.decide_unspent(charges, group);
                }
                Err(error) => {
                    self.give_back(charges, &groups[..index]);
                    return Err(error);
                }
            }
        }
        Ok(combined(&self.results))
    }

    /// Charges one place, all or none. If its reply comes too late, the holds in it are released (`follow_up`).
    async fn charge(
        &mut self,
        charges: &[ServerCharge],
        group: &[usize],
        follow_up: FollowUp,
    ) -> Result<CombinedDecision, StoreError> {
        let own: Vec<ServerCharge> = group.iter().map(|&at| charges[at].clone()).collect();
        let originals: Vec<store::Charge> =
            own.iter().map(|charge| charge.original.clone()).collect();
        let PartSender { servers, call, .. } = &self.sender;
        let request = StoreRequest::CheckAll { charges: own, at_us: call.at_us };
        let joint = match self.sender.submit(request, follow_up).await {
            Ok(Ok(Reply::JointDecision(joint))) => joint,
            // If the server failed, the failure policy decides its charges. The other servers are charged all the same.
            Ok(Err(error)) => {
                servers.shared().fallback.decide_all(&originals, call).ok_or(error)?
            }
            _ => return Err(StoreError::Gone),
        };
        let combined = *joint.decided();
        for (index, &at) in group.iter().enumerate() {
            self.holds[at] = joint.hold(index);
        }
        for (&at, answer) in group.iter().zip(joint.into_each()) {
            self.answers[at] = Some(answer);
        }
        Ok(combined)
    }

    /// Refunds the charges of these groups and releases their holds, without waiting for the replies. A later request to the
    /// same place is decided after the refund, except if the key is under another limit: then the script may put the refund
    /// off.
    fn give_back(&mut self, charges: &[ServerCharge], groups: &[Vec<usize>]) {
        let PartSender { servers, call, .. } = &self.sender;
        for &at in groups.iter().flatten() {
            let is_degraded = self.answers[at].as_ref().is_some_and(Decision::is_degraded);
            match self.holds[at].take() {
                Some(hold) if is_degraded => {
                    // It is on this process's share of the limit.
                    servers.shared().fallback.release(&charges[at].original, hold, call);
                }
                Some(hold) => {
                    let release = StoreRequest::release(charges[at].clone(), hold, call.at_us);
                    servers.give_back(release, FollowUp::Nothing);
                }
                None => {}
            }
            let receipt = self.answers[at].as_mut().and_then(Decision::take_receipt);
            if let Some(receipt) = receipt {
                let (charge, place) = (charges[at].clone(), receipt.place());
                let refund = StoreRequest::Refund { charge, place, at_us: call.at_us };
                servers.give_back(refund, FollowUp::Nothing);
            }
        }
    }

    /// Peeks at the charges that did not refuse, because the answer has a decision for each charge.
    async fn peek_others(&mut self, charges: &[ServerCharge], others: Vec<usize>) {
        let PartSender { servers, call, .. } = &self.sender;
        let instead = |charge: &ServerCharge| {
            // A peek, because a charge would be made on the share although the check is refused.
            let decided = servers.shared().fallback.decide(&charge.original.as_peek(), call);
            decided.unwrap_or_else(|| self.sender.decide_unspent(charge))
        };
        for (at, decision) in self.sender.peek_all(charges, others, instead).await {
            self.answers[at] = Some(decision);
        }
    }

    /// Decides shadow charges whose server failed as if their keys had spent nothing: they cannot refuse, so the answer
    /// does not depend on them.
    fn decide_unspent(&mut self, charges: &[ServerCharge], group: &[usize]) {
        for &at in group {
            self.answers[at] = Some(self.sender.decide_unspent(&charges[at]));
        }
    }

    /// Returns the decision of all charges when one refuses.
    fn refusal(&self, charges: &[ServerCharge]) -> Option<CombinedDecision> {
        let parts = charges
            .iter()
            .zip(&self.answers)
            .map(|(charge, answer)| Some(charge.part(answer.as_ref()?.decided())))
            .collect::<Option<Vec<DecisionPart>>>()?;
        Some(CombinedDecision::of(parts))
    }

    fn reply(&mut self, combined: CombinedDecision) -> Option<Reply> {
        let each = mem::take(&mut self.answers).into_iter().collect::<Option<_>>()?;
        let joint = JointDecision::new(combined, each);
        let holds = mem::take(&mut self.holds);
        Some(Reply::JointDecision(match holds.iter().any(Option::is_some) {
            true => joint.with_holds(holds),
            false => joint,
        }))
    }
}

fn can_refuse(charges: &[ServerCharge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].demand().role == Role::Enforced)
}

/// Whether the group has a charge that may have to be refunded.
fn has_charge(charges: &[ServerCharge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].is_charged())
}

/// Whether the group has a shaping limit. Its charge can be given back only while no later request was charged.
fn is_shaping(charges: &[ServerCharge], group: &[usize]) -> bool {
    let is_shaping =
        |limit: &Limit| matches!(limit, Limit::LeakyBucket(own) if own.mode() == Mode::Shaping);
    group.iter().any(|&at| is_shaping(charges[at].limit()))
}

/// Returns the decision of places that all admit the check.
fn combined(places: &[CombinedDecision]) -> CombinedDecision {
    let delay_us = places.iter().map(|place| place.verdict.delay_us()).max().unwrap_or(0);
    CombinedDecision {
        verdict: Verdict::Allowed { delay_us },
        refused_by: None,
        tightest: places.iter().filter_map(|place| place.tightest).reduce(tighter),
        reset_after_us: places.iter().map(|place| place.reset_after_us).max().unwrap_or(0),
    }
}

/// Returns the tighter of two limits that admit the request.
fn tighter(one: TightestLimit, other: TightestLimit) -> TightestLimit {
    if other.is_tighter_than(&one) { other } else { one }
}
