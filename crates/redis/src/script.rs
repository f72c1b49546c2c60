//! The scripts: one for every set of algorithms that a batch can need.
//!
//! Whenever Redis runs a script, it creates all functions of the script again. That took 18 us with all algorithms in
//! the script, and 9 us with one of them.

use std::fmt::Write;
use std::sync::OnceLock;

use tollgate_core::Limit;
use tollgate_core::store::twins;

/// A script, and its hash, which is enough to run it on a server that has got the text before.
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

/// The abilities of a script: its algorithms, with all buckets as one; whether it decides more than checks; whether it
/// carries over what was spent under another limit; and whether it reads keys with holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Abilities(usize);

const FIXED_WINDOW: Abilities = Abilities(1);
const SLIDING_WINDOW_COUNTER: Abilities = Abilities(2);
const SLIDING_WINDOW_LOG: Abilities = Abilities(4);
const BUCKETS: Abilities = Abilities(8);
/// All requests but plain checks: peeks, refunds, resets, states, checks of several limits, and checks with a time of the
/// caller or a longest wait.
const BEYOND_CHECKS: Abilities = Abilities(16);
const CARRY_OVER: Abilities = Abilities(32);
const HOLDS: Abilities = Abilities(64);

/// The marker of the section of `check.lua` that decides the batch. All functions come before it.
const RUN: &str = "-- ---- everything is read and decided";

/// The beginning of a section in a file; the rest of the line is its name.
const SECTION: &str = "-- ---- ";

impl Abilities {
    const SETS: usize = 128;

    /// All abilities: a state may have been reached under a limit of any algorithm.
    pub(super) const ALL: Abilities = Abilities(Abilities::SETS - 1);

    /// Adds the abilities for a plain check of `limit`.
    pub(super) fn add(&mut self, limit: &Limit) {
        self.0 |= match limit {
            Limit::FixedWindow(_) => FIXED_WINDOW.0,
            Limit::SlidingWindowCounter(_) => SLIDING_WINDOW_COUNTER.0,
            Limit::SlidingWindowLog(_) => SLIDING_WINDOW_LOG.0,
            Limit::TokenBucket(_) | Limit::LeakyBucket(_) => BUCKETS.0,
            Limit::Concurrency(_) => BEYOND_CHECKS.0 | HOLDS.0,
        };
    }

    pub(super) fn add_beyond_checks(&mut self) {
        self.0 |= BEYOND_CHECKS.0;
    }

    /// Adds the abilities for operations on holds, which may be several in one request.
    pub(super) fn add_holds(&mut self) {
        self.0 |= BEYOND_CHECKS.0 | HOLDS.0;
    }

    /// Whether its script is `plain.lua`, for plain checks of windows and buckets only.
    pub(super) const fn is_plain(self) -> bool {
        !self.has(SLIDING_WINDOW_LOG) && !self.has(BEYOND_CHECKS)
    }

    const fn has(self, other: Abilities) -> bool {
        self.0 & other.0 != 0
    }

    /// Returns its script, which is put together by the first call.
    pub(super) fn script(self) -> &'static Script {
        static SCRIPTS: [OnceLock<Script>; Abilities::SETS] =
            [const { OnceLock::new() }; Abilities::SETS];
        SCRIPTS[self.0].get_or_init(|| {
            let text = self.text();
            Script { hash: redis::Script::new(&text).get_hash().to_owned(), text }
        })
    }

    fn text(self) -> String {
        match self.is_plain() {
            true => [twins::MULDIV, &self.part(include_str!("plain.lua"))].concat(),
            false => self.general_text(),
        }
    }

    /// Returns the text of the general script, which uses the twins.
    fn general_text(self) -> String {
        let twins: [(&str, Abilities, &[&str]); 4] = [
            ("fixed_window", FIXED_WINDOW, &[twins::FIXED_WINDOW]),
            ("sliding_window_counter", SLIDING_WINDOW_COUNTER, &[twins::SLIDING_WINDOW_COUNTER]),
            ("sliding_window_log", SLIDING_WINDOW_LOG, &[twins::SLIDING_WINDOW_LOG]),
            (
                "bucket, token_bucket, leaky_bucket",
                BUCKETS,
                &[twins::BUCKET, twins::TOKEN_BUCKET, twins::LEAKY_BUCKET],
            ),
        ];
        let mut text = [self.part(twins::MULDIV), self.part(twins::ALGORITHM)].concat();
        for (names, abilities, twin) in twins {
            if self.has(abilities) {
                text.extend(twin.iter().map(|twin| self.part(twin)));
            } else {
                // Nil, instead of an error for a global that does not exist. Cannot fail.
                let _ = writeln!(text, "local {names}");
            }
        }
        if self.has(HOLDS) {
            text.push_str(&self.part(twins::CONCURRENCY));
            text.push_str(twins::HOLDS);
        }
        text.push_str(&self.part(include_str!("states.lua")));
        if self.has(HOLDS) {
            text.push_str(include_str!("kept_holds.lua"));
        }
        if self.has(SLIDING_WINDOW_LOG) {
            // In a block, because Lua allows 200 local variables outside of one.
            text.push_str("do\n");
            text.push_str(&self.part(include_str!("ring.lua")));
            text.push_str(include_str!("holes.lua"));
            text.push_str("end\n");
        }
        // OK because the file has this section.
        let (functions, run) =
            include_str!("check.lua").split_once(RUN).unwrap_or((include_str!("check.lua"), ""));
        text.push_str(&self.part(functions));
        if self.has(HOLDS) {
            text.push_str(include_str!("check_holds.lua"));
        }
        text.push_str(run);
        text
    }

    /// Returns the sections of a file that are needed.
    fn part(self, file: &str) -> String {
        let is_needed = |section: &&str| match section.lines().next() {
            Some("fixed window") => self.has(FIXED_WINDOW),
            Some("sliding window counter") => self.has(SLIDING_WINDOW_COUNTER),
            Some("buckets") => self.has(BUCKETS),
            Some("beyond a check") => self.has(BEYOND_CHECKS),
            Some("carrying over") => self.has(CARRY_OVER),
            Some("holds") => self.has(HOLDS),
            _ => true,
        };
        file.split(SECTION).filter(is_needed).collect::<Vec<_>>().join(SECTION)
    }
}

/// The scripts that have been sent on a connection.
#[derive(Debug, Default)]
pub(super) struct SentScripts(u128);

impl SentScripts {
    /// Adds a script. Returns whether it had been sent before.
    pub(super) fn insert(&mut self, abilities: Abilities) -> bool {
        let bit = 1_u128 << abilities.0;
        let had = self.0 & bit != 0;
        self.0 |= bit;
        had
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_for_plain_checks_has_only_the_functions_they_need() {
        let buckets = BUCKETS.text();
        assert!(buckets.contains("local function check_bucket"));
        assert!(buckets.contains("now it is written"));
        assert!(!buckets.contains("local function check_fixed_window"));
        let mut logs = SLIDING_WINDOW_LOG;
        let plain = logs.text();
        logs.add_beyond_checks();
        let full = logs.text();
        for beyond in ["algorithm.refund", "log.give_back", "local function check_all"] {
            assert!(full.contains(beyond) && !plain.contains(beyond), "{beyond}");
        }
        for needed in ["local function check_one", "now it is written", "log.write"] {
            assert!(full.contains(needed) && plain.contains(needed), "{needed}");
        }
        for carrying in ["algorithm.carry_over", "bucket.carry_over", "local function tag_number"] {
            assert!(Abilities::ALL.text().contains(carrying), "{carrying}");
            assert!(!full.contains(carrying), "{carrying}");
        }
        assert!(!full.contains("fixed_window = {"), "another algorithm's");
        let mut holds = SLIDING_WINDOW_LOG;
        holds.add_holds();
        for held in ["held.settle", "hold_list.unpacked", "replace_for_holds()"] {
            assert!(holds.text().contains(held) && !full.contains(held), "{held}");
        }
    }
}
