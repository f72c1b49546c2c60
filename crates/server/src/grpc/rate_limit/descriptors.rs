//! Turns the descriptors of a message into attributes for the rules.

use std::borrow::Cow;
use std::net::IpAddr;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use envoy_types::pb::envoy::service::ratelimit::v3::RateLimitRequest;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use tollgate::http::UNKNOWN_ADDRESS;
use tollgate::rules::{Attributes, Descriptor, Snapshot};
use tollgate_core::MAX_UNITS;

use super::counts::{MAX_DESCRIPTORS, MAX_ENTRIES};
use super::{DAY, HOUR, MINUTE, MONTH, SECOND, YEAR};
use crate::trust::{AttributeClass, is_identity};

/// The longest key and the longest value of an entry. By default, Envoy accepts 60 KiB of headers, so no value that a
/// client chooses is too long. A client must not be able to choose an error, because Envoy then lets the request pass.
const MAX_KEY_BYTES: usize = 128;
const MAX_VALUE_BYTES: usize = 64 << 10;

/// The attribute that has the keys of a descriptor in their order: `database,user`.
const DESCRIPTOR_KEYS: &str = "descriptor_keys";

/// Returns each descriptor as attributes, with its cost and limit. An error names the place, the problem and the
/// remedy.
pub(super) fn descriptors<'a>(
    request: &'a RateLimitRequest,
    rules: &Snapshot<'_>,
) -> Result<Vec<Descriptor<'a>>, String> {
    if request.domain.is_empty() {
        return Err("domain: is empty; send the domain of the rules, such as `api`".to_owned());
    }
    let count = request.descriptors.len();
    if !(1..=MAX_DESCRIPTORS).contains(&count) {
        return Err(format!("descriptors: there are {count}; send 1 to {MAX_DESCRIPTORS}"));
    }
    // A field that is not set is 0.
    let units = u64::from(request.hits_addend);
    let cost = if units == 0 { DescriptorCost::Rules } else { DescriptorCost::Units(units) };
    let each = request.descriptors.iter().enumerate();
    each.map(|(at, descriptor)| {
        decode_descriptor(descriptor, cost, rules)
            .map_err(|problem| format!("descriptors[{at}]{problem}"))
    })
    .collect()
}

/// The cost of a descriptor.
#[derive(Clone, Copy)]
enum DescriptorCost {
    /// The cost in the rules.
    Rules,
    Units(u64),
    /// Nothing, because the descriptor is only a peek.
    Peek,
}

/// Returns one descriptor as attributes, with its cost and limit. An error begins with the place in the descriptor.
fn decode_descriptor<'a>(
    descriptor: &'a RateLimitDescriptor,
    of_request: DescriptorCost,
    rules: &Snapshot<'_>,
) -> Result<Descriptor<'a>, String> {
    let attributes = attributes(&descriptor.entries, rules)?;
    if descriptor.is_negative_hits {
        let remedy = "leave it out, and refund a charge by its receipt at /v1/refund";
        return Err(format!(".is_negative_hits: is set; {remedy}"));
    }
    let cost = match descriptor.hits_addend.as_ref().map(|own| own.value) {
        None => of_request,
        Some(0) => DescriptorCost::Peek,
        Some(units) if units <= MAX_UNITS => DescriptorCost::Units(units),
        Some(units) => {
            return Err(format!(".hits_addend: is {units}; use at most {MAX_UNITS}"));
        }
    };
    let decoded = match cost {
        DescriptorCost::Rules => Descriptor::new(attributes),
        DescriptorCost::Units(units) => Descriptor::new(attributes).cost(units),
        DescriptorCost::Peek => Descriptor::new(attributes).peek(),
    };
    match &descriptor.limit {
        Some(own) => Ok(decoded.limited_to(own.requests_per_unit.into(), per(own)?)),
        None => Ok(decoded),
    }
}

/// Returns the interval of a descriptor's own limit.
fn per(limit: &RateLimitOverride) -> Result<Duration, String> {
    Ok(match limit.unit() {
        RateLimitUnit::Second => SECOND,
        RateLimitUnit::Minute => MINUTE,
        RateLimitUnit::Hour => HOUR,
        RateLimitUnit::Day => DAY,
        RateLimitUnit::Month => MONTH,
        RateLimitUnit::Year => YEAR,
        RateLimitUnit::Unknown => {
            let remedy = "use SECOND, MINUTE, HOUR, DAY, MONTH or YEAR";
            return Err(format!(".limit.unit: {} is not a unit; {remedy}", limit.unit));
        }
    })
}

/// Returns entries as attributes for the rules.
fn attributes<'a>(entries: &'a [Entry], rules: &Snapshot<'_>) -> Result<Attributes<'a>, String> {
    let count = entries.len();
    if !(1..=MAX_ENTRIES).contains(&count) {
        return Err(format!(".entries: there are {count}; send 1 to {MAX_ENTRIES}"));
    }
    let mut request = Attributes::new();
    for (at, entry) in entries.iter().enumerate() {
        validate(entry).map_err(|problem| format!(".entries[{at}]{problem}"))?;
        // OK because `at` is the index of an entry.
        let before = entries[..at].iter().filter(|earlier| earlier.key == entry.key).count();
        request = with(request, entry, before, rules);
    }
    match client(entries) {
        Some(EnvoyClient { ip, bits: None }) => {
            request = request.with_address(rules.client_address(ip));
        }
        Some(EnvoyClient { ip, bits: Some(bits) }) => {
            request = request.with_masked_address(rules.client_address(ip), bits);
        }
        // A client with an identity and without an address gets the shared unknown address, so no rule is skipped.
        None if entries.iter().any(|entry| is_identity(&entry.key)) && !has_ip(entries) => {
            request = request.with("ip", UNKNOWN_ADDRESS);
        }
        None => {}
    }
    if rules.uses_attribute(DESCRIPTOR_KEYS) {
        request = request.with(DESCRIPTOR_KEYS, keys(entries));
    }
    Ok(request)
}

fn validate(entry: &Entry) -> Result<(), String> {
    let (key_bytes, value_bytes) = (entry.key.len(), entry.value.len());
    if !(1..=MAX_KEY_BYTES).contains(&key_bytes) {
        return Err(format!(".key: has {key_bytes} bytes; use 1 to {MAX_KEY_BYTES}"));
    }
    if value_bytes > MAX_VALUE_BYTES {
        return Err(format!(".value: has {value_bytes} bytes; send at most {MAX_VALUE_BYTES}"));
    }
    if entry.key == DESCRIPTOR_KEYS {
        return Err(format!(".key: `{DESCRIPTOR_KEYS}` is made by the server; use another name"));
    }
    Ok(())
}

/// Adds an entry as an attribute. `before` is the number of earlier entries with the same key.
fn with<'a>(
    request: Attributes<'a>,
    entry: &'a Entry,
    before: usize,
    rules: &Snapshot<'_>,
) -> Attributes<'a> {
    let (key, value) = (entry.key.as_str(), entry.value.as_str());
    let name = match before {
        0 => Cow::Borrowed(key),
        // OK because there are at most 32 entries.
        _ => Cow::Owned(format!("{key}#{}", before + 1)),
    };
    match (AttributeClass::of(key, value), key) {
        (AttributeClass::Claimed, _) => request.claimed(name, value),
        (AttributeClass::Said, _) => request.said(name, value),
        // An invalid address becomes the shared unknown address.
        (AttributeClass::Known, "ip") => match value.parse() {
            Ok(ip) if before == 0 => request.with_address(rules.client_address(ip)),
            Ok(ip) => request.with(name, rules.client_address(ip).to_string()),
            Err(_) => request.with(name, UNKNOWN_ADDRESS),
        },
        // Envoy's `:path` includes the query.
        (AttributeClass::Known, "path") => {
            request.with(name, value.split_once('?').map_or(value, |(path, _)| path))
        }
        (AttributeClass::Known, _) => request.with(name, value),
    }
}

/// A client's address, or the first address of its network if Envoy has masked the address.
struct EnvoyClient {
    ip: IpAddr,
    /// The number of bits that Envoy's mask keeps; `None` if the address is not masked.
    bits: Option<u8>,
}

/// Returns the client that Envoy names: `203.0.113.9`, or with a mask `203.0.113.0/24`.
fn client(entries: &[Entry]) -> Option<EnvoyClient> {
    let of = |key: &str| entries.iter().find(|entry| entry.key == key);
    if has_ip(entries) {
        return None;
    }
    let unmasked = of("remote_address").and_then(|entry| entry.value.parse().ok());
    let unmasked = unmasked.map(|ip| EnvoyClient { ip, bits: None });
    let masked = || {
        let value = &of("masked_remote_address")?.value;
        let (ip, bits) = value.split_once('/').unwrap_or((value, ""));
        Some(EnvoyClient { ip: ip.parse().ok()?, bits: bits.parse().ok() })
    };
    unmasked.or_else(masked)
}

fn has_ip(entries: &[Entry]) -> bool {
    entries.iter().any(|entry| entry.key == "ip")
}

/// Joins the keys of entries: `a` and `b,c` become `a,b\,c`. No other keys become the same text.
fn keys(entries: &[Entry]) -> String {
    let mut keys = String::new();
    for (at, entry) in entries.iter().enumerate() {
        if at > 0 {
            keys.push(',');
        }
        for letter in entry.key.chars() {
            if matches!(letter, ',' | '\\') {
                keys.push('\\');
            }
            keys.push(letter);
        }
    }
    keys
}
