//! Writes the answer to Envoy: a status for each descriptor, headers, and the names of the rules.

use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{HeaderMap, StatusCode};
use tollgate::Error;
use tollgate::http::{HeaderFamilies, Outcome, Refusal, RefusalReason};
use tollgate::rules::Ruling;

use super::metadata;
use super::status::{self, DescriptorStatus, OVER_LIMIT, code};
use crate::grpc::protobuf::MessageWriter;

/// Without the classic three headers, which Envoy itself makes from the statuses.
const FAMILIES: HeaderFamilies = HeaderFamilies::ALL.without_classic();

/// Only the classic three headers contain a time.
const NO_TIME_US: u64 = 0;

/// The header with the reason of a refusal, unless the reason is a spent quota.
const REASON: HeaderName = HeaderName::from_static("x-tollgate-reason");

const PROBLEM: HeaderValue = HeaderValue::from_static("application/problem+json");

/// Appends the answer with a ruling. Returns the number of descriptors to which no rule applies.
pub(super) fn write_ruling(to: &mut Vec<u8>, ruling: &Ruling, descriptors: usize) -> usize {
    let statuses = statuses(ruling, descriptors);
    let outcome = Outcome::of_rules(ruling);
    let mut answer = MessageWriter::new(to);
    answer.number(1, code(outcome.is_allowed()));
    for own in &statuses {
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
            // configuration can distinguish blocked requests from others.
            headers.insert(REASON, HeaderValue::from_static(reason.word()));
        }
        write_headers(&mut answer, &headers);
        answer.bytes(5, Refusal::new(reason).problem());
    }
    if ruling.rules().next().is_some() {
        answer.message(6, |metadata| metadata::write_rules(metadata, ruling));
    }
    statuses.iter().filter(|own| matches!(own, DescriptorStatus::Unmatched)).count()
}

/// Appends the answer that refuses a request because it could not be decided. An error would make Envoy let the request
/// pass.
pub(super) fn write_undecided(to: &mut Vec<u8>, error: &Error, descriptors: usize) {
    let mut answer = MessageWriter::new(to);
    answer.number(1, OVER_LIMIT);
    for _ in 0..descriptors {
        answer.message(2, |status| status.number(1, OVER_LIMIT));
    }
    // Envoy answers every refusal with the status of a spent quota, so the problem has it too.
    let reason = RefusalReason::Undecided(error);
    let word = reason.word();
    let refusal = Refusal::new(reason).with_status(StatusCode::TOO_MANY_REQUESTS);
    let mut headers = HeaderMap::new();
    headers.insert(REASON, HeaderValue::from_static(word));
    headers.insert(CONTENT_TYPE, PROBLEM);
    FAMILIES.add_refusal_headers(&refusal, NO_TIME_US, &mut headers);
    write_headers(&mut answer, &headers);
    answer.bytes(5, refusal.problem());
    answer.message(6, |metadata| metadata::write_reason(metadata, word));
}

/// Returns the status of each descriptor. The rules of a ruling are in the order of the descriptors.
fn statuses(ruling: &Ruling, descriptors: usize) -> Vec<DescriptorStatus<'_>> {
    let mut statuses = vec![DescriptorStatus::Unmatched; descriptors];
    for part in ruling.rules() {
        if let Some(own) = statuses.get_mut(part.request()) {
            *own = own.and(part);
        }
    }
    statuses
}

/// Writes headers as fields of the answer.
fn write_headers(answer: &mut MessageWriter<'_>, headers: &HeaderMap) {
    for (name, value) in headers {
        answer.message(3, |header| {
            header.bytes(1, name);
            header.bytes(2, value);
        });
    }
}
