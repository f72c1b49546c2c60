//! Frees the indices of dropped scopes when no index is left.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use ahash::RandomState;

use super::Memory;
use super::scopes::{Scope, Scopes};
use super::view::StoreView;

/// How many scopes are visited while the list of scopes is locked: few enough that checks are not delayed.
const STEP: usize = 256;

/// The scopes that no caller holds any more.
pub(super) struct DroppedScopes {
    by_index: Vec<Option<DroppedScope>>,
    /// The scopes that take over their keys, by the number of the family.
    heirs: HashMap<u64, HeirScopes, RandomState>,
}

struct DroppedScope {
    scope: Arc<Scope>,
    /// Whether the scope has keys that no other scope can take over.
    is_needed: bool,
}

/// The scopes of a family that can take over the keys of its dropped scopes.
struct HeirScopes {
    /// The scopes that callers still hold, by size, then by age.
    held: BTreeMap<(u64, u64), Arc<Scope>>,
    /// The largest of the dropped scopes: it is kept if no caller holds a scope of the family and there are
    /// keys.
    stand_in: Arc<Scope>,
}

impl Memory {
    /// Frees as many indices as possible. The caller ensures that no scope is made meanwhile; checks wait at
    /// most while one shard is visited.
    ///
    /// The dead keys of a dropped scope are removed. A live key is carried over to another limit of its name,
    /// as its next check would do: to the smallest limit that has room for all that the key can have spent,
    /// or else to the largest. If that limit cannot hold it, the key stays where it is. If no caller holds
    /// any limit of the name, the largest dropped one is kept as long as there are keys.
    pub(super) fn reclaim(&self, now_us: u64) {
        let mut dropped = self.unlist();
        if dropped.heirs.is_empty() {
            return;
        }
        // A store that keeps every key replays a trace, and uses the times of the trace.
        let now_us = if self.budget.has_ceiling() { now_us } else { self.last_seen_us() };
        let view = self.view_at(now_us);
        for shard in &self.shards {
            shard.0.lock().vacate(&mut dropped, &view);
        }
        dropped.keep_overflows(&view);
        self.free(&dropped);
    }

    /// Takes the scopes that no caller holds off the list.
    fn unlist(&self) -> DroppedScopes {
        let indices = self.scopes.read().indices();
        let mut by_index = Vec::with_capacity(indices);
        for step in steps(indices) {
            let mut scopes = self.scopes.write();
            by_index.extend(step.map(|index| {
                let scope = scopes.unlist(index)?;
                Some(DroppedScope { scope, is_needed: false })
            }));
        }
        let mut dropped = DroppedScopes { by_index, heirs: HashMap::default() };
        dropped.find_heirs(&self.scopes.read());
        dropped
    }

    fn free(&self, dropped: &DroppedScopes) {
        let dropped = || dropped.by_index.iter().flatten();
        // The needed scopes are listed first: a name is freed with its last scope.
        dropped().filter(|it| it.is_needed).for_each(|it| self.scopes.write().list(&it.scope));
        dropped().filter(|it| !it.is_needed).for_each(|it| self.scopes.write().free(&it.scope));
    }
}

fn steps(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(STEP).map(move |from| from..count.min(from + STEP))
}

impl DroppedScopes {
    fn find_heirs(&mut self, scopes: &Scopes) {
        for DroppedScope { scope, .. } in self.by_index.iter().flatten() {
            let heirs = self.heirs.entry(scope.family()).or_insert_with(|| {
                let held = scopes.listed(&scope.family).map(|it| (it.rank(), Arc::clone(it)));
                HeirScopes { held: held.collect(), stand_in: Arc::clone(scope) }
            });
            if scope.rank() > heirs.stand_in.rank() {
                heirs.stand_in = Arc::clone(scope);
            }
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&Scope> {
        self.by_index.get(index as usize)?.as_ref().map(|dropped| &*dropped.scope)
    }

    /// Returns the scope that takes over the live keys of this one; `None` if they stay.
    pub(super) fn heir_of(&mut self, index: u32) -> Option<Arc<Scope>> {
        let scope = self.get(index)?;
        let HeirScopes { held, stand_in } = self.heirs.get(&scope.family())?;
        let has_room = held.range((scope.limit.size(), 0)..).next();
        if let Some((_, heir)) = has_room.or_else(|| held.last_key_value()) {
            return Some(Arc::clone(heir));
        }
        let stand_in = Arc::clone(stand_in);
        self.need(stand_in.index);
        (stand_in.index != index).then_some(stand_in)
    }

    /// Marks a scope that has keys which no other scope can take over.
    pub(super) fn need(&mut self, index: u32) {
        if let Some(Some(dropped)) = self.by_index.get_mut(index as usize) {
            dropped.is_needed = true;
        }
    }

    /// Keeps a scope of each name whose overflow state still counts.
    fn keep_overflows(&mut self, view: &StoreView<'_>) {
        let mut needed = Vec::new();
        for HeirScopes { stand_in, .. } in self.heirs.values().filter(|heirs| heirs.held.is_empty())
        {
            let mut overflow = stand_in.family.overflow.lock();
            if overflow.is_dead(view.now_us) {
                overflow.clear(view.budget);
            } else {
                needed.push(stand_in.index);
            }
        }
        needed.into_iter().for_each(|index| self.need(index));
    }
}
