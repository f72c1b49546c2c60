//! Mistakes that are planted on purpose, to show that the checks find them.

use std::collections::HashMap;

use tollgate_core::{LeaseAnswer, LeaseState};

/// A mistake in the lease manager or in the store. It is planted around the real code, not in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutant {
    /// A process uses its lease after it has expired on the store.
    UseAfterExpiry,
    /// The store charges a settlement at the time of the first use in it, by the clock of the process, and not at its
    /// own time.
    SettleAtUseTime,
    /// An answer that arrives twice gives the process its units twice.
    DoubleCredit,
    /// A lease ends for its process when it ends on the store, without a margin for clocks of different speed.
    NoMargin,
}

impl Mutant {
    /// All of them.
    pub const ALL: [Mutant; 4] =
        [Mutant::UseAfterExpiry, Mutant::SettleAtUseTime, Mutant::DoubleCredit, Mutant::NoMargin];
}

/// Changes the answers to a process as its mutant requires.
#[derive(Debug, Default)]
pub(crate) struct AnswerMutation {
    mutant: Option<Mutant>,
    /// For each key the latest request that was answered, and the units credited beyond the store's.
    credits: HashMap<u32, (u64, u64)>,
}

impl AnswerMutation {
    pub(crate) fn new(mutant: Option<Mutant>) -> AnswerMutation {
        AnswerMutation { mutant, credits: HashMap::new() }
    }

    /// Changes an answer before the lease manager gets it.
    pub(crate) fn change(&mut self, key: u32, sequence: u64, answer: &mut LeaseAnswer) {
        let LeaseState::Open { unused, lasts_us, .. } = &mut answer.lease else { return };
        match self.mutant {
            Some(Mutant::UseAfterExpiry) => *lasts_us *= 3,
            // With the margin, which is 1% and 2 ms, the whole time is left.
            Some(Mutant::NoMargin) => *lasts_us = ((*lasts_us + 2_000) * 100).div_ceil(99) + 2,
            Some(Mutant::DoubleCredit) => {
                let (latest, credit) = self.credits.entry(key).or_default();
                if *latest == sequence {
                    *credit += *unused;
                } else {
                    *unused += std::mem::take(credit);
                }
                *latest = sequence;
            }
            Some(Mutant::SettleAtUseTime) | None => {}
        }
    }
}
