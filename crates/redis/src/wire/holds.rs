//! The holds of a key as bytes. `kept_holds.lua` describes the form.

use tollgate_core::{HoldId, Holds, OpenHold};

use super::number::take_number;

/// The bytes that a hold takes in all columns together.
const HOLD_BYTES: usize = 29;

/// Decodes the holds of a key; `None` if the bytes cannot have been written by the script.
pub(super) fn read(bytes: &[u8]) -> Option<Holds> {
    let count = bytes.len() / HOLD_BYTES;
    if !bytes.len().is_multiple_of(HOLD_BYTES) {
        return None;
    }
    let (ids, numbers) = bytes.split_at(8 * count);
    let (uses, numbers) = numbers.split_at(7 * count);
    let (units, expiries) = numbers.split_at(7 * count);
    let number = |column: &[u8], at: usize| Some(take_number(column.get(7 * at..)?)?.0);
    let hold = |at: usize| {
        let id = ids.get(8 * at..8 * at + 8)?.try_into().ok()?;
        Some(OpenHold {
            id: HoldId(u64::from_be_bytes(id)),
            units: number(units, at)?,
            expires_us: number(expiries, at)?,
            used: number(uses, at)?,
        })
    };
    Some(Holds::of((0..count).map(hold).collect::<Option<Vec<_>>>()?))
}
