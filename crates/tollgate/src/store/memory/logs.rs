//! The logs of a shard: too large for a slot, which keeps a number instead.

use std::mem;

use tollgate_core::{Algorithm, Ask, Log, SlidingWindowLog};

use super::budget::Budget;
use super::slot::Words;

/// What a log takes beside its entries: itself, and its number once that is free again.
const BYTES_PER_LOG: usize = size_of::<Log>() + size_of::<usize>();

/// Logs by number.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    logs: Vec<Log>,
    free: Vec<usize>,
}

impl Logs {
    pub(super) fn get(&self, words: Words) -> Option<&Log> {
        self.logs.get(index(words)?)
    }

    /// Makes room for one more, by an eighth; whether there is.
    pub(super) fn make_room(&mut self, budget: &Budget) -> bool {
        if !self.free.is_empty() || self.logs.len() < self.logs.capacity() {
            return true;
        }
        let more = self.logs.len() / 8 + 4;
        if !budget.take(more * BYTES_PER_LOG) {
            return false;
        }
        self.logs.reserve_exact(more);
        self.free.reserve_exact(self.logs.capacity());
        true
    }

    /// Takes the log out; its number stays its own until it is put back.
    pub(super) fn take(&mut self, words: Words) -> Log {
        index(words).and_then(|index| self.logs.get_mut(index)).map(mem::take).unwrap_or_default()
    }

    /// Puts a log back, or a new one in.
    pub(super) fn put(&mut self, words: Words, log: Log) -> Words {
        let index = match index(words) {
            Some(index) => index,
            None => self.free.pop().unwrap_or_else(|| {
                self.logs.push(Log::default());
                self.logs.len() - 1
            }),
        };
        self.logs[index] = log;
        // One above the index, so that words of a fresh state name none.
        Words([index as u64 + 1, 0, 0, 0])
    }

    pub(super) fn forget(&mut self, words: Words, budget: &Budget) {
        if let Some(index) = index(words) {
            budget.give_back(self.take(words).heap_bytes());
            self.free.push(index);
        }
    }
}

fn index(Words([number, ..]): Words) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

/// Runs `charge` on a log whose growth the budget allows, or that needs none.
///
/// Without memory for another entry the two newest become one: the log then holds the same units
/// for a little longer, which nobody is forgiven and nobody refused for.
pub(super) fn within_budget<T>(
    log: &mut Log,
    limit: &SlidingWindowLog,
    (now_us, ask): (u64, Ask),
    budget: &Budget,
    charge: impl FnOnce(&mut Log) -> T,
) -> T {
    let before = log.heap_bytes();
    let growth = log.growth_bytes();
    let will_grow = growth > 0 && limit.peek(log, now_us, ask).is_allowed();
    let mut taken = 0;
    if will_grow && budget.take(growth) {
        taken = growth;
    } else if will_grow {
        log.coarsen();
    }
    let answer = charge(log);
    // A ring that was emptied first, or grew by more than doubling, settles the difference.
    let grown = log.heap_bytes() - before.min(log.heap_bytes());
    budget.give_back(taken.saturating_sub(grown));
    answer
}
