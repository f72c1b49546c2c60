//! The logs of a shard that are too large for a slot; the slot holds a number instead.

use std::mem;

use tollgate_core::store::{LogFastPath, LogStorage, OneChargeLog, ThreeUnitLog};
use tollgate_core::{Cost, Log, SlidingWindowLog, State};

use super::budget::StoreBudget;
use super::words::Words;

/// The number of logs by which the list grows. No log moves when the list grows, so the allocator's heap gets no holes.
const CHUNK_LOGS: usize = 16;

/// The bytes of a chunk, including the allocator's overhead, the list of chunks, and the list of free
/// numbers.
const CHUNK_BYTES: usize =
    BYTES_PER_ALLOCATION + 2 * size_of::<usize>() + CHUNK_LOGS * (size_of::<Log>() + 8);

/// The bytes that the allocator takes in addition to the requested bytes: a header, and rounding.
pub(super) const BYTES_PER_ALLOCATION: usize = 24;

/// Marks words that hold a [`ThreeUnitLog`] instead of the number of a log: the other words are its times.
const THREE_UNITS: u64 = 1 << 52;

/// Logs by number. Nothing is allocated before the first log.
#[derive(Debug, Default)]
pub(crate) struct Logs {
    list: Option<Box<LogList>>,
}

#[derive(Debug, Default)]
struct LogList {
    #[allow(clippy::vec_box)] // so that the chunks stay where they are
    chunks: Vec<Box<[Log; CHUNK_LOGS]>>,
    /// How many logs have a number, free or not.
    numbered: usize,
    free: Vec<u32>,
    /// The bytes of the unused logs, which are kept for later logs.
    spare_bytes: usize,
}

/// The bytes of the list in the budget.
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

    /// Reads a log, wherever it is.
    pub(super) fn read<T>(&self, words: Words, act: impl FnOnce(&Log) -> T) -> T {
        let chunk = |index: usize| self.list.as_ref()?.chunks.get(index / CHUNK_LOGS);
        match index(words).and_then(|index| Some(&chunk(index)?[index % CHUNK_LOGS])) {
            Some(log) => act(log),
            None => act(&in_slot(words)),
        }
    }

    /// Takes a log out; its number stays reserved until it is put back.
    pub(super) fn take(&mut self, words: Words) -> Log {
        match self.get_mut(words) {
            Some(log) => mem::take(log),
            None => in_slot(words),
        }
    }

    /// Puts a log back where it was, or stores a new one. A log that does not fit into a slot gets a number;
    /// without memory for that, its charges are merged into one.
    pub(super) fn put(&mut self, words: Words, log: Log, budget: &StoreBudget) -> Words {
        if let Some(own) = self.get_mut(words) {
            *own = log;
            return words;
        }
        if let Some(words) = slot_words(&log) {
            budget.give_back(log_bytes(&log));
            return words;
        }
        let words = self.free_number(budget).map(numbered);
        if let Some(words) = words
            && let Some(own) = self.get_mut(words)
        {
            let before = log_bytes(own) + log_bytes(&log);
            own.refill(log);
            budget.replace(before, log_bytes(own));
            return words;
        }
        budget.give_back(log_bytes(&log));
        budget.count_coarsened();
        one_charge_words(log.coarsened())
    }

    /// Returns an unused number; `None` if there is no memory for one more.
    fn free_number(&mut self, budget: &StoreBudget) -> Option<u32> {
        let list = match &mut self.list {
            Some(list) => list,
            empty if budget.take(LIST_BYTES) => empty.insert(Box::default()),
            _ => return None,
        };
        if let Some(number) = list.free.pop() {
            list.spare_bytes -= list.get_mut(numbered(number)).map_or(0, |log| log_bytes(log));
            return Some(number);
        }
        // One more than the index, so that 0 never identifies a log.
        let number = u32::try_from(list.numbered + 1).ok()?;
        if list.numbered == list.chunks.len() * CHUNK_LOGS {
            if !budget.take(CHUNK_BYTES) {
                return None;
            }
            list.chunks.push(Box::default());
            // Reserved now, so that freeing a number needs no memory.
            list.free.reserve(list.chunks.len() * CHUNK_LOGS);
        }
        list.numbered += 1;
        Some(number)
    }

    pub(super) fn forget(&mut self, words: Words, budget: &StoreBudget) {
        let Words([.., number]) = words;
        let Some(list) = &mut self.list else { return };
        if let (Ok(number), Some(log)) = (u32::try_from(number), list.get_mut(words)) {
            budget.give_back(log_bytes(&mem::take(log)));
            list.free.push(number);
        }
    }

    /// Frees the number of a log that fits into its slot again. The log's memory is kept for the next log that needs
    /// a number, unless enough memory is kept already. So a key that is busy from time to time allocates nothing.
    pub(super) fn retire(&mut self, words: Words, budget: &StoreBudget) {
        let Words([.., number]) = words;
        let Some(list) = &mut self.list else { return };
        let most = budget.spare_log_bytes().saturating_sub(list.spare_bytes);
        let (Ok(number), Some(log)) = (u32::try_from(number), list.get_mut(words)) else { return };
        let bytes = log_bytes(log);
        if bytes > most {
            return self.forget(words, budget);
        }
        log.clear();
        list.spare_bytes += bytes;
        list.free.push(number);
    }

    /// Gives back the memory that is kept for later logs; returns whether there was any.
    pub(super) fn give_back_spare(&mut self, budget: &StoreBudget) -> bool {
        let Some(list) = &mut self.list else { return false };
        let spare = mem::take(&mut list.spare_bytes);
        // Tested first, because every new key at the ceiling calls this.
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
    /// Computes the bytes of the logs in the budget anew.
    pub(super) fn recounted(&self) -> usize {
        let Some(list) = &self.list else { return 0 };
        let entries = list.chunks.iter().flat_map(|chunk| chunk.iter()).map(log_bytes);
        LIST_BYTES + list.chunks.len() * CHUNK_BYTES + entries.sum::<usize>()
    }

    /// Returns how many logs have a number.
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

/// Returns a log that is kept in its slot.
fn in_slot(words: Words) -> Log {
    match three_unit_log(words) {
        Some(log) => log.into(),
        None => {
            let Words([charged_us, at_us, units, _]) = words;
            OneChargeLog { charged_us, at_us, units }.into()
        }
    }
}

/// Returns the words of a log that fits into a slot.
pub(super) fn slot_words(log: &Log) -> Option<Words> {
    log.as_three_units().map(three_unit_words).or_else(|| log.as_one_charge().map(one_charge_words))
}

fn one_charge_words(OneChargeLog { charged_us, at_us, units }: OneChargeLog) -> Words {
    Words([charged_us, at_us, units, 0])
}

#[inline]
pub(super) fn three_unit_log(
    Words([newest_us, earlier_us, oldest_us, mark]): Words,
) -> Option<ThreeUnitLog> {
    // OK because a log's number has at most 32 bits, and is far below this mark.
    (mark >= THREE_UNITS).then_some(ThreeUnitLog { at_us: [newest_us, earlier_us, oldest_us] })
}

#[inline]
pub(super) fn three_unit_words(
    ThreeUnitLog { at_us: [newest_us, earlier_us, oldest_us] }: ThreeUnitLog,
) -> Words {
    Words([newest_us, earlier_us, oldest_us, THREE_UNITS])
}

/// Returns the bytes that a log's entries take in the budget.
pub(super) fn log_bytes(log: &Log) -> usize {
    counted_bytes(log.heap_bytes())
}

/// Returns the bytes that a state's entries take in the budget; 0 unless the state is a log.
pub(super) fn state_bytes(state: &State) -> usize {
    if let State::Log(log) = state { log_bytes(log) } else { 0 }
}

/// Adds the allocator's overhead to the bytes of some entries: a quarter more, because logs grow and are
/// freed, and leave holes.
fn counted_bytes(heap_bytes: usize) -> usize {
    match heap_bytes {
        0 => 0,
        bytes => bytes + bytes / 4 + BYTES_PER_ALLOCATION,
    }
}

/// Ensures that a log has memory for a charge at this time.
///
/// Without memory the two newest entries are merged into one, at the later time: no unit is forgiven, but the
/// older entry's units count until the newer entry's expire.
pub(super) fn reserve(
    log: &mut Log,
    limit: &SlidingWindowLog,
    now_us: u64,
    cost: Cost,
    budget: &StoreBudget,
) {
    let growth = limit.growth_bytes(log, now_us, cost);
    if growth == 0 {
        return;
    }
    let before = log_bytes(log);
    let taken = counted_bytes(growth);
    if budget.take(taken) {
        log.reserve_one();
        budget.replace(taken, log_bytes(log) - before);
    } else {
        // OK because a log that must grow is full, and so has two entries.
        log.coarsen();
        budget.count_coarsened();
    }
}
