//! The limits of the store: by name, and by the index that a slot holds.

use std::collections::HashMap;
use std::mem;
use std::sync::Arc;

use ahash::RandomState;
use parking_lot::Mutex;
use tollgate_core::{CarryOver, Cost, Limit, MAX_STEP_BACK_US, State, UnitRequest};

use super::budget::StoreBudget;
use super::identity::{KeyHasher, MAX_SCOPE, ScopeMark};
use super::logs;
use super::slot::Slot;
use crate::names::Name;

/// A limit under a name, as the memory store keeps it.
#[derive(Debug)]
pub(crate) struct MemoryScope {
    pub(super) index: u32,
    /// The index, split as slots hold it.
    pub(super) mark: ScopeMark,
    /// A copy of the family's salt, so that a check need not read the family.
    pub(super) salt: u64,
    pub(crate) limit: Limit,
    pub(super) family: Arc<ScopeFamily>,
    /// The number of this scope in the order of creation: larger for a younger scope.
    made: u64,
}

/// All limits of one name. A key has one state in a family, under the limit of its last check.
#[derive(Debug)]
pub(super) struct ScopeFamily {
    pub(super) name: Arc<Name>,
    salt: u64,
    pub(super) overflow: Mutex<Overflow>,
}

/// The overflow state of a family, which the keys that found no room share, and the limit that the state is under.
#[derive(Debug)]
pub(super) struct Overflow {
    pub(super) limit: Limit,
    pub(super) state: State,
}

/// All scopes.
#[derive(Debug, Default)]
pub(super) struct Scopes {
    /// The scope of every index that a slot holds.
    by_index: Vec<Option<Arc<MemoryScope>>>,
    free: Vec<u32>,
    /// By the number of the name.
    by_name: HashMap<u64, NameScopes, RandomState>,
    made: u64,
}

#[derive(Debug)]
struct NameScopes {
    family: Arc<ScopeFamily>,
    /// The index of every scope that can be found: all except the hidden ones.
    by_limit: HashMap<Limit, u32, RandomState>,
}

impl MemoryScope {
    /// Returns the name of the limit.
    pub(crate) fn name(&self) -> &Name {
        &self.family.name
    }

    /// Returns the number of the name.
    pub(crate) fn family(&self) -> u64 {
        self.family.name.number()
    }

    /// Orders scopes by size, then by age.
    pub(super) fn rank(&self) -> (u64, u64) {
        (self.limit.size(), self.made)
    }
}

impl Scopes {
    pub(super) fn find(&self, name: &Name, limit: &Limit) -> Option<Arc<MemoryScope>> {
        let index = *self.by_name.get(&name.number())?.by_limit.get(limit)?;
        self.by_index.get(index as usize)?.clone()
    }

    /// Makes a scope that does not exist yet; `None` if no index is left.
    pub(super) fn make(
        &mut self,
        name: &Arc<Name>,
        limit: Limit,
        identify: &KeyHasher,
    ) -> Option<Arc<MemoryScope>> {
        let index = self.free_index()?;
        self.made += 1;
        let made = self.made;
        let named = self.by_name.entry(name.number()).or_insert_with(|| {
            let salt = identify.salt(name.text());
            let overflow = Mutex::new(Overflow { limit, state: limit.fresh() });
            let family = Arc::new(ScopeFamily { name: Arc::clone(name), salt, overflow });
            NameScopes { family, by_limit: HashMap::default() }
        });
        named.by_limit.insert(limit, index);
        let family = Arc::clone(&named.family);
        let scope = Arc::new(MemoryScope {
            index,
            mark: ScopeMark::new(index),
            salt: family.salt,
            limit,
            family,
            made,
        });
        // OK because `free_index` has made an element for every index that it returns.
        self.by_index[index as usize] = Some(Arc::clone(&scope));
        Some(scope)
    }

    fn free_index(&mut self) -> Option<u32> {
        if let Some(index) = self.free.pop() {
            return Some(index);
        }
        let index = u32::try_from(self.by_index.len()).ok();
        let index = index.filter(|&index| index <= MAX_SCOPE)?;
        self.by_index.push(None);
        Some(index)
    }

    /// Returns the number of scopes.
    pub(super) fn count(&self) -> usize {
        self.by_index.len() - self.free.len()
    }

    /// Returns one more than the largest index so far.
    pub(super) fn indices(&self) -> usize {
        self.by_index.len()
    }

    #[inline]
    pub(super) fn get(&self, index: u32) -> Option<&Arc<MemoryScope>> {
        self.by_index.get(index as usize)?.as_ref()
    }

    /// Returns the salt of a scope's keys.
    pub(super) fn salt(&self, index: u32) -> u64 {
        // Always found: a scope stays while a slot holds its index.
        self.get(index).map_or(0, |scope| scope.salt)
    }

    /// Returns the hash of a slot's key.
    pub(super) fn hash_of(&self, slot: &Slot, identify: &KeyHasher) -> u64 {
        slot.salted_hash(identify, self.salt(slot.scope()))
    }

    pub(super) fn is_in(&self, index: u32, family: &ScopeFamily) -> bool {
        self.get(index).is_some_and(|scope| scope.family() == family.name.number())
    }

    /// Returns the scopes of a family that [`find`](Self::find) can find.
    pub(super) fn findable<'s>(
        &'s self,
        family: &ScopeFamily,
    ) -> impl Iterator<Item = &'s Arc<MemoryScope>> {
        let named = self.by_name.get(&family.name.number()).into_iter();
        named.flat_map(|named| named.by_limit.values()).filter_map(|&index| self.get(index))
    }

    /// Hides a scope that no caller uses, so that [`find`](Self::find) cannot find it; `None` if a caller uses it.
    pub(super) fn hide(&mut self, index: usize) -> Option<Arc<MemoryScope>> {
        let scope = self.by_index.get(index)?.as_ref();
        // A count of 1 means that only `by_index` holds the scope. Callers get scopes only from `by_index`, which the
        // caller of this function has locked.
        let scope = Arc::clone(scope.filter(|scope| Arc::strong_count(scope) == 1)?);
        let named = self.by_name.get_mut(&scope.family())?;
        named.by_limit.remove(&scope.limit);
        Some(scope)
    }

    /// Makes a hidden scope findable again.
    pub(super) fn show_again(&mut self, scope: &MemoryScope) {
        if let Some(named) = self.by_name.get_mut(&scope.family()) {
            named.by_limit.insert(scope.limit, scope.index);
        }
    }

    /// Frees the index of a hidden scope that has no keys; with the last scope of a name, also the name.
    pub(super) fn free(&mut self, scope: &MemoryScope) {
        let name = scope.family();
        if self.by_name.get(&name).is_some_and(|named| named.by_limit.is_empty()) {
            self.by_name.remove(&name);
        }
        if let Some(place) = self.by_index.get_mut(scope.index as usize) {
            *place = None;
            self.free.push(scope.index);
        }
    }
}

#[cfg(test)]
impl Scopes {
    pub(super) fn families(&self) -> impl Iterator<Item = &ScopeFamily> {
        self.by_name.values().map(|named| &*named.family)
    }
}

impl Overflow {
    /// Returns a copy of the state, carried over to `limit` if possible, and the limit that decides on it; `None` if
    /// the state is under `limit`.
    pub(super) fn carried_copy(
        &self,
        limit: &Limit,
        now_us: u64,
        cost: Cost,
    ) -> Option<(Limit, State)> {
        let carried = || carry_over(&self.limit, self.state.clone(), limit, now_us, cost);
        (self.limit != *limit).then(|| carried().decides(limit))
    }

    /// Carries the state over to a limit, if possible. Returns the state, and the limit that decides on it if
    /// that is not the given limit.
    pub(super) fn carry_over(
        &mut self,
        limit: &Limit,
        now_us: u64,
        cost: Cost,
        budget: &StoreBudget,
    ) -> (Option<Limit>, &mut State) {
        if self.limit == *limit {
            return (None, &mut self.state);
        }
        let state = mem::replace(&mut self.state, limit.fresh());
        let before = logs::state_bytes(&state);
        let decides = match carry_over(&self.limit, state, limit, now_us, cost) {
            CarryOver::Done(state) => {
                (self.limit, self.state) = (*limit, state);
                budget.replace(before, logs::state_bytes(&self.state));
                None
            }
            CarryOver::Stays { decides, state } => {
                self.state = state;
                Some(decides)
            }
        };
        (decides, &mut self.state)
    }

    /// Whether nothing is spent any more, even if the clock steps back by [`MAX_STEP_BACK_US`].
    pub(super) fn is_dead(&self, now_us: u64) -> bool {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let decision = self.limit.peek(&self.state, then_us, UnitRequest::new(Cost::ONE));
        decision.remaining == decision.limit
    }

    /// Replaces the state by a fresh one.
    pub(super) fn clear(&mut self, budget: &StoreBudget) {
        let state = mem::replace(&mut self.state, self.limit.fresh());
        budget.give_back(logs::state_bytes(&state));
    }
}

/// Carries a state over. A state with nothing spent becomes a fresh one.
fn carry_over(old: &Limit, state: State, limit: &Limit, now_us: u64, cost: Cost) -> CarryOver {
    match state == old.fresh() {
        true => CarryOver::Done(limit.fresh()),
        false => limit.carry_over(old, state, now_us, cost),
    }
}
