//! Decodes a message with bytes that are not UTF-8.
//!
//! Envoy passes on the bytes of its client's headers, whatever they are. An error would make Envoy let the request
//! pass, so every client could choose to be unlimited.

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::google::protobuf::UInt64Value;
use prost::{DecodeError, Message};

/// A `RateLimitRequest`, with bytes instead of text where clients choose the content.
#[derive(Clone, PartialEq, Message)]
struct RawRequest {
    #[prost(string, tag = "1")]
    domain: String,
    #[prost(message, repeated, tag = "2")]
    descriptors: Vec<RawDescriptor>,
    #[prost(uint32, tag = "3")]
    hits_addend: u32,
}

#[derive(Clone, PartialEq, Message)]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    is_negative_hits: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
}

/// Decodes a request, with `?` for bytes that are not UTF-8. Clients that send such bytes may share a quota, but cannot
/// get another one by them.
pub(super) fn decode(message: &[u8]) -> Result<RateLimitRequest, DecodeError> {
    let RawRequest { domain, descriptors, hits_addend } = RawRequest::decode(message)?;
    let descriptors = descriptors.into_iter().map(RawDescriptor::into_text).collect();
    Ok(RateLimitRequest { domain, descriptors, hits_addend })
}

impl RawDescriptor {
    fn into_text(self) -> RateLimitDescriptor {
        let RawDescriptor { entries, limit, hits_addend, is_negative_hits } = self;
        let entries = entries.into_iter();
        let entries = entries.map(|own| Entry { key: text(&own.key), value: text(&own.value) });
        RateLimitDescriptor { entries: entries.collect(), limit, hits_addend, is_negative_hits }
    }
}

/// Decodes a text, with `?` for bytes that are not UTF-8. `U+FFFD` would take three bytes, and could make a value
/// longer than the server accepts.
fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        if !chunk.invalid().is_empty() {
            text.push('?');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_text_is_decoded_unchanged() {
        let request = RateLimitRequest {
            domain: "api".to_owned(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![Entry { key: "path".to_owned(), value: "/é".to_owned() }],
                limit: Some(RateLimitOverride { requests_per_unit: 4, unit: 3 }),
                hits_addend: Some(UInt64Value { value: 0 }),
                is_negative_hits: true,
            }],
            hits_addend: 7,
        };
        assert_eq!(decode(&request.encode_to_vec()), Ok(request));
    }

    #[test]
    fn invalid_text_is_decoded_with_question_marks() {
        let entry = RawEntry { key: b"api_key".to_vec(), value: b"k\xff1".to_vec() };
        let descriptor = RawDescriptor { entries: vec![entry], ..Default::default() };
        let request = RawRequest { descriptors: vec![descriptor], ..Default::default() };
        let read = decode(&request.encode_to_vec()).unwrap();
        let entry = &read.descriptors[0].entries[0];
        assert_eq!((&*entry.key, &*entry.value), ("api_key", "k?1"));
    }

    #[test]
    fn bytes_that_are_not_a_message_are_an_error() {
        assert!(decode(b"\x0a\xff").is_err());
    }
}
