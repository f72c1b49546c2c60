//! Indices are few: those of scopes that nobody holds any more are taken back when none is left.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use ahash::RandomState;

use super::Memory;
use super::census::Census;
use super::scopes::{Scope, Scopes};

/// Scopes that are looked at while the list of them is locked: few enough that nobody notices.
const STEP: usize = 256;

/// The scopes that are to go.
pub(super) struct Leaving {
    by_index: Vec<Option<Leaver>>,
    /// By the family's number.
    heirs: HashMap<u64, Heirs, RandomState>,
}

struct Leaver {
    scope: Arc<Scope>,
    /// Has keys that no other can take.
    is_needed: bool,
}

/// Those of a family that can take the others' keys.
struct Heirs {
    /// By size, then by age.
    held: BTreeMap<(u64, u64), Arc<Scope>>,
    /// The largest of those that are to go: stays if nobody holds another and it has keys.
    stand_in: Arc<Scope>,
}

impl Memory {
    /// Takes back what indices it can. The caller lets nobody make a scope meanwhile; checks wait for
    /// one shard's walk at most.
    ///
    /// Of a scope that nobody holds, dead keys are dropped. A live one goes on under another limit of
    /// its name, as it would at its next check: under the smallest that has room for all it can have
    /// spent, or else the largest; or it stays, if that cannot hold it. If nobody holds any of its name,
    /// the largest stays for as long as it has keys.
    pub(super) fn reclaim(&self, now_us: u64) {
        let mut leaving = self.unlist();
        if leaving.heirs.is_empty() {
            return;
        }
        // One that keeps every key replays a trace, at the trace's own times.
        let now_us = if self.budget.has_ceiling() { now_us } else { self.last_seen_us() };
        let census = self.census_at(now_us);
        for shard in &self.shards {
            shard.0.lock().vacate(&mut leaving, &census);
        }
        leaving.keep_overflows(&census);
        self.free(&leaving);
    }

    /// Takes those that nobody holds off the list.
    fn unlist(&self) -> Leaving {
        let indices = self.scopes.read().indices();
        let mut by_index = Vec::with_capacity(indices);
        for step in steps(indices) {
            let mut scopes = self.scopes.write();
            by_index.extend(step.map(|index| {
                let scope = scopes.unlist(index)?;
                Some(Leaver { scope, is_needed: false })
            }));
        }
        let mut leaving = Leaving { by_index, heirs: HashMap::default() };
        leaving.find_heirs(&self.scopes.read());
        leaving
    }

    fn free(&self, leaving: &Leaving) {
        let leavers = || leaving.by_index.iter().flatten();
        // Those that stay first: a name is free with the last that goes.
        leavers().filter(|it| it.is_needed).for_each(|it| self.scopes.write().list(&it.scope));
        leavers().filter(|it| !it.is_needed).for_each(|it| self.scopes.write().free(&it.scope));
    }
}

fn steps(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(STEP).map(move |from| from..count.min(from + STEP))
}

impl Leaving {
    fn find_heirs(&mut self, scopes: &Scopes) {
        for Leaver { scope, .. } in self.by_index.iter().flatten() {
            let heirs = self.heirs.entry(scope.family()).or_insert_with(|| {
                let held = scopes.listed(&scope.family).map(|it| (it.rank(), Arc::clone(it)));
                Heirs { held: held.collect(), stand_in: Arc::clone(scope) }
            });
            if scope.rank() > heirs.stand_in.rank() {
                heirs.stand_in = Arc::clone(scope);
            }
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Scope> {
        self.by_index.get(index as usize)?.as_ref().map(|leaver| &*leaver.scope)
    }

    /// Whose a live key of this scope is to be; `None` if it stays where it is.
    pub(super) fn heir_of(&mut self, index: u32) -> Option<Arc<Scope>> {
        let scope = self.get(index)?;
        let Heirs { held, stand_in } = self.heirs.get(&scope.family())?;
        let has_room = held.range((scope.limit.size(), 0)..).next();
        if let Some((_, heir)) = has_room.or_else(|| held.last_key_value()) {
            return Some(Arc::clone(heir));
        }
        let stand_in = Arc::clone(stand_in);
        self.need(stand_in.index);
        (stand_in.index != index).then_some(stand_in)
    }

    /// It has keys that no other can take.
    pub(super) fn need(&mut self, index: u32) {
        if let Some(Some(leaver)) = self.by_index.get_mut(index as usize) {
            leaver.is_needed = true;
        }
    }

    /// What was spent by keys without room stays spent: its name stays for it.
    fn keep_overflows(&mut self, census: &Census<'_>) {
        let mut needed = Vec::new();
        for Heirs { stand_in, .. } in self.heirs.values().filter(|heirs| heirs.held.is_empty()) {
            let mut overflow = stand_in.family.overflow.lock();
            if overflow.is_dead(census.now_us) {
                overflow.clear(census.budget);
            } else {
                needed.push(stand_in.index);
            }
        }
        needed.into_iter().for_each(|index| self.need(index));
    }
}
