//! What a client is told in headers: the IETF's pair, the classic three, and when to come back.
//!
//! - `fields`: structured fields, as far as they are needed here

mod fields;

use ::http::header::{Entry, HeaderMap, HeaderName, HeaderValue, RETRY_AFTER};

use self::fields::{Item, Quoted, seconds};
use super::outcome::{Outcome, Policy};
use crate::scope::Scope;

pub(crate) const POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
pub(crate) const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
pub(crate) const LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
pub(crate) const REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
pub(crate) const RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

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
    Told,
    Omitted,
}

impl Default for HeaderFamilies {
    fn default() -> HeaderFamilies {
        HeaderFamilies::ALL
    }
}

impl HeaderFamilies {
    /// All of them.
    pub const ALL: HeaderFamilies =
        HeaderFamilies { ietf: Family::Told, classic: Family::Told, retry_after: Family::Told };

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

    /// Adds what is to be told of an outcome at `wall_us`, microseconds since the Unix epoch.
    ///
    /// Where there are such headers already, from limits further in, lists get longer, and of the classic
    /// three those stay that leave less.
    pub fn tell(self, outcome: &Outcome<'_>, wall_us: u64, headers: &mut HeaderMap) {
        Told::of(outcome, self, wall_us).write(headers);
        self.tell_when(outcome.verdict().retry_after_us(), headers);
    }

    /// Says when to come back, if that is known.
    pub(crate) fn tell_when(self, retry_after_us: Option<u64>, headers: &mut HeaderMap) {
        if let (Family::Told, Some(retry_us)) = (self.retry_after, retry_after_us) {
            headers.insert(RETRY_AFTER, number(seconds(retry_us).max(1)));
        }
    }
}

/// What a client is told, but for when to come back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    ietf: Option<(HeaderValue, HeaderValue)>,
    classic: Option<Classic>,
}

#[derive(Clone, Debug)]
struct Classic {
    limit: HeaderValue,
    remaining: u64,
    reset_s: u64,
}

impl Told {
    pub(crate) fn of(outcome: &Outcome<'_>, families: HeaderFamilies, wall_us: u64) -> Told {
        // Who was let go because the store failed can be told nothing that is true.
        if outcome.is_degraded() && outcome.is_allowed() {
            return Told::default();
        }
        let ietf = (families.ietf == Family::Told).then(|| lists(outcome)).flatten();
        let tightest = if families.classic == Family::Told { outcome.tightest() } else { None };
        let classic =
            tightest.map(|policy| Classic::of(&policy, number(policy.decision().limit()), wall_us));
        Told { ietf, classic }
    }

    pub(crate) fn write(self, headers: &mut HeaderMap) {
        if let Some(classic) = self.classic {
            classic.write(headers);
        }
        if let Some((policy, ratelimit)) = self.ietf {
            headers.append(POLICY, policy);
            headers.append(RATELIMIT, ratelimit);
        }
    }
}

impl Classic {
    fn of(policy: &Policy<'_>, limit: HeaderValue, wall_us: u64) -> Classic {
        let decided = policy.decision().decided();
        let reset_s = seconds(wall_us.saturating_add(decided.reset_after_us));
        Classic { limit, remaining: decided.remaining, reset_s }
    }

    /// Unless those of a limit further in leave less.
    fn write(self, headers: &mut HeaderMap) {
        let Classic { limit, remaining, reset_s } = self;
        match headers.entry(REMAINING) {
            Entry::Vacant(place) => {
                place.insert(number(remaining));
            }
            Entry::Occupied(mut own) => {
                let less = own.get().to_str().ok().and_then(|text| text.parse::<u64>().ok());
                if less.is_some_and(|less| less <= remaining) {
                    return;
                }
                own.insert(number(remaining));
            }
        }
        headers.insert(LIMIT, limit);
        headers.insert(RESET, number(reset_s));
    }
}

/// A number, in one allocation.
fn number(number: u64) -> HeaderValue {
    // OK because digits are letters that print.
    HeaderValue::from_str(itoa::Buffer::new().format(number)).unwrap_or_else(|_| number.into())
}

/// The two lists, with an item for each limit; `None` without one.
fn lists(outcome: &Outcome<'_>) -> Option<(HeaderValue, HeaderValue)> {
    let (mut policies, mut standings) = (Vec::new(), Vec::new());
    for policy in outcome.policies() {
        let name = Quoted::new(policy.name());
        let size = policy.decision().limit();
        push(&mut policies, &Item::policy(&name, size, policy.limit()));
        push(&mut standings, &Item::standing(&name, &policy));
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
#[derive(Clone, Debug)]
pub(crate) struct Ready {
    name: Quoted,
    policy: HeaderValue,
    limit: HeaderValue,
}

impl Ready {
    pub(crate) fn new(scope: &Scope) -> Ready {
        let name = Quoted::new(scope.name());
        let size = scope.limit().size();
        let policy = Item::policy(&name, size, scope.limit());
        // OK because an item is of letters that print.
        let policy = HeaderValue::from_bytes(policy.as_bytes());
        let policy = policy.unwrap_or(HeaderValue::from_static(""));
        Ready { name, policy, limit: number(size) }
    }

    /// [`Told::of`] an outcome of this one limit, quicker.
    pub(crate) fn told(&self, policy: &Policy<'_>, families: HeaderFamilies, wall_us: u64) -> Told {
        let ietf = (families.ietf == Family::Told).then(|| {
            let standing = Item::standing(&self.name, policy);
            Some((self.policy.clone(), HeaderValue::from_bytes(standing.as_bytes()).ok()?))
        });
        let classic = (families.classic == Family::Told)
            .then(|| Classic::of(policy, self.limit.clone(), wall_us));
        Told { ietf: ietf.flatten(), classic }
    }
}
