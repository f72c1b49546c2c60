//! Decodes a log that the script sends: its trailer and its raw slots. `holes.lua` describes both.

use tollgate_core::{Cost, Entry, Log};

use super::number::take_number;

const SLOT_BYTES: usize = 14;

/// The trailer of a log: the differences between what the slots have and the times and running sums of its charges.
struct Trailer {
    /// The offset before the first hole.
    lead: u64,
    back_us: u64,
    /// The index of the first charge after the gap.
    gap_at: usize,
    gap: usize,
    gap_units: u64,
    /// The index and the offset of every hole, in order.
    holes: Vec<(usize, u64)>,
}

/// Decodes a log; `None` if the bytes cannot have been written by the script.
pub(super) fn read(bytes: &[u8], slots: &[Vec<u8>]) -> Option<Log> {
    let (charged_us, bytes) = take_number(bytes)?;
    let (base, bytes) = take_number(bytes)?;
    let trailer = Trailer::read(bytes)?;
    let mut before = base;
    let mut offset = trailer.lead;
    let mut holes = trailer.holes.iter().peekable();
    let mut entries = Vec::new();
    let slots = slots.iter().flat_map(|text| text.chunks(SLOT_BYTES));
    let is_in_gap = |slot: &usize| (trailer.gap_at..trailer.gap_at + trailer.gap).contains(slot);
    let slots = slots.enumerate().filter(|(slot, _)| !is_in_gap(slot));
    for (index, (_, slot)) in slots.enumerate() {
        let (at_us, rest) = take_number(slot)?;
        let (through, _) = take_number(rest)?;
        if let Some((_, of_hole)) = holes.next_if(|(hole, _)| *hole == index) {
            offset = *of_hole;
            continue;
        }
        let gap_units = if index >= trailer.gap_at { trailer.gap_units } else { 0 };
        let through = through.checked_sub(offset)?.checked_sub(gap_units)?;
        let cost = Cost::new(through.checked_sub(before)?).ok()?;
        entries.push(Entry { at_us: at_us.saturating_sub(trailer.back_us), cost });
        before = through;
    }
    Some(Log::of(charged_us, entries))
}

impl Trailer {
    fn read(bytes: &[u8]) -> Option<Trailer> {
        let (lead, bytes) = take_number(bytes)?;
        let (back_us, bytes) = take_number(bytes)?;
        let (gap_at, bytes) = take_bytes::<3>(bytes)?;
        let (gap, bytes) = take_bytes::<3>(bytes)?;
        let (gap_units, bytes) = take_bytes::<4>(bytes)?;
        let (count, mut bytes) = take_bytes::<3>(bytes)?;
        let mut holes = Vec::new();
        for _ in 0..count {
            let (index, rest) = take_bytes::<3>(bytes)?;
            let (offset, rest) = take_number(rest)?;
            holes.push((index as usize, offset));
            bytes = rest;
        }
        let (gap_at, gap, gap_units) = (gap_at as usize, gap as usize, gap_units.into());
        Some(Trailer { lead, back_us, gap_at, gap, gap_units, holes })
    }
}

/// Returns a number of up to four bytes, lowest first, and the bytes after it.
fn take_bytes<const COUNT: usize>(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<COUNT>()?;
    let mut wide = [0; 4];
    wide.get_mut(..COUNT)?.copy_from_slice(number);
    Some((u32::from_le_bytes(wide), rest))
}
