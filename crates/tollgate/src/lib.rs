//! Exact rate limiting: five algorithms, one set of semantics.
//!
//! A [`Limiter`] keeps what every key has spent. A [`Scope`] is a limit with a name; ask it about a
//! key:
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
//! In async code, await the same check; in memory it is ready at once, and on a store across the
//! network it will not be:
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
//! A request that must fit several limits is charged to all of them or to none. A shadow limit is
//! one you are trying out: it says what it would have done. A [peek](Scope::peek) among them refuses
//! and is never charged.
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
//! assert_eq!(together.remaining(), Some(59)); // the tightest of the enforced ones
//! # Ok(())
//! # }
//! ```
//!
//! What is refused costs nothing. What was charged for nothing can be given back, with the receipt
//! that the decision carries:
//!
//! ```
//! # use tollgate::Limiter;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let limiter = Limiter::memory();
//! let logins = limiter.scope("logins", "sliding-window-log limit=5 window=15m")?;
//! if let Some(receipt) = logins.check("203.0.113.9").now()?.into_receipt() {
//!     logins.refund_now("203.0.113.9", receipt)?;
//! }
//! logins.reset_now("203.0.113.9")?; // or forget all of it, after a successful login
//! assert_eq!(logins.peek("203.0.113.9").now()?.remaining(), 5);
//! # Ok(())
//! # }
//! ```
//!
//! A limit can change while it is in use: ask for the same name with other numbers, or another
//! algorithm. What was spent stays spent, and customers with limits of their own keep what they have
//! spent when these change ([`Limiter::scope`]).
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
//! Work of your own that can wait is not checked but acquired: it waits its turn, in order, or is told
//! at once that its turn would come too late.
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
//! When one process becomes many, the same limits hold across all of them on a Redis or Valkey (feature
//! `redis`; `tls` for `rediss://`). Only how the limiter is made changes, and that checks are awaited:
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
//! A check is one round trip, decided inside the server at the server's time; checks that come while
//! one is on its way go together in the next. A refusal is remembered for as long as it is sure to
//! last, at most a second ([`Decision::is_cached`]).
//!
//! A cluster is `redis+cluster://a,b,c`, a primary that sentinels watch `redis+sentinel://a,b,c/name`,
//! and several servers that share the keys `redis+shards://a,b,c`.
//!
//! A store that fails is no refusal. What a check comes to then is for you to say: allowed, which it is
//! unless said otherwise, an error, or decided on this process's share of the limit. A scope may say so for
//! itself, and have its own deadline ([`Scope::on_failure`], [`Scope::deadline`]). The answer is
//! marked ([`Decision::is_degraded`]), comes within the deadline, and at once while the server keeps
//! failing; [`Limiter::health`] reports the state of the servers. The log (`tracing`, target `tollgate::outage`) has
//! one warning when a store begins to fail, and one line when it answers again, with the number of failed requests, the
//! number of decisions made without the store, and the duration.
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
//!     Ok(decision) => println!("{}", if decision.is_allowed() { "go on" } else { "429" }),
//!     Err(Error::Store(problem)) => println!("503: {problem}"),
//!     Err(mistake) => return Err(mistake.into()),
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Which requests spend which limits, and for whom, need not be in the program: rules say it, in YAML
//! (feature `rules`). Every rule that applies is charged, or none is.
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
//! assert_eq!(ruling.remaining(), Some(59)); // nobody vouches for the key: the address counts
//! # Ok(())
//! # }
//! ```
//!
//! A server need not ask for itself: a layer does it, for axum, tonic and everything else that is a tower
//! service (feature `tower`, and one for each framework). A client that has spent its quota gets a 429 that says
//! when to come back, and every response has the headers that say how its client stands
//! ([`tower::RateLimitLayer`]).
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
//!     .layer(RateLimitLayer::per_ip("token-bucket capacity=60 refill=1/s")?); // or of a scope, or of rules
//!
//! let response = app.oneshot(Request::new(Body::empty())).await?;
//! assert_eq!(response.headers()["ratelimit"], r#""per-ip";r=59;t=1"#);
//! # Ok(())
//! # }
//! ```
//!
//! Clients are known by their address, also behind proxies, by API keys or by tokens ([`http::Identity`]). Those who
//! ask are helped as well: [`tower::PaceLayer`] makes the requests of a client wait their turn, as the servers that it asks wish.
//!
//! Memory is bounded: keys with nothing spent are dropped a few at a time, by whoever brings in a new
//! one, and at the ceiling ([`Builder::max_bytes`]) nobody's state is dropped to make room: new keys
//! share one state for each name until there is room again ([`Limiter::usage`] counts them). Who knows how many keys
//! will come has their memory fetched beforehand ([`Builder::room_for`]).
//!
//! Tests bring their own time: [`ManualClock`].
//!
//! # Answers
//!
//! Each of these is made of the one before it.
//!
//! | type | what it is | comes from |
//! |---|---|---|
//! | [`Verdict`] | allowed, with a delay; or denied, with the wait | every answer below: `verdict()` |
//! | [`Decision`] | one limit's answer: a verdict, what remains, and a receipt if something was charged | [`Scope::check`], [`Scope::peek`] |
//! | [`JointDecision`] | the answer of several limits to one request, with each one's decision | [`Limiter::check_all`] |
//! | `rules::Ruling` | the answer of rules: a joint decision, with the rules that applied | `Rules::check` |
//! | `http::Outcome` | a decision or a ruling, for those who tell an HTTP client | `Outcome::of_limit`, `Outcome::of_rules` |
//! | `http::Refusal` | the response to a refused request: an outcome, a failed store, or a bad token | `Refusal::new` |
//! | `tower::LayerDecision` | what the middleware does with a request: an outcome or a refusal | the hooks of `RateLimitLayer` |
//!
//! [`Answer`] is the future of each store operation, and [`Acquired`] what [`Scope::acquire`] comes to. `check` is one
//! request on one limit, or on the rules of a domain; `check_all` is one request on several limits; `batch` is several requests.
//!
//! # Features
//!
//! None is on unless asked for.
//!
//! | feature | what it brings |
//! |---|---|
//! | `redis` | limits on Redis and Valkey, shared by many processes |
//! | `tls` | the same over TLS; with `redis` |
//! | `rules` | which requests spend which limits, from YAML |
//! | `watch` | rules that follow their file; with `rules` |
//! | `tower` | middleware for servers and clients, of every framework that is on tower; with `rules` |
//! | `axum` | axum's bodies, and the addresses of its clients; with `tower` |
//! | `tonic` | the same of tonic, and refusals as gRPC statuses; with `tower` |
//! | `reqwest` | reqwest's clients can be paced; with `tower` |
//! | `jwt` | clients known by their tokens; with `tower` |
//! | `serde` | limits, decisions and receipts as text and JSON |
//! | `jwks` | the keys of tokens fetched from their issuer's URL; with `jwt` |
//!
// What another feature documents leads to the table above.
#![cfg_attr(not(feature = "tower"), doc = "[`http::Identity`]: #features")]
#![cfg_attr(not(feature = "tower"), doc = "[`tower::PaceLayer`]: #features")]
#![cfg_attr(not(feature = "tower"), doc = "[`tower::RateLimitLayer`]: #features")]

pub use tollgate_core::{
    Bound, Cost, CostError, Entry, FixedWindow, LeakyBucket, Limit, LimitError, Mode, Place, Rate,
    Retry, SlidingWindowCounter, SlidingWindowLog, State, TokenBucket, Verdict,
};
pub use tollgate_limiter::{
    Acquire, Acquired, Acquiring, Answer, BreakerState, Builder, CeilingCounts, Check,
    ClientAddress, Clock, Decision, Error, Fingerprint, Gate, Health, Ipv6Prefix, Ipv6PrefixError,
    JointDecision, Key, Limiter, ManualClock, OnFailure, Receipt, RemoteBuilder, Scope,
    ServerHealth, StoreError, Usage, store,
};
#[cfg(feature = "redis")]
pub use tollgate_redis::Redis;
#[cfg(feature = "rules")]
pub use tollgate_rules as rules;
#[cfg(feature = "tower")]
pub use tollgate_tower as tower;

/// Requests over HTTP: who a client is, and what it is told.
///
/// The middleware in [`tower`] is made of it, and a server of one's own can be.
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
