//! Protocol Buffers, as far as answers are written in them: in a fourth of the time that building messages takes
//! first.

/// A message in the making. What is left out has its default.
pub(super) struct Message<'m> {
    to: &'m mut Vec<u8>,
}

/// How a field is on the wire.
#[derive(Clone, Copy)]
enum Wire {
    Varint = 0,
    Fixed64 = 1,
    Length = 2,
}

impl<'m> Message<'m> {
    /// After what is there.
    pub(super) fn new(to: &'m mut Vec<u8>) -> Message<'m> {
        Message { to }
    }

    /// A whole number, or a member of an enum.
    pub(super) fn number(&mut self, field: u32, value: u64) {
        self.tag(field, Wire::Varint);
        push_varint(self.to, value);
    }

    pub(super) fn flag(&mut self, field: u32, value: bool) {
        self.number(field, value.into());
    }

    pub(super) fn double(&mut self, field: u32, value: f64) {
        self.tag(field, Wire::Fixed64);
        self.to.extend_from_slice(&value.to_le_bytes());
    }

    /// A text, or bytes.
    pub(super) fn bytes(&mut self, field: u32, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        self.tag(field, Wire::Length);
        push_varint(self.to, value.len() as u64);
        self.to.extend_from_slice(value);
    }

    /// A message in this one.
    pub(super) fn message(&mut self, field: u32, write: impl FnOnce(&mut Message<'_>)) {
        self.tag(field, Wire::Length);
        let at = self.to.len();
        // As a rule it is shorter than 128 bytes, and then its length is one.
        self.to.push(0);
        write(&mut Message::new(self.to));
        // OK because what was there before, and the byte, are still there.
        let length = self.to.len() - at - 1;
        match self.to.get_mut(at) {
            Some(place) if length < 0x80 => *place = length as u8,
            _ => {
                let mut long = Vec::with_capacity(10);
                push_varint(&mut long, length as u64);
                self.to.splice(at..=at, long);
            }
        }
    }

    fn tag(&mut self, field: u32, wire: Wire) {
        push_varint(self.to, u64::from(field) << 3 | wire as u64);
    }
}

/// Seven bits at a time, the lowest first.
fn push_varint(to: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        to.push(value as u8 | 0x80);
        value >>= 7;
    }
    to.push(value as u8);
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::google::protobuf::value::Kind;
    use envoy_types::pb::google::protobuf::{ListValue, Value};
    use proptest::prelude::*;
    use prost::Message as _;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_what_prost_reads(
            texts in proptest::collection::vec("\\PC{0,200}", 0..20),
            number in any::<f64>(),
        ) {
            let mut bytes = Vec::new();
            let mut list = Message::new(&mut bytes);
            for text in &texts {
                list.message(1, |value| value.bytes(3, text));
            }
            list.message(1, |value| value.double(2, number));
            list.message(1, |value| value.flag(4, false));
            list.message(1, |value| value.message(6, |inner| {
                texts.iter().for_each(|text| inner.message(1, |value| value.bytes(3, text)));
            }));
            let value = |kind| Value { kind: Some(kind) };
            let texts: Vec<_> = texts.into_iter().map(|text| value(Kind::StringValue(text))).collect();
            let inner = value(Kind::ListValue(ListValue { values: texts.clone() }));
            let mut values = texts;
            values.extend([value(Kind::NumberValue(number)), value(Kind::BoolValue(false)), inner]);
            let want = ListValue { values };
            prop_assert_eq!(&bytes, &want.encode_to_vec());
        }

        #[test]
        fn numbers_have_as_many_bytes_as_they_need(number in any::<u64>()) {
            let mut bytes = Vec::new();
            push_varint(&mut bytes, number);
            let mut rest = &bytes[..];
            prop_assert_eq!(prost::encoding::decode_varint(&mut rest).unwrap(), number);
            prop_assert!(rest.is_empty());
            prop_assert_eq!(bytes.len(), prost::encoding::encoded_len_varint(number));
        }
    }
}
