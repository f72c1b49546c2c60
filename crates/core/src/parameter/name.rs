//! The names of the algorithms and of their parameters.

use alloc::string::String;
use core::fmt;

/// An algorithm's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AlgorithmName {
    /// `fixed-window`
    FixedWindow,
    /// `sliding-window-log`
    SlidingWindowLog,
    /// `sliding-window-counter`
    SlidingWindowCounter,
    /// `token-bucket`
    TokenBucket,
    /// `leaky-bucket`
    LeakyBucket,
    /// `concurrency`
    Concurrency,
}

impl AlgorithmName {
    /// Every algorithm.
    pub const ALL: [AlgorithmName; 6] = [
        AlgorithmName::FixedWindow,
        AlgorithmName::SlidingWindowLog,
        AlgorithmName::SlidingWindowCounter,
        AlgorithmName::TokenBucket,
        AlgorithmName::LeakyBucket,
        AlgorithmName::Concurrency,
    ];

    /// The name as it is written.
    pub const fn as_str(self) -> &'static str {
        match self {
            AlgorithmName::FixedWindow => "fixed-window",
            AlgorithmName::SlidingWindowLog => "sliding-window-log",
            AlgorithmName::SlidingWindowCounter => "sliding-window-counter",
            AlgorithmName::TokenBucket => "token-bucket",
            AlgorithmName::LeakyBucket => "leaky-bucket",
            AlgorithmName::Concurrency => "concurrency",
        }
    }

    /// The names of its parameters. All are required except a leaky bucket's mode.
    pub const fn parameters(self) -> &'static [&'static str] {
        match self {
            AlgorithmName::FixedWindow
            | AlgorithmName::SlidingWindowLog
            | AlgorithmName::SlidingWindowCounter => &["limit", "window"],
            AlgorithmName::TokenBucket => &["capacity", "refill"],
            AlgorithmName::LeakyBucket => &["capacity", "leak", "mode"],
            AlgorithmName::Concurrency => &["limit", "for"],
        }
    }

    pub(super) const fn example(self) -> &'static str {
        match self {
            AlgorithmName::FixedWindow => "fixed-window limit=100 window=60s",
            AlgorithmName::SlidingWindowLog => "sliding-window-log limit=5 window=15m",
            AlgorithmName::SlidingWindowCounter => "sliding-window-counter limit=100 window=60s",
            AlgorithmName::TokenBucket => "token-bucket capacity=10 refill=1/s",
            AlgorithmName::LeakyBucket => "leaky-bucket capacity=10 leak=1/s mode=policing",
            AlgorithmName::Concurrency => "concurrency limit=10 for=60s",
        }
    }

    /// Guesses the name meant by a misspelling such as `TokenBucket`, `token_bucket` or `leaky`.
    pub(super) fn meant_by(text: &str) -> Option<AlgorithmName> {
        let lower_letters = |text: &str| {
            let letters = text.chars().filter(char::is_ascii_alphanumeric);
            letters.map(|letter| letter.to_ascii_lowercase()).collect::<String>()
        };
        let meant = lower_letters(text);
        if meant.len() < 4 {
            return None;
        }
        AlgorithmName::ALL.into_iter().find(|name| lower_letters(name.as_str()).starts_with(&meant))
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
