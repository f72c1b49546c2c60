//! Where the slots of all tables are: in regions of some hundred chunks.
//!
//! A table lives on borrowed ground: what it lets go when its limiter goes is for the next table that grows, of whichever
//! limiter, and nothing is given back to the system. That takes no more than was in use at once, and needs nobody to
//! know who has what.

use std::{hint, mem, slice};

use parking_lot::Mutex;
use zerocopy::FromZeros;

use super::slot::Slot;

/// The slots of a bucket, and the buckets of a chunk.
pub(super) const BUCKET_SLOTS: usize = 7;
pub(super) const CHUNK_BUCKETS: usize = 3;

/// The slots of one chunk of a table.
pub(super) type Slots = [[Slot; BUCKET_SLOTS]; CHUNK_BUCKETS];

/// 256 KiB: far from a huge page, which the system would have to clear while somebody waits.
const REGION_CHUNKS: usize = (256 << 10) / size_of::<Slots>();

#[cfg(target_os = "linux")]
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Chunks that nobody has.
static FREE: Mutex<Free> = Mutex::new(Free { fetched: Vec::new(), fresh: &mut [] });

struct Free {
    /// Runs of chunks that have been written to.
    fetched: Vec<&'static mut [Slots]>,
    /// The rest of a region.
    fresh: &'static mut [Slots],
}

/// The slots of one chunk, with anything in them.
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

/// The first of a run; the others stay.
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

/// Gives back the slots of some chunks.
pub(super) fn give_back(chunks: impl Iterator<Item = &'static mut Slots>) {
    FREE.lock().fetched.extend(chunks.map(slice::from_mut));
}

/// Has the system hand out the memory of so many chunks now, if not so many are free, in huge pages where it has them:
/// each of those is one entry in the processor's table of pages, which otherwise knows a fraction of a million keys.
///
/// Who grows at the same time may take of it.
pub(super) fn fetch(chunks: usize) {
    let had: usize = FREE.lock().fetched.iter().map(|run| run.len()).sum();
    let missing = chunks.saturating_sub(had);
    let in_huge_pages = huge_pages(missing);
    let others = region(missing - in_huge_pages.as_ref().map_or(0, |run| run.len()));
    others.fill(Slots::default());
    // Otherwise a compiler that knows them to be zeros would write none.
    let others = hint::black_box(others);
    let runs = in_huge_pages.into_iter().chain([others]);
    FREE.lock().fetched.extend(runs.filter(|run| !run.is_empty()));
}

/// Memory that the system hands out once it is written to.
fn region(chunks: usize) -> &'static mut [Slots] {
    // Without memory that ends as any allocation does.
    let slots = Slots::new_vec_zeroed(chunks).unwrap_or_else(|_| vec![Slots::default(); chunks]);
    Vec::leak(slots)
}

/// As many chunks as fill huge pages, of so many; `None` if that is none.
#[cfg(target_os = "linux")]
fn huge_pages(chunks: usize) -> Option<&'static mut [Slots]> {
    use memmap2::{Advice, MmapMut};
    use zerocopy::FromBytes;

    let bytes = chunks * size_of::<Slots>() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if bytes == 0 {
        return None;
    }
    // One page more, as they begin at multiples of their size.
    let map = MmapMut::map_anon(bytes + HUGE_PAGE_BYTES).ok()?;
    let start = map.as_ptr().align_offset(HUGE_PAGE_BYTES);
    // An error says that there are no huge pages, which is as it would be without.
    let _ = map.advise_range(Advice::HugePage, start, bytes);
    let own = Box::leak(Box::new(map)).get_mut(start..)?.get_mut(..bytes)?;
    // A page is handed out when it is written to.
    own.fill(0);
    let count = bytes / size_of::<Slots>();
    <[Slots]>::mut_from_prefix_with_elems(own, count).ok().map(|(slots, _)| slots)
}

#[cfg(not(target_os = "linux"))]
fn huge_pages(_chunks: usize) -> Option<&'static mut [Slots]> {
    None
}
