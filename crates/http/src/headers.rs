//! What a client is told in headers: the IETF's pair, the classic three, and when to come back.
//!
//! - `fields`: structured fields, as far as they are needed here; `number`: values that are numbers

mod fields;
mod number;

use std::sync::Arc;

use ::http::header::{HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};
use ::http::{Response, StatusCode};
use tollgate_limiter::Scope;

use self::fields::{Item, Quoted, Standings, seconds};
use self::number::number;
use super::outcome::{Outcome, Policy};
use super::problem::{Reason, Refusal};

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// As many limits as a list has, so that it fits what proxies take: the tightest.
const MOST_ITEMS: usize = 8;

/// Which headers clients are told by; all of them, unless said otherwise.
///
/// | family | headers |
/// |---|---|
/// | IETF draft 10 | `RateLimit-Policy: "free";q=60;w=60`, `RateLimit: "free";r=12;t=5`; a list if several limits had a say |
/// | classic | `X-RateLimit-Limit`, `-Remaining`, `-Reset` (Unix seconds): of the tightest limit |
/// | `Retry-After` | whole seconds, rounded up; on refusals, if waiting helps |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderFamilies {
    ietf: Family,
    classic: Family,
    retry_after: Family,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    QuotaHeaders,
    Omitted,
}

impl Family {
    /// 1, or 0.
    fn told(self) -> usize {
        usize::from(self == Family::QuotaHeaders)
    }
}

impl Default for HeaderFamilies {
    fn default() -> HeaderFamilies {
        HeaderFamilies::ALL
    }
}

impl HeaderFamilies {
    /// All of them.
    pub const ALL: HeaderFamilies = HeaderFamilies {
        ietf: Family::QuotaHeaders,
        classic: Family::QuotaHeaders,
        retry_after: Family::QuotaHeaders,
    };

    /// Without `RateLimit-Policy` and `RateLimit`.
    #[must_use]
    pub const fn without_ietf(self) -> HeaderFamilies {
        HeaderFamilies { ietf: Family::Omitted, ..self }
    }

    /// Without `X-RateLimit-Limit`, `-Remaining` and `-Reset`.
    #[must_use]
    pub const fn without_classic(self) -> HeaderFamilies {
        HeaderFamilies { classic: Family::Omitted, ..self }
    }

    /// Without `Retry-After`.
    #[must_use]
    pub const fn without_retry_after(self) -> HeaderFamilies {
        HeaderFamilies { retry_after: Family::Omitted, ..self }
    }

    fn are_none(self) -> bool {
        (self.ietf, self.classic) == (Family::Omitted, Family::Omitted)
    }

    /// Adds what is to be told of an outcome at `wall_us`, microseconds since the Unix epoch.
    ///
    /// Where there are such headers already, from limits further in, lists get longer, and of the classic
    /// three those stay that leave less.
    pub fn tell(self, outcome: &Outcome<'_>, wall_us: u64, headers: &mut HeaderMap) {
        QuotaHeaders::of(outcome, self, || wall_us).write(headers);
        self.tell_when(outcome.verdict().retry_after_us(), headers);
    }

    /// Adds what is to be told of a refusal at `wall_us`: the same, or only when to come back if nobody could decide.
    pub fn tell_refusal(self, refusal: &Refusal<'_>, wall_us: u64, headers: &mut HeaderMap) {
        if let Reason::Quota(outcome) = refusal.reason() {
            QuotaHeaders::of(outcome, self, || wall_us).write(headers);
        }
        self.tell_when(refusal.retry_after_us(), headers);
    }

    /// Says when to come back, if that is known.
    pub fn tell_when(self, retry_after_us: Option<u64>, headers: &mut HeaderMap) {
        if let (Family::QuotaHeaders, Some(retry_us)) = (self.retry_after, retry_after_us) {
            let _ = headers.try_insert(RETRY_AFTER, number(seconds(retry_us).max(1)));
        }
    }
}

/// The headers that say how a client stands, but for `Retry-After`: for middleware, which adds them to the response later.
#[derive(Clone, Debug, Default)]
pub enum QuotaHeaders {
    /// None.
    #[default]
    Nothing,
    /// Of one limit, whose constant parts are written already.
    One {
        /// The constant parts.
        ready: Arc<PreparedHeaders>,
        /// The others.
        standing: Standing,
    },
    /// Of several limits.
    Several(Box<Lists>),
}

/// How a client stands with one limit.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    families: HeaderFamilies,
    remaining: u64,
    more_after_us: Option<u64>,
    reset_s: u64,
}

/// How a client stands with several limits.
#[derive(Clone, Debug)]
pub struct Lists {
    ietf: Option<(HeaderValue, HeaderValue)>,
    /// The limit, what remains of it, and when all of it does.
    classic: Option<(u64, u64, u64)>,
}

impl QuotaHeaders {
    /// Returns the headers for what was decided. `wall_us` is asked for the time only if a header has one.
    pub fn of(
        outcome: &Outcome<'_>,
        families: HeaderFamilies,
        wall_us: impl FnOnce() -> u64,
    ) -> QuotaHeaders {
        if is_beside_the_point(outcome) {
            return QuotaHeaders::Nothing;
        }
        let ietf = if families.ietf == Family::QuotaHeaders { lists(outcome) } else { None };
        let tightest =
            if families.classic == Family::QuotaHeaders { outcome.tightest() } else { None };
        let classic = tightest.map(|policy| {
            let decided = policy.decision().decided();
            (decided.limit, decided.remaining, reset_s(&policy, wall_us()))
        });
        if ietf.is_none() && classic.is_none() {
            return QuotaHeaders::Nothing;
        }
        QuotaHeaders::Several(Box::new(Lists { ietf, classic }))
    }

    /// Tells it with a response. One that a limit further in refuses says already how its client stands with
    /// that one.
    #[inline]
    pub fn add_to<R>(self, response: &mut Response<R>) {
        if let QuotaHeaders::Nothing = self {
            return;
        }
        self.add_beside(response.status(), response.headers_mut());
    }

    /// Beside what a limit further in has told.
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
                make_room(headers, 2 * ietf.told() + 3 * classic.told());
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

/// Who was let go because the store failed can be told nothing that is true.
fn is_beside_the_point(outcome: &Outcome<'_>) -> bool {
    outcome.is_degraded() && outcome.is_allowed()
}

/// When there is more, counted from when the response leaves: a request that is delayed has some of it behind
/// it.
fn more_after_us_of(outcome: &Outcome<'_>, policy: &Policy<'_>) -> Option<u64> {
    let delay_us = outcome.delayed_us();
    policy.more_after_us().map(|more_after_us| more_after_us.saturating_sub(delay_us))
}

fn reset_s(policy: &Policy<'_>, wall_us: u64) -> u64 {
    seconds(wall_us.saturating_add(policy.decision().decided().reset_after_us))
}

/// At once, while there are few headers to be moved, and for the length that a framework adds.
fn make_room(headers: &mut HeaderMap, more: usize) {
    let _ = headers.try_reserve(more + 1);
}

// A response that has more headers than can be, 32,768, goes without.

fn write_ietf(headers: &mut HeaderMap, (policy, standing): (HeaderValue, HeaderValue)) {
    let _ = headers.try_append(POLICY, policy);
    let _ = headers.try_append(RATELIMIT, standing);
}

/// Unless those of a limit further in leave less.
fn write_classic(
    headers: &mut HeaderMap,
    remaining: u64,
    reset_s: u64,
    limit: impl FnOnce() -> HeaderValue,
) {
    // An entry would tell first whether there is one, and takes longer.
    match headers.try_append(REMAINING, number(remaining)) {
        Ok(false) => {}
        Ok(true) if yields(headers, remaining) => return,
        Ok(true) => {}
        Err(_) => return,
    }
    let _ = headers.try_insert(LIMIT, limit());
    let _ = headers.try_insert(RESET, number(reset_s));
}

/// Whether a limit further in leaves no more than `remaining`, which stands behind what that one has told. One of
/// the two stays.
fn yields(headers: &mut HeaderMap, remaining: u64) -> bool {
    let mut theirs: Vec<_> = headers.get_all(REMAINING).iter().cloned().collect();
    let own = theirs.pop();
    let less = theirs.first().and_then(|first| first.to_str().ok()?.parse::<u64>().ok());
    let yields = less.is_some_and(|less| less <= remaining);
    headers.remove(REMAINING);
    for value in if yields { theirs } else { Vec::from_iter(own) } {
        let _ = headers.try_append(REMAINING, value);
    }
    yields
}

/// The two lists, with an item for each limit; `None` without one.
fn lists(outcome: &Outcome<'_>) -> Option<(HeaderValue, HeaderValue)> {
    let (mut policies, mut standings) = (Vec::new(), Vec::new());
    for policy in outcome.tightest_of(MOST_ITEMS) {
        let name = Quoted::new(policy.name());
        let decision = policy.decision();
        push(&mut policies, &Item::policy(&name, decision.limit(), policy.limit()));
        push(
            &mut standings,
            &Item::standing(&name, decision.remaining(), more_after_us_of(outcome, &policy)),
        );
    }
    let value = |list: &[u8]| HeaderValue::from_bytes(list).ok().filter(|_| !list.is_empty());
    Some((value(&policies)?, value(&standings)?))
}

fn push(list: &mut Vec<u8>, item: &Item) {
    if !list.is_empty() {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(item.as_bytes());
}

/// What is always the same for one limit, written once.
#[derive(Debug)]
pub struct PreparedHeaders {
    standings: Standings,
    policy: HeaderValue,
    size: u64,
    limit: HeaderValue,
}

impl PreparedHeaders {
    /// Writes the constant parts of the headers of a limit.
    pub fn new(scope: &Scope) -> PreparedHeaders {
        let name = Quoted::new(scope.name());
        let size = scope.limit().size();
        let policy = Item::policy(&name, size, scope.limit());
        // OK because an item is of letters that print.
        let policy = HeaderValue::from_bytes(policy.as_bytes());
        let policy = policy.unwrap_or(HeaderValue::from_static(""));
        PreparedHeaders { standings: Standings::new(&name), policy, size, limit: number(size) }
    }

    /// [`QuotaHeaders::of`] an outcome of this one limit, quicker.
    #[inline]
    pub fn note(
        self: &Arc<Self>,
        outcome: &Outcome<'_>,
        families: HeaderFamilies,
        wall_us: impl FnOnce() -> u64,
        told: &mut QuotaHeaders,
    ) {
        if families.are_none() || is_beside_the_point(outcome) {
            return;
        }
        let single = outcome.single().filter(|own| own.decision().limit() == self.size);
        // A share of the limit, as after a failure of the store, is another limit.
        let Some(policy) = single else {
            *told = QuotaHeaders::of(outcome, families, wall_us);
            return;
        };
        let (mut more_after_us, mut reset) = (None, 0);
        if families.ietf == Family::QuotaHeaders {
            more_after_us = more_after_us_of(outcome, &policy);
        }
        if families.classic == Family::QuotaHeaders {
            reset = reset_s(&policy, wall_us());
        }
        let remaining = policy.decision().remaining();
        let standing = Standing { families, remaining, more_after_us, reset_s: reset };
        *told = QuotaHeaders::One { ready: Arc::clone(self), standing };
    }

    fn write(&self, standing: &Standing, headers: &mut HeaderMap) {
        let Standing { families, remaining, more_after_us, reset_s } = *standing;
        if families.classic == Family::QuotaHeaders {
            write_classic(headers, remaining, reset_s, || self.limit.clone());
        }
        if families.ietf == Family::QuotaHeaders
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
    fn of_two_limits_the_one_that_leaves_less_is_told() {
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
    fn a_response_that_is_full_of_headers_goes_as_it_is() {
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
