//! What the behaviours need of a store.

use proptest::test_runner::Config;
use tollgate::{Limit, Limiter, ManualClock, Scope};

/// Opens an empty limiter on this clock.
pub(crate) type Make = fn(&ManualClock) -> Limiter;

/// A whole minute, in 2001.
pub(crate) const START_US: u64 = 1_000_000_020_000_000;

pub(crate) const S: u64 = 1_000_000;

/// Every algorithm, each with room for 10.
pub(crate) const LIMITS: [&str; 6] = [
    "fixed-window limit=10 window=1m",
    "sliding-window-log limit=10 window=1m",
    "sliding-window-counter limit=10 window=1m",
    "token-bucket capacity=10 refill=1/s",
    "leaky-bucket capacity=10 leak=1/s mode=policing",
    "leaky-bucket capacity=10 leak=1/s mode=shaping",
];

pub(crate) fn open(make: Make) -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(START_US);
    let limiter = make(&clock);
    (clock, limiter)
}

/// A limit under its own text as the name.
pub(crate) fn scope(limiter: &Limiter, text: &str) -> Scope {
    named(limiter, text, text)
}

pub(crate) fn named(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}

/// A store's operations may do I/O, so that properties take fewer cases than in the core, unless
/// `PROPTEST_CASES` says how many.
pub(crate) fn cases(cases: u32) -> Config {
    let mut config = Config { source_file: Some(file!()), ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}
