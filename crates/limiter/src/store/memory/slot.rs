//! A key and its state, in 44 bytes.

use tollgate_core::store::{LogStorage, ThreeUnitLog};
use tollgate_core::{
    Algorithm, Cost, Fill, KeyClock, Level, Limit, LimitDecision, Log, MAX_STEP_BACK_US, State,
    UnitRequest, Window, WindowPair,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::KeyPlace;
use super::budget::StoreBudget;
use super::identity::{KeyHasher, KeyIdentity, SLOT_SCOPE_BITS, ScopeMark};
use super::logs::{self, Logs};
use super::words::Words;

/// Every number of a state is below 2^53, which leaves the lowest bits of a word free.
const NUMBER_BITS: u32 = 53;
const SPARE_BITS: u32 = 64 - NUMBER_BITS;

/// The free bits of one word hold a part of the scope's index.
const _: () = assert!(SPARE_BITS == SLOT_SCOPE_BITS);
const SPARE: u64 = (1 << SPARE_BITS) - 1;

/// A key, its scope and its state, in 44 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, packed(4))]
pub(crate) struct Slot {
    identity: KeyIdentity,
    /// Three numbers. The free bits of the first word hold the scope, and the other words' free bits the lowest bits of
    /// the fourth number.
    words: [u64; 3],
    /// The upper bits of the fourth number.
    rest: u32,
}

impl Slot {
    pub(super) fn new(place: KeyPlace, state: Words) -> Slot {
        let mut slot =
            Slot { identity: place.identity, words: [u64::from(place.scope), 0, 0], rest: 0 };
        slot.set_state(state);
        slot
    }

    #[inline]
    pub(super) fn is_at(&self, place: KeyPlace) -> bool {
        self.is(place.identity, place.scope)
    }

    /// Whether the slot belongs to this key, in the scope whose index has these lower bits.
    #[inline]
    pub(super) fn is(&self, KeyIdentity([low, high]): KeyIdentity, scope: u32) -> bool {
        let Slot { identity: KeyIdentity([own_low, own_high]), words: [first, ..], .. } = *self;
        // Compared word by word: a comparison of 16 bytes would be made in memory, and wait for a recent
        // write there.
        own_low == low && own_high == high && first & SPARE == u64::from(scope)
    }

    /// Whether the slot belongs to this key, under any limit.
    pub(super) fn is_of(&self, key: KeyIdentity) -> bool {
        let Slot { identity, .. } = *self;
        identity.key() == key
    }

    /// Returns the scope's index.
    pub(super) fn scope(&self) -> u32 {
        let Slot { identity, .. } = *self;
        identity.scope() << SLOT_SCOPE_BITS | self.low_scope()
    }

    /// Returns one word of the slot. Slots are smaller than cache lines, so reading this word of all slots
    /// fetches every cache line.
    #[inline]
    pub(super) fn first_word(&self) -> u64 {
        let [first, ..] = self.words;
        first
    }

    /// Returns the place of this slot, given the place of its key under another limit.
    pub(super) fn place(&self, other: KeyPlace) -> KeyPlace {
        let Slot { identity, .. } = *self;
        KeyPlace { identity, scope: self.low_scope(), ..other }
    }

    fn low_scope(&self) -> u32 {
        // OK because the mask leaves 11 bits.
        ({ self.words }[0] & SPARE) as u32
    }

    pub(super) fn set_scope(&mut self, scope: u32) {
        let Slot { identity, words: [first, second, third], .. } = *self;
        let mark = ScopeMark::new(scope);
        self.identity = identity.key().with_scope(mark);
        self.words = [first & !SPARE | u64::from(mark.in_slot), second, third];
    }

    /// Returns the hash of its key, with the salt of its scope.
    pub(super) fn salted_hash(&self, identify: &KeyHasher, salt: u64) -> u64 {
        let Slot { identity, .. } = *self;
        identify.hash(identity.key(), salt)
    }

    #[inline]
    pub(super) fn state(&self) -> Words {
        let [first, second, third] = self.words;
        let fourth = second & SPARE
            | (third & SPARE) << SPARE_BITS
            | u64::from(self.rest) << (2 * SPARE_BITS);
        Words([first >> SPARE_BITS, second >> SPARE_BITS, third >> SPARE_BITS, fourth])
    }

    #[inline]
    pub(super) fn set_state(&mut self, words: Words) {
        self.set_numbers(words, 4);
    }

    /// Sets the first `count` numbers of a state. The other numbers are always 0. They are not written, because they
    /// may be on another cache line.
    #[inline(always)]
    fn set_numbers(&mut self, Words([first, second, third, fourth]): Words, count: usize) {
        let [scope, .., own_third] = self.words;
        let third = third << SPARE_BITS | fourth >> SPARE_BITS & SPARE;
        self.words = [
            first << SPARE_BITS | scope & SPARE,
            second << SPARE_BITS | fourth & SPARE,
            if count > 2 { third } else { own_third },
        ];
        if count > 3 {
            // OK because the fourth number has 53 bits, and 22 of them are in the words.
            self.rest = (fourth >> (2 * SPARE_BITS)) as u32;
        }
    }

    /// Runs `act` on a state that is kept in the slot alone. Returns `None` if the state is kept elsewhere, or if `act`
    /// returns `None`.
    #[inline(always)]
    pub(super) fn try_change<S: InlineState, T>(
        &mut self,
        act: impl FnOnce(&mut S) -> Option<T>,
    ) -> Option<T> {
        let mut state = S::of(self.state())?;
        let answer = act(&mut state)?;
        let words = state.words();
        self.set_numbers(words, S::NUMBERS);
        debug_assert_eq!(self.state(), words, "more than {} numbers", S::NUMBERS);
        Some(answer)
    }

    /// Whether the key is dead: nothing is spent any more, even if the clock steps back by [`MAX_STEP_BACK_US`], so a
    /// fresh state decides alike.
    pub(super) fn is_dead(&self, limit: &Limit, logs: &Logs, now_us: u64) -> bool {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let decision = self.peek(limit, logs, then_us, UnitRequest::new(Cost::ONE));
        decision.remaining == decision.limit
    }

    /// Returns when the state was last charged, as far as the state records it.
    pub(super) fn charged_us(&self, limit: &Limit, logs: &Logs) -> u64 {
        let words = self.state();
        match limit {
            Limit::FixedWindow(_) => Window::from(words).start_us,
            Limit::SlidingWindowCounter(_) => WindowPair::from(words).start_us,
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => Fill::from(words).as_of_us,
            Limit::SlidingWindowLog(_) => logs.read(words, |log| log.coarsened().charged_us),
            Limit::Concurrency(_) => KeyClock::from(words).at_us,
        }
    }

    /// Decides a request without charging it.
    #[inline]
    pub(super) fn peek(
        &self,
        limit: &Limit,
        logs: &Logs,
        now_us: u64,
        request: UnitRequest,
    ) -> LimitDecision {
        let words = self.state();
        match limit {
            Limit::FixedWindow(limit) => limit.peek(&Window::from(words), now_us, request),
            Limit::SlidingWindowCounter(limit) => {
                limit.peek(&WindowPair::from(words), now_us, request)
            }
            Limit::TokenBucket(limit) => limit.peek(&Fill::from(words), now_us, request),
            Limit::LeakyBucket(limit) => limit.peek(&Fill::from(words), now_us, request),
            Limit::SlidingWindowLog(limit) => {
                logs.read(words, |log| limit.peek(log, now_us, request))
            }
            Limit::Concurrency(limit) => limit.peek(&KeyClock::from(words), now_us, request),
        }
    }
}

impl From<Words> for Window {
    #[inline]
    fn from(Words([start_us, spent, ..]): Words) -> Window {
        Window { start_us, spent }
    }
}

impl From<Words> for WindowPair {
    #[inline]
    fn from(Words([start_us, current, previous, _]): Words) -> WindowPair {
        WindowPair { start_us, current, previous }
    }
}

impl From<Words> for Fill {
    #[inline]
    fn from(Words([as_of_us, units, fraction, charged]): Words) -> Fill {
        Fill { level: Level { units, fraction }, as_of_us, charged }
    }
}

/// A key under a concurrency limit has a slot only without holds, and then its state is the default: for instance a key
/// that was carried over for a reservation which was refused.
impl From<Words> for KeyClock {
    #[inline]
    fn from(Words([at_us, ..]): Words) -> KeyClock {
        KeyClock { at_us }
    }
}

impl Words {
    /// Takes the state out, as a state of any algorithm.
    pub(super) fn take_state(self, limit: &Limit, logs: &mut Logs) -> State {
        self.state_of(limit, |words| logs.take(words))
    }

    /// Returns a copy of the state.
    pub(super) fn copy_state(self, limit: &Limit, logs: &Logs) -> State {
        self.state_of(limit, |words| logs.read(words, Log::clone))
    }

    fn state_of(self, limit: &Limit, log: impl FnOnce(Words) -> Log) -> State {
        match limit {
            Limit::FixedWindow(_) => State::Window(self.into()),
            Limit::SlidingWindowCounter(_) => State::WindowPair(self.into()),
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => State::Fill(self.into()),
            Limit::SlidingWindowLog(_) => State::Log(log(self)),
            Limit::Concurrency(_) => State::KeyClock(self.into()),
        }
    }

    /// Puts a state of any algorithm back; returns its words.
    pub(super) fn put_state(self, state: State, logs: &mut Logs, budget: &StoreBudget) -> Words {
        match state {
            State::Window(own) => own.into(),
            State::WindowPair(own) => own.into(),
            State::Fill(own) => own.into(),
            State::Log(own) => logs.put(self, own, budget),
            State::KeyClock(own) => own.into(),
        }
    }
}

/// A state that is kept in its slot alone, as most states are: not in the list of logs.
pub(crate) trait InlineState: Sized {
    /// How many numbers the state has; the other numbers of the slot are 0.
    const NUMBERS: usize;

    /// Returns the state; `None` if it is not kept in the slot alone.
    fn of(words: Words) -> Option<Self>;

    fn words(self) -> Words;
}

macro_rules! inline_states {
    ($($state:ident: $numbers:literal),*) => {
        $(impl InlineState for $state {
            const NUMBERS: usize = $numbers;

            #[inline]
            fn of(words: Words) -> Option<$state> {
                Some(words.into())
            }

            #[inline]
            fn words(self) -> Words {
                self.into()
            }
        })*
    };
}

inline_states!(Window: 2, WindowPair: 3, Fill: 4);

impl InlineState for ThreeUnitLog {
    const NUMBERS: usize = 3;

    #[inline]
    fn of(words: Words) -> Option<ThreeUnitLog> {
        logs::three_unit_log(words)
    }

    #[inline]
    fn words(self) -> Words {
        logs::three_unit_words(self)
    }
}

/// A state that a slot can hold, in itself or by a reference to a log.
pub(crate) trait SlotState: Clone + Default + PartialEq {
    /// Runs `act` on the state in a slot, or on the log that the slot refers to.
    fn change<T>(
        slot: &mut Slot,
        logs: &mut Logs,
        budget: &StoreBudget,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T;

    /// Stores a new state, and returns its words.
    fn keep(self, logs: &mut Logs, budget: &StoreBudget) -> Words;

    /// Returns the state inside a state of any algorithm.
    fn of(state: &mut State) -> Option<&mut Self>;
}

macro_rules! kept_in_words {
    ($state:ident, $own:ident => $words:expr) => {
        impl From<$state> for Words {
            #[inline]
            fn from($own: $state) -> Words {
                Words($words)
            }
        }

        impl SlotState for $state {
            #[inline]
            fn change<T>(
                slot: &mut Slot,
                _: &mut Logs,
                _: &StoreBudget,
                act: impl FnOnce(&mut Self) -> T,
            ) -> T {
                let mut state = slot.state().into();
                let answer = act(&mut state);
                slot.set_state(state.into());
                answer
            }

            fn keep(self, _: &mut Logs, _: &StoreBudget) -> Words {
                self.into()
            }

            fn of(state: &mut State) -> Option<&mut $state> {
                if let State::$state(own) = state { Some(own) } else { None }
            }
        }
    };
}

kept_in_words!(Window, it => [it.start_us, it.spent, 0, 0]);
kept_in_words!(WindowPair, it => [it.start_us, it.current, it.previous, 0]);
kept_in_words!(KeyClock, it => [it.at_us, 0, 0, 0]);
kept_in_words!(Fill, it => [it.as_of_us, it.level.units, it.level.fraction, it.charged]);

impl SlotState for Log {
    #[inline]
    fn change<T>(
        slot: &mut Slot,
        logs: &mut Logs,
        budget: &StoreBudget,
        act: impl FnOnce(&mut Log) -> T,
    ) -> T {
        let words = slot.state();
        if let Some(log) = logs.get_mut(words) {
            let before = log.stamp();
            let answer = act(log);
            if log.stamp() != before
                && let Some(own) = logs::slot_words(log)
            {
                logs.retire(words, budget);
                slot.set_state(own);
            }
            return answer;
        }
        let mut log = logs.take(words);
        let before = log.stamp();
        let answer = act(&mut log);
        if log.stamp() != before {
            slot.set_state(logs.put(words, log, budget));
        }
        answer
    }

    fn keep(self, logs: &mut Logs, budget: &StoreBudget) -> Words {
        logs.put(Words::default(), self, budget)
    }

    fn of(state: &mut State) -> Option<&mut Log> {
        if let State::Log(own) = state { Some(own) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::super::identity::MAX_SCOPE;
    use super::*;

    /// Tests each number at the boundaries of the parts it is split into, in scopes at the boundaries of
    /// their parts.
    #[test]
    fn a_slot_keeps_its_numbers_and_its_scope() {
        const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
        let edges = [0, 1, (1 << 11) - 1, 1 << 11, (1 << 22) - 1, 1 << 22, NUMBER];
        for scope in [0, 1, (1 << SLOT_SCOPE_BITS) - 1, 1 << SLOT_SCOPE_BITS, MAX_SCOPE] {
            let identity = KeyIdentity([7, u64::from(scope >> SLOT_SCOPE_BITS) << 60 | 5]);
            let low = scope & ((1 << SLOT_SCOPE_BITS) - 1);
            let place = KeyPlace { identity, scope: low, hash: 0, shard: 0 };
            let other = KeyPlace { scope: low ^ 1, ..place };
            for nth in 0..4 {
                for number in edges {
                    let mut numbers = [NUMBER, 0, NUMBER, 0];
                    numbers[nth] = number;
                    let mut slot = Slot::new(place, Words(numbers));
                    assert_eq!(slot.state(), Words(numbers), "{number} at {nth}");
                    numbers.reverse();
                    slot.set_state(Words(numbers));
                    assert_eq!(slot.state(), Words(numbers), "{number} at {nth}");
                    assert_eq!(slot.scope(), scope);
                    assert!(slot.is_at(place) && !slot.is_at(other), "{scope}");
                }
            }
        }
    }
}
