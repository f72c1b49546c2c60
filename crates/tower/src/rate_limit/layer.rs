//! The layer and its settings.

use std::sync::Arc;
use std::time::Duration;

use ::http::Response;
use bytes::Bytes;
use tollgate_core::Limit;
use tollgate_limiter::{Error, Limiter, Scope};
use tower_layer::Layer;

#[cfg(doc)]
use super::admission::Admission;
use super::extract::KeyExtractor;
use super::service::RateLimit;
use super::settings::{LayerDecision, LayerSettings, LimitSource};
use crate::ResponseHead;
use tollgate_http::{HeaderFamilies, PreparedHeaders, Refusal};
use tollgate_identity::{Identity, RequestHead};
use tollgate_rules::{Attributes, Rules};

/// Limits the requests to a service.
///
/// A refused request gets a 429 with a problem+json body, or a gRPC status. All responses have headers with the
/// remaining quota. Clones share their state: a limit is not multiplied by the routes, connections and threads that the
/// layer is cloned for.
///
/// ```
/// use axum::{Router, routing::{get, post}};
/// use tollgate::{Limiter, tower::RateLimitLayer, Redis};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::memory(); // or Redis::at("redis://127.0.0.1:6379")?.build()?
/// let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
/// let app: Router = Router::new()
///     .route("/", get(|| async { "hello" }))
///     .route("/login", post(|| async { "welcome" }).layer(RateLimitLayer::new(logins)))
///     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?.skip(|request| request.path() == "/health"));
/// # Ok(())
/// # }
/// ```
///
/// Serve it with `app.into_make_service_with_connect_info::<SocketAddr>()`, so that clients have addresses; requests
/// without an address share one quota. Put a CORS layer outside of this one, so that browsers may read refusals too. A
/// browser's preflight requests have a quota of their own, as large as the limit.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    settings: Arc<LayerSettings>,
}

impl RateLimitLayer {
    /// Limits by the client's address, in this process's memory.
    #[doc(alias = "PeerIpKeyExtractor")]
    pub fn per_ip<L>(limit: L) -> Result<RateLimitLayer, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        Ok(RateLimitLayer::new(Limiter::memory().scope("per-ip", limit)?))
    }

    /// Limits by the client's address, or by [another key](Self::key), on the store of the scope.
    ///
    /// The key of an address is `ip=203.0.113.9` or `ip=2001:db8:12:3400::/56`, and another key is `key=alice`. With
    /// it a client's state can be read and reset ([`Scope::reset`]).
    pub fn new(scope: Scope) -> RateLimitLayer {
        let ready = Arc::new(PreparedHeaders::new(&scope));
        RateLimitLayer::of(LayerSettings::new(LimitSource::Limit { scope, ready }))
    }

    /// Limits by the rules of a domain: all rules that match a request are charged, or none is. The rules may change
    /// later, but the domain must remain: it is [required](Rules::require_domain).
    pub fn rules(rules: &Rules, domain: &str) -> RateLimitLayer {
        if !rules.require_domain(domain) {
            tracing::warn!("no rule is of the domain `{domain}`: its requests are not limited");
        }
        RateLimitLayer::of(LayerSettings::new(LimitSource::Rules {
            rules: rules.clone(),
            domain: domain.into(),
        }))
    }

    fn of(settings: LayerSettings) -> RateLimitLayer {
        RateLimitLayer { settings: Arc::new(settings) }
    }

    pub(super) fn with(mut self, change: impl FnOnce(&mut LayerSettings)) -> RateLimitLayer {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Sets how clients are identified: which proxies are trusted, and where API keys and tokens are. The default is
    /// the rules file's `identity`, or else the address of the connection.
    #[must_use]
    pub fn identity(self, identity: Identity) -> RateLimitLayer {
        self.with(|settings| {
            let clock = settings.by.limiter().clock();
            settings.identity = Some(identity.on_clock(clock));
        })
    }

    /// Sets the key to limit by, instead of the address; `None` falls back to the address. Build the key from
    /// verified data only: a client that can choose its key can have any number of quotas.
    ///
    /// With rules, a key that is `Some` becomes the attribute `key`.
    #[must_use]
    pub fn key(
        self,
        key: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.key = Some(Arc::new(key)))
    }

    /// Does the same as [`key`](Self::key), with a type that finds the key of a request.
    #[must_use]
    pub fn key_extractor(self, extractor: impl KeyExtractor) -> RateLimitLayer {
        self.key(move |request| extractor.extract(request))
    }

    /// Adds attributes to a request for the rules: facts that the application knows, such as a user's plan.
    /// Attributes that are added by [`with`](Attributes::with) count for keys and tiers.
    ///
    /// ```
    /// # use tollgate::{Limiter, rules::{Config, Rules}, tower::RateLimitLayer};
    /// # #[derive(Clone)] struct User { plan: String }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let rules = Rules::new(&Limiter::memory(), &Config::parse("rules.yaml", "limits: {}")?)?;
    /// let layer = RateLimitLayer::rules(&rules, "api").attributes(|request, attributes| {
    ///     match request.extensions().get::<User>() {
    ///         Some(user) => attributes.with("tier", user.plan.as_str()),
    ///         None => attributes,
    ///     }
    /// });
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn attributes(
        self,
        with: impl for<'h> Fn(&'h RequestHead<'_>, Attributes<'h>) -> Attributes<'h>
        + Send
        + Sync
        + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.attributes = Some(Arc::new(with)))
    }

    /// Sets what a request costs, instead of 1 or the cost in the rules. A request that costs 0 is not limited.
    #[must_use]
    pub fn cost(
        self,
        cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Sets which requests are not limited at all. Further calls add to the requests that are skipped.
    #[must_use]
    pub fn skip(
        self,
        skip: impl Fn(&RequestHead<'_>) -> bool + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| {
            settings.skip = Some(match settings.skip.take() {
                None => Arc::new(skip),
                Some(others) => Arc::new(move |head| others(head) || skip(head)),
            });
        })
    }

    /// Sets a hook that is called with every decision, to count them or to log refusals.
    #[must_use]
    pub fn on_decision(
        self,
        hook: impl Fn(&RequestHead<'_>, &LayerDecision<'_>) + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.on_decision = Some(Arc::new(hook)))
    }

    /// Sets the response to refused requests, instead of problem+json. The layer adds its headers to the response.
    /// gRPC requests still get a gRPC status. With the feature `axum`, `refuse_with` takes anything that axum can turn
    /// into a response.
    #[must_use]
    pub fn on_refusal(
        self,
        response: impl Fn(&RequestHead<'_>, &Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.on_refusal = Some(Arc::new(response)))
    }

    /// Puts the decision into the extensions of each admitted request as an [`Admission`], so that the inner service
    /// can read the client's quota and refund the charge.
    ///
    /// Off by default, because it takes two allocations and a copy of the key for each request. Without it, the layer
    /// keeps nothing of an admitted request, unless the request is delayed, has a hold, or may be refunded by
    /// [`refund_if`](Self::refund_if).
    #[must_use]
    pub fn with_decision(self) -> RateLimitLayer {
        self.with(|settings| (settings.is_tracked, settings.shows_decision) = (true, true))
    }

    /// Refunds the charge when the inner service responds with a response that meets the condition. The headers then
    /// have the quota after the refund. With several conditions, one that holds is enough.
    ///
    /// ```
    /// # use tollgate::tower::RateLimitLayer;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Only successful uploads count, as with `skipFailedRequests` of express-rate-limit.
    /// let uploads = RateLimitLayer::per_ip("fixed-window limit=100 window=1d")?
    ///     .refund_if(|response| !response.status().is_success());
    /// // Only failed logins count, as with its `skipSuccessfulRequests`.
    /// let logins = RateLimitLayer::per_ip("sliding-window-log limit=5 window=15m")?
    ///     .refund_if(|response| response.status().is_success());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// - All limits that the request was charged to are refunded. A charge that the service has refunded itself
    ///   ([`Admission::refund`]) is not refunded again.
    /// - A decision that was made without the store charged nothing, so nothing is refunded. A shaping limit refunds
    ///   a charge only if it is the last one.
    /// - The response waits for the refund and for one read of the limits: on Redis for at most two deadlines, in
    ///   memory not at all. If the store fails, the response is sent all the same, with the numbers of the decision,
    ///   and a warning is logged, at most once in ten seconds.
    /// - Nothing is refunded when the response future is dropped before the service has responded, or when the service
    ///   fails with an error instead of a response.
    /// - A limit refuses while all of its units are charged, including the charges of requests that will be refunded
    ///   later. So some of several concurrent requests can be refused, although all of them would fit one after the
    ///   other.
    #[must_use]
    pub fn refund_if(
        self,
        condition: impl Fn(&dyn ResponseHead) -> bool + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| {
            settings.is_tracked = true;
            settings.refund_if = Some(match settings.refund_if.take() {
                None => Arc::new(condition),
                Some(others) => Arc::new(move |response| others(response) || condition(response)),
            });
        })
    }

    /// Sets which headers responses have.
    #[must_use]
    pub fn headers(self, families: HeaderFamilies) -> RateLimitLayer {
        self.with(|settings| settings.families = families)
    }

    /// Sets the longest time that a shaping limit may delay a request; the default is 30 s. A request that would wait
    /// longer is refused, and charged nothing.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> RateLimitLayer {
        self.with(|settings| settings.max_wait = max_wait)
    }

    /// Sets how many requests may be delayed at a time; the default is 10,000. Further requests that would have to
    /// wait are refused. On Redis, requests whose check is in flight count too, because they may be delayed.
    #[must_use]
    pub fn max_waiting(self, most: usize) -> RateLimitLayer {
        self.with(|settings| settings.waiting_slots.most = most)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.settings))
    }
}
