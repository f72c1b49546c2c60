//! Checks of several limits whose keys are in different places, which no single script can decide. The places are charged
//! one after the other, and the charges are refunded if one place refuses.
//!
//! Each limit admits exactly what it would by itself, so this never admits too much. While a check is under way, other
//! requests miss the units that it may give back. Units that cannot be given back, because a server fails meanwhile, stay
//! spent.

use std::mem;
use std::sync::{Arc, Weak};

use tokio::time::Instant;
use tollgate_core::{CombinedDecision, DecisionPart, Limit, Mode, Role, TightestLimit, Verdict};
use tollgate_limiter::store::{self, Call};
use tollgate_limiter::{Decision, JointDecision, StoreError};

use super::address::Deployment;
use super::servers::Servers;
use super::shared::Shared;
use super::waiting::{AndThen, Receiver, WaitingRequest};
use super::wire::{Charge, Reply, Request};

/// Begins to use servers; none is connected yet.
pub(super) fn servers(shared: &Arc<Shared>, deployment: Deployment) -> Arc<Servers> {
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

/// Sends a request whose keys may be in different places. It stays sent when the receiver is dropped.
pub(super) fn submit(servers: &Arc<Servers>, request: Request, call: &Call) -> Receiver {
    if !servers.is_across(&request) {
        return servers.submit(request, call, AndThen::Nothing);
    }
    let (waiting, receiver) = WaitingRequest::new(servers.shared(), request, call);
    servers.shared().executor.spawn_movable(decide(Arc::clone(servers), waiting));
    receiver
}

/// Decides a check of several limits that are in different places.
async fn decide(servers: Arc<Servers>, waiting: WaitingRequest) {
    let groups = match &waiting.request {
        Request::CheckAll { charges, .. } => grouped(charges, |charge| servers.place(&charge.key)),
        _ => Vec::new(),
    };
    Across::new(servers, &waiting).decide(groups, waiting).await;
}

/// Decides a check of several limits each on its own, because their slot is being moved.
async fn decide_each(servers: Arc<Servers>, waiting: WaitingRequest) {
    let count = waiting.request.charges().len();
    let groups = (0..count).map(|charge| vec![charge]).collect();
    Across::new(servers, &waiting).decide(groups, waiting).await;
}

/// Returns the charges of each place, in order.
fn grouped(charges: &[Charge], place: impl Fn(&Charge) -> usize) -> Vec<Vec<usize>> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for (index, charge) in charges.iter().enumerate() {
        let place = place(charge);
        match groups.iter_mut().find(|(other, _)| *other == place) {
            Some((_, group)) => group.push(index),
            None => groups.push((place, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).collect()
}

struct Across {
    servers: Arc<Servers>,
    call: Call,
    deadline: Instant,
    /// Each charge's answer, once there is one.
    answers: Vec<Option<Decision>>,
    /// The results of the places that were charged.
    together: Vec<CombinedDecision>,
}

impl Across {
    fn new(servers: Arc<Servers>, waiting: &WaitingRequest) -> Across {
        let mut answers = Vec::new();
        answers.resize_with(waiting.request.charges().len(), || None);
        let (call, deadline) = (waiting.call(), waiting.deadline);
        Across { servers, call, deadline, answers, together: Vec::new() }
    }

    /// Decides the check, in this order: first the places that are only looked at, because a check that they refuse is
    /// charged nowhere; then the places that can give their charges back, then the places that cannot (shaping limits); last
    /// the places that cannot refuse, which are so charged only for checks that all others admit.
    async fn decide(mut self, mut groups: Vec<Vec<usize>>, waiting: WaitingRequest) {
        let reply = match &waiting.request {
            Request::CheckAll { charges, .. } => {
                groups.sort_by_key(|group| {
                    let (last, not_first) = (!can_refuse(charges, group), takes(charges, group));
                    (last, not_first, has_queue(charges, group))
                });
                let decided = self.charge_all(charges, &groups).await;
                decided.and_then(|together| self.reply(together).ok_or(StoreError::Gone))
            }
            _ => Err(StoreError::Gone),
        };
        waiting.reply(reply);
    }

    /// Charges one place after the other, up to the first that refuses or fails.
    async fn charge_all(
        &mut self,
        charges: &[Charge],
        groups: &[Vec<usize>],
    ) -> Result<CombinedDecision, StoreError> {
        for (index, group) in groups.iter().enumerate() {
            match self.charge(charges, group).await {
                Ok(together) if together.verdict.is_allowed() => self.together.push(together),
                Ok(_) => {
                    self.give_back(charges, &groups[..index]);
                    let others = groups[..index].iter().chain(&groups[index + 1..]).flatten();
                    self.look(charges, others.copied().collect()).await;
                    return self.refusal(charges).ok_or(StoreError::Gone);
                }
                // A failure of shadow limits must not fail the check.
                Err(_) if group.iter().all(|&at| charges[at].demand().role == Role::Shadow) => {
                    self.leave_undecided(charges, group);
                }
                Err(error) => {
                    self.give_back(charges, &groups[..index]);
                    return Err(error);
                }
            }
        }
        Ok(all_of(&self.together))
    }

    /// Charges one place, all or none.
    async fn charge(
        &mut self,
        charges: &[Charge],
        group: &[usize],
    ) -> Result<CombinedDecision, StoreError> {
        let own: Vec<Charge> = group.iter().map(|&at| charges[at].clone()).collect();
        let originals: Vec<store::Charge> = own.iter().map(|charge| charge.of.clone()).collect();
        let request = Request::CheckAll { charges: own, at_us: self.call.at_us };
        let joint = match self.ask(request).await {
            Ok(Reply::JointDecision(joint)) => joint,
            Ok(_) => return Err(StoreError::Gone),
            // The failure policy decides what its server failed to; the other servers are charged all the same.
            Err(error) => {
                let fallback = &self.servers.shared().fallback;
                fallback.decide_all(&originals, &self.call).ok_or(error)?
            }
        };
        let together = *joint.decided();
        for (&at, answer) in group.iter().zip(joint.into_each()) {
            self.answers[at] = Some(answer);
        }
        Ok(together)
    }

    /// Refunds what was charged, without waiting for it. A later request to the same place is decided after the refund,
    /// except if the key is under another limit: then the script may put the refund off.
    fn give_back(&mut self, charges: &[Charge], groups: &[Vec<usize>]) {
        for &at in groups.iter().flatten() {
            let receipt = self.answers[at].as_mut().and_then(Decision::take_receipt);
            if let Some(receipt) = receipt {
                let (charge, place) = (charges[at].clone(), receipt.place());
                let refund = Request::Refund { charge, place, at_us: self.call.at_us };
                self.servers.give_back(refund, AndThen::Nothing);
            }
        }
    }

    /// Looks at the charges that were not refused, because the answer has a decision for each.
    async fn look(&mut self, charges: &[Charge], others: Vec<usize>) {
        let peeks: Vec<_> = others
            .into_iter()
            .map(|at| {
                let (charge, at_us) = (charges[at].clone(), self.call.at_us);
                (at, self.put(Request::Peek { charge, at_us }))
            })
            .collect();
        for (at, receiver) in peeks {
            match receiver.await {
                Ok(Ok(Reply::Decision(decision))) => self.answers[at] = Some(decision),
                _ => {
                    let (fallback, charge) =
                        (&self.servers.shared().fallback, charges[at].of.clone());
                    let decision = fallback.decide(&charge, &self.call);
                    self.answers[at] =
                        decision.or_else(|| Some(fallback.decide_unspent(&charge, &self.call)));
                }
            }
        }
    }

    async fn ask(&self, request: Request) -> Result<Reply, StoreError> {
        self.put(request).await.unwrap_or(Err(StoreError::Gone))
    }

    /// Sends a part of the check, on the terms of the whole.
    fn put(&self, request: Request) -> Receiver {
        let (waiting, receiver) = WaitingRequest::new(self.servers.shared(), request, &self.call);
        self.servers.put(waiting.by(self.deadline));
        receiver
    }

    /// Answers for charges whose server failed, though the answer does not depend on them.
    fn leave_undecided(&mut self, charges: &[Charge], group: &[usize]) {
        let fallback = &self.servers.shared().fallback;
        for &at in group {
            self.answers[at] = Some(fallback.decide_unspent(&charges[at].of.clone(), &self.call));
        }
    }

    /// Returns the result of all charges when one refuses.
    fn refusal(&self, charges: &[Charge]) -> Option<CombinedDecision> {
        let parts = charges
            .iter()
            .zip(&self.answers)
            .map(|(charge, answer)| Some(charge.part(answer.as_ref()?.decided())))
            .collect::<Option<Vec<DecisionPart>>>()?;
        Some(CombinedDecision::of(parts))
    }

    fn reply(&mut self, together: CombinedDecision) -> Option<Reply> {
        let each = mem::take(&mut self.answers).into_iter().collect::<Option<_>>()?;
        Some(Reply::JointDecision(JointDecision::new(together, each)))
    }
}

fn can_refuse(charges: &[Charge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].demand().role == Role::Enforced)
}

/// Whether the group has a charge that may have to be refunded.
fn takes(charges: &[Charge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].is_charged())
}

/// Whether the group has a shaping limit. Its charge can hardly be given back: other requests are behind it.
fn has_queue(charges: &[Charge], group: &[usize]) -> bool {
    let is_queue =
        |limit: &Limit| matches!(limit, Limit::LeakyBucket(own) if own.mode() == Mode::Shaping);
    group.iter().any(|&at| is_queue(charges[at].limit()))
}

/// Returns the result of places that all admit the check.
fn all_of(places: &[CombinedDecision]) -> CombinedDecision {
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
