//! The logs of a shard that are too large for a slot, which keeps a number instead.

use std::mem;

use tollgate_core::store::{BriefLog, FewLog, LogFastPath, LogStorage};
use tollgate_core::{Cost, Log, SlidingWindowLog, State};

use super::budget::Budget;
use super::words::Words;

/// What they grow by, in place: nothing moves, and so the allocator's heap has no holes.
const CHUNK_LOGS: usize = 16;

/// With what the allocator takes, the list of chunks, and the numbers once they are free again.
const CHUNK_BYTES: usize =
    BYTES_PER_ALLOCATION + 2 * size_of::<usize>() + CHUNK_LOGS * (size_of::<Log>() + 8);

/// What the allocator takes beside what was asked of it: a header, and what is left over.
const BYTES_PER_ALLOCATION: usize = 24;

/// Instead of a number: what is before it are the times of a few charges.
const FEW: u64 = 1 << 52;

/// Logs by number. Nothing is allocated before the first.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    list: Option<Box<LogList>>,
}

#[derive(Debug, Default)]
struct LogList {
    #[allow(clippy::vec_box)] // so that they stay where they are
    chunks: Vec<Box<[Log; CHUNK_LOGS]>>,
    /// Those with a number, free or not.
    numbered: usize,
    free: Vec<u32>,
    /// The bytes that free logs have kept.
    spare_bytes: usize,
}

/// The bytes that the list takes of the budget.
const LIST_BYTES: usize = size_of::<LogList>() + BYTES_PER_ALLOCATION;

impl LogList {
    #[inline]
    fn get_mut(&mut self, words: Words) -> Option<&mut Log> {
        let index = index(words)?;
        self.chunks.get_mut(index / CHUNK_LOGS).map(|chunk| &mut chunk[index % CHUNK_LOGS])
    }
}

impl Logs {
    #[inline]
    pub(super) fn get_mut(&mut self, words: Words) -> Option<&mut Log> {
        self.list.as_mut()?.get_mut(words)
    }

    /// Looks at a log, wherever it is.
    pub(super) fn look<T>(&self, words: Words, look: impl FnOnce(&Log) -> T) -> T {
        let chunk = |index: usize| self.list.as_ref()?.chunks.get(index / CHUNK_LOGS);
        match index(words).and_then(|index| Some(&chunk(index)?[index % CHUNK_LOGS])) {
            Some(log) => look(log),
            None => look(&in_slot(words)),
        }
    }

    /// Takes a log out; its number stays its own until it is put back.
    pub(super) fn take(&mut self, words: Words) -> Log {
        match self.get_mut(words) {
            Some(log) => mem::take(log),
            None => in_slot(words),
        }
    }

    /// Puts a log back where it was, or in. One that a slot has no room for gets a number; without memory
    /// for that, its charges become one.
    pub(super) fn put(&mut self, words: Words, log: Log, budget: &Budget) -> Words {
        if let Some(own) = self.get_mut(words) {
            *own = log;
            return words;
        }
        if let Some(words) = slot_words(&log) {
            budget.give_back(held_bytes(&log));
            return words;
        }
        let words = self.free_number(budget).map(numbered);
        if let Some(words) = words
            && let Some(own) = self.get_mut(words)
        {
            let held = held_bytes(own) + held_bytes(&log);
            own.refill(log);
            budget.settle(held, held_bytes(own));
            return words;
        }
        budget.give_back(held_bytes(&log));
        budget.count_coarsened();
        brief_words(log.coarsened())
    }

    /// A number that no log has; `None` without memory for it.
    fn free_number(&mut self, budget: &Budget) -> Option<u32> {
        let list = match &mut self.list {
            Some(list) => list,
            empty if budget.take(LIST_BYTES) => empty.insert(Box::default()),
            _ => return None,
        };
        if let Some(number) = list.free.pop() {
            list.spare_bytes -= list.get_mut(numbered(number)).map_or(0, |log| held_bytes(log));
            return Some(number);
        }
        // One above the index, so that 0 names none.
        let number = u32::try_from(list.numbered + 1).ok()?;
        if list.numbered == list.chunks.len() * CHUNK_LOGS {
            if !budget.take(CHUNK_BYTES) {
                return None;
            }
            list.chunks.push(Box::default());
            // So that whoever gives a number back needs no memory for it.
            list.free.reserve(list.chunks.len() * CHUNK_LOGS);
        }
        list.numbered += 1;
        Some(number)
    }

    pub(super) fn forget(&mut self, words: Words, budget: &Budget) {
        let Words([.., number]) = words;
        let Some(list) = &mut self.list else { return };
        if let (Ok(number), Some(log)) = (u32::try_from(number), list.get_mut(words)) {
            budget.give_back(held_bytes(&mem::take(log)));
            list.free.push(number);
        }
    }

    /// Forgets a log that is in its slot again. Its memory is for the next that is not, so that a key which is busy now
    /// and then allocates nothing; unless there is enough of that.
    pub(super) fn retire(&mut self, words: Words, budget: &Budget) {
        let Words([.., number]) = words;
        let Some(list) = &mut self.list else { return };
        let most = budget.spare_log_bytes().saturating_sub(list.spare_bytes);
        let (Ok(number), Some(log)) = (u32::try_from(number), list.get_mut(words)) else { return };
        let held = held_bytes(log);
        if held > most {
            return self.forget(words, budget);
        }
        log.clear();
        list.spare_bytes += held;
        list.free.push(number);
    }

    /// Gives back what free ones have kept; whether that is anything.
    pub(super) fn give_back_spare(&mut self, budget: &Budget) -> bool {
        let Some(list) = &mut self.list else { return false };
        let spare = mem::take(&mut list.spare_bytes);
        // Every newcomer at the ceiling asks.
        if spare == 0 {
            return false;
        }
        for nth in 0..list.free.len() {
            if let Some(log) = list.get_mut(numbered(list.free[nth])) {
                *log = Log::default();
            }
        }
        budget.give_back(spare);
        true
    }
}

#[cfg(test)]
impl Logs {
    /// What they take of the budget, counted anew.
    pub(super) fn recounted(&self) -> usize {
        let Some(list) = &self.list else { return 0 };
        let entries = list.chunks.iter().flat_map(|chunk| chunk.iter()).map(held_bytes);
        LIST_BYTES + list.chunks.len() * CHUNK_BYTES + entries.sum::<usize>()
    }

    /// How many have a number.
    pub(super) fn count(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.numbered - list.free.len())
    }

    pub(super) fn spare_bytes(&self) -> usize {
        self.list.as_ref().map_or(0, |list| list.spare_bytes)
    }
}

fn numbered(number: u32) -> Words {
    Words([0, 0, 0, u64::from(number)])
}

#[inline]
fn index(Words([.., number]): Words) -> Option<usize> {
    usize::try_from(number.checked_sub(1)?).ok()
}

/// A log that is in its slot.
fn in_slot(words: Words) -> Log {
    match few(words) {
        Some(few) => few.into(),
        None => {
            let Words([charged_us, at_us, units, _]) = words;
            BriefLog { charged_us, at_us, units }.into()
        }
    }
}

/// The words of a log that a slot has room for.
pub(super) fn slot_words(log: &Log) -> Option<Words> {
    log.few().map(few_words).or_else(|| log.brief().map(brief_words))
}

fn brief_words(BriefLog { charged_us, at_us, units }: BriefLog) -> Words {
    Words([charged_us, at_us, units, 0])
}

#[inline]
pub(super) fn few(Words([newest_us, earlier_us, oldest_us, mark]): Words) -> Option<FewLog> {
    // OK because numbers are far below.
    (mark >= FEW).then_some(FewLog { at_us: [newest_us, earlier_us, oldest_us] })
}

#[inline]
pub(super) fn few_words(FewLog { at_us: [newest_us, earlier_us, oldest_us] }: FewLog) -> Words {
    Words([newest_us, earlier_us, oldest_us, FEW])
}

/// What a log's entries take of the budget.
pub(super) fn held_bytes(log: &Log) -> usize {
    counted_bytes(log.heap_bytes())
}

/// The same of a state of any kind.
pub(super) fn state_bytes(state: &State) -> usize {
    if let State::Log(log) = state { held_bytes(log) } else { 0 }
}

/// Some bytes of entries, with what the allocator takes: a quarter more, since logs grow and go, and
/// leave holes.
fn counted_bytes(heap_bytes: usize) -> usize {
    match heap_bytes {
        0 => 0,
        bytes => bytes + bytes / 4 + BYTES_PER_ALLOCATION,
    }
}

/// Sees to it that a log has the memory for a charge at this time.
///
/// Without that the two newest entries become one, at the later time: no unit is forgiven, but the older entry's units
/// count until the newer entry's are gone.
pub(super) fn reserve(
    log: &mut Log,
    limit: &SlidingWindowLog,
    now_us: u64,
    cost: Cost,
    budget: &Budget,
) {
    let growth = limit.growth_bytes(log, now_us, cost);
    if growth == 0 {
        return;
    }
    let before = held_bytes(log);
    let taken = counted_bytes(growth);
    if budget.take(taken) {
        log.reserve_one();
        budget.settle(taken, held_bytes(log) - before);
    } else {
        // OK because one that must grow is full, and so has two.
        log.coarsen();
        budget.count_coarsened();
    }
}
