//! The scripts: one for every set of algorithms that a batch can be about.
//!
//! Redis makes every function of a script anew whenever it runs one: with all the algorithms in one
//! script that took 18 us, with one of them 9.

use std::fmt::Write;
use std::sync::OnceLock;

use tollgate_core::{Limit, twins};

/// A script, and the name that the server knows it by once it has seen it.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// Which algorithms a script has, the buckets as one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Algorithms(usize);

const FIXED_WINDOW: Algorithms = Algorithms(1);
const SLIDING_WINDOW_COUNTER: Algorithms = Algorithms(2);
const SLIDING_WINDOW_LOG: Algorithms = Algorithms(4);
const BUCKETS: Algorithms = Algorithms(8);

impl Algorithms {
    const SETS: usize = 16;

    pub(super) fn add(&mut self, limit: &Limit) {
        self.0 |= match limit {
            Limit::FixedWindow(_) => FIXED_WINDOW.0,
            Limit::SlidingWindowCounter(_) => SLIDING_WINDOW_COUNTER.0,
            Limit::SlidingWindowLog(_) => SLIDING_WINDOW_LOG.0,
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => BUCKETS.0,
        };
    }

    const fn has(self, other: Algorithms) -> bool {
        self.0 & other.0 != 0
    }

    /// Its script, which is put together when it is first asked for.
    pub(super) fn script(self) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; Algorithms::SETS] =
            [const { OnceLock::new() }; Algorithms::SETS];
        SCRIPTS[self.0].get_or_init(|| {
            let text = self.text();
            Script { hash: redis::Script::new(&text).get_hash().to_owned(), text }
        })
    }

    fn text(self) -> String {
        let twins: [(&str, Algorithms, &[&str]); 4] = [
            ("fixed_window", FIXED_WINDOW, &[twins::FIXED_WINDOW]),
            ("sliding_window_counter", SLIDING_WINDOW_COUNTER, &[twins::SLIDING_WINDOW_COUNTER]),
            ("sliding_window_log", SLIDING_WINDOW_LOG, &[twins::SLIDING_WINDOW_LOG]),
            (
                "bucket, token_bucket, leaky_bucket",
                BUCKETS,
                &[twins::BUCKET, twins::TOKEN_BUCKET, twins::LEAKY_BUCKET],
            ),
        ];
        let mut text = [twins::MULDIV, twins::ALGORITHM].concat();
        for (names, algorithms, twin) in twins {
            if self.has(algorithms) {
                text.extend(twin.iter().copied());
            } else {
                // Nil, instead of an error for a global that does not exist. Cannot fail.
                let _ = writeln!(text, "local {names}");
            }
        }
        text.push_str(include_str!("states.lua"));
        if self.has(SLIDING_WINDOW_LOG) {
            text.push_str(include_str!("ring.lua"));
        }
        text.push_str(include_str!("check.lua"));
        text
    }
}
