//! A key and its state, in 44 bytes.

use tollgate_core::store::{FewLog, LogStorage};
use tollgate_core::{
    Algorithm, Ask, Cost, Decision, Fill, Level, Limit, Log, MAX_STEP_BACK_US, State, Window,
    WindowPair,
};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::Place;
use super::budget::Budget;
use super::identity::{Identify, Identity, Mark, SLOT_SCOPE_BITS};
use super::logs::{self, Logs};
use super::words::Words;

/// Every number of a state is below 2^53, which leaves the bottom of a word free.
const NUMBER_BITS: u32 = 53;
const SPARE_BITS: u32 = 64 - NUMBER_BITS;

/// One of the free parts has a part of the scope's index.
const _: () = assert!(SPARE_BITS == SLOT_SCOPE_BITS);
const SPARE: u64 = (1 << SPARE_BITS) - 1;

/// A key: who it is, which scope it is in, and its state, in 44 bytes.
#[derive(Clone, Copy, Debug, Default, FromBytes, Immutable, IntoBytes, KnownLayout)]
#[repr(C, packed(4))]
pub(crate) struct Slot {
    identity: Identity,
    /// Three numbers; below the first, the scope, below the others, the lower bits of the fourth.
    words: [u64; 3],
    /// The upper bits of the fourth number.
    rest: u32,
}

impl Slot {
    pub(super) fn new(place: Place, state: Words) -> Slot {
        let mut slot =
            Slot { identity: place.identity, words: [u64::from(place.scope), 0, 0], rest: 0 };
        slot.set_state(state);
        slot
    }

    #[inline]
    pub(super) fn is_at(&self, place: Place) -> bool {
        self.is(place.identity, place.scope)
    }

    /// Whether it is this key's, in the scope of whose index it has these bits.
    #[inline]
    pub(super) fn is(&self, Identity([low, high]): Identity, scope: u32) -> bool {
        let Slot { identity: Identity([own_low, own_high]), words: [first, ..], .. } = *self;
        // Word by word: as 16 bytes they would be compared in memory, which waits for what was just written there.
        own_low == low && own_high == high && first & SPARE == u64::from(scope)
    }

    /// Whether it is this key's, under whichever limit.
    pub(super) fn is_of(&self, key: Identity) -> bool {
        let Slot { identity, .. } = *self;
        identity.key() == key
    }

    /// The scope's index.
    pub(super) fn scope(&self) -> u32 {
        let Slot { identity, .. } = *self;
        identity.scope() << SLOT_SCOPE_BITS | self.low_scope()
    }

    /// Something of it: slots are smaller than cache lines, so that who reads this of all has read of every line.
    #[inline]
    pub(super) fn first_word(&self) -> u64 {
        let [first, ..] = self.words;
        first
    }

    /// Its place, where that of its key under another limit is this.
    pub(super) fn place(&self, other: Place) -> Place {
        let Slot { identity, .. } = *self;
        Place { identity, scope: self.low_scope(), ..other }
    }

    fn low_scope(&self) -> u32 {
        // OK because those are 11 bits.
        ({ self.words }[0] & SPARE) as u32
    }

    pub(super) fn set_scope(&mut self, scope: u32) {
        let Slot { identity, words: [first, second, third], .. } = *self;
        let mark = Mark::new(scope);
        self.identity = identity.key().with_scope(mark);
        self.words = [first & !SPARE | u64::from(mark.in_slot), second, third];
    }

    /// Returns the hash of its key, with the salt of its scope.
    pub(super) fn salted_hash(&self, identify: &Identify, salt: u64) -> u64 {
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

    /// Sets the first `count` numbers of a state whose others are 0 and stay so: those may be on another cache line.
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
            // OK because the fourth has 53 bits, and 22 of them are elsewhere.
            self.rest = (fourth >> (2 * SPARE_BITS)) as u32;
        }
    }

    /// Runs `act` on a state that is as most are; `None` if it is not, or that comes to nothing.
    #[inline(always)]
    pub(super) fn try_change<S: Usual, T>(
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

    /// Whether nothing has been spent for so long that a fresh key would decide alike, also if the
    /// clock stepped back as far as it may.
    pub(super) fn is_dead(&self, limit: &Limit, logs: &Logs, now_us: u64) -> bool {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let decision = self.peek(limit, logs, then_us, Ask::new(Cost::ONE));
        decision.remaining == decision.limit
    }

    /// When the state was last charged, as far as it knows.
    pub(super) fn charged_us(&self, limit: &Limit, logs: &Logs) -> u64 {
        let words = self.state();
        match limit {
            Limit::FixedWindow(_) => Window::from(words).start_us,
            Limit::SlidingWindowCounter(_) => WindowPair::from(words).start_us,
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => Fill::from(words).as_of_us,
            Limit::SlidingWindowLog(_) => logs.look(words, |log| log.coarsened().charged_us),
        }
    }

    /// What the key would be answered.
    #[inline]
    pub(super) fn peek(&self, limit: &Limit, logs: &Logs, now_us: u64, ask: Ask) -> Decision {
        let words = self.state();
        match limit {
            Limit::FixedWindow(limit) => limit.peek(&Window::from(words), now_us, ask),
            Limit::SlidingWindowCounter(limit) => limit.peek(&WindowPair::from(words), now_us, ask),
            Limit::TokenBucket(limit) => limit.peek(&Fill::from(words), now_us, ask),
            Limit::LeakyBucket(limit) => limit.peek(&Fill::from(words), now_us, ask),
            Limit::SlidingWindowLog(limit) => logs.look(words, |log| limit.peek(log, now_us, ask)),
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

impl Words {
    /// The state of a scope's key as one of any kind, taken out.
    pub(super) fn take_state(self, limit: &Limit, logs: &mut Logs) -> State {
        self.state_of(limit, |words| logs.take(words))
    }

    /// A copy of it.
    pub(super) fn copy_state(self, limit: &Limit, logs: &Logs) -> State {
        self.state_of(limit, |words| logs.look(words, Log::clone))
    }

    fn state_of(self, limit: &Limit, log: impl FnOnce(Words) -> Log) -> State {
        match limit {
            Limit::FixedWindow(_) => State::Window(self.into()),
            Limit::SlidingWindowCounter(_) => State::WindowPair(self.into()),
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => State::Fill(self.into()),
            Limit::SlidingWindowLog(_) => State::Log(log(self)),
        }
    }

    /// Puts such a state back; returns its words.
    pub(super) fn put_state(self, state: State, logs: &mut Logs, budget: &Budget) -> Words {
        match state {
            State::Window(own) => own.into(),
            State::WindowPair(own) => own.into(),
            State::Fill(own) => own.into(),
            State::Log(own) => logs.put(self, own, budget),
        }
    }
}

/// A state as most keys have it, in its slot and nowhere else.
pub(crate) trait Usual: Sized {
    /// How many numbers it has; the others are 0.
    const NUMBERS: usize;

    /// `None` if this key's is not.
    fn of(words: Words) -> Option<Self>;

    fn words(self) -> Words;
}

macro_rules! usual {
    ($($state:ident: $numbers:literal),*) => {
        $(impl Usual for $state {
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

usual!(Window: 2, WindowPair: 3, Fill: 4);

impl Usual for FewLog {
    const NUMBERS: usize = 3;

    #[inline]
    fn of(words: Words) -> Option<FewLog> {
        logs::few(words)
    }

    #[inline]
    fn words(self) -> Words {
        logs::few_words(self)
    }
}

/// A state that a slot can keep.
pub(crate) trait Kept: Clone + Default + PartialEq {
    /// Runs `act` on the state in a slot, or where that points to.
    fn change<T>(
        slot: &mut Slot,
        logs: &mut Logs,
        budget: &Budget,
        act: impl FnOnce(&mut Self) -> T,
    ) -> T;

    /// The words of a state that is new here.
    fn keep(self, logs: &mut Logs, budget: &Budget) -> Words;

    /// The state inside one of any kind.
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

        impl Kept for $state {
            #[inline]
            fn change<T>(
                slot: &mut Slot,
                _: &mut Logs,
                _: &Budget,
                act: impl FnOnce(&mut Self) -> T,
            ) -> T {
                let mut state = slot.state().into();
                let answer = act(&mut state);
                slot.set_state(state.into());
                answer
            }

            fn keep(self, _: &mut Logs, _: &Budget) -> Words {
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
kept_in_words!(Fill, it => [it.as_of_us, it.level.units, it.level.fraction, it.charged]);

impl Kept for Log {
    #[inline]
    fn change<T>(
        slot: &mut Slot,
        logs: &mut Logs,
        budget: &Budget,
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

    fn keep(self, logs: &mut Logs, budget: &Budget) -> Words {
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

    /// Each number at the edges of the parts it is kept in, in scopes at the edges of theirs.
    #[test]
    fn a_slot_keeps_its_numbers_and_its_scope() {
        const NUMBER: u64 = (1 << NUMBER_BITS) - 1;
        let edges = [0, 1, (1 << 11) - 1, 1 << 11, (1 << 22) - 1, 1 << 22, NUMBER];
        for scope in [0, 1, (1 << SLOT_SCOPE_BITS) - 1, 1 << SLOT_SCOPE_BITS, MAX_SCOPE] {
            let identity = Identity([7, u64::from(scope >> SLOT_SCOPE_BITS) << 60 | 5]);
            let low = scope & ((1 << SLOT_SCOPE_BITS) - 1);
            let place = Place { identity, scope: low, hash: 0, shard: 0 };
            let other = Place { scope: low ^ 1, ..place };
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
