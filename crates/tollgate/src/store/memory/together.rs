//! Several limits of one check: every lock is held while all of them are decided.

use std::mem;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tollgate_core::{Algorithm, Ask, Charge, Checked, Limit, Role, State, Together, check_all};

use super::budget::Budget;
use super::logs;
use super::shard::Shard;
use super::{Memory, Place, Scope};
use crate::together::merged;

/// One limit's part in a check of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) key: &'a [u8],
    pub(crate) ask: Ask,
    pub(crate) role: Role,
}

/// Where a part's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    Slot(Place),
    /// With all others of its scope that found no room.
    Overflow(u32),
}

/// A state while it is decided, and what is asked of it.
struct Held<'a> {
    home: Home,
    part: Part<'a>,
    state: State,
    /// A log that can be charged only by making all its charges one.
    is_coarse: bool,
}

/// The locks of a check, in the order in which everyone takes them: shards, then overflow states.
struct Locks<'m> {
    shards: Vec<(usize, MutexGuard<'m, Shard>)>,
    overflows: Vec<(u32, MutexGuard<'m, State>)>,
}

impl Memory {
    /// Decides the parts together; each one's own answer is in their order. Parts that share a state
    /// are one charge with the costs added; its receipt goes to the first of them.
    pub(crate) fn together(&self, parts: &[Part<'_>], now_us: u64) -> (Together, Vec<Checked>) {
        let places: Vec<Place> =
            parts.iter().map(|part| self.place(part.scope, part.key)).collect();
        let mut locks = Locks { shards: self.lock_shards(&places), overflows: Vec::new() };
        let homes = self.homes(parts, &places, &mut locks, now_us);
        locks.lock_overflows(parts, &homes);
        let mut held: Vec<Held<'_>> = Vec::with_capacity(parts.len());
        for (part, &home) in parts.iter().zip(&homes) {
            match held.iter_mut().find(|held| held.home == home) {
                Some(same) => same.add(part),
                None => {
                    let state = locks.take(part.scope, home);
                    held.push(Held { home, part: *part, state, is_coarse: false });
                }
            }
        }
        let (mut together, mut answers) = decide(&mut held, now_us, &self.budget);
        let first_of = |home: Home| homes.iter().position(|it| *it == home);
        together.refused_by = together.refused_by.and_then(|index| first_of(held[index].home));
        let each = homes
            .iter()
            .filter_map(|home| held.iter().position(|held| held.home == *home))
            .map(|index| Checked {
                decision: answers[index].decision,
                receipt: answers[index].receipt.take(),
            })
            .collect();
        held.into_iter().for_each(|held| locks.put(held, &self.budget));
        (together, each)
    }

    /// Every shard once, in order, so that no two callers can wait for each other.
    fn lock_shards(&self, places: &[Place]) -> Vec<(usize, MutexGuard<'_, Shard>)> {
        let mut shards: Vec<usize> = places.iter().map(|place| place.shard).collect();
        shards.sort_unstable();
        shards.dedup();
        shards.into_iter().map(|shard| (shard, self.shards[shard].0.lock())).collect()
    }

    /// Where every part's state is or will be: in a slot, if its shard has room for all that are new.
    fn homes(
        &self,
        parts: &[Part<'_>],
        places: &[Place],
        locks: &mut Locks<'_>,
        now_us: u64,
    ) -> Vec<Home> {
        let census = self.census(now_us);
        // A request that will be refused brings in no key.
        let is_charged = parts.iter().zip(places).all(|(part, &place)| {
            let shard = locks.shard(place);
            part.role == Role::Shadow || shard.admits(place, &part.scope.limit, now_us, part.ask)
        });
        let mut home = |(part, &place): (&Part<'_>, &Place)| {
            let shard = locks.shard(place);
            // Room for as many as there are parts, since one that is known may be dead, and be
            // dropped to make room for another.
            if !is_charged || shard.make_room(parts.len(), &census) {
                return Home::Slot(place);
            }
            if shard.find(place).is_some() {
                return Home::Slot(place);
            }
            self.overflowed.fetch_add(1, Ordering::Relaxed);
            Home::Overflow(part.scope.index)
        };
        parts.iter().zip(places).map(&mut home).collect()
    }
}

fn decide(held: &mut [Held<'_>], now_us: u64, budget: &Budget) -> (Together, Vec<Checked>) {
    let has_log = held.iter().any(|held| matches!(held.state, State::Log(_)));
    // A request that will be refused changes nothing, not even how a log is kept.
    if has_log && held.iter().all(|held| held.admits(now_us)) {
        held.iter_mut().for_each(|held| held.make_room(now_us, budget));
    }
    let mut charges: Vec<Charge<'_>> = held
        .iter_mut()
        .map(|held| {
            let Part { scope, ask, role, .. } = held.part;
            match role {
                Role::Enforced => Charge::enforced(&scope.limit, &mut held.state, ask),
                Role::Shadow => Charge::shadow(&scope.limit, &mut held.state, ask),
            }
        })
        .collect();
    let together = check_all(&mut charges, now_us);
    let answer = |mut charge: Charge<'_>| {
        let receipt = charge.take_receipt();
        charge.decision().map(|&decision| Checked { decision, receipt })
    };
    (together, charges.into_iter().filter_map(answer).collect())
}

impl Held<'_> {
    /// Whether it would not refuse.
    fn admits(&self, now_us: u64) -> bool {
        let Part { scope, ask, role, .. } = self.part;
        role == Role::Shadow || scope.limit.peek(&self.state, now_us, ask).is_allowed()
    }

    /// Sees to it that a log has the memory for its charge, as a check of one limit does.
    fn make_room(&mut self, now_us: u64, budget: &Budget) {
        let (Limit::SlidingWindowLog(limit), State::Log(log)) =
            (&self.part.scope.limit, &mut self.state)
        else {
            return;
        };
        // A shadow may refuse and hold nobody up: it is then not charged.
        if limit.peek(log, now_us, self.part.ask).is_allowed() {
            self.is_coarse = !logs::reserve(log, limit, now_us, budget);
        }
    }

    fn add(&mut self, other: &Part<'_>) {
        let own = &mut self.part;
        (own.ask, own.role) = merged((own.ask, own.role), (other.ask, other.role));
    }
}

impl<'m> Locks<'m> {
    fn shard(&mut self, place: Place) -> &mut Shard {
        let wanted = place.shard;
        let at = self.shards.partition_point(|(shard, _)| *shard < wanted);
        // OK because every place's shard was locked.
        &mut self.shards[at].1
    }

    fn lock_overflows(&mut self, parts: &[Part<'m>], homes: &[Home]) {
        let mut scopes: Vec<&'m Scope> = parts
            .iter()
            .zip(homes)
            .filter(|(_, home)| matches!(home, Home::Overflow(_)))
            .map(|(part, _)| part.scope)
            .collect();
        scopes.sort_unstable_by_key(|scope| scope.index);
        scopes.dedup_by_key(|scope| scope.index);
        self.overflows =
            scopes.into_iter().map(|scope| (scope.index, scope.overflow.lock())).collect();
    }

    fn overflow(&mut self, scope: u32) -> Option<&mut State> {
        let found = self.overflows.iter_mut().find(|(index, _)| *index == scope);
        found.map(|(_, state)| &mut **state)
    }

    fn take(&mut self, scope: &Scope, home: Home) -> State {
        let fresh = scope.limit.fresh();
        match home {
            Home::Slot(place) => self.shard(place).take_state(place, &scope.limit).unwrap_or(fresh),
            Home::Overflow(index) => match self.overflow(index) {
                Some(state) => mem::replace(state, fresh),
                None => fresh,
            },
        }
    }

    fn put(&mut self, mut held: Held<'_>, budget: &Budget) {
        if let (true, State::Log(log)) = (held.is_coarse, &mut held.state) {
            *log = log.coarsened().into();
        }
        match held.home {
            Home::Slot(place) => {
                let is_fresh = held.state == held.part.scope.limit.fresh();
                let shard = self.shard(place);
                if !is_fresh || shard.find(place).is_some() {
                    shard.put_state(place, held.state, budget);
                }
            }
            Home::Overflow(index) => {
                if let Some(state) = self.overflow(index) {
                    *state = held.state;
                }
            }
        }
    }
}
