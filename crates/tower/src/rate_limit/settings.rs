//! The settings of a layer.

use std::fmt;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use ::http::Response;
use bytes::Bytes;
use tollgate_limiter::{Error, Limiter, Scope};

use super::waiting::WaitingSlots;
use crate::ResponseHead;
use crate::hold::HoldSettings;
use crate::log_interval::LogInterval;
use tollgate_http::{HeaderFamilies, Outcome, PreparedHeaders, Refusal};
use tollgate_identity::{Identity, RequestHead};
use tollgate_rules::{Attributes, Rules, Snapshot};

/// A function of a request, such as its key or its cost.
pub(super) type RequestFn<T> = Arc<dyn Fn(&RequestHead<'_>) -> T + Send + Sync>;

/// The settings that a layer and its services share.
#[derive(Clone)]
pub(super) struct LayerSettings {
    pub(super) by: LimitSource,
    /// `None` means the `identity` of the rules, or the address of the connection if the rules have none.
    pub(super) identity: Option<Identity>,
    pub(super) families: HeaderFamilies,
    pub(super) max_wait: Duration,
    pub(super) waiting_slots: WaitingSlots,
    pub(super) skip: Option<RequestFn<bool>>,
    pub(super) key: Option<RequestFn<Option<String>>>,
    pub(super) cost: Option<RequestFn<u64>>,
    /// The units that rules set aside, in place of their own.
    pub(super) estimate: Option<RequestFn<u64>>,
    pub(super) on_decision: Option<OnDecision>,
    pub(super) on_refusal: Option<OnRefusal>,
    pub(super) attributes: Option<AttributesFn>,
    /// Whether requests have holds, or charges may be refunded by the layer or by the inner service.
    pub(super) is_tracked: bool,
    pub(super) shows_decision: bool,
    pub(super) refund_if: Option<RefundIf>,
    /// Whether requests reserve their cost.
    pub(super) reserves: bool,
    pub(super) holds: Arc<HoldSettings>,
    failed_refunds: Arc<LogInterval>,
    undecided: Arc<LogInterval>,
}

pub(super) type OnDecision = Arc<dyn Fn(&RequestHead<'_>, &LayerDecision<'_>) + Send + Sync>;
pub(super) type OnRefusal =
    Arc<dyn Fn(&RequestHead<'_>, &Refusal<'_>) -> Response<Bytes> + Send + Sync>;

pub(super) type RefundIf = Arc<dyn Fn(&dyn ResponseHead) -> bool + Send + Sync>;

/// Adds to the attributes of a request.
pub(super) type AttributesFn =
    Arc<dyn for<'h> Fn(&'h RequestHead<'_>, Attributes<'h>) -> Attributes<'h> + Send + Sync>;

/// The limit or the rules that decide.
#[derive(Clone)]
pub(super) enum LimitSource {
    Limit { scope: Scope, ready: Arc<PreparedHeaders> },
    Rules { rules: Rules, domain: Arc<str> },
}

/// The decision of a layer about a request.
#[derive(Clone, Copy, Debug)]
pub enum LayerDecision<'d> {
    /// The request goes to the service, at once or after the [delay](Outcome::delay) of a shaping limit.
    Allowed(Outcome<'d>),
    /// The request is refused.
    Refused(Refusal<'d>),
}

/// The limit, or a snapshot of the rules, that decides one request.
pub(super) enum CurrentSource<'s> {
    Limit(&'s Scope),
    Rules { current: Snapshot<'s>, domain: &'s str },
}

/// Identifies clients by the address that the connection comes from.
static PLAIN: LazyLock<Identity> = LazyLock::new(Identity::new);

impl LimitSource {
    pub(super) fn limiter(&self) -> &Limiter {
        match self {
            LimitSource::Limit { scope, .. } => scope.limiter(),
            LimitSource::Rules { rules, .. } => rules.limiter(),
        }
    }
}

impl LayerSettings {
    pub(super) fn new(by: LimitSource) -> LayerSettings {
        // The units of a concurrency limit are only ever held.
        let reserves = matches!(&by, LimitSource::Limit { scope, .. } if scope.only_holds());
        LayerSettings {
            by,
            identity: None,
            families: HeaderFamilies::ALL,
            max_wait: Duration::from_secs(30),
            waiting_slots: WaitingSlots::default(),
            skip: None,
            key: None,
            cost: None,
            estimate: None,
            on_decision: None,
            on_refusal: None,
            attributes: None,
            is_tracked: reserves,
            shows_decision: false,
            refund_if: None,
            reserves,
            holds: Arc::default(),
            failed_refunds: Arc::default(),
            undecided: Arc::default(),
        }
    }

    pub(super) fn now(&self) -> CurrentSource<'_> {
        match &self.by {
            LimitSource::Limit { scope, .. } => CurrentSource::Limit(scope),
            LimitSource::Rules { rules, domain } => {
                CurrentSource::Rules { current: rules.snapshot(), domain }
            }
        }
    }

    /// Returns the settings by which clients are identified.
    pub(super) fn identity<'n>(&'n self, now: &'n CurrentSource<'_>) -> &'n Identity {
        let configured = || match now {
            CurrentSource::Limit(_) => None,
            CurrentSource::Rules { current, .. } => current.identity(),
        };
        self.identity.as_ref().or_else(configured).unwrap_or(&PLAIN)
    }

    /// Logs why requests are answered with 503, at most once in ten seconds.
    pub(super) fn log_failure(&self, error: &Error) {
        if self.undecided.is_due(self.now_us()) {
            tracing::warn!("requests are answered 503: {error}");
        }
    }

    /// Logs that a charge could not be refunded, at most once in ten seconds.
    pub(super) fn log_failed_refund(&self, error: &Error) {
        if self.failed_refunds.is_due(self.now_us()) {
            tracing::warn!("the charge of a request was not refunded: {error}");
        }
    }

    fn now_us(&self) -> u64 {
        self.by.limiter().clock().now_us()
    }

    pub(super) fn wall_us(&self) -> u64 {
        self.by.limiter().clock().wall_us()
    }
}

/// Omits the closures, which cannot be printed.
impl fmt::Debug for LayerSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (by, limit) = match &self.by {
            LimitSource::Limit { scope, .. } => (scope.name(), Some(scope.limit())),
            LimitSource::Rules { domain, .. } => (&**domain, None),
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
