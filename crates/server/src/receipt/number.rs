//! Numbers and texts in bytes.
//!
//! A text is written as its length and its bytes, a number with seven bits in each byte, the lowest first: 300 is `ac
//! 02`.

pub(super) fn write_text(bytes: &mut Vec<u8>, text: &[u8]) {
    write_number(bytes, text.len() as u64);
    bytes.extend_from_slice(text);
}

pub(super) fn read_text<'b>(bytes: &mut &'b [u8]) -> Option<&'b [u8]> {
    let length = usize::try_from(read_number(bytes)?).ok()?;
    bytes.split_off(..length)
}

pub(super) fn write_number(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

pub(super) fn read_number(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = *bytes.split_off_first()?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return None;
        }
        number |= bits << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}
