//! `/api/rate-limit`: the algorithms to play with, each session with counters of its own.
//!
//! The paths and fields are those of a well-known tutorial, so that its clients work unchanged; `state` and
//! `compare` are the page's own.
//!
//! - `algorithm`: which there are, and their parameters
//! - `session`: who plays; `sessions`: how many
//! - `state`: how a session stands; `compare`: what all algorithms make of the same traffic

mod algorithm;
pub(super) mod compare;
mod session;
mod sessions;
pub(super) mod state;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::rejection::PathRejection;
use axum::extract::{FromRef, FromRequestParts, Path, State};
use axum::response::Response;
use hyper::http::request::Parts;
use serde::{Deserialize, Serialize};
use tollgate::http::{HeaderFamilies, Outcome};
use tollgate::{Decision, Limit, Limiter, OnFailure, Scope};
use utoipa::ToSchema;

use self::algorithm::{Algorithm, Parameters, object};
use self::session::{Id, Session};
use self::sessions::{Entry, Playing, Sessions};
use super::Problem;
use super::asked::{Whole, given};
use super::authorize::wall_us;
use super::body::OptionalJson;
use super::check::{append, json};
use super::openapi::{BodyProblems, PlaygroundProblems, StoreProblems};
use crate::budget::Budget;

/// The longest body.
const MAX_BYTES: usize = 16 << 10;

/// How many requests a burst has, and the most that it may have.
const BURST: u64 = 10;
const MAX_BURST: u64 = 50;

/// How long the store may take at least: a person waits, and no request of a service.
const LEAST_DEADLINE: Duration = Duration::from_millis(500);

/// What playing takes of memory at most, where limits are in memory: nobody who plays takes it from keys that count.
/// Enough for the longest log of every session.
const MAX_PLAYED_BYTES: usize = 32 << 20;

/// What all who play may ask of a store that others need as well: so many decisions at once, and a second.
const PACE: &str = "token-bucket capacity=5000 refill=1000/s";

/// How often a session tries to get a place, if others are quicker.
const TRIES: u32 = 3;

/// Where the counters of all sessions are.
#[derive(Clone, Debug)]
pub(crate) struct Playground {
    limiter: Limiter,
    sessions: Arc<Sessions>,
    /// `None` if nobody else needs the store.
    pace: Option<Scope>,
    deadline: Duration,
}

impl Playground {
    /// On the server's store, whose requests have this deadline; in memory, beside it.
    pub(crate) fn on(limiter: &Limiter, deadline: Duration) -> anyhow::Result<Playground> {
        let (sessions, deadline) = (Arc::default(), deadline.max(LEAST_DEADLINE));
        if limiter.health().is_none() {
            let limiter = Limiter::builder().max_bytes(MAX_PLAYED_BYTES).build();
            return Ok(Playground { limiter, sessions, pace: None, deadline });
        }
        let pace = Limiter::memory().scope("playground", PACE.parse::<Limit>()?)?;
        Ok(Playground { limiter: limiter.clone(), sessions, pace: Some(pace), deadline })
    }

    /// Asks for so many decisions of the store.
    fn spend(&self, decisions: u64) -> Result<(), Problem> {
        let Some(pace) = &self.pace else { return Ok(()) };
        let decision = pace.check("all").cost(decisions).now()?;
        if decision.is_allowed() {
            Ok(())
        } else {
            Err(Problem::too_many_play(decision.retry_after()))
        }
    }

    /// A place for a session. If there is none, the one that has rested longest is forgotten, by the store as well: what
    /// strangers leave there is bounded.
    async fn play(&self, session: &Session) -> Result<Playing, Problem> {
        for _ in 0..TRIES {
            match self.sessions.enter(session.id()) {
                Entry::Playing(playing) => return Ok(playing),
                Entry::Full => break,
                Entry::Rested(rested) => {
                    // A task of its own: who hangs up meanwhile does not keep it from being done.
                    let own = self.clone();
                    let gone = tokio::spawn(async move { own.let_go(rested).await }).await;
                    gone.map_err(|_| Problem::too_many_play(None))??;
                }
            }
        }
        Err(Problem::too_many_play(None))
    }

    async fn let_go(&self, rested: Id) -> Result<(), Problem> {
        let forgotten = self.forget(rested).await;
        match forgotten {
            Ok(()) => self.sessions.left(rested),
            Err(_) => self.sessions.stays(rested),
        }
        forgotten
    }

    /// Forgets what a session has spent, of all algorithms.
    async fn forget(&self, id: Id) -> Result<(), Problem> {
        self.spend(Algorithm::ALL.len() as u64)?;
        for algorithm in Algorithm::ALL {
            self.scope(algorithm, &Parameters::default())?.reset(id.key()).await?;
        }
        Ok(())
    }

    /// An algorithm as a session has it. A name with a space in it is no limit's and no rule's of a file. Without
    /// the store there is no answer: nobody is shown what it did not decide.
    fn scope(&self, algorithm: Algorithm, parameters: &Parameters) -> Result<Scope, Problem> {
        let limit = algorithm.limit(parameters)?;
        let scope = self.limiter.scope(&format!("playground {}", algorithm.name()), limit)?;
        Ok(scope.on_failure(OnFailure::Closed).deadline(self.deadline))
    }
}

/// Asked for before a body is read: where nothing can be played with, there is nothing to be wrong with it.
impl<S> FromRequestParts<S> for Playground
where
    S: Sync,
    Option<Playground>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(_: &mut Parts, state: &S) -> Result<Playground, Problem> {
        Option::from_ref(state).ok_or_else(Problem::no_playground)
    }
}

/// What is sent with a request.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundRequest)]
pub(super) struct Asked {
    /// The parameters, where they are not the usual ones.
    #[serde(default, deserialize_with = "object")]
    config: Option<Parameters>,
}

/// What is sent with a burst.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundBurst)]
pub(super) struct AskedBurst {
    /// The parameters, where they are not the usual ones.
    #[serde(default, deserialize_with = "object")]
    config: Option<Parameters>,
    /// How many requests.
    #[serde(default, deserialize_with = "given")]
    #[schema(value_type = u64, required = false, minimum = 1, maximum = 50, default = 10)]
    count: Option<Whole>,
}

/// What an algorithm decided.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
#[schema(as = PlaygroundDecision)]
pub(super) struct DecisionJson {
    /// Whether the request may go.
    allowed: bool,
    /// How many more may go at this instant.
    #[schema(example = 9)]
    remaining: u64,
    /// The limit's size.
    #[schema(example = 10)]
    limit: u64,
    /// After how many seconds a refused request may go; null if it may.
    #[schema(required)]
    retry_after: Option<f64>,
    /// How many seconds an allowed request waits its turn; null unless requests are shaped.
    #[schema(required)]
    delay: Option<f64>,
}

impl DecisionJson {
    fn new(decision: &Decision, scope: &Scope) -> DecisionJson {
        let is_delayed = decision.is_allowed() && scope.limit().is_shaping();
        DecisionJson {
            allowed: decision.is_allowed(),
            remaining: decision.remaining(),
            limit: decision.limit(),
            retry_after: decision.retry_after().map(|wait| wait.as_secs_f64()),
            delay: is_delayed.then(|| decision.delay().as_secs_f64()),
        }
    }
}

/// That the counters are as they were at first.
#[derive(Debug, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = PlaygroundReset)]
pub(super) struct ResetJson {
    #[schema(example = true)]
    ok: bool,
}

/// Sends one request to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = Option<Asked>),
    responses((status = 200, description = "What it decided.", body = DecisionJson), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn request(
    playground: Playground,
    path: Result<Path<String>, PathRejection>,
    session: Session,
    OptionalJson(asked): OptionalJson<Asked, MAX_BYTES>,
) -> Result<Response, Problem> {
    let algorithm = Algorithm::in_path(path)?;
    let scope = playground.scope(algorithm, &asked.config.unwrap_or_default())?;
    playground.spend(1)?;
    let _playing = playground.play(&session).await?;
    let decision = scope.check(session.key()).await?;
    let mut body = Vec::new();
    append(&mut body, &DecisionJson::new(&decision, &scope));
    Ok(told(&decision, &scope, session.started(json(body.into()))))
}

/// Sends several requests at once to an algorithm
#[utoipa::path(
    post,
    path = "/api/rate-limit/{algorithm}/burst",
    tag = "playground",
    params(("algorithm" = Algorithm, Path, description = "The algorithm.")),
    request_body(content = Option<AskedBurst>),
    responses((status = 200, description = "What it decided, in order.", body = Vec<DecisionJson>), BodyProblems, StoreProblems, PlaygroundProblems),
)]
pub(super) async fn burst(
    playground: Playground,
    State(budget): State<Budget>,
    path: Result<Path<String>, PathRejection>,
    session: Session,
    OptionalJson(asked): OptionalJson<AskedBurst, MAX_BYTES>,
) -> Result<Response, Problem> {
    let algorithm = Algorithm::in_path(path)?;
    let count = asked.count.map_or(BURST, |Whole(count)| count);
    if !(1..=MAX_BURST).contains(&count) {
        let detail = format!("count: {count} is out of range; use 1 to {MAX_BURST}");
        return Err(Problem::bad_request(detail));
    }
    let scope = playground.scope(algorithm, &asked.config.unwrap_or_default())?;
    playground.spend(count)?;
    let _playing = playground.play(&session).await?;
    let check = [scope.check(session.key())];
    let checks: Vec<_> = (0..count).map(|_| &check[..]).collect();
    let mut decisions = Vec::new();
    for together in playground.limiter.batch(&checks).await? {
        decisions.extend(together?.into_each());
    }
    let mut body = Vec::new();
    let each: Vec<_> = decisions.iter().map(|own| DecisionJson::new(own, &scope)).collect();
    append(&mut body, &each);
    let response = session.started(json(budget.body_anyway(body)));
    Ok(match decisions.last() {
        Some(last) => told(last, &scope, response),
        None => response,
    })
}

/// Forgets what the session has spent, of all algorithms
#[utoipa::path(
    post,
    path = "/api/rate-limit/reset",
    tag = "playground",
    responses((status = 200, description = "It has spent nothing.", body = ResetJson), StoreProblems, PlaygroundProblems),
)]
pub(super) async fn reset(playground: Playground, session: Session) -> Result<Response, Problem> {
    playground.forget(session.id()).await?;
    let mut body = Vec::new();
    append(&mut body, &ResetJson { ok: true });
    Ok(session.started(json(body.into())))
}

/// The headers that a client of such a limit would see.
fn told(decision: &Decision, scope: &Scope, mut response: Response) -> Response {
    let outcome = Outcome::of_limit(scope, decision, 1);
    HeaderFamilies::ALL.tell(&outcome, wall_us(), response.headers_mut());
    response
}
