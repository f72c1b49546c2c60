//! What Envoy is told: a status for each descriptor, headers, and the rules by their names.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tollgate::Error;
use tollgate::http::{HeaderFamilies, Outcome, Refusal, RefusalReason};
use tollgate::rules::Ruling;

use super::metadata;
use super::status::{self, OVER_LIMIT, Shown, code};
use crate::grpc::protobuf::Message;

/// Envoy itself makes the classic three, of the statuses.
const FAMILIES: HeaderFamilies = HeaderFamilies::ALL.without_classic();

/// Only the classic three say what time it is.
const NO_TIME_US: u64 = 0;

/// Why a request is refused, unless a quota is spent.
const REASON: HeaderName = HeaderName::from_static("x-tollgate-reason");

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Appends what was decided about so many descriptors; how many of them no rule applies to.
pub(super) fn ruled(to: &mut Vec<u8>, ruling: &Ruling, descriptors: usize) -> usize {
    let shown = shown(ruling, descriptors);
    let outcome = Outcome::of_rules(ruling);
    let mut answer = Message::new(to);
    answer.number(1, code(outcome.is_allowed()));
    for own in &shown {
        answer.message(2, |status| status::write(status, own));
    }
    let mut headers = HeaderMap::new();
    FAMILIES.add_headers(&outcome, NO_TIME_US, &mut headers);
    if outcome.is_allowed() {
        write_headers(&mut answer, &headers);
    } else {
        headers.insert(CONTENT_TYPE, PROBLEM);
        let reason = RefusalReason::Quota(outcome);
        if outcome.is_blocked() {
            // The protocol has one code for all refusals. By this header, and by the reason in the metadata, Envoy's
            // configuration can tell blocked requests from others.
            headers.insert(REASON, HeaderValue::from_static(reason.word()));
        }
        write_headers(&mut answer, &headers);
        answer.bytes(5, Refusal::new(reason).problem());
    }
    if ruling.rules().next().is_some() {
        answer.message(6, |metadata| metadata::of_rules(metadata, ruling));
    }
    shown.iter().filter(|own| matches!(own, Shown::Unmatched)).count()
}

/// Appends that nothing could be decided, and that nobody goes then. Not an error, after which Envoy would let
/// everybody go.
pub(super) fn undecided(to: &mut Vec<u8>, error: &Error, descriptors: usize) {
    let mut answer = Message::new(to);
    answer.number(1, OVER_LIMIT);
    for _ in 0..descriptors {
        answer.message(2, |status| status.number(1, OVER_LIMIT));
    }
    // With the status that Envoy answers with, which is that of a quota.
    let reason = RefusalReason::Undecided(error);
    let word = reason.word();
    let refusal = Refusal::new(reason).with_status(StatusCode::TOO_MANY_REQUESTS);
    let mut headers = HeaderMap::new();
    headers.insert(REASON, HeaderValue::from_static(word));
    headers.insert(CONTENT_TYPE, PROBLEM);
    FAMILIES.add_refusal_headers(&refusal, NO_TIME_US, &mut headers);
    write_headers(&mut answer, &headers);
    answer.bytes(5, refusal.problem());
    answer.message(6, |metadata| metadata::of_reason(metadata, word));
}

/// What each descriptor is told. Rules come in the order of the descriptors.
fn shown(ruling: &Ruling, descriptors: usize) -> Vec<Shown<'_>> {
    let mut shown = vec![Shown::Unmatched; descriptors];
    for part in ruling.rules() {
        if let Some(own) = shown.get_mut(part.request()) {
            *own = own.and(part);
        }
    }
    shown
}

fn write_headers(answer: &mut Message<'_>, headers: &HeaderMap) {
    for (name, value) in headers {
        answer.message(3, |header| {
            header.bytes(1, name);
            header.bytes(2, value);
        });
    }
}
