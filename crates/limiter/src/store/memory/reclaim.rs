//! Frees the indices of dropped scopes when no index is left.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use ahash::RandomState;

use super::MemoryStore;
use super::scopes::{MemoryScope, Scopes};
use super::view::StoreView;

/// The number of scopes that are visited each time the list of scopes is locked: few enough that checks are not
/// delayed.
const STEP: usize = 256;

/// The scopes that no caller uses any more.
pub(super) struct DroppedScopes {
    by_index: Vec<Option<DroppedScope>>,
    /// The scopes that can take over their keys, by the number of the family.
    successors: HashMap<u64, SuccessorScopes, RandomState>,
}

struct DroppedScope {
    scope: Arc<MemoryScope>,
    /// Whether the scope has keys that no other scope can take over.
    is_needed: bool,
}

/// The scopes of a family that can take over the keys of its dropped scopes.
struct SuccessorScopes {
    /// The scopes that callers still use, by size, then by age.
    in_use: BTreeMap<(u64, u64), Arc<MemoryScope>>,
    /// The largest of the dropped scopes: it is kept if no caller uses a scope of the family and there are
    /// keys.
    largest_dropped: Arc<MemoryScope>,
}

impl MemoryStore {
    /// Frees as many indices as possible. The caller ensures that no scope is made meanwhile; checks wait at
    /// most while one shard is visited.
    ///
    /// The dead keys of a dropped scope are removed. A live key is carried over to another limit of its name,
    /// as its next check would do: to the smallest limit that has room for all that the key can have spent,
    /// or else to the largest. If the state cannot be carried over, the key stays where it is. If no caller uses
    /// any limit of the name, the largest dropped one is kept as long as there are keys.
    ///
    /// A scope with keys that have holds stays, as if a caller used it.
    pub(super) fn reclaim(&self, now_us: u64) {
        for shard in &self.shards {
            shard.0.lock().remove_dead_held(&[], &self.view_at(now_us));
        }
        let mut dropped = self.hide_dropped();
        if dropped.successors.is_empty() {
            return;
        }
        // A store without a ceiling replays a trace, so the trace's time applies instead of the clock's.
        let now_us = if self.budget.has_ceiling() { now_us } else { self.last_seen_us() };
        let view = self.view_at(now_us);
        for shard in &self.shards {
            shard.0.lock().move_dropped_keys(&mut dropped, &view);
        }
        dropped.keep_overflows(&view);
        self.free(&dropped);
    }

    /// Hides the scopes that no caller uses.
    fn hide_dropped(&self) -> DroppedScopes {
        let indices = self.scopes.read().indices();
        let mut by_index = Vec::with_capacity(indices);
        for step in steps(indices) {
            let mut scopes = self.scopes.write();
            by_index.extend(step.map(|index| {
                let scope = scopes.hide(index)?;
                Some(DroppedScope { scope, is_needed: false })
            }));
        }
        let mut dropped = DroppedScopes { by_index, successors: HashMap::default() };
        dropped.find_successors(&self.scopes.read());
        dropped
    }

    fn free(&self, dropped: &DroppedScopes) {
        let dropped = || dropped.by_index.iter().flatten();
        // The needed scopes are shown again first, because a name is freed once none of its scopes can be found.
        dropped()
            .filter(|it| it.is_needed)
            .for_each(|it| self.scopes.write().show_again(&it.scope));
        dropped().filter(|it| !it.is_needed).for_each(|it| self.scopes.write().free(&it.scope));
    }
}

fn steps(count: usize) -> impl Iterator<Item = Range<usize>> {
    (0..count).step_by(STEP).map(move |from| from..count.min(from + STEP))
}

impl DroppedScopes {
    fn find_successors(&mut self, scopes: &Scopes) {
        for DroppedScope { scope, .. } in self.by_index.iter().flatten() {
            let successors = self.successors.entry(scope.family()).or_insert_with(|| {
                let in_use = scopes.findable(&scope.family).map(|it| (it.rank(), Arc::clone(it)));
                SuccessorScopes { in_use: in_use.collect(), largest_dropped: Arc::clone(scope) }
            });
            if scope.rank() > successors.largest_dropped.rank() {
                successors.largest_dropped = Arc::clone(scope);
            }
        }
    }

    pub(super) fn get(&self, index: u32) -> Option<&MemoryScope> {
        self.by_index.get(index as usize)?.as_ref().map(|dropped| &*dropped.scope)
    }

    /// Returns the scope that takes over the live keys of this scope; `None` if the keys stay where they are.
    pub(super) fn successor_of(&mut self, index: u32) -> Option<Arc<MemoryScope>> {
        let scope = self.get(index)?;
        let SuccessorScopes { in_use, largest_dropped } = self.successors.get(&scope.family())?;
        let has_room = in_use.range((scope.limit.size(), 0)..).next();
        if let Some((_, successor)) = has_room.or_else(|| in_use.last_key_value()) {
            return Some(Arc::clone(successor));
        }
        let largest_dropped = Arc::clone(largest_dropped);
        self.mark_needed(largest_dropped.index);
        (largest_dropped.index != index).then_some(largest_dropped)
    }

    /// Marks a scope that has keys which no other scope can take over.
    pub(super) fn mark_needed(&mut self, index: u32) {
        if let Some(Some(dropped)) = self.by_index.get_mut(index as usize) {
            dropped.is_needed = true;
        }
    }

    /// Keeps a scope of each name whose overflow state still counts.
    fn keep_overflows(&mut self, view: &StoreView<'_>) {
        let mut needed = Vec::new();
        for SuccessorScopes { largest_dropped, .. } in
            self.successors.values().filter(|successors| successors.in_use.is_empty())
        {
            let mut overflow = largest_dropped.family.overflow.lock();
            if overflow.is_dead(view.now_us) {
                overflow.clear(view.budget);
            } else {
                needed.push(largest_dropped.index);
            }
        }
        needed.into_iter().for_each(|index| self.mark_needed(index));
    }
}
