//! An HTTP request as rules see it.

use http::Method;
use tollgate_identity::{RequestHead, UNKNOWN_ADDRESS};

use crate::attributes::Attributes;
use crate::names::WantedAttributes;

/// Returns a request as rules see it, with the headers and claims that the rules use.
pub(crate) fn attributes<'a>(
    head: &'a RequestHead<'_>,
    wanted: &'a WantedAttributes,
) -> Attributes<'a> {
    let known = Attributes::new().with("path", head.path());
    let known = match head.address() {
        Some(address) => known.with_address(address),
        None => known.with("ip", UNKNOWN_ADDRESS),
    };
    let with_key = with_api_key(head, with_method(head, known));
    with_claims(head, wanted, with_headers(head, wanted, with_key))
}

/// Adds the method. A usual method is known; any other method is only said, because clients can invent any number of
/// methods.
fn with_method<'a>(head: &'a RequestHead<'_>, attributes: Attributes<'a>) -> Attributes<'a> {
    let method = head.method();
    match *method {
        Method::GET
        | Method::HEAD
        | Method::POST
        | Method::PUT
        | Method::DELETE
        | Method::CONNECT
        | Method::OPTIONS
        | Method::TRACE
        | Method::PATCH => attributes.with("method", method.as_str()),
        _ => attributes.said("method", method.as_str()),
    }
}

fn with_api_key<'a>(head: &'a RequestHead<'_>, attributes: Attributes<'a>) -> Attributes<'a> {
    match (head.claimed_api_key(), head.tier()) {
        (None, _) => attributes,
        (Some(key), Some(tier)) => attributes.with("api_key", key).with("tier", tier),
        (Some(key), None) => attributes.claimed("api_key", key),
    }
}

fn with_headers<'a>(
    head: &'a RequestHead<'_>,
    wanted: &'a WantedAttributes,
    attributes: Attributes<'a>,
) -> Attributes<'a> {
    wanted.headers().fold(attributes, |attributes, (attribute, name)| match head.header(name) {
        Some(value) if head.is_trusted_header(name) => attributes.with(attribute, value),
        Some(value) => attributes.said(attribute, value),
        None => attributes,
    })
}

fn with_claims<'a>(
    head: &'a RequestHead<'_>,
    wanted: &'a WantedAttributes,
    attributes: Attributes<'a>,
) -> Attributes<'a> {
    wanted.claims().fold(attributes, |attributes, (attribute, path)| match head.claim(path) {
        Some(value) => attributes.with(attribute, value),
        None => attributes,
    })
}
