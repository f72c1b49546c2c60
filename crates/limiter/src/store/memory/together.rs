//! A check of several limits: every lock is held while all of them are decided.

use std::mem;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tollgate_core::{
    Algorithm, CheckResult, CombinedDecision, Intent, Limit, LimitCheck, Role, State, check_all,
};

use super::budget::Budget;
use super::lock::Locked;
use super::logs;
use super::part::JointPart;
use super::scopes::{Overflow, Scope};
use super::shard::{BroughtSlot, Shard};
use super::view::StoreView;
use super::{KeyLocation, Memory};
use crate::decision::Decision;
use crate::joint::Demand;

/// Where the state of a charge is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StateHome {
    Slot,
    /// In the overflow state of its name, shared with all keys that found no room.
    Overflow,
    /// Nowhere: the state is under another limit, and a peek discards the copy that it carries over.
    Copy,
}

/// One charge, and its state while it is decided.
struct JointCharge<'a> {
    part: JointPart<'a>,
    /// The limit that decides: the scope's, or the one that the state is still under.
    limit: Limit,
    place: KeyLocation,
    home: StateHome,
    state: State,
}

/// The locks of a check, in the order in which every caller takes them: shards, then overflow states.
struct CheckLocks<'m> {
    shards: Vec<(usize, Locked<'m, Shard>)>,
    /// By the number of the family.
    overflows: Vec<(u64, MutexGuard<'m, Overflow>)>,
}

impl Memory {
    /// Decides the parts together, and pushes each part's own decision to `each`, in their order. Parts that
    /// share a state are merged into one charge, under the limit of the part that takes precedence
    /// ([`Demand::outranks`]). The first part that is not a peek gets the receipt.
    pub(crate) fn together(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> CombinedDecision {
        let known = self.together_if_known(parts, now_us, each);
        known.unwrap_or_else(|| self.together_any(parts, now_us, each))
    }

    #[cold]
    pub(super) fn together_any(
        &self,
        parts: &[JointPart<'_>],
        now_us: u64,
        each: &mut Vec<Decision>,
    ) -> CombinedDecision {
        let view = self.view(now_us);
        let held =
            parts.iter().map(|part| JointCharge::new(*part, self.place(part.scope, part.key)));
        let (mut held, by_key) = merge(held, JointCharge::has_key_of);
        let mut locks = CheckLocks { shards: self.lock_shards(&held), overflows: Vec::new() };
        held.iter_mut().for_each(|held| held.bring(locks.shard(held.place), &view));
        self.find_homes(&mut held, &mut locks, &view);
        let (mut held, by_home) = merge(held, JointCharge::overflows_with);
        locks.lock_overflows(&held);
        locks.take_all(&mut held, &view);
        let (mut together, mut answers) = decide(&mut held, now_us, &self.budget);
        let charge_of: Vec<usize> = by_key.iter().map(|&key| by_home[key]).collect();
        let first_of = |charge| charge_of.iter().position(|&of| of == charge);
        together.refused_by = together.refused_by.and_then(first_of);
        let answer = |(&charge, part): (&usize, &JointPart<'_>)| {
            let CheckResult { decision, receipt } = answers.get_mut(charge)?;
            let receipt = if part.is_look() { None } else { receipt.take() };
            let checked = CheckResult { decision: *decision, receipt };
            Some(Decision::of_key(checked, self.place(part.scope, part.key).fingerprint()))
        };
        each.extend(charge_of.iter().zip(parts).filter_map(answer));
        held.into_iter().for_each(|held| locks.put(held, &self.budget));
        together
    }

    /// CheckLocks every shard once, in order, so that no two callers can wait for each other.
    fn lock_shards(&self, held: &[JointCharge<'_>]) -> Vec<(usize, Locked<'_, Shard>)> {
        let mut shards: Vec<usize> = held.iter().map(|held| held.place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect()
    }

    /// Determines where each state is or will be: in a slot, if the shard has room for all new keys.
    fn find_homes(
        &self,
        held: &mut [JointCharge<'_>],
        locks: &mut CheckLocks<'_>,
        view: &StoreView<'_>,
    ) {
        // A request that will be refused must not bring in a key.
        let is_charged = held.iter().all(|held| {
            let JointCharge { part: JointPart { demand, .. }, limit, place, home, .. } = held;
            if demand.role == Role::Shadow {
                return true;
            }
            match home {
                StateHome::Slot => {
                    locks.shard(*place).admits(*place, limit, view.now_us, demand.ask)
                }
                StateHome::Copy => held.admits(view.now_us),
                // A peek, which is decided later: only shards are locked so far.
                StateHome::Overflow => true,
            }
        });
        // If all keys have state, no room is needed, and nothing is removed.
        let mut is_known = |held: &JointCharge<'_>| {
            held.is_look() || locks.shard(held.place).find(held.place).is_some()
        };
        if !is_charged || held.iter().all(&mut is_known) {
            return;
        }
        let count = held.iter().filter(|held| !held.is_look()).count();
        for JointCharge { place, home, .. } in held.iter_mut().filter(|held| !held.is_look()) {
            let shard = locks.shard(*place);
            // Room for all charges, because a known key may be dead, and be removed to make room for another.
            if !shard.make_room(count, view) && shard.find(*place).is_none() {
                self.overflowed.fetch_add(1, Ordering::Relaxed);
                *home = StateHome::Overflow;
            }
        }
    }
}

/// Merges equal charges; returns the merged charges, and the index among them of each original.
fn merge<'a>(
    all: impl IntoIterator<Item = JointCharge<'a>>,
    is_same: impl Fn(&JointCharge<'a>, &JointCharge<'a>) -> bool,
) -> (Vec<JointCharge<'a>>, Vec<usize>) {
    let mut merged: Vec<JointCharge<'a>> = Vec::new();
    let become_one = |held: JointCharge<'a>| {
        let same = merged.iter().position(|other| is_same(other, &held));
        match same {
            Some(index) => merged[index].add(&held),
            None => merged.push(held),
        }
        same.unwrap_or(merged.len() - 1)
    };
    let becomes = all.into_iter().map(become_one).collect();
    (merged, becomes)
}

fn decide(
    held: &mut [JointCharge<'_>],
    now_us: u64,
    budget: &Budget,
) -> (CombinedDecision, Vec<CheckResult>) {
    let has_log = held.iter().any(|held| matches!(held.state, State::Log(_)));
    // A request that will be refused changes nothing, not even how a log is stored.
    if has_log && held.iter().all(|held| held.admits(now_us)) {
        held.iter_mut().for_each(|held| held.make_room(now_us, budget));
    }
    let mut charges: Vec<LimitCheck<'_>> = held
        .iter_mut()
        .map(|held| {
            let JointCharge { part, limit, state, .. } = held;
            let Demand { ask, role, intent } = part.demand;
            LimitCheck::enforced(limit, state, ask).with(role, intent)
        })
        .collect();
    let together = check_all(&mut charges, now_us);
    let decided = |mut charge: LimitCheck<'_>| {
        let receipt = charge.take_receipt();
        charge.decision().map(|&decision| CheckResult { decision, receipt })
    };
    let answers: Vec<CheckResult> = charges.into_iter().filter_map(decided).collect();
    let answer = |(held, CheckResult { decision, receipt }): (&JointCharge<'_>, CheckResult)| {
        let decision = held.limit.in_place_of(&held.part.scope.limit, decision);
        CheckResult { decision, receipt }
    };
    (together, held.iter().zip(answers).map(answer).collect())
}

impl JointPart<'_> {
    fn is_look(&self) -> bool {
        self.demand.intent == Intent::Peek
    }
}

impl<'a> JointCharge<'a> {
    fn new(part: JointPart<'a>, place: KeyLocation) -> JointCharge<'a> {
        let limit = part.scope.limit;
        JointCharge { part, limit, place, home: StateHome::Slot, state: limit.fresh() }
    }

    fn is_look(&self) -> bool {
        self.part.is_look()
    }

    /// Carries an existing state over to the scope's limit, if possible.
    fn bring(&mut self, shard: &mut Shard, view: &StoreView<'_>) {
        if self.is_look() {
            return self.find(shard, view);
        }
        let brought = shard.bring(self.place, self.part.scope, view, self.part.demand.ask.cost);
        if let Some(BroughtSlot { at, stays_under: Some(limit) }) = brought {
            (self.limit, self.place) = (limit, shard.place_of(at, self.place));
        }
    }

    /// Finds the state for a peek, and leaves it unchanged. A key without state may use the overflow state.
    fn find(&mut self, shard: &Shard, view: &StoreView<'_>) {
        let JointPart { scope, demand, .. } = self.part;
        match shard.find_any(self.place, scope, view.scopes) {
            Some((_, None)) => {}
            Some((at, Some(old))) => {
                let (state, cost) = (shard.copy_state(at, &old), demand.ask.cost);
                let carried = scope.limit.carry_over(&old, state, view.now_us, cost);
                (self.limit, self.state) = carried.decides(&scope.limit);
                self.home = StateHome::Copy;
            }
            None => self.home = StateHome::Overflow,
        }
    }

    /// Whether this charge would not refuse the request.
    fn admits(&self, now_us: u64) -> bool {
        let Demand { ask, role, .. } = self.part.demand;
        role == Role::Shadow || self.limit.peek(&self.state, now_us, ask).is_allowed()
    }

    /// Ensures that a log has memory for its charge, as a check of one limit does.
    fn make_room(&mut self, now_us: u64, budget: &Budget) {
        let (Limit::SlidingWindowLog(limit), State::Log(log)) = (&self.limit, &mut self.state)
        else {
            return;
        };
        // A shadow that refuses does not hold up the request, and is not charged. A peek is never charged.
        let JointPart { demand: Demand { ask, intent, .. }, .. } = self.part;
        if intent == Intent::Charge && limit.peek(log, now_us, ask).is_allowed() {
            limit.settle(log, now_us);
            logs::reserve(log, limit, now_us, ask.cost, budget);
        }
    }

    /// Whether both have the same name and key, under any limits.
    fn has_key_of(&self, other: &JointCharge<'a>) -> bool {
        let key = |held: &JointCharge<'_>| (held.part.scope.family(), held.place.identity.key());
        key(self) == key(other)
    }

    fn overflows_with(&self, other: &JointCharge<'a>) -> bool {
        let is_one_family = self.part.scope.family() == other.part.scope.family();
        is_one_family && self.spends_overflow() && other.spends_overflow()
    }

    /// Whether it charges the overflow state. Peeks are excluded: they are not merged.
    fn spends_overflow(&self) -> bool {
        self.home == StateHome::Overflow && !self.is_look()
    }

    fn add(&mut self, other: &JointCharge<'a>) {
        let own = &mut self.part;
        if other.part.demand.outranks(&own.demand) {
            (own.scope, self.limit, self.place) = (other.part.scope, other.limit, other.place);
        }
        own.demand = own.demand.merged(other.part.demand);
    }
}

impl<'m> CheckLocks<'m> {
    fn shard(&mut self, place: KeyLocation) -> &mut Shard {
        let wanted = place.shard;
        let at = self.shards.partition_point(|(shard, _)| *shard < wanted);
        // OK because the shard of every location was locked.
        &mut self.shards[at].1
    }

    fn lock_overflows(&mut self, held: &[JointCharge<'m>]) {
        let overflowing = held.iter().filter(|held| held.home == StateHome::Overflow);
        let mut scopes: Vec<&'m Scope> = overflowing.map(|held| held.part.scope).collect();
        scopes.sort_unstable_by_key(|scope| scope.family());
        scopes.dedup_by_key(|scope| scope.family());
        self.overflows =
            scopes.into_iter().map(|it| (it.family(), it.family.overflow.lock())).collect();
    }

    fn overflow(&mut self, scope: &Scope) -> Option<&mut Overflow> {
        let found = self.overflows.iter_mut().find(|(family, _)| *family == scope.family());
        found.map(|(_, overflow)| &mut **overflow)
    }

    /// Takes all states; peeks first, because charges move the overflow states out.
    fn take_all(&mut self, held: &mut [JointCharge<'_>], view: &StoreView<'_>) {
        for are_looks in [true, false] {
            let these = held.iter_mut().filter(|held| held.is_look() == are_looks);
            these.for_each(|held| self.take(held, view));
        }
    }

    fn take(&mut self, held: &mut JointCharge<'_>, view: &StoreView<'_>) {
        let (scope, cost) = (held.part.scope, held.part.demand.ask.cost);
        let taken = match held.home {
            StateHome::Copy => return,
            StateHome::Slot => self.shard(held.place).take_state(held.place, &held.limit),
            StateHome::Overflow if held.is_look() => self.overflow(scope).map(|overflow| {
                let carried = overflow.carried(&scope.limit, view.now_us, cost);
                let (limit, state) =
                    carried.unwrap_or_else(|| (scope.limit, overflow.state.clone()));
                held.limit = limit;
                state
            }),
            StateHome::Overflow => self.overflow(scope).map(|overflow| {
                let (decides, state) = overflow.bring(&scope.limit, view.now_us, cost, view.budget);
                held.limit = decides.unwrap_or(scope.limit);
                mem::replace(state, held.limit.fresh())
            }),
        };
        held.state = taken.unwrap_or_else(|| held.limit.fresh());
    }

    fn put(&mut self, held: JointCharge<'_>, budget: &Budget) {
        let JointCharge { part, limit, place, home, state, .. } = held;
        match home {
            StateHome::Slot => {
                let shard = self.shard(place);
                if state != limit.fresh() || shard.find(place).is_some() {
                    shard.put_state(place, state, budget);
                }
            }
            StateHome::Overflow if !part.is_look() => {
                if let Some(overflow) = self.overflow(part.scope) {
                    overflow.state = state;
                }
            }
            StateHome::Overflow | StateHome::Copy => {}
        }
    }
}
