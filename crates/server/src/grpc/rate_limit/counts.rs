//! Bounds the descriptors and entries of a message before it is decoded.
//!
//! An empty descriptor has 2 bytes in a message and 60 bytes in memory, so a message of 4 MiB could take over 100 MiB.

use prost::encoding::{DecodeContext, WireType, decode_key, decode_varint, skip_field};

/// The most descriptors of a request, and entries of a descriptor.
pub(super) const MAX_DESCRIPTORS: usize = 64;
pub(super) const MAX_ENTRIES: usize = 32;

/// The fields with the descriptors and the entries.
const DESCRIPTORS: u32 = 2;
const ENTRIES: u32 = 1;

/// Returns an error if a message has too many descriptors or entries. It names the place, the problem and the remedy.
/// Bytes that are not a message pass, and are refused by the decoder.
pub(super) fn check(message: &[u8]) -> Result<(), String> {
    let mut problem = None;
    let count = each(message, DESCRIPTORS, |at, descriptor| {
        let count = each(descriptor, ENTRIES, |_, _| {});
        if count > MAX_ENTRIES && problem.is_none() {
            let place = format!("descriptors[{at}].entries");
            problem = Some(format!("{place}: there are {count}; send 1 to {MAX_ENTRIES}"));
        }
    });
    match problem {
        _ if count > MAX_DESCRIPTORS => {
            Err(format!("descriptors: there are {count}; send 1 to {MAX_DESCRIPTORS}"))
        }
        Some(problem) => Err(problem),
        None => Ok(()),
    }
}

/// Calls a function with each message in a field, and returns their number. Stops at the first bytes that are invalid.
fn each<'m>(mut message: &'m [u8], field: u32, mut visit: impl FnMut(usize, &'m [u8])) -> usize {
    let mut count = 0;
    while let Ok((tag, wire)) = decode_key(&mut message) {
        if (tag, wire) != (field, WireType::LengthDelimited) {
            match skip_field(wire, tag, &mut message, DecodeContext::default()) {
                Ok(()) => continue,
                Err(_) => break,
            }
        }
        let length = decode_varint(&mut message).ok().and_then(|own| usize::try_from(own).ok());
        let Some((own, rest)) = length.and_then(|own| message.split_at_checked(own)) else { break };
        visit(count, own);
        (message, count) = (rest, count + 1);
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a message whose descriptors have these numbers of entries.
    fn message_with(descriptors: &[usize]) -> Vec<u8> {
        // `domain` comes last: fields may come in any order.
        let each = descriptors.iter().flat_map(|&entries| {
            // OK because a length below 128 is one byte.
            [vec![0x12, 2 * entries as u8], [0x0a, 0].repeat(entries)].concat()
        });
        each.chain(*b"\x0a\x03api").collect()
    }

    #[test]
    fn too_many_descriptors_or_entries_are_an_error() {
        assert_eq!(check(&message_with(&[32; 64])), Ok(()));
        let many = check(&message_with(&[1; 65])).unwrap_err();
        assert_eq!(many, "descriptors: there are 65; send 1 to 64");
        let many = check(&message_with(&[1, 33, 34])).unwrap_err();
        assert_eq!(many, "descriptors[1].entries: there are 33; send 1 to 32");
    }

    #[test]
    fn bytes_that_are_not_a_message_pass() {
        let whole = message_with(&[1; 60]);
        for length in 0..whole.len() {
            assert_eq!(check(&whole[..length]), Ok(()), "{length}");
        }
        for message in
            [&b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"[..], b"\x00", b"\x13\x13\x13"]
        {
            assert_eq!(check(message), Ok(()));
        }
    }
}
