//! How a layer is put together.

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
use super::settings::{By, LayerDecision, Settings};
use crate::ResponseHead;
use tollgate_http::{HeaderFamilies, PreparedHeaders, Refusal};
use tollgate_identity::{Identity, RequestHead};
use tollgate_rules::{Attributes, Rules};

/// Limits the requests to a service.
///
/// A refused request gets a 429 with a problem+json body, or a gRPC status; all are told in headers how they stand. Clones share
/// everything: a limit is not multiplied by the routes, connections and threads that it is cloned for.
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
/// Serve it with `app.into_make_service_with_connect_info::<SocketAddr>()`, so that clients have addresses; those
/// without one share a quota. Put a CORS layer outside of this one, so that browsers may read refusals too. A
/// browser's preflights have a quota of their own, as large as the limit.
#[derive(Clone, Debug)]
pub struct RateLimitLayer {
    settings: Arc<Settings>,
}

impl RateLimitLayer {
    /// By the client's address, in this process's memory.
    #[doc(alias = "PeerIpKeyExtractor")]
    pub fn per_ip<L>(limit: L) -> Result<RateLimitLayer, Error>
    where
        L: TryInto<Limit>,
        Error: From<L::Error>,
    {
        Ok(RateLimitLayer::new(Limiter::memory().scope("per-ip", limit)?))
    }

    /// By the client's address, or by [another key](Self::key), on whichever store the limit is.
    ///
    /// The key of an address is `ip=203.0.113.9`, or `ip=2001:db8:12:3400::/56`, and of another `key=alice`: with
    /// that a client can be looked up and reset ([`Scope::reset`]).
    pub fn new(scope: Scope) -> RateLimitLayer {
        let ready = Arc::new(PreparedHeaders::new(&scope));
        RateLimitLayer::of(Settings::new(By::Limit { scope, ready }))
    }

    /// By the rules of a domain: each that applies is charged, or none is. They may change meanwhile, but the domain
    /// must stay: it is [required](Rules::require_domain).
    pub fn rules(rules: &Rules, domain: &str) -> RateLimitLayer {
        if !rules.require_domain(domain) {
            tracing::warn!("no rule is of the domain `{domain}`: its requests are not limited");
        }
        RateLimitLayer::of(Settings::new(By::Rules { rules: rules.clone(), domain: domain.into() }))
    }

    fn of(settings: Settings) -> RateLimitLayer {
        RateLimitLayer { settings: Arc::new(settings) }
    }

    fn with(mut self, change: impl FnOnce(&mut Settings)) -> RateLimitLayer {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    /// Who clients are: which proxies are trusted, where API keys and tokens are. Otherwise it is as the file of the
    /// rules says, or by the address of the connection.
    #[must_use]
    pub fn identity(self, identity: Identity) -> RateLimitLayer {
        self.with(|settings| {
            let clock = settings.by.limiter().clock();
            settings.identity = Some(identity.on_clock(clock));
        })
    }

    /// Whom to limit, instead of an address; `None` is the address after all. Make it of what is verified: a
    /// client that can choose its key has as many quotas as it likes.
    ///
    /// With rules it is the attribute `key`, where there is one.
    #[must_use]
    pub fn key(
        self,
        key: impl Fn(&RequestHead<'_>) -> Option<String> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.key = Some(Arc::new(key)))
    }

    /// The same as [`key`](Self::key), by a type that finds the key of a request.
    #[must_use]
    pub fn key_extractor(self, extractor: impl KeyExtractor) -> RateLimitLayer {
        self.key(move |request| extractor.extract(request))
    }

    /// Adds to what rules know of a request: what the application has found out, such as a user's plan. What is
    /// added [`with`](Attributes::with) counts for keys and tiers.
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

    /// What a request costs, instead of 1, or of what rules say; 0 is free.
    #[must_use]
    pub fn cost(
        self,
        cost: impl Fn(&RequestHead<'_>) -> u64 + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Which requests are not limited at all. Once more, and those are skipped too.
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

    /// Is told of every decision: to count them, or to log refusals.
    #[must_use]
    pub fn on_decision(
        self,
        hook: impl Fn(&RequestHead<'_>, &LayerDecision<'_>) + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.on_decision = Some(Arc::new(hook)))
    }

    /// What refused requests are answered, instead of problem+json. Headers are added to it. gRPC has its own
    /// way. Under feature `axum`, `refuse_with` takes anything that axum makes a response of.
    #[must_use]
    pub fn on_refusal(
        self,
        response: impl Fn(&RequestHead<'_>, &Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static,
    ) -> RateLimitLayer {
        self.with(|settings| settings.on_refusal = Some(Arc::new(response)))
    }

    /// Puts the decision into the extensions of each request that goes, so that the service inside can read how
    /// its client stands, and give the charge back: [`Admission`].
    ///
    /// Without this the layer keeps nothing of a request. With it, each request takes two more
    /// allocations and a copy of its key, so it must be asked for.
    #[must_use]
    pub fn with_decision(self) -> RateLimitLayer {
        self.with(|settings| (settings.is_tracked, settings.shows_decision) = (true, true))
    }

    /// Gives the charge back when the service inside answers with such a response; the headers then tell what
    /// remains after that. With several conditions, one that holds is enough.
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
    /// - All limits that the request was charged to are refunded. A charge that the service gave back
    ///   ([`Admission::refund`]) comes back once.
    /// - A decision that was made without the store charged nothing, and nothing comes back. Of a shaping limit
    ///   the place comes back only if it is the last one.
    /// - The response waits for the refund and for one look at the limits: in memory not at all, on Redis for two
    ///   deadlines at most. If the store fails, the response goes all the same, with the numbers of the
    ///   decision, and the log has a warning, at most every ten seconds.
    /// - Nothing comes back when the response future is dropped before the service has answered, and when the
    ///   service fails with an error instead of a response.
    /// - A limit refuses while all of it is charged, also by requests that will be refunded: concurrent
    ///   requests can be refused that would fit one after the other.
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

    /// Which headers clients are told by.
    #[must_use]
    pub fn headers(self, families: HeaderFamilies) -> RateLimitLayer {
        self.with(|settings| settings.families = families)
    }

    /// The longest that a shaping limit may delay a request, 30 s unless said; one that would wait longer is
    /// refused, and charged nothing.
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> RateLimitLayer {
        self.with(|settings| settings.max_wait = max_wait)
    }

    /// How many requests may be delayed at a time, 10,000 unless said. Then those that would have to wait are
    /// refused. On Redis, those whose answer is on its way count too, as it may be to wait.
    #[must_use]
    pub fn max_waiting(self, most: usize) -> RateLimitLayer {
        self.with(|settings| settings.line.most = most)
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> RateLimit<S> {
        RateLimit::new(inner, Arc::clone(&self.settings))
    }
}
