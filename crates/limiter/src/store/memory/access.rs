//! Operations on a key's state other than checks.

use tollgate_core::store::each;
use tollgate_core::{
    Algorithm, Cost, Entry, ExtendAnswer, Fill, GrantedExtension, HoldError, HoldGrowth,
    HoldReference, HoldUse, Holds, KeyClock, Limit, LimitDecision, Log, Reservation, ReserveAnswer,
    SettleAnswer, State, UnitRequest, Window, WindowPair,
};

use super::held::HeldKey;
use super::scopes::Overflow;
use super::shard::{FoundSlot, StateAccess};
use super::slot::SlotState;
use super::{MemoryScope, MemoryStore};
use crate::error::Error;
use crate::receipt::Receipt;

impl MemoryStore {
    /// Decides one request and charges nothing.
    pub(crate) fn peek(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        request: UnitRequest,
    ) -> LimitDecision {
        each!(&scope.limit, own => self.read_state(
            scope,
            key,
            now_us,
            request.cost,
            |state| own.peek(state, now_us, request),
            |limit, state| limit.in_place_of(&scope.limit, limit.peek(&state, now_us, request)),
            |held| held.peek(&scope.limit, now_us, request),
        ))
    }

    /// Gives back the part of a charge that still counts, under the limit that the key is under now: a refund does not
    /// carry the key over. Returns an error if the receipt belongs to another key.
    pub(crate) fn refund(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        receipt: Receipt,
    ) -> Result<u64, Error> {
        let charge = receipt.charge_of(self.place(scope, key).fingerprint());
        let charge = charge.ok_or_else(|| Error::receipt_mismatch(scope.name().text()))?;
        Ok(each!(&scope.limit, own => self.change_state(scope, key, now_us, |reached| {
            match reached {
                StateAccess::Own(state) => own.refund(state, now_us, charge),
                StateAccess::Other(limit, state) => limit.refund(state, now_us, charge),
                StateAccess::Held(held, view) => held.refund(view, charge),
            }
        })))
    }

    /// Returns a copy of a key's state and of its holds, and the limit that decides on it.
    pub(crate) fn state(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
    ) -> (Limit, State, Holds) {
        let other = |limit, state| (limit, state, Holds::default());
        let own = |state| (scope.limit, state, Holds::default());
        let held = |held: &HeldKey| held.carried_copy(&scope.limit, now_us, Cost::ONE);
        match &scope.limit {
            Limit::FixedWindow(_) => self.read_state(
                scope,
                key,
                now_us,
                Cost::ONE,
                |it: &Window| own((*it).into()),
                other,
                held,
            ),
            Limit::SlidingWindowCounter(_) => self.read_state(
                scope,
                key,
                now_us,
                Cost::ONE,
                |it: &WindowPair| own((*it).into()),
                other,
                held,
            ),
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                let own = |it: &Fill| own((*it).into());
                self.read_state(scope, key, now_us, Cost::ONE, own, other, held)
            }
            Limit::SlidingWindowLog(_) => self.read_state(
                scope,
                key,
                now_us,
                Cost::ONE,
                |it: &Log| own(it.clone().into()),
                other,
                held,
            ),
            Limit::Concurrency(_) => self.read_state(
                scope,
                key,
                now_us,
                Cost::ONE,
                |it: &KeyClock| own((*it).into()),
                other,
                held,
            ),
        }
    }

    /// Returns the charges of a key that count, oldest first; empty unless the limit is a log.
    pub(crate) fn entries(&self, scope: &MemoryScope, key: &[u8], now_us: u64) -> Vec<Entry> {
        let Limit::SlidingWindowLog(own) = &scope.limit else { return Vec::new() };
        let other = |limit: Limit, state: State| {
            limit.entries(&state, now_us).map(Iterator::collect).unwrap_or_default()
        };
        let own = |log: &Log| own.entries(log, now_us).collect();
        let held = |held: &HeldKey| {
            let (limit, mut state, mut holds) = held.carried_copy(&scope.limit, now_us, Cost::ONE);
            limit.charge_expired(&mut state, &mut holds, now_us);
            other(limit, state)
        };
        self.read_state(scope, key, now_us, Cost::ONE, own, other, held)
    }

    /// Reads a key's state with one of three functions: `own` if the state is under the scope's limit; `other` if it is
    /// under another limit, with a copy of the state and the limit that decides on it; `held` if the key has holds. A
    /// key without state may use the overflow state.
    #[allow(clippy::too_many_arguments)]
    fn read_state<S: SlotState, T>(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        cost: Cost,
        own: impl FnOnce(&S) -> T,
        other: impl FnOnce(Limit, State) -> T,
        held: impl FnOnce(&HeldKey) -> T,
    ) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        if let Some(key) = shard.held_key(place, scope) {
            return held(key);
        }
        match shard.find_any(place, scope, &self.scopes) {
            Some((at, Some(old))) => {
                let state = shard.copy_state(at, &old);
                drop(shard);
                let carried = scope.limit.carry_over(&old, state, now_us, cost);
                let (limit, state) = carried.decides(&scope.limit);
                other(limit, state)
            }
            Some((at, None)) => shard.change(at, &self.budget, |state: &mut S| own(state)),
            None => {
                drop(shard);
                let mut overflow = scope.family.overflow.lock();
                match overflow.carried_copy(&scope.limit, now_us, cost) {
                    Some((limit, state)) => other(limit, state),
                    None => act_on_own(&mut overflow.state, |state| own(state)),
                }
            }
        }
    }

    /// Changes a key's state, with the limit that it is under. A key without state may use the overflow
    /// state.
    fn change_state<S: SlotState, T>(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        act: impl FnOnce(StateAccess<'_, S>) -> T,
    ) -> T {
        let place = self.place(scope, key);
        let view = self.view_at(now_us);
        let mut shard = self.shard(place).lock();
        if let Some(key) = shard.held_key_mut(place, scope) {
            let answer = act(StateAccess::Held(key, &view));
            shard.release(place, scope, &view);
            return answer;
        }
        match shard.find_any(place, scope, &self.scopes) {
            Some((at, stays_under)) => {
                shard.change_found(FoundSlot { at, stays_under }, &self.budget, act)
            }
            None => {
                drop(shard);
                let Overflow { limit, state } = &mut *scope.family.overflow.lock();
                let other = (*limit != scope.limit).then_some(*limit);
                act_on(other, state, act)
            }
        }
    }

    /// Changes the overflow state, for a request of this cost.
    pub(super) fn overflow<S: SlotState, T>(
        &self,
        scope: &MemoryScope,
        now_us: u64,
        cost: Cost,
        act: impl FnOnce(StateAccess<'_, S>) -> T,
    ) -> T {
        let mut overflow = scope.family.overflow.lock();
        let (decides, state) = overflow.carry_over(&scope.limit, now_us, cost, &self.budget);
        act_on(decides, state, act)
    }

    /// Sets units of a key aside, if they fit. Returns an error if the limit cannot have holds.
    pub(crate) fn reserve(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        reservation: Reservation,
    ) -> Result<ReserveAnswer, HoldError> {
        scope.limit.can_hold()?;
        let place = self.place(scope, key);
        let view = self.view(now_us);
        self.shard(place).lock().reserve(place, scope, &view, reservation)
    }

    /// Charges what was used of a hold, under the limit that the key is under now: a settlement does not carry the key
    /// over.
    pub(crate) fn settle(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        hold: HoldReference,
        used: HoldUse,
    ) -> SettleAnswer {
        let place = self.place(scope, key);
        let view = self.view(now_us);
        self.shard(place).lock().settle(place, scope, &view, hold, used)
    }

    /// Adds units to a hold if they fit, and moves its expiry.
    pub(crate) fn extend(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        hold: HoldReference,
        growth: HoldGrowth,
    ) -> ExtendAnswer {
        let place = self.place(scope, key);
        let view = self.view(now_us);
        self.shard(place).lock().extend(place, scope, &view, hold, growth)
    }

    /// Takes an extension back, because another hold of the same request could not be extended.
    pub(crate) fn take_back(
        &self,
        scope: &MemoryScope,
        key: &[u8],
        now_us: u64,
        extended: GrantedExtension,
    ) {
        let place = self.place(scope, key);
        let view = self.view(now_us);
        self.shard(place).lock().take_back(place, scope, &view, extended);
    }

    /// Forgets a key and its holds.
    pub(crate) fn reset(&self, scope: &MemoryScope, key: &[u8]) {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        if shard.forget_held(place, scope, &self.budget) {
            return;
        }
        if let Some((at, _)) = shard.find_any(place, scope, &self.scopes) {
            shard.remove(at, &self.scopes.read(), &self.identify, &self.budget);
        }
    }
}

/// Runs `act` on a state. `other` is the limit that the state is under, if it is not the requested one.
fn act_on<S: SlotState, T>(
    other: Option<Limit>,
    state: &mut State,
    act: impl FnOnce(StateAccess<'_, S>) -> T,
) -> T {
    match other {
        Some(limit) => act(StateAccess::Other(&limit, state)),
        None => act_on_own(state, |own| act(StateAccess::Own(own))),
    }
}

fn act_on_own<S: SlotState, T>(state: &mut State, act: impl FnOnce(&mut S) -> T) -> T {
    match S::of(state) {
        Some(own) => act(own),
        // Not reached: the state is under the scope's own limit.
        None => act(&mut S::default()),
    }
}
