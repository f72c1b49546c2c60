//! What is done with a key's state beside checks.

use tollgate_core::{
    Algorithm, Ask, Decision, Entry, Fill, Limit, Log, Receipt, State, Window, WindowPair,
};

use super::shard::Reached;
use super::slot::Kept;
use super::{Memory, Scope};

/// Runs the same expression on the algorithm inside a limit, as its own type.
macro_rules! each {
    ($limit:expr, $algorithm:ident => $body:expr) => {
        match $limit {
            Limit::FixedWindow($algorithm) => $body,
            Limit::SlidingWindowLog($algorithm) => $body,
            Limit::SlidingWindowCounter($algorithm) => $body,
            Limit::TokenBucket($algorithm) => $body,
            Limit::LeakyBucket($algorithm) => $body,
        }
    };
}

impl Memory {
    /// Decides one request and charges nothing.
    pub(crate) fn peek(&self, scope: &Scope, key: &[u8], now_us: u64, ask: Ask) -> Decision {
        each!(&scope.limit, own => self.look(
            scope,
            key,
            now_us,
            |state| own.peek(state, now_us, ask),
            |limit, state| limit.peek(&state, now_us, ask),
        ))
    }

    /// Gives back what of a charge still counts.
    pub(crate) fn refund(&self, scope: &Scope, key: &[u8], now_us: u64, receipt: Receipt) -> u64 {
        each!(&scope.limit, own => self.amend(scope, key, now_us, |reached| match reached {
            Reached::Own(state) => own.refund(state, now_us, receipt),
            Reached::Other(limit, state) => limit.refund(state, now_us, receipt),
        }))
    }

    /// A copy of a key's state, and the limit that decides on it.
    pub(crate) fn state(&self, scope: &Scope, key: &[u8], now_us: u64) -> (Limit, State) {
        let other = |limit, state| (limit, state);
        let own = |state| (scope.limit, state);
        match &scope.limit {
            Limit::FixedWindow(_) => {
                self.look(scope, key, now_us, |it: &Window| own((*it).into()), other)
            }
            Limit::SlidingWindowCounter(_) => {
                self.look(scope, key, now_us, |it: &WindowPair| own((*it).into()), other)
            }
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => {
                self.look(scope, key, now_us, |it: &Fill| own((*it).into()), other)
            }
            Limit::SlidingWindowLog(_) => {
                self.look(scope, key, now_us, |it: &Log| own(it.clone().into()), other)
            }
        }
    }

    /// The charges of a key that count, oldest first; none unless the limit is a log.
    pub(crate) fn entries(&self, scope: &Scope, key: &[u8], now_us: u64) -> Vec<Entry> {
        let Limit::SlidingWindowLog(own) = &scope.limit else { return Vec::new() };
        let other = |limit: Limit, state: State| {
            limit.entries(&state, now_us).map(Iterator::collect).unwrap_or_default()
        };
        self.look(scope, key, now_us, |log: &Log| own.entries(log, now_us).collect(), other)
    }

    /// Looks at a key's state; if that is under another limit than the scope's, at a copy, with the limit
    /// that decides on it. A key without state may be among those that found no room.
    fn look<S: Kept, T>(
        &self,
        scope: &Scope,
        key: &[u8],
        now_us: u64,
        own: impl FnOnce(&S) -> T,
        other: impl FnOnce(Limit, State) -> T,
    ) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        match shard.find_any(place, scope, &self.scopes) {
            Some((at, Some(old))) => {
                let state = shard.copy_state(at, &old);
                drop(shard);
                let (limit, state) = scope.limit.carry_over(&old, state, now_us);
                other(limit, state)
            }
            Some((at, None)) => shard.change(at, &self.budget, |state: &mut S| own(state)),
            None => {
                drop(shard);
                let mut overflow = scope.family.overflow.lock();
                match overflow.carried(&scope.limit, now_us) {
                    Some((limit, state)) => other(limit, state),
                    None => within(&mut overflow.state, |state| own(state)),
                }
            }
        }
    }

    /// Changes a key's state, if it has one. A key without state may be among those that found no room.
    fn amend<S: Kept, T>(
        &self,
        scope: &Scope,
        key: &[u8],
        now_us: u64,
        act: impl FnOnce(Reached<'_, S>) -> T,
    ) -> T {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        match shard.bring(place, scope, &self.census(now_us)) {
            Some(brought) => shard.change_brought(brought, &self.budget, act),
            None => {
                drop(shard);
                self.overflow(scope, now_us, act)
            }
        }
    }

    /// Changes the state of those that found no room.
    pub(super) fn overflow<S: Kept, T>(
        &self,
        scope: &Scope,
        now_us: u64,
        act: impl FnOnce(Reached<'_, S>) -> T,
    ) -> T {
        let mut overflow = scope.family.overflow.lock();
        let (limit, state) = overflow.bring(&scope.limit, now_us, &self.budget);
        match limit == scope.limit {
            true => within(state, |own| act(Reached::Own(own))),
            false => act(Reached::Other(&limit, state)),
        }
    }

    /// Forgets a key.
    pub(crate) fn reset(&self, scope: &Scope, key: &[u8]) {
        let place = self.place(scope, key);
        let mut shard = self.shard(place).lock();
        if let Some((at, _)) = shard.find_any(place, scope, &self.scopes) {
            shard.remove(at, &self.scopes.read(), &self.identify, &self.budget);
        }
    }
}

fn within<S: Kept, T>(state: &mut State, act: impl FnOnce(&mut S) -> T) -> T {
    match S::of(state) {
        Some(own) => act(own),
        // Not reached: the state is under the scope's own limit.
        None => act(&mut S::default()),
    }
}
