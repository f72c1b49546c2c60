//! The function that opens a store, and helpers of the tests.

use std::path::Path;

use proptest::test_runner::Config;
use tollgate_core::Limit;
use tollgate_limiter::{Limiter, ManualClock, Scope};

/// Opens an empty limiter on this clock: no test has used its keys.
pub type Make = fn(&ManualClock) -> Limiter;

/// A time in 2001, at the start of a minute.
pub const START_US: u64 = 1_000_000_020_000_000;

/// A second, in microseconds.
pub const S: u64 = 1_000_000;

/// Every algorithm with a limit of 10.
pub const LIMITS: [&str; 6] = [
    "fixed-window limit=10 window=1m",
    "sliding-window-log limit=10 window=1m",
    "sliding-window-counter limit=10 window=1m",
    "token-bucket capacity=10 refill=1/s",
    "leaky-bucket capacity=10 leak=1/s mode=policing",
    "leaky-bucket capacity=10 leak=1/s mode=shaping",
];

/// Returns a new limiter with its clock, which stands at [`START_US`].
pub fn open(make: Make) -> (ManualClock, Limiter) {
    let clock = ManualClock::at_us(START_US);
    let limiter = make(&clock);
    (clock, limiter)
}

/// Returns a scope of a limit, with the limit's text as the name.
pub fn scope(limiter: &Limiter, text: &str) -> Scope {
    named(limiter, text, text)
}

/// Returns a scope of a limit under a name.
pub fn named(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}

/// Returns the settings of a property: `PROPTEST_CASES` random cases, or `cases`. A store's operations may do I/O, so
/// there are fewer cases than in the core.
pub fn cases(cases: u32) -> Config {
    let mut config = Config { source_file: Some(file!()), ..Config::default() };
    // Failed cases are kept beside the source. In another workspace that is the directory of a dependency, which must
    // not be written to. There the compiler's path of this file is absolute.
    if Path::new(file!()).is_absolute() {
        config.failure_persistence = None;
    }
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config
}

/// Waits for a future on a runtime of this thread.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(future)
}
