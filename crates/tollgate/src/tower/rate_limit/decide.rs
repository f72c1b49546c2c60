//! What becomes of a request.

use std::future::{Future, IntoFuture};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use ::http::{Request, Response};
use bytes::Bytes;
use tollgate_core::{MAX_UNITS, Verdict};

use super::settings::{By, Decided, Now, Place, Settings};
use crate::answer::Answer;
use crate::check::Check;
use crate::decision::Decision;
use crate::error::Error;
#[cfg(feature = "jwt")]
use crate::http::Unwelcome;
use crate::http::{ClientAddress, NOWHERE, Outcome, Reason, Refusal, RequestHead, Told};
use crate::rules::{Current, RulesAnswer, Ruling, push_part};
use crate::scope::Scope;

/// Part of the keys of preflights: they have a quota of their own.
const PREFLIGHT: &str = "preflight";

/// What becomes of a request, as far as that is known at once.
pub(super) enum Taken {
    /// It is not limited.
    Skipped,
    Goes(Told),
    Delayed(Charge, Told),
    Refused(Response<Bytes>),
    /// The store was asked.
    Asked(Asked),
}

/// What is known of a request at once.
enum Begun {
    Skipped,
    Known(Answered),
    Asked(Asked),
}

/// What was decided.
pub(super) enum Answered {
    Limit {
        decision: Decision,
        cost: u64,
        key: Option<Box<[u8]>>,
    },
    Rules(Ruling),
    Undecided(Error),
    /// Its token is not genuine, and such requests are not wanted.
    #[cfg(feature = "jwt")]
    Unwelcome(Unwelcome),
}

/// A question on its way to the store.
pub(super) enum Asked {
    Limit { answer: Answer<Decision>, cost: u64, key: Option<Box<[u8]>> },
    Rules(RulesAnswer),
}

impl Answered {
    fn is_delayed(&self) -> bool {
        let verdict = match self {
            Answered::Limit { decision, .. } => decision.verdict(),
            Answered::Rules(ruling) => ruling.verdict(),
            Answered::Undecided(_) => return false,
            #[cfg(feature = "jwt")]
            Answered::Unwelcome(_) => return false,
        };
        matches!(verdict, Verdict::Allowed { delay_us: 1.. })
    }
}

impl Settings {
    /// Decides a request, or asks the store to.
    pub(super) fn take<B>(&self, request: &Request<B>) -> Taken {
        let now = self.now();
        let head = RequestHead::new(request, self.identity(&now));
        match self.begin(&head, &now) {
            Begun::Skipped => Taken::Skipped,
            Begun::Known(answered) => self.taken(&head, answered),
            Begun::Asked(asked) => Taken::Asked(asked),
        }
    }

    /// What becomes of a request that was asked about.
    pub(super) fn answered<B>(&self, request: &Request<B>, answered: Answered) -> Taken {
        let now = self.now();
        let head = RequestHead::new(request, self.identity(&now));
        self.taken(&head, answered)
    }

    fn taken(&self, head: &RequestHead<'_>, answered: Answered) -> Taken {
        let decided = self.decided(&answered);
        if let Some(hook) = &self.on_decision {
            hook(head, &decided);
        }
        let told = match decided {
            Decided::Allowed(outcome) => self.told(&outcome),
            Decided::Refused(refusal) => return Taken::Refused(self.refuse(head, &refusal)),
        };
        match answered.is_delayed() {
            true => Taken::Delayed(self.charged(answered), told),
            false => Taken::Goes(told),
        }
    }

    fn begin(&self, head: &RequestHead<'_>, now: &Now<'_>) -> Begun {
        if self.skip.as_ref().is_some_and(|skip| skip(head)) {
            return Begun::Skipped;
        }
        #[cfg(feature = "jwt")]
        if let Some(unwelcome) = head.unwelcome() {
            return Begun::Known(Answered::Unwelcome(unwelcome));
        }
        let cost = self.cost.as_ref().map(|cost| cost(head).min(MAX_UNITS));
        if cost == Some(0) {
            return Begun::Skipped;
        }
        match now {
            Now::Limit(scope) => {
                self.with_key(head, |key| self.ask_limit(scope, key, cost.unwrap_or(1)))
            }
            Now::Rules { current, domain } => self.ask_rules(current, domain, head, cost),
        }
    }

    fn ask_rules(
        &self,
        current: &Current<'_>,
        domain: &str,
        head: &RequestHead<'_>,
        cost: Option<u64>,
    ) -> Begun {
        let mut request = head.attributes(current.asked());
        if let Some(key) = self.key.as_ref().and_then(|key| key(head)) {
            request = request.with("key", key);
        }
        let mut check = current.check(domain, &request);
        if current.is_shaping() {
            check = check.max_wait(self.max_wait());
        }
        if let Some(cost) = cost {
            check = check.cost(cost);
        }
        if head.is_preflight() {
            check = check.apart(PREFLIGHT);
        }
        if self.by.limiter().is_local() {
            Begun::Known(check.now().map_or_else(Answered::Undecided, Answered::Rules))
        } else {
            Begun::Asked(Asked::Rules(check.into_future()))
        }
    }

    fn ask_limit(&self, scope: &Scope, key: &[u8], cost: u64) -> Begun {
        let mut check: Check<'_> = scope.check(key).cost(cost);
        let mut kept = None;
        if scope.is_shaping() {
            // Who gives up before the store has answered gives the place back, too.
            check = check.max_wait(self.max_wait()).refunded_if_dropped();
            kept = Some(key.into());
        }
        if scope.is_local().is_ok() {
            let limit = |decision| Answered::Limit { decision, cost, key: kept };
            return Begun::Known(check.now().map_or_else(Answered::Undecided, limit));
        }
        Begun::Asked(Asked::Limit { answer: check.into_future(), cost, key: kept })
    }

    /// With whom a request is limited: `ip=203.0.113.9`.
    fn with_key<T>(&self, head: &RequestHead<'_>, then: impl FnOnce(&[u8]) -> T) -> T {
        let own = self.key.as_ref().and_then(|key| key(head));
        match own {
            None if !head.is_preflight() => then(AddressKey::of(head).as_bytes()),
            None => {
                let address = head.address().map_or(NOWHERE, ClientAddress::as_str);
                then(&key_of("ip", address, head))
            }
            Some(own) => then(&key_of("key", &own, head)),
        }
    }

    fn decided<'a>(&'a self, answered: &'a Answered) -> Decided<'a> {
        let outcome = match (answered, &self.by) {
            (Answered::Limit { decision, cost, .. }, By::Limit { scope, .. }) => {
                Outcome::of_limit(scope, decision, *cost)
            }
            (Answered::Rules(ruling), _) => Outcome::of_rules(ruling),
            (Answered::Undecided(error), _) => return refused(Reason::Undecided(error)),
            #[cfg(feature = "jwt")]
            (Answered::Unwelcome(unwelcome), _) => return refused(unwelcome.reason()),
            // Not reached: a limit's answer is to a limit's question.
            (Answered::Limit { .. }, By::Rules { .. }) => {
                return refused(Reason::Undecided(&Error::DifferentLimiters));
            }
        };
        if outcome.is_allowed() {
            Decided::Allowed(outcome)
        } else {
            refused(Reason::Quota(outcome))
        }
    }

    /// What is charged for a request that is delayed.
    fn charged(&self, answered: Answered) -> Charge {
        let (delay_us, paid) = match (answered, &self.by) {
            (Answered::Limit { decision, key, .. }, By::Limit { scope, .. }) => {
                let scope = scope.clone();
                (decision.verdict().delay_us(), Paid::Limit { scope, decision, key })
            }
            (Answered::Rules(ruling), _) => (ruling.verdict().delay_us(), Paid::Rules(ruling)),
            _ => (0, Paid::Nothing),
        };
        Charge { delay: Duration::from_micros(delay_us), paid, _place: self.line.join() }
    }
}

fn refused(reason: Reason<'_>) -> Decided<'_> {
    Decided::Refused(Refusal::new(reason))
}

/// `key=alice`, or `ip=203.0.113.9,preflight=`.
fn key_of(name: &str, value: &str, head: &RequestHead<'_>) -> Vec<u8> {
    let mut key = Vec::new();
    push_part(&mut key, 0, name, value);
    if head.is_preflight() {
        push_part(&mut key, 0, PREFLIGHT, "");
    }
    key
}

/// The usual key, which needs no escaping, without an allocation.
struct AddressKey {
    bytes: [u8; AddressKey::MAX_BYTES],
    len: usize,
}

impl AddressKey {
    const NAME: &[u8] = b"ip=";
    const MAX_BYTES: usize = 64;

    fn of(head: &RequestHead<'_>) -> AddressKey {
        let mut key = AddressKey { bytes: [0; AddressKey::MAX_BYTES], len: 0 };
        let address = head.address().map_or(NOWHERE.as_bytes(), ClientAddress::as_bytes);
        for part in [AddressKey::NAME, address] {
            let end = key.len + part.len();
            // It always fits: no address is longer than 44 letters.
            if let Some(place) = key.bytes.get_mut(key.len..end) {
                place.copy_from_slice(part);
                key.len = end;
            }
        }
        key
    }

    fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// What was charged for a request that has not gone. Dropped, it is given back, as far as the limit can.
pub(super) struct Charge {
    pub(super) delay: Duration,
    paid: Paid,
    _place: Place,
}

enum Paid {
    Limit { scope: Scope, decision: Decision, key: Option<Box<[u8]>> },
    Rules(Ruling),
    Nothing,
}

impl Charge {
    /// It goes: nothing is given back.
    pub(super) fn keep(mut self) {
        self.paid = Paid::Nothing;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        match std::mem::replace(&mut self.paid, Paid::Nothing) {
            // Nobody is left to tell. On Redis it is on its way all the same.
            Paid::Limit { scope, decision, key: Some(key) } => {
                if let Some(receipt) = decision.into_receipt() {
                    drop(scope.refund(&key, receipt));
                }
            }
            Paid::Rules(ruling) => ruling.give_back(),
            Paid::Limit { .. } | Paid::Nothing => {}
        }
    }
}

impl Future for Asked {
    type Output = Answered;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Answered> {
        Poll::Ready(match self.get_mut() {
            Asked::Limit { answer, cost, key } => match ready!(Pin::new(answer).poll(context)) {
                Ok(decision) => Answered::Limit { decision, cost: *cost, key: key.take() },
                Err(error) => Answered::Undecided(error),
            },
            Asked::Rules(answer) => {
                let ruling = ready!(Pin::new(answer).poll(context));
                ruling.map_or_else(Answered::Undecided, Answered::Rules)
            }
        })
    }
}
