//! The headers with a client's quota: the IETF's pair, the classic three, and `Retry-After`.
//!
//! - `fields`: the structured fields that these headers need; `number`: values that are numbers

mod fields;
mod number;

use std::sync::Arc;

use ::http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use ::http::{Response, StatusCode};
use tollgate_limiter::Scope;

use self::fields::{FieldItem, PreparedItem, QuotedName, seconds};
use self::number::number;
use super::outcome::{Outcome, Policy};
use super::problem::{Refusal, RefusalReason};

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The most limits in a list, so that proxies accept its length. The list has the tightest limits.
const MAX_ITEMS: usize = 8;

/// The families of headers that responses have; by default all of them.
///
/// | family | headers |
/// |---|---|
/// | IETF draft 10 | `RateLimit-Policy: "free";q=60;w=60`, `RateLimit: "free";r=12;t=5`; a list if several limits decided |
/// | classic | `X-RateLimit-Limit`, `-Remaining`, `-Reset` (Unix seconds): of the tightest limit |
/// | `Retry-After` | whole seconds, rounded up; on refusals, if waiting helps |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFamilies {
    ietf: HeaderFamily,
    classic: HeaderFamily,
    retry_after: HeaderFamily,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HeaderFamily {
    Included,
    Omitted,
}

impl HeaderFamily {
    /// Returns 1 if the family is included, otherwise 0.
    fn count(self) -> usize {
        usize::from(self == HeaderFamily::Included)
    }
}

impl Default for HeaderFamilies {
    fn default() -> HeaderFamilies {
        HeaderFamilies::ALL
    }
}

impl HeaderFamilies {
    /// All families.
    pub const ALL: HeaderFamilies = HeaderFamilies {
        ietf: HeaderFamily::Included,
        classic: HeaderFamily::Included,
        retry_after: HeaderFamily::Included,
    };

    /// Without `RateLimit-Policy` and `RateLimit`.
    #[must_use]
    pub const fn without_ietf(self) -> HeaderFamilies {
        HeaderFamilies { ietf: HeaderFamily::Omitted, ..self }
    }

    /// Without `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[must_use]
    pub const fn without_classic(self) -> HeaderFamilies {
        HeaderFamilies { classic: HeaderFamily::Omitted, ..self }
    }

    /// Without `Retry-After`.
    #[must_use]
    pub const fn without_retry_after(self) -> HeaderFamilies {
        HeaderFamilies { retry_after: HeaderFamily::Omitted, ..self }
    }

    fn is_empty(self) -> bool {
        (self.ietf, self.classic) == (HeaderFamily::Omitted, HeaderFamily::Omitted)
    }

    /// Adds the headers for an outcome at `wall_us`, microseconds since the Unix epoch.
    ///
    /// If an inner layer has added such headers already, the lists become longer, and the three classic headers have the
    /// numbers of the limit with less remaining.
    pub fn add_headers(self, outcome: &Outcome<'_>, wall_us: u64, headers: &mut HeaderMap) {
        QuotaHeaders::of(outcome, self, || wall_us).write(headers);
        self.add_retry_after(outcome.verdict().retry_after_us(), headers);
    }

    /// Adds the headers for a refusal at `wall_us`: the same as for an outcome, or only `Retry-After` if no limit could
    /// decide.
    pub fn add_refusal_headers(self, refusal: &Refusal<'_>, wall_us: u64, headers: &mut HeaderMap) {
        if let RefusalReason::Quota(outcome) = refusal.reason() {
            QuotaHeaders::of(outcome, self, || wall_us).write(headers);
        }
        self.add_retry_after(refusal.retry_after_us(), headers);
    }

    /// Adds `Retry-After`, if the wait is known.
    pub fn add_retry_after(self, retry_after_us: Option<u64>, headers: &mut HeaderMap) {
        if let (HeaderFamily::Included, Some(retry_us)) = (self.retry_after, retry_after_us) {
            let _ = headers.try_insert(RETRY_AFTER, number(seconds(retry_us).max(1)));
        }
    }
}

/// The headers with a client's quota, without `Retry-After`. Middleware makes them when it decides, and adds them to the
/// response later.
#[derive(Clone, Debug, Default)]
pub enum QuotaHeaders {
    /// No headers.
    #[default]
    Nothing,
    /// The headers of one limit, whose constant parts were written before.
    One {
        /// The constant parts.
        ready: Arc<PreparedHeaders>,
        /// The parts that change.
        standing: LimitQuota,
    },
    /// The headers of several limits.
    Several(Box<QuotaLists>),
}

/// A client's quota under one limit.
#[derive(Clone, Copy, Debug)]
pub struct LimitQuota {
    families: HeaderFamilies,
    remaining: u64,
    more_after_us: Option<u64>,
    reset_s: u64,
}

/// A client's quota under several limits.
#[derive(Clone, Debug)]
pub struct QuotaLists {
    ietf: Option<(HeaderValue, HeaderValue)>,
    /// The limit's size, its remaining units, and its reset in Unix seconds.
    classic: Option<(u64, u64, u64)>,
}

impl QuotaHeaders {
    /// Returns the headers for an outcome. Calls `wall_us` only if a header needs the time.
    pub fn of(
        outcome: &Outcome<'_>,
        families: HeaderFamilies,
        wall_us: impl FnOnce() -> u64,
    ) -> QuotaHeaders {
        if would_be_untrue(outcome) {
            return QuotaHeaders::Nothing;
        }
        let ietf = if families.ietf == HeaderFamily::Included { lists(outcome) } else { None };
        let tightest =
            if families.classic == HeaderFamily::Included { outcome.tightest() } else { None };
        let classic = tightest.map(|policy| {
            let decided = policy.decision().decided();
            (decided.limit, decided.remaining, reset_s(&policy, wall_us()))
        });
        if ietf.is_none() && classic.is_none() {
            return QuotaHeaders::Nothing;
        }
        QuotaHeaders::Several(Box::new(QuotaLists { ietf, classic }))
    }

    /// Adds the headers to a response. A response that an inner limit refused keeps that limit's classic headers.
    #[inline]
    pub fn add_to<R>(self, response: &mut Response<R>) {
        if let QuotaHeaders::Nothing = self {
            return;
        }
        self.add_beside(response.status(), response.headers_mut());
    }

    /// Adds the headers. An inner limit may have written some already.
    fn add_beside(mut self, status: StatusCode, headers: &mut HeaderMap) {
        let is_refused = status == StatusCode::TOO_MANY_REQUESTS;
        if is_refused && headers.contains_key(REMAINING) {
            self.without_classic();
        }
        self.write(headers);
    }

    fn without_classic(&mut self) {
        match self {
            QuotaHeaders::Nothing => {}
            QuotaHeaders::One { standing, .. } => {
                standing.families = standing.families.without_classic()
            }
            QuotaHeaders::Several(lists) => lists.classic = None,
        }
    }

    /// Writes the headers.
    pub fn write(self, headers: &mut HeaderMap) {
        match self {
            QuotaHeaders::Nothing => {}
            QuotaHeaders::One { ready, standing } => {
                let HeaderFamilies { ietf, classic, .. } = standing.families;
                make_room(headers, 2 * ietf.count() + 3 * classic.count());
                ready.write(&standing, headers);
            }
            QuotaHeaders::Several(lists) => {
                let (ietf, classic) = (lists.ietf.iter().count(), lists.classic.iter().count());
                make_room(headers, 2 * ietf + 3 * classic);
                if let Some((limit, remaining, reset_s)) = lists.classic {
                    write_classic(headers, remaining, reset_s, || number(limit));
                }
                if let Some(ietf) = lists.ietf {
                    write_ietf(headers, ietf);
                }
            }
        }
    }
}

/// Whether any header would be wrong: the request was admitted because the store failed.
fn would_be_untrue(outcome: &Outcome<'_>) -> bool {
    outcome.is_degraded() && outcome.is_allowed()
}

/// The time until more remains, counted from when the response is sent: the delay of a delayed request has passed by
/// then.
fn more_after_us_of(outcome: &Outcome<'_>, policy: &Policy<'_>) -> Option<u64> {
    let delay_us = outcome.delayed_us();
    policy.more_after_us().map(|more_after_us| more_after_us.saturating_sub(delay_us))
}

fn reset_s(policy: &Policy<'_>, wall_us: u64) -> u64 {
    seconds(wall_us.saturating_add(policy.decision().decided().reset_after_us))
}

/// Reserves memory for `more` headers, and for the `Content-Length` that a framework adds later. The map then grows
/// once, before it has these headers to move.
fn make_room(headers: &mut HeaderMap, more: usize) {
    let _ = headers.try_reserve(more + 1);
}

// A response that already has 32,768 headers, the most possible, is sent without these headers.

fn write_ietf(headers: &mut HeaderMap, (policy, standing): (HeaderValue, HeaderValue)) {
    let _ = headers.try_append(POLICY, policy);
    let _ = headers.try_append(RATELIMIT, standing);
}

/// Writes the classic headers, unless an inner limit has written some with less remaining.
fn write_classic(
    headers: &mut HeaderMap,
    remaining: u64,
    reset_s: u64,
    limit: impl FnOnce() -> HeaderValue,
) {
    // Appends first and then tests for another value: `entry` would test first, and takes longer.
    match headers.try_append(REMAINING, number(remaining)) {
        Ok(false) => {}
        Ok(true) if has_tighter_value(headers, remaining) => return,
        Ok(true) => {}
        Err(_) => return,
    }
    let _ = headers.try_insert(LIMIT, limit());
    let _ = headers.try_insert(RESET, number(reset_s));
}

/// Returns whether an inner limit has at most `remaining` left. If it has, removes the value of this limit, which is
/// the last one; otherwise removes the values of inner limits.
fn has_tighter_value(headers: &mut HeaderMap, remaining: u64) -> bool {
    let mut theirs: Vec<_> = headers.get_all(REMAINING).iter().cloned().collect();
    let own = theirs.pop();
    let less = theirs.first().and_then(|first| first.to_str().ok()?.parse::<u64>().ok());
    let has_tighter_value = less.is_some_and(|less| less <= remaining);
    headers.remove(REMAINING);
    for value in if has_tighter_value { theirs } else { Vec::from_iter(own) } {
        let _ = headers.try_append(REMAINING, value);
    }
    has_tighter_value
}

/// Returns the two lists, with an item for each limit; `None` without a limit.
fn lists(outcome: &Outcome<'_>) -> Option<(HeaderValue, HeaderValue)> {
    let (mut policies, mut standings) = (Vec::new(), Vec::new());
    for policy in outcome.tightest_of(MAX_ITEMS) {
        let name = QuotedName::new(policy.name());
        let decision = policy.decision();
        push(&mut policies, &FieldItem::policy(&name, decision.limit(), policy.limit()));
        push(
            &mut standings,
            &FieldItem::standing(&name, decision.remaining(), more_after_us_of(outcome, &policy)),
        );
    }
    let value = |list: &[u8]| HeaderValue::from_bytes(list).ok().filter(|_| !list.is_empty());
    Some((value(&policies)?, value(&standings)?))
}

fn push(list: &mut Vec<u8>, item: &FieldItem) {
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(item.as_bytes());
}

/// The constant parts of one limit's headers, written once.
#[derive(Debug)]
pub struct PreparedHeaders {
    standings: PreparedItem,
    policy: HeaderValue,
    size: u64,
    limit: HeaderValue,
}

impl PreparedHeaders {
    /// Writes the constant parts of the headers of a limit.
    pub fn new(scope: &Scope) -> PreparedHeaders {
        let name = QuotedName::new(scope.name());
        let size = scope.limit().size();
        let policy = FieldItem::policy(&name, size, scope.limit());
        // OK because an item has printable characters only.
        let policy = HeaderValue::from_bytes(policy.as_bytes());
        let policy = policy.unwrap_or(HeaderValue::from_static(""));
        PreparedHeaders { standings: PreparedItem::new(&name), policy, size, limit: number(size) }
    }

    /// Does what [`QuotaHeaders::of`] does for an outcome of this one limit, faster.
    #[inline]
    pub fn quota_headers(
        self: &Arc<Self>,
        outcome: &Outcome<'_>,
        families: HeaderFamilies,
        wall_us: impl FnOnce() -> u64,
        into: &mut QuotaHeaders,
    ) {
        if families.is_empty() || would_be_untrue(outcome) {
            return;
        }
        let single = outcome.single().filter(|own| own.decision().limit() == self.size);
        // After a failure of the store, a share of the limit may decide, which has another size.
        let Some(policy) = single else {
            *into = QuotaHeaders::of(outcome, families, wall_us);
            return;
        };
        let (mut more_after_us, mut reset) = (None, 0);
        if families.ietf == HeaderFamily::Included {
            more_after_us = more_after_us_of(outcome, &policy);
        }
        if families.classic == HeaderFamily::Included {
            reset = reset_s(&policy, wall_us());
        }
        let remaining = policy.decision().remaining();
        let standing = LimitQuota { families, remaining, more_after_us, reset_s: reset };
        *into = QuotaHeaders::One { ready: Arc::clone(self), standing };
    }

    fn write(&self, standing: &LimitQuota, headers: &mut HeaderMap) {
        let LimitQuota { families, remaining, more_after_us, reset_s } = *standing;
        if families.classic == HeaderFamily::Included {
            write_classic(headers, remaining, reset_s, || self.limit.clone());
        }
        if families.ietf == HeaderFamily::Included
            && let Some(standing) = self.standings.value(remaining, more_after_us)
        {
            write_ietf(headers, (self.policy.clone(), standing));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classic_headers_are_of_the_limit_with_less_remaining() {
        for (theirs, own, want) in [
            (&["3"][..], 4, &["3"][..]),
            (&["4"], 4, &["4"]),
            (&["5"], 4, &["4"]),
            (&["3", "9"], 4, &["3", "9"]),
            (&["9", "3"], 4, &["4"]),
            (&["few"], 4, &["4"]),
            (&[], 4, &["4"]),
        ] {
            let mut headers = HeaderMap::new();
            for value in theirs {
                headers.append(REMAINING, HeaderValue::from_static(value));
            }
            write_classic(&mut headers, own, 1, || number(10));
            assert_eq!(headers.get_all(REMAINING).iter().collect::<Vec<_>>(), want, "{theirs:?}");
            assert_eq!(headers.contains_key(LIMIT), theirs != want, "{theirs:?}");
        }
    }

    #[test]
    fn response_with_the_most_headers_is_unchanged() {
        let mut headers = HeaderMap::new();
        while let Ok(name) = HeaderName::try_from(format!("x-{}", headers.len())) {
            if headers.try_insert(name, HeaderValue::from_static("")).is_err() {
                break;
            }
        }
        let full = headers.len();
        write_classic(&mut headers, 1, 1, || number(1));
        write_ietf(&mut headers, (number(1), number(1)));
        assert_eq!(headers.len(), full);
    }
}
