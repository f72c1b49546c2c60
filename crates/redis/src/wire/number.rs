//! The form of numbers in the scripts: 7 bytes, the lowest first.

/// Appends a number below 2^56.
pub(super) fn put_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes()[..7]);
}

/// Returns the first number and the bytes after it; `None` if there are too few bytes.
pub(super) fn take_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk::<7>()?;
    let mut wide = [0; 8];
    wide[..7].copy_from_slice(number);
    Some((u64::from_le_bytes(wide), rest))
}

/// Returns the first numbers; `None` if there are too few bytes.
pub(super) fn take_numbers<const COUNT: usize>(mut bytes: &[u8]) -> Option<[u64; COUNT]> {
    let mut numbers = [0; COUNT];
    for number in &mut numbers {
        (*number, bytes) = take_number(bytes)?;
    }
    Some(numbers)
}
