//! Exact rate limiting: five algorithms and concurrency limits, one set of semantics.
//!
//! A [`Limiter`] holds what every key has spent. A [`Scope`] is a limit with a name. Check a key against it:
//!
//! ```
//! use tollgate::Limiter;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Limiter::memory();
//! let api = limiter.scope("api", "token-bucket capacity=60 refill=1/s")?;
//!
//! let decision = api.check("user:42").now()?;
//! assert!(decision.is_allowed());
//! assert_eq!(decision.remaining(), 59);
//! # Ok(())
//! # }
//! ```
//!
//! In async code, await the same check. In memory it is ready at once; on a remote store it takes one round trip:
//!
//! ```
//! # use tollgate::{Limiter, Verdict, Redis};
//! # async fn answer() -> Result<(), Box<dyn std::error::Error>> {
//! # let api = Limiter::memory().scope("api", "token-bucket capacity=60 refill=1/s")?;
//! let decision = api.check("user:42").cost(5).await?;
//! match decision.verdict() {
//!     Verdict::Allowed { .. } => println!("allowed, {} left", decision.remaining()),
//!     Verdict::Denied { retry } => match retry.after() {
//!         Some(wait) => println!("refused; retry in exactly {wait:?}"),
//!         None => println!("refused; the cost is above the limit"),
//!     },
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A request that must fit several limits is charged to all of them or to none. A limit in shadow mode is on trial: it
//! reports whether it would have refused, and never refuses. A [peek](Scope::peek) among the checks can refuse the
//! request, and is never charged.
//!
//! ```
//! # use tollgate::Limiter;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::memory();
//! let user = limiter.scope("user", "token-bucket capacity=60 refill=1/s")?;
//! let site = limiter.scope("site", "sliding-window-counter limit=1000 window=1s")?;
//! let stricter = limiter.scope("stricter", "token-bucket capacity=3 refill=1/s")?;
//!
//! let request = [user.check("user:42"), site.check(""), stricter.check("user:42").shadow()];
//! let together = limiter.check_all_now(&request)?;
//! assert!(together.is_allowed());
//! assert_eq!(together.remaining(), Some(59)); // of the tightest enforced limit
//! # Ok(())
//! # }
//! ```
//!
//! A refused request costs nothing. If a request was allowed but failed later, refund its charge with the receipt in
//! the decision:
//!
//! ```
//! # use tollgate::Limiter;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::memory();
//! let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
//! if let Some(receipt) = logins.check("203.0.113.9").now()?.into_receipt() {
//!     logins.refund_now("203.0.113.9", receipt)?;
//! }
//! logins.reset_now("203.0.113.9")?; // or forget all charges of the key, after a successful login
//! assert_eq!(logins.peek("203.0.113.9").now()?.remaining(), 5);
//! # Ok(())
//! # }
//! ```
//!
//! A limit can change while it is in use: make a scope of the same name with other numbers, or with another algorithm.
//! Spent units stay spent, also when a customer moves to another limit ([`Limiter::scope`]).
//!
//! ```
//! # use tollgate::Limiter;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::memory();
//! let free = limiter.scope("api", "fixed-window limit=100 window=1h")?;
//! assert_eq!(free.check("user:42").cost(90).now()?.remaining(), 10);
//! let paid = limiter.scope("api", "fixed-window limit=5000 window=1h")?;
//! assert_eq!(paid.check("user:42").now()?.remaining(), 4909);
//! # Ok(())
//! # }
//! ```
//!
//! For work that can wait, call [`Scope::acquire`] instead of `check`. Callers wait in order of arrival until the limit
//! admits them. A caller whose wait would be longer than `max_wait` is refused at once.
//!
//! ```
//! use std::time::Duration;
//! # use tollgate::{Clock, Limiter};
//! # #[tokio::main(flavor = "current_thread", start_paused = true)]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
//! let mail = limiter.scope("mail", "leaky-bucket capacity=100 leak=2/s mode=shaping")?;
//! for _ in 0..3 {
//!     assert!(mail.acquire("smtp").max_wait(Duration::from_secs(60)).await?.is_admitted());
//! } // one every half second
//! # Ok(())
//! # }
//! ```
//!
//! On Redis or Valkey many processes share the same limits (feature `redis`; `tls` for `rediss://`). Only two things
//! change: how the limiter is built, and that checks are awaited:
//!
#![cfg_attr(feature = "redis", doc = "```no_run")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! use tollgate::Redis;
//! # use tollgate::Verdict;
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Redis::at("redis://127.0.0.1:6379")?.build()?;
//! let api = limiter.scope("api", "token-bucket capacity=60 refill=1/s")?;
//! let decision = api.check("user:42").await?;
//! match decision.verdict() {
//!     Verdict::Allowed { .. } => println!("allowed, {} left", decision.remaining()),
//!     Verdict::Denied { retry } => println!("refused; retry after {:?}", retry.after()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! A check is one round trip, decided inside the server at the server's time. Checks that arrive while a batch is in
//! flight are sent together in the next one. A refusal is cached until its `retry_after`, for at most a second
//! ([`Decision::is_cached`]).
//!
//! The URL of a cluster is `redis+cluster://a,b,c`, the URL of a primary behind sentinels is
//! `redis+sentinel://a,b,c/name`, and the URL of several servers that share the keys is `redis+shards://a,b,c`.
//!
//! A failure of the store is not a refusal. When the store fails, the failure policy decides each check. By default it
//! is decided on this process's share of the limit, from the last state of its key that this process saw; the limiters that
//! are alive divide the limit. Or the check is an error, or it is allowed without a bound. A decision
//! without the store is marked ([`Decision::is_degraded`]). It comes within the deadline, and at once while the server
//! keeps failing. A scope may have its own policy and deadline ([`Scope::on_failure`], [`Scope::deadline`]).
//!
//! [`Limiter::health`] reports the state of the servers. The log (`tracing`, target `tollgate::outage`) has one warning
//! when a store begins to fail, and one line when it answers again, with the number of failed requests, the number of
//! decisions made without the store, and the duration.
//!
#![cfg_attr(feature = "redis", doc = "```no_run")]
#![cfg_attr(not(feature = "redis"), doc = "```ignore")]
//! # use std::time::Duration;
//! # use tollgate::{Error, OnFailure, Redis};
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let limiter = Redis::at("redis+cluster://10.0.0.1,10.0.0.2,10.0.0.3")?
//!     .deadline(Duration::from_millis(5))
//!     .on_failure(OnFailure::Closed)
//!     .build()?;
//! let payments = limiter.scope("payments", "fixed-window limit=5 window=1m")?;
//! match payments.check("user:42").await {
//!     Ok(decision) => println!("{}", if decision.is_allowed() { "200" } else { "429" }),
//!     Err(Error::Store(problem)) => println!("503: {problem}"),
//!     Err(mistake) => return Err(mistake.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Rules in a YAML file define which requests spend which limits, and by which key (feature `rules`). All rules that
//! apply to a request are charged, or none is.
//!
#![cfg_attr(feature = "rules", doc = "```")]
#![cfg_attr(not(feature = "rules"), doc = "```ignore")]
//! # use tollgate::Limiter;
//! use tollgate::rules::{Attributes, Config, Rules};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = Config::parse("rules.yaml", "
//! limits:
//!   free: token-bucket capacity=60 refill=1/s
//!   pro: token-bucket capacity=600 refill=10/s
//! rules:
//!   - name: per-client
//!     domain: api
//!     key: [{ first_of: [api_key, ip] }]
//!     limit: { by: tier, tiers: { pro: pro }, default: free }
//! ")?;
//! let rules = Rules::new(&Limiter::memory(), &config)?;
//! let request = Attributes::new().with("ip", "203.0.113.9").claimed("api_key", "anything");
//! let ruling = rules.check("api", &request).now()?;
//! assert_eq!(ruling.remaining(), Some(59)); // the API key is not verified, so the address is the key
//! # Ok(())
//! # }
//! ```
//!
//! In a server, a layer does the checks: for axum, for tonic, and for every other tower service (feature `tower`, and a
//! feature for each framework). A client that has spent its quota gets a 429 with `Retry-After`, and every response has
//! headers with the quota and what remains of it ([`tower::RateLimitLayer`]).
//!
#![cfg_attr(feature = "axum", doc = "```")]
#![cfg_attr(not(feature = "axum"), doc = "```ignore")]
//! use axum::{Router, body::Body, http::Request, routing::get};
//! use tollgate::tower::RateLimitLayer;
//! # use tower::ServiceExt;
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let app = Router::new()
//!     .route("/", get(|| async { "hello" }))
//!     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?); // or `new(scope)`, or `rules(…)`
//!
//! let response = app.oneshot(Request::new(Body::empty())).await?;
//! assert_eq!(response.headers()["ratelimit"], r#""per-ip";r=59;t=1"#);
//! # Ok(())
//! # }
//! ```
//!
//! Clients are identified by their address, also behind proxies, by API keys or by tokens ([`http::Identity`]). There
//! is also a layer for HTTP clients: [`tower::PaceLayer`] delays your own requests to a limit's rate, and waits when a
//! server answers with `Retry-After`.
//!
//! Memory is bounded. Keys with nothing spent are removed a few at a time, whenever a new key is added. At the ceiling
//! ([`Builder::max_bytes`]) no state is dropped to make room. New keys then share one state for each name, until there
//! is room again ([`Limiter::usage`] counts them). If you know the number of keys, [`Builder::room_for`] allocates
//! their memory in advance.
//!
//! In tests, a [`ManualClock`] controls the time.
//!
//! # Answers
//!
//! Each of these types contains the one before it.
//!
//! | type | meaning | returned by |
//! |---|---|---|
//! | [`Verdict`] | allowed, with a delay; or denied, with the wait | every answer below: `verdict()` |
//! | [`Decision`] | the decision of one limit: a verdict, the units that remain, and a receipt if something was charged | [`Scope::check`], [`Scope::peek`] |
//! | [`JointDecision`] | the decision of several limits about one request, with the decision of each | [`Limiter::check_all`] |
//! | `rules::Ruling` | the decision of rules: a joint decision, with the rules that applied | `Rules::check` |
//! | `http::Outcome` | a decision or a ruling, in the form that an HTTP response needs | `Outcome::of_limit`, `Outcome::of_rules` |
//! | `http::Refusal` | the response to a refused request: an outcome, a failed store, or a bad token | `Refusal::new` |
//! | `tower::LayerDecision` | the effect of the middleware on a request: an outcome or a refusal | the hooks of `RateLimitLayer` |
//!
//! [`Answer`] is the future of each store operation, and [`AcquireOutcome`] is the result of [`Scope::acquire`]. `check` is
//! one request on one limit, or on the rules of a domain; `check_all` is one request on several limits; `batch` is
//! several requests.
//!
//! # Features
//!
//! No feature is enabled by default.
//!
//! | feature | adds |
//! |---|---|
//! | `redis` | limits on Redis and Valkey, shared by many processes |
//! | `tls` | Redis and Valkey over TLS; includes `redis` |
//! | `rules` | rules in YAML that say which requests spend which limits |
//! | `watch` | rules that follow their file; includes `rules` |
//! | `tower` | middleware for servers and clients of every framework built on tower; includes `rules` |
//! | `axum` | support for axum's bodies and client addresses; includes `tower` |
//! | `tonic` | support for tonic's bodies and client addresses, and refusals as gRPC statuses; includes `tower` |
//! | `reqwest` | pacing of reqwest clients; includes `tower` |
//! | `jwt` | clients identified by their tokens; includes `tower` |
//! | `serde` | limits, decisions and receipts as text and JSON |
//! | `jwks` | keys that verify tokens, fetched from the issuer's URL; includes `jwt` |
//!
// Links to items of features that are not enabled lead to the table above.
#![cfg_attr(not(feature = "tower"), doc = "[`http::Identity`]: #features")]
#![cfg_attr(not(feature = "tower"), doc = "[`tower::PaceLayer`]: #features")]
#![cfg_attr(not(feature = "tower"), doc = "[`tower::RateLimitLayer`]: #features")]

pub use tollgate_core::{
    Bound, ChargePlace, Concurrency, Cost, CostError, EndedHold, Entry, Extension, FixedWindow,
    HoldError, HoldId, HoldReference, LeakyBucket, Limit, LimitError, MAX_HOLDS, Mode, Rate, Retry,
    SlidingWindowCounter, SlidingWindowLog, State, TokenBucket, Verdict,
};
pub use tollgate_limiter::{
    Acquire, AcquireFuture, AcquireOutcome, Answer, BreakerState, Builder, CeilingCounts, Check,
    ClientAddress, Clock, Decision, Error, Fingerprint, Gate, Health, Hold, HoldDecision,
    HoldExtension, HoldRequest, HoldSettlement, Ipv6Prefix, Ipv6PrefixError, JointDecision,
    JointExtension, JointHold, JointHoldDecision, Key, LeaseCounters, LeaseOptions, Limiter,
    ManualClock, OnFailure, Receipt, RemoteBuilder, ReservationPart, Scope, ServerHealth,
    StoreError, TermsError, Usage, store,
};
#[cfg(feature = "redis")]
pub use tollgate_redis::Redis;
#[cfg(feature = "rules")]
pub use tollgate_rules as rules;
#[cfg(feature = "tower")]
pub use tollgate_tower as tower;

/// HTTP requests: how clients are identified, and the headers and responses that they receive.
///
/// The middleware in [`tower`] uses these types, and a server without the middleware can use them too.
#[cfg(feature = "tower")]
pub mod http {
    pub use tollgate_http::*;
    pub use tollgate_identity::*;
}

#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/guide/library.md")]
struct LibraryDocument;

#[cfg(all(doctest, feature = "rules"))]
#[doc = include_str!("../../../docs/guide/rules.md")]
struct RulesDocument;

#[cfg(all(
    doctest,
    feature = "axum",
    feature = "jwks",
    feature = "redis",
    feature = "reqwest",
    feature = "tonic",
    feature = "watch"
))]
#[doc = include_str!("../../../docs/guide/middleware.md")]
struct MiddlewareDocument;
