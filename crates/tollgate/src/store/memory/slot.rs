//! A key's state as four words.

use tollgate_core::{
    Algorithm, Ask, Cost, Decision, Fill, Level, Limit, Log, MAX_STEP_BACK_US, State, Window,
    WindowPair,
};

use super::identity::Identity;
use super::logs::Logs;

/// The largest index of a scope that a slot has room for.
pub(super) const MAX_SCOPE: u32 = (1 << 22) - 1;

/// Every number of a state is below 2^53, which leaves the top of a word free.
const NUMBER_BITS: u32 = 53;
const NUMBER: u64 = (1 << NUMBER_BITS) - 1;

/// A key: who it is, which scope it is in, and its state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Slot {
    identity: Identity,
    /// Four numbers; above the first and the last, the halves of the scope's index.
    words: [u64; 4],
}

impl Slot {
    pub(super) fn new(scope: u32, identity: Identity, state: Words) -> Slot {
        let mut slot = Slot { identity, words: [0; 4] };
        slot.words[0] = u64::from(scope >> 11) << NUMBER_BITS;
        slot.words[3] = u64::from(scope & 0x7ff) << NUMBER_BITS;
        slot.set_state(state);
        slot
    }

    #[inline]
    pub(super) fn is(&self, scope: u32, identity: Identity) -> bool {
        self.identity == identity && self.scope() == scope
    }

    #[inline]
    pub(super) fn scope(&self) -> u32 {
        // OK because the shifts leave 11 bits of each.
        ((self.words[0] >> NUMBER_BITS) << 11 | self.words[3] >> NUMBER_BITS) as u32
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    #[inline]
    pub(super) fn state(&self) -> Words {
        let [first, second, third, fourth] = self.words;
        Words([first & NUMBER, second, third, fourth & NUMBER])
    }

    #[inline]
    pub(super) fn set_state(&mut self, Words([first, second, third, fourth]): Words) {
        let above = |word: u64| word & !NUMBER;
        self.words = [above(self.words[0]) | first, second, third, above(self.words[3]) | fourth];
    }

    /// Whether nothing has been spent for so long that a fresh key would decide alike, also if the
    /// clock stepped back as far as it may.
    pub(super) fn is_dead(&self, limit: &Limit, logs: &Logs, now_us: u64) -> bool {
        let then_us = now_us.saturating_sub(MAX_STEP_BACK_US);
        let decision = self.peek(limit, logs, then_us, Ask::new(Cost::ONE));
        decision.is_none_or(|decision| decision.remaining == decision.limit)
    }

    /// What the key would be answered; `None` if its log is missing.
    pub(super) fn peek(
        &self,
        limit: &Limit,
        logs: &Logs,
        now_us: u64,
        ask: Ask,
    ) -> Option<Decision> {
        let words = self.state();
        Some(match limit {
            Limit::FixedWindow(limit) => limit.peek(&Window::from(words), now_us, ask),
            Limit::SlidingWindowCounter(limit) => limit.peek(&WindowPair::from(words), now_us, ask),
            Limit::TokenBucket(limit) => limit.peek(&Fill::from(words), now_us, ask),
            Limit::LeakyBucket(limit) => limit.peek(&Fill::from(words), now_us, ask),
            Limit::SlidingWindowLog(limit) => limit.peek(logs.get(words)?, now_us, ask),
        })
    }
}

/// A state's numbers, each below 2^53.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Words(pub(super) [u64; 4]);

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
        match limit {
            Limit::FixedWindow(_) => State::Window(self.into()),
            Limit::SlidingWindowCounter(_) => State::WindowPair(self.into()),
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => State::Fill(self.into()),
            Limit::SlidingWindowLog(_) => State::Log(logs.take(self)),
        }
    }

    /// Puts such a state back; returns its words.
    pub(super) fn put_state(self, state: State, logs: &mut Logs) -> Words {
        match state {
            State::Window(own) => own.put(self, logs),
            State::WindowPair(own) => own.put(self, logs),
            State::Fill(own) => own.put(self, logs),
            State::Log(own) => own.put(self, logs),
        }
    }
}

/// A state that a slot can keep.
pub(crate) trait Kept: Clone + Default + PartialEq {
    /// Takes the state out of its words, or from where they point to.
    fn take(words: Words, logs: &mut Logs) -> Self;

    /// Puts it back; returns its words.
    fn put(self, words: Words, logs: &mut Logs) -> Words;

    /// The bytes it takes beside its words.
    fn heap_bytes(&self) -> usize {
        0
    }

    /// The state inside one of any kind.
    fn of(state: &mut State) -> Option<&mut Self>;
}

macro_rules! kept_in_words {
    ($state:ident, $own:ident => $words:expr) => {
        impl Kept for $state {
            #[inline]
            fn take(words: Words, _: &mut Logs) -> $state {
                words.into()
            }

            #[inline]
            fn put(self, _: Words, _: &mut Logs) -> Words {
                let $own = self;
                Words($words)
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
    fn take(words: Words, logs: &mut Logs) -> Log {
        logs.take(words)
    }

    fn put(self, words: Words, logs: &mut Logs) -> Words {
        logs.put(words, self)
    }

    fn heap_bytes(&self) -> usize {
        self.heap_bytes()
    }

    fn of(state: &mut State) -> Option<&mut Log> {
        if let State::Log(own) = state { Some(own) } else { None }
    }
}
