//! The memory of all tables' slots, in regions of some hundred chunks.
//!
//! A table borrows its chunks. When its limiter is dropped, the chunks become free for the next table that grows, of
//! any limiter, and no memory is returned to the system. So the memory of all slots is never more than was in use at
//! one time, and no record is needed of which table has which chunk.

use std::{hint, mem, slice};

use parking_lot::Mutex;
use zerocopy::FromZeros;

use super::slot::Slot;

/// The number of slots in a bucket, and of buckets in a chunk.
pub(super) const BUCKET_SLOTS: usize = 7;
pub(super) const CHUNK_BUCKETS: usize = 3;

/// The slots of one chunk of a table.
pub(super) type Slots = [[Slot; BUCKET_SLOTS]; CHUNK_BUCKETS];

/// 256 KiB: far smaller than a huge page, which the system would have to clear while a caller waits.
const REGION_CHUNKS: usize = (256 << 10) / size_of::<Slots>();

#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The chunks that no table has.
static FREE: Mutex<FreeChunks> = Mutex::new(FreeChunks { fetched: Vec::new(), fresh: &mut [] });

struct FreeChunks {
    /// Runs of chunks that have been written to.
    fetched: Vec<&'static mut [Slots]>,
    /// The unused rest of a region.
    fresh: &'static mut [Slots],
}

/// Returns the slots of one chunk, with any content.
pub(super) fn take() -> &'static mut Slots {
    let mut free = FREE.lock();
    if let Some(slots) = free.fetched.pop().and_then(|run| split(run, &mut free.fetched)) {
        return slots;
    }
    loop {
        if let Some((slots, others)) = mem::take(&mut free.fresh).split_first_mut() {
            free.fresh = others;
            return slots;
        }
        free.fresh = region(REGION_CHUNKS);
    }
}

/// Returns the first chunk of a run, and puts the others back.
fn split(
    run: &'static mut [Slots],
    runs: &mut Vec<&'static mut [Slots]>,
) -> Option<&'static mut Slots> {
    let (first, others) = run.split_first_mut()?;
    if !others.is_empty() {
        runs.push(others);
    }
    Some(first)
}

/// Frees the slots of some chunks.
pub(super) fn give_back(chunks: impl Iterator<Item = &'static mut Slots>) {
    FREE.lock().fetched.extend(chunks.map(slice::from_mut));
}

/// Ensures that this many chunks are free and backed by memory, in huge pages where the system has them. A huge page
/// takes one entry in the processor's cache of address translations (TLB). With normal pages, the entries of the TLB
/// cover only a fraction of a million keys.
///
/// A table that grows at the same time may take some of the chunks.
pub(super) fn fetch(chunks: usize) {
    let had: usize = FREE.lock().fetched.iter().map(|run| run.len()).sum();
    let missing = chunks.saturating_sub(had);
    let in_huge_pages = huge_pages(missing);
    let others = region(missing - in_huge_pages.as_ref().map_or(0, |run| run.len()));
    others.fill(Slots::default());
    // The slots are zero already, so without this the compiler could leave out the writes.
    let others = hint::black_box(others);
    let runs = in_huge_pages.into_iter().chain([others]);
    FREE.lock().fetched.extend(runs.filter(|run| !run.is_empty()));
}

/// Allocates memory that the system provides when it is first written to.
fn region(chunks: usize) -> &'static mut [Slots] {
    // If there is no memory, this fails as any allocation does.
    let slots = Slots::new_vec_zeroed(chunks).unwrap_or_else(|_| vec![Slots::default(); chunks]);
    Vec::leak(slots)
}

/// Returns as many of `chunks` chunks as fill huge pages; `None` if they do not fill one.
#[cfg(target_os = "linux")]
fn huge_pages(chunks: usize) -> Option<&'static mut [Slots]> {
    use memmap2::{Advice, MmapMut};
    use zerocopy::FromBytes;

    let bytes = chunks * size_of::<Slots>() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes == 0 {
        return None;
    }
    // One more page, because huge pages begin at multiples of their size.
    let map = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES).ok()?;
    let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // OK because an error means that there are no huge pages; the memory then consists of normal pages.
    let _ = map.advise_range(Advice::HugePage, start, bytes);
    let own = Box::leak(Box::new(map)).get_mut(start..)?.get_mut(..bytes)?;
    // The system provides a page when it is first written to.
    own.fill(0);
    let count = bytes / size_of::<Slots>();
    <[Slots]>::mut_from_prefix_with_elems(own, count).ok().map(|(slots, _)| slots)
}

#[cfg(not(target_os = "linux"))]
fn huge_pages(_chunks: usize) -> Option<&'static mut [Slots]> {
    None
}
