//! What a layer knows.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::http::Response;
use bytes::Bytes;

use crate::http::{HeaderFamilies, Identity, Outcome, Ready, Refusal, RequestHead};
use crate::limiter::Limiter;
use crate::rules::{Current, Rules};
use crate::scope::Scope;

/// A question about a request.
pub(super) type Ask<T> = Arc<dyn Fn(&RequestHead<'_>) -> T + Send + Sync>;

/// What a layer and its services know.
#[derive(Clone)]
pub(super) struct Settings {
    pub(super) by: By,
    /// As the rules have it, or else plain, if `None`.
    pub(super) identity: Option<Identity>,
    pub(super) families: HeaderFamilies,
    pub(super) max_wait: Duration,
    pub(super) line: Line,
    pub(super) skip: Option<Ask<bool>>,
    pub(super) key: Option<Ask<Option<String>>>,
    pub(super) cost: Option<Ask<u64>>,
    pub(super) on_decision: Option<OnDecision>,
    pub(super) on_refusal: Option<OnRefusal>,
}

pub(super) type OnDecision = Arc<dyn Fn(&RequestHead<'_>, &Decided<'_>) + Send + Sync>;
pub(super) type OnRefusal =
    Arc<dyn Fn(&RequestHead<'_>, &Refusal<'_>) -> Response<Bytes> + Send + Sync>;

/// Who decides.
#[derive(Clone)]
pub(super) enum By {
    Limit { scope: Scope, ready: Arc<Ready> },
    Rules { rules: Rules, domain: Arc<str> },
}

/// What was decided about a request.
#[derive(Clone, Copy, Debug)]
pub enum Decided<'d> {
    /// It goes, at once or after the [delay](Outcome::delay) of a shaping limit.
    Allowed(Outcome<'d>),
    /// It does not go.
    Refused(Refusal<'d>),
}

/// Who decides, as of now: rules may change.
pub(super) enum Now<'s> {
    Limit(&'s Scope),
    Rules { current: Current<'s>, domain: &'s str },
}

/// By the address that the connection comes from.
static PLAIN: LazyLock<Identity> = LazyLock::new(Identity::new);

impl By {
    pub(super) fn limiter(&self) -> &Limiter {
        match self {
            By::Limit { scope, .. } => scope.limiter(),
            By::Rules { rules, .. } => rules.limiter(),
        }
    }
}

impl Settings {
    pub(super) fn new(by: By) -> Settings {
        Settings {
            by,
            identity: None,
            families: HeaderFamilies::ALL,
            max_wait: Duration::from_secs(30),
            line: Line::default(),
            skip: None,
            key: None,
            cost: None,
            on_decision: None,
            on_refusal: None,
        }
    }

    pub(super) fn now(&self) -> Now<'_> {
        match &self.by {
            By::Limit { scope, .. } => Now::Limit(scope),
            By::Rules { rules, domain } => Now::Rules { current: rules.as_of_now(), domain },
        }
    }

    /// Who clients are.
    pub(super) fn identity<'n>(&'n self, now: &'n Now<'_>) -> &'n Identity {
        let configured = || match now {
            Now::Limit(_) => None,
            Now::Rules { current, .. } => current.identity(),
        };
        self.identity.as_ref().or_else(configured).unwrap_or(&PLAIN)
    }

    /// The longest delay that a request may have: none, if too many wait already.
    pub(super) fn max_wait(&self) -> Duration {
        if self.line.is_full() { Duration::ZERO } else { self.max_wait }
    }

    pub(super) fn wall_us(&self) -> u64 {
        self.by.limiter().inner.clock.wall_us()
    }
}

/// Without what cannot be shown.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, limit) = match &self.by {
            By::Limit { scope, .. } => (scope.name(), Some(scope.limit())),
            By::Rules { domain, .. } => (&**domain, None),
        };
        f.debug_struct("Settings")
            .field("by", &by)
            .field("limit", &limit)
            .field("identity", &self.identity)
            .field("families", &self.families)
            .field("max_wait", &self.max_wait)
            .finish_non_exhaustive()
    }
}

/// How many are delayed at a time, and how many may be.
#[derive(Clone)]
pub(super) struct Line {
    waiting: Arc<AtomicUsize>,
    pub(super) most: usize,
}

impl Default for Line {
    fn default() -> Line {
        Line { waiting: Arc::default(), most: 10_000 }
    }
}

impl Line {
    fn is_full(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= self.most
    }

    pub(super) fn join(&self) -> Place {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        Place { waiting: Arc::clone(&self.waiting) }
    }
}

/// One of those that are delayed; dropped, it is none any more.
pub(super) struct Place {
    waiting: Arc<AtomicUsize>,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}
