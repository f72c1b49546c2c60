//! What a layer knows.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::http::Response;
use bytes::Bytes;
use tollgate_limiter::{Error, Limiter, Scope};

use super::line::Line;
use crate::ResponseHead;
use tollgate_http::{HeaderFamilies, Outcome, PreparedHeaders, Refusal};
use tollgate_identity::{Identity, RequestHead};
use tollgate_rules::{Attributes, Rules, Snapshot};

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
    pub(super) attributes: Option<With>,
    /// Whether charges may be given back, by the layer or by the service inside.
    pub(super) is_tracked: bool,
    pub(super) shows_decision: bool,
    pub(super) refund_if: Option<RefundIf>,
    /// When it was last said that a refund failed.
    refund_complained_us: Arc<AtomicU64>,
    /// When it was last said why requests are not decided.
    complained_us: Arc<AtomicU64>,
}

pub(super) type OnDecision = Arc<dyn Fn(&RequestHead<'_>, &LayerDecision<'_>) + Send + Sync>;
pub(super) type OnRefusal =
    Arc<dyn Fn(&RequestHead<'_>, &Refusal<'_>) -> Response<Bytes> + Send + Sync>;

pub(super) type RefundIf = Arc<dyn Fn(&dyn ResponseHead) -> bool + Send + Sync>;

/// Adds to what rules know of a request.
pub(super) type With =
    Arc<dyn for<'h> Fn(&'h RequestHead<'_>, Attributes<'h>) -> Attributes<'h> + Send + Sync>;

/// Who decides.
#[derive(Clone)]
pub(super) enum By {
    Limit { scope: Scope, ready: Arc<PreparedHeaders> },
    Rules { rules: Rules, domain: Arc<str> },
}

/// What was decided about a request.
#[derive(Clone, Copy, Debug)]
pub enum LayerDecision<'d> {
    /// It goes, at once or after the [delay](Outcome::delay) of a shaping limit.
    Allowed(Outcome<'d>),
    /// It does not go.
    Refused(Refusal<'d>),
}

/// Who decides, as of now: rules may change.
pub(super) enum Now<'s> {
    Limit(&'s Scope),
    Rules { current: Snapshot<'s>, domain: &'s str },
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
            attributes: None,
            is_tracked: false,
            shows_decision: false,
            refund_if: None,
            refund_complained_us: Arc::default(),
            complained_us: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> Now<'_> {
        match &self.by {
            By::Limit { scope, .. } => Now::Limit(scope),
            By::Rules { rules, domain } => Now::Rules { current: rules.snapshot(), domain },
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

    /// Says at most every ten seconds why requests are answered 503.
    pub(super) fn complain(&self, error: &Error) {
        if self.is_due(&self.complained_us) {
            tracing::warn!("requests are answered 503: {error}");
        }
    }

    /// Says at most every ten seconds that a charge was not given back.
    pub(super) fn complain_of_refund(&self, error: &Error) {
        if self.is_due(&self.refund_complained_us) {
            tracing::warn!("the charge of a request was not given back: {error}");
        }
    }

    /// Returns whether ten seconds have passed since this last returned true.
    fn is_due(&self, last_us: &AtomicU64) -> bool {
        let now_us = self.by.limiter().clock().now_us();
        let before_us = last_us.load(Ordering::Relaxed);
        let is_due = before_us == 0 || now_us.saturating_sub(before_us) > 10_000_000;
        let swap =
            || last_us.compare_exchange(before_us, now_us, Ordering::Relaxed, Ordering::Relaxed);
        is_due && swap().is_ok()
    }

    pub(super) fn wall_us(&self) -> u64 {
        self.by.limiter().clock().wall_us()
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
