//! A limit: an algorithm with its numbers, chosen at run time.

mod beside_holds;
mod common;
mod more;
mod quota;
mod state;
mod text;

pub use state::State;

use crate::algorithm::{
    Algorithm, Bucket, BucketKind, Concurrency, Entry, FixedWindow, LeakyBucket, MAX_TIME_US, Mode,
    SlidingWindowCounter, SlidingWindowLog, TokenBucket,
};
use crate::decision::{ChargeReceipt, CheckResult, Cost, LimitDecision, UnitRequest};
use crate::parameter::AlgorithmName;
use crate::range::MAX_UNITS;
use state::{change, read};

/// An algorithm with its numbers, as configuration and the command line write it.
///
/// ```
/// use tollgate_core::{Cost, Limit, State, UnitRequest};
///
/// let limit: Limit = "token-bucket capacity=10 refill=1/s".parse()?;
/// let mut state = limit.fresh();
/// let now_us = 1_700_000_000_000_000;
/// let checked = limit.check(&mut state, now_us, UnitRequest::new(Cost::new(8)?));
/// assert!(checked.decision.is_allowed());
/// assert_eq!(checked.decision.remaining, 2);
/// assert_eq!(checked.decision.reset_after_us, 8_000_000);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)] // a separate tag: reading one that is stored among a variant's fields takes six more instructions
pub enum Limit {
    /// A counter that starts again at every window.
    FixedWindow(FixedWindow),
    /// A list of the charges; each counts for exactly one window.
    SlidingWindowLog(SlidingWindowLog),
    /// Two counters from which the units of the last window are estimated.
    SlidingWindowCounter(SlidingWindowCounter),
    /// A balance that comes back at a steady rate.
    TokenBucket(TokenBucket),
    /// A level that leaks at a steady rate, as a meter or as a queue.
    LeakyBucket(LeakyBucket),
    /// A bound on the units that are held at a time.
    Concurrency(Concurrency),
}

/// The result of moving a key from one limit to another: [`Limit::carry_over`].
#[derive(Clone, Debug, PartialEq)]
pub enum CarryOver {
    /// The key's state under the new limit.
    Done(State),
    /// The key stays under the old limit for now.
    Stays {
        /// The old limit with the size of the new limit, which decides meanwhile. For a key with holds, the size may be
        /// smaller than that: the old limit's own size, or the cost of the request.
        decides: Limit,
        /// The key's state, unchanged.
        state: State,
    },
}

impl CarryOver {
    /// Returns the limit that decides a request to the limit `requested`, and the state.
    pub fn decides(self, requested: &Limit) -> (Limit, State) {
        match self {
            CarryOver::Done(state) => (*requested, state),
            CarryOver::Stays { decides, state } => (decides, state),
        }
    }
}

/// The most a limit admits over one interval (P11). A concurrency limit bounds what is held at an instant instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The interval's length.
    pub interval_us: u64,
    /// The most units admitted in any interval this long, on a clock that does not step back and
    /// a store that loses nothing. Each loss of state adds at most one full burst. For a
    /// [concurrency limit](Limit::only_holds) this is the most units held at any instant.
    pub max_units: u64,
    /// The formula of `max_units`, with t the interval in microseconds.
    pub formula: &'static str,
}

/// Runs the same expression on the algorithm inside a limit, as its own type.
///
/// ```
/// use tollgate_core::store::each;
/// use tollgate_core::{Algorithm, Limit};
///
/// fn interval_us(limit: &Limit) -> u64 {
///     each!(limit, algorithm => algorithm.interval_us())
/// }
/// assert_eq!(interval_us(&"fixed-window limit=5 window=1s".parse()?), 1_000_000);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
// Exported macros are at the crate's root; `store::each` is the name to use.
#[doc(hidden)]
#[macro_export]
macro_rules! __each {
    ($limit:expr, $algorithm:ident => $body:expr) => {
        match $limit {
            $crate::Limit::FixedWindow($algorithm) => $body,
            $crate::Limit::SlidingWindowLog($algorithm) => $body,
            $crate::Limit::SlidingWindowCounter($algorithm) => $body,
            $crate::Limit::TokenBucket($algorithm) => $body,
            $crate::Limit::LeakyBucket($algorithm) => $body,
            $crate::Limit::Concurrency($algorithm) => $body,
        }
    };
}
use __each as each;

impl Limit {
    /// The algorithm's name.
    pub const fn name(&self) -> AlgorithmName {
        match self {
            Limit::FixedWindow(_) => AlgorithmName::FixedWindow,
            Limit::SlidingWindowLog(_) => AlgorithmName::SlidingWindowLog,
            Limit::SlidingWindowCounter(_) => AlgorithmName::SlidingWindowCounter,
            Limit::TokenBucket(_) => AlgorithmName::TokenBucket,
            Limit::LeakyBucket(_) => AlgorithmName::LeakyBucket,
            Limit::Concurrency(_) => AlgorithmName::Concurrency,
        }
    }

    /// The limit's size, its `limit` or `capacity`: the most one request can ever cost.
    pub fn size(&self) -> u64 {
        each!(self, limit => limit.size())
    }

    /// Whether the limit delays requests: true only for a shaping leaky bucket.
    pub fn is_shaping(&self) -> bool {
        matches!(self, Limit::LeakyBucket(bucket) if bucket.mode() == Mode::Shaping)
    }

    /// The state of a key that has spent nothing.
    pub fn fresh(&self) -> State {
        self.after_spending(0, 0)
    }

    /// Decides one request and charges it if it is allowed. A check of a [concurrency limit](Self::only_holds) is denied.
    pub fn check(&self, state: &mut State, now_us: u64, request: UnitRequest) -> CheckResult {
        each!(self, limit => change(limit, state, now_us, |own| limit.check(own, now_us, request)))
    }

    /// Decides one request and charges nothing: `remaining` and `reset_after_us` are the values before it.
    ///
    /// After the clock stepped back by more than 10 s, the answer is what a check would find; only a
    /// check restarts the key's time.
    pub fn peek(&self, state: &State, now_us: u64, request: UnitRequest) -> LimitDecision {
        each!(self, limit => read(limit, state, now_us, |own| limit.peek(own, now_us, request)))
    }

    /// Returns how many requests like this one fit at `now_us`, one after the other.
    pub fn fits(&self, state: &State, now_us: u64, request: UnitRequest) -> u64 {
        each!(self, limit => read(limit, state, now_us, |own| limit.fits(own, now_us, request)))
    }

    /// Gives back the part of a charge that still counts at `now_us`. Returns by how much `remaining` grew.
    ///
    /// Units that have left already are not given back, so a refund never admits more than if the
    /// request had not been made. It may give back less: from a bucket whose charges are refunded
    /// out of order or whose rate was lowered, and from windows and logs whose clock has restarted
    /// since, or whose window has changed. After a key is reset its receipts are no longer good: drop them.
    pub fn refund(&self, state: &mut State, now_us: u64, receipt: ChargeReceipt) -> u64 {
        each!(self, limit => change(limit, state, now_us, |own| limit.refund(own, now_us, receipt)))
    }

    /// The charges that count at `now_us`, oldest first; `None` unless this is a sliding window log.
    pub fn entries<'s>(
        &self,
        state: &'s State,
        now_us: u64,
    ) -> Option<impl Iterator<Item = Entry> + use<'s>> {
        match (self, state) {
            (Limit::SlidingWindowLog(limit), State::Log(log)) => Some(limit.entries(log, now_us)),
            _ => None,
        }
    }

    /// Restarts the state's clock if `now_us` shows a new one, as every check does.
    pub fn restart_clock(&self, state: &mut State, now_us: u64) {
        each!(self, limit => change(limit, state, now_us, |own| limit.restart_clock(own, now_us)))
    }

    /// The most that the limit admits over one window, or over the time in which a bucket that is all spent comes back. For
    /// a [concurrency limit](Self::only_holds) this is the most units held at any instant, and the interval is its default
    /// hold time.
    pub fn bound(&self) -> Bound {
        self.bound_over(each!(self, limit => limit.interval_us()))
    }

    /// The most that the limit admits in any `interval_us` consecutive microseconds.
    pub fn bound_over(&self, interval_us: u64) -> Bound {
        let max_units = each!(self, limit => limit.bound_units(interval_us));
        let formula = each!(self, limit => limit.bound_formula());
        Bound { interval_us, max_units, formula }
    }

    /// Moves a key from the `old` limit, under which it reached `state`, to this one, for a request of `cost`.
    ///
    /// Spent units stay spent, as far as that can be expressed under the new limit. No more remains than
    /// for a fresh key. Between algorithms, and to a shorter window, all units that are spent at `now_us` count
    /// as spent at `now_us`; the entries of a log keep their times.
    ///
    /// A bucket cannot hold more than its capacity, and a shorter window soon forgets what a longer one still counts.
    /// So while a key has spent more than the new size, it stays under the old limit, with the new size: requests are
    /// refused until enough has left. If a key moves to another limit and back, at most the units that the other limit
    /// could have admitted meanwhile are forgotten; between buckets, none.
    ///
    /// Unless both limits are buckets, the key also stays while this request does not fit. Otherwise requests
    /// that alternate between two limits could be refused for ever, because at each move all spent units would
    /// count as spent just now.
    ///
    /// ```
    /// use tollgate_core::{CarryOver, Cost, Limit, UnitRequest};
    ///
    /// let (large, small): (Limit, Limit) = (
    ///     "token-bucket capacity=600 refill=10/s".parse()?,
    ///     "token-bucket capacity=60 refill=1/s".parse()?,
    /// );
    /// let mut state = large.fresh();
    /// large.check(&mut state, 0, UnitRequest::new(Cost::new(600)?));
    /// let CarryOver::Stays { decides, state } = small.carry_over(&large, state, 0, Cost::ONE) else {
    ///     panic!("600 do not fit 60")
    /// };
    /// assert_eq!(decides, "token-bucket capacity=60 refill=10/s".parse()?);
    /// let refused = decides.peek(&state, 0, UnitRequest::new(Cost::ONE));
    /// assert_eq!(refused.retry_after_us(), Some(54_100_000)); // until 59 are left, at 10 a second
    /// let carried = small.carry_over(&large, state, 54_100_000, Cost::ONE);
    /// assert!(matches!(carried, CarryOver::Done(_)));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn carry_over(&self, old: &Limit, state: State, now_us: u64, cost: Cost) -> CarryOver {
        let now_us = now_us.min(MAX_TIME_US);
        let spent = old.spent(&state, now_us);
        if !self.takes_over(old, spent, cost.units()) {
            return CarryOver::Stays { decides: old.with_size(self.size()), state };
        }
        CarryOver::Done(self.carried(old, state, spent, now_us))
    }

    /// Whether a key that has spent `spent` under the `old` limit can move to this one, for a request that needs room
    /// for `units` more.
    fn takes_over(&self, old: &Limit, spent: u64, units: u64) -> bool {
        let are_buckets = self.bucket().is_some() && old.bucket().is_some();
        let must_fit = if are_buckets { 0 } else { units };
        spent.saturating_add(must_fit) <= self.size() || self.counts_all_of(old)
    }

    /// Whether everything that counts under the `old` limit also counts under this one: both are windows of
    /// the same kind, and this one is no shorter; or both count held units only.
    fn counts_all_of(&self, old: &Limit) -> bool {
        match (self, old) {
            (Limit::FixedWindow(new), Limit::FixedWindow(old)) => {
                new.window_us() >= old.window_us()
            }
            (Limit::SlidingWindowLog(new), Limit::SlidingWindowLog(old)) => {
                new.window_us() >= old.window_us()
            }
            (Limit::SlidingWindowCounter(new), Limit::SlidingWindowCounter(old)) => {
                new.window_us() >= old.window_us()
            }
            (Limit::Concurrency(_), Limit::Concurrency(_)) => true,
            _ => false,
        }
    }

    /// The state of a key that [`carry_over`](Self::carry_over) moves to this limit.
    fn carried(&self, old: &Limit, state: State, spent: u64, now_us: u64) -> State {
        use Limit as L;
        use State as S;
        let now_us = now_us.min(MAX_TIME_US);
        if let (Some(new), Some(old), S::Fill(fill)) = (self.bucket(), old.bucket(), &state) {
            return new.carry_over(old, *fill, now_us).into();
        }
        match (self, old, &state) {
            (L::SlidingWindowLog(_), L::SlidingWindowLog(_), S::Log(_)) => state,
            // A longer window also counts units that the old one no longer counted.
            (L::FixedWindow(new), L::FixedWindow(own), &S::Window(window))
                if self.counts_all_of(old) =>
            {
                new.carry_over(own, window, now_us).into()
            }
            (L::SlidingWindowCounter(new), L::SlidingWindowCounter(own), &S::WindowPair(pair))
                if self.counts_all_of(old) =>
            {
                new.carry_over(own, pair, now_us).into()
            }
            // Listed one by one, so that adding an algorithm forces a decision here.
            (
                L::FixedWindow(_)
                | L::SlidingWindowLog(_)
                | L::SlidingWindowCounter(_)
                | L::TokenBucket(_)
                | L::LeakyBucket(_)
                | L::Concurrency(_),
                ..,
            ) => self.after_spending(spent, now_us),
        }
    }

    /// The whole units that are spent at `now_us`: possibly more than the size, if that was lowered.
    fn spent(&self, state: &State, now_us: u64) -> u64 {
        let spent =
            each!(self, limit => read(limit, state, now_us, |own| limit.spent_at(own, now_us)));
        // After a step back of the clock a counter's estimate can be twice the limit.
        spent.min(MAX_UNITS)
    }

    /// Returns the same limit with another size. The size may be out of the range that a limit accepts.
    fn with_size(&self, size: u64) -> Limit {
        each!(self, limit => limit.with_size(size).into())
    }

    /// The state of a key that has just spent `units`.
    fn after_spending(&self, units: u64, now_us: u64) -> State {
        each!(self, limit => limit.after_spending(units, now_us).into())
    }

    fn bucket(&self) -> Option<&Bucket> {
        match self {
            Limit::TokenBucket(limit) => Some(limit.bucket()),
            Limit::LeakyBucket(limit) => Some(limit.bucket()),
            Limit::FixedWindow(_)
            | Limit::SlidingWindowLog(_)
            | Limit::SlidingWindowCounter(_)
            | Limit::Concurrency(_) => None,
        }
    }
}

macro_rules! from_algorithm {
    ($($algorithm:ident),*) => {$(
        impl From<$algorithm> for Limit {
            fn from(limit: $algorithm) -> Limit {
                Limit::$algorithm(limit)
            }
        }
    )*};
}

from_algorithm!(
    FixedWindow,
    SlidingWindowLog,
    SlidingWindowCounter,
    TokenBucket,
    LeakyBucket,
    Concurrency
);
