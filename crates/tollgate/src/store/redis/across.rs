//! Several limits of one check in places that share no script: charged one place after the other,
//! and given back if one of them refuses.
//!
//! Each limit admits exactly what it would by itself, so this never admits too much. For as long as a
//! check is on its way, what it took and may give back is missing to others; and what cannot be given
//! back, because a server fails meanwhile, stays spent.

use std::sync::Arc;

use tokio::time::Instant;
use tollgate_core::{Limit, Mode, Part, Role, TightestLimit, Together, Verdict};

use super::policy::unspent;
use super::servers::Servers;
use super::waiting::{AndThen, Receiver, Waiting};
use super::wire::{Charge, PartOf, Reply, Request};
use crate::decision::Decision;
use crate::error::StoreError;
use crate::failure::Terms;

/// Decides a check of several limits that are in different places.
pub(super) async fn decide(servers: Arc<Servers>, waiting: Waiting) {
    let groups = match &waiting.request {
        Request::Together { charges, .. } => grouped(charges, |charge| servers.place(&charge.key)),
        _ => Vec::new(),
    };
    Across::new(servers, &waiting).decide(groups, waiting).await;
}

/// Decides a check of several limits whose place is being divided: each on its own.
pub(super) async fn decide_each(servers: Arc<Servers>, waiting: Waiting) {
    let count = waiting.request.charges().len();
    let groups = (0..count).map(|charge| vec![charge]).collect();
    Across::new(servers, &waiting).decide(groups, waiting).await;
}

/// The charges of each place, in order.
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
    terms: Terms,
    deadline: Instant,
    at_us: Option<u64>,
    /// Each charge's answer, once there is one.
    answers: Vec<Option<Decision>>,
    /// What the places said, of those that can refuse.
    together: Vec<Together>,
}

impl Across {
    fn new(servers: Arc<Servers>, waiting: &Waiting) -> Across {
        let mut answers = Vec::new();
        answers.resize_with(waiting.request.charges().len(), || None);
        let (terms, deadline, at_us) = (waiting.terms(), waiting.deadline, waiting.request.at_us());
        Across { servers, terms, deadline, at_us, answers, together: Vec::new() }
    }

    /// Places that cannot refuse come last, so that they are only charged for what the others admit;
    /// before them those that could not give everything back. Those that are only looked at come first:
    /// what they refuse is charged nowhere.
    async fn decide(mut self, mut groups: Vec<Vec<usize>>, waiting: Waiting) {
        let reply = match &waiting.request {
            Request::Together { charges, parts, .. } => {
                groups.sort_by_key(|group| {
                    let (last, not_first) = (!can_refuse(charges, group), takes(charges, group));
                    (last, not_first, has_queue(charges, group))
                });
                self.charge_all(charges, &groups).await.and_then(|together| {
                    self.reply(together, charges, parts).ok_or(StoreError::Gone)
                })
            }
            _ => Err(StoreError::Gone),
        };
        waiting.deliver(reply);
    }

    /// Charges one place after the other, up to the first that refuses or fails.
    async fn charge_all(
        &mut self,
        charges: &[Charge],
        groups: &[Vec<usize>],
    ) -> Result<Together, StoreError> {
        for (index, group) in groups.iter().enumerate() {
            match self.charge(charges, group).await {
                Ok(together) if together.verdict.is_allowed() => self.together.push(together),
                Ok(_) => {
                    self.give_back(charges, &groups[..index]);
                    let others = groups[..index].iter().chain(&groups[index + 1..]).flatten();
                    self.look(charges, others.copied().collect()).await;
                    return self.refusal(charges).ok_or(StoreError::Gone);
                }
                // What only watches must not stand in the way.
                Err(_) if group.iter().all(|&at| charges[at].demand.role == Role::Shadow) => {
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
    ) -> Result<Together, StoreError> {
        let own: Vec<Charge> = group.iter().map(|&at| charges[at].clone()).collect();
        let part = |(charge, own): (usize, &Charge)| PartOf { charge, intent: own.demand.intent };
        let parts = own.iter().enumerate().map(part).collect();
        let request = Request::Together { charges: own, parts, at_us: self.at_us };
        let Reply::Together(together, each) = self.ask(request).await? else {
            return Err(StoreError::Gone);
        };
        for (&at, answer) in group.iter().zip(each) {
            self.answers[at] = Some(answer);
        }
        Ok(together)
    }

    /// Gives back what was charged. Nobody waits for that; what is asked of a place later comes after, as
    /// a rule: a refund of a key that is under another limit may be put off.
    fn give_back(&mut self, charges: &[Charge], groups: &[Vec<usize>]) {
        for &at in groups.iter().flatten() {
            let receipt = self.answers[at].as_mut().and_then(Decision::take_receipt);
            if let Some(receipt) = receipt {
                let (charge, place) = (charges[at].clone(), receipt.place());
                let refund = Request::Refund { charge, place, at_us: self.at_us };
                self.servers.give_back(refund, AndThen::Nothing);
            }
        }
    }

    /// How the charges that were not refused stand, for the answer to say.
    async fn look(&mut self, charges: &[Charge], others: Vec<usize>) {
        let peeks: Vec<_> = others
            .into_iter()
            .map(|at| {
                let request = Request::Peek { charge: charges[at].clone(), at_us: self.at_us };
                (at, self.put(request))
            })
            .collect();
        for (at, receiver) in peeks {
            match receiver.await {
                Ok(Ok(Reply::Checked(decision))) => self.answers[at] = Some(decision),
                _ => self.leave_undecided(charges, &[at]),
            }
        }
    }

    async fn ask(&self, request: Request) -> Result<Reply, StoreError> {
        self.put(request).await.unwrap_or(Err(StoreError::Gone))
    }

    /// Sends a part of the check, on the terms of the whole.
    fn put(&self, request: Request) -> Receiver {
        let (waiting, receiver) = Waiting::new(self.servers.shared(), request, self.terms);
        self.servers.put(waiting.by(self.deadline));
        receiver
    }

    /// Answers for charges whose server failed, though the answer does not depend on them.
    fn leave_undecided(&mut self, charges: &[Charge], group: &[usize]) {
        let now_us = self.at_us.unwrap_or_else(|| self.servers.shared().clock.now_us());
        for &at in group {
            self.answers[at] = Some(unspent(&charges[at], now_us));
        }
    }

    /// What all come to, when one refuses.
    fn refusal(&self, charges: &[Charge]) -> Option<Together> {
        let parts = charges
            .iter()
            .zip(&self.answers)
            .map(|(charge, answer)| Some(charge.part(answer.as_ref()?.decided())))
            .collect::<Option<Vec<Part>>>()?;
        Some(Together::of(parts))
    }

    fn reply(
        &mut self,
        mut together: Together,
        charges: &[Charge],
        parts: &[PartOf],
    ) -> Option<Reply> {
        debug_assert_eq!(charges.len(), self.answers.len());
        together.refused_by =
            together.refused_by.and_then(|charge| PartOf::first_of(parts, charge));
        let own = |part: &PartOf| Some(part.told(self.answers.get_mut(part.charge)?.as_mut()?));
        let each = parts.iter().map(own).collect::<Option<_>>()?;
        Some(Reply::Together(together, each))
    }
}

fn can_refuse(charges: &[Charge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].demand.role == Role::Enforced)
}

/// Whether there is anything that might have to be given back.
fn takes(charges: &[Charge], group: &[usize]) -> bool {
    group.iter().any(|&at| charges[at].is_charged())
}

/// A place in a queue can hardly be given back: it goes at once, or somebody is behind it.
fn has_queue(charges: &[Charge], group: &[usize]) -> bool {
    let is_queue =
        |limit: &Limit| matches!(limit, Limit::LeakyBucket(own) if own.mode() == Mode::Shaping);
    group.iter().any(|&at| is_queue(&charges[at].limit))
}

/// What places that all admit come to.
fn all_of(places: &[Together]) -> Together {
    let delay_us = places.iter().map(|place| place.verdict.delay_us()).max().unwrap_or(0);
    Together {
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
