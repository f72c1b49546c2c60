//! `POST /v1/check/batch`: decides many requests at once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Problem;
use super::asked::{self, MAX_REQUESTS};
use super::body::JsonBody;
use super::check::{DOMAIN_IN_BODY, append, json, write};
use super::openapi::{BatchAnswer, BatchRequest, BodyProblems};
use crate::budget::{Budget, HeldMemory, SMALL_BYTES};
use crate::pipeline::{DecisionRequest, PendingAnswer, Pipeline};

/// The longest body of a batch.
const MAX_BYTES: usize = 1 << 20;

/// What a decision takes in a batch, as a rule; and what room there should be for one that is on its way, with rules.
const ANSWER_BYTES: usize = 128;
const ON_ITS_WAY_BYTES: usize = 1 << 10;

/// The longest answer; what it has no room for is not decided. A thousand requests with twenty rules each take 5 MiB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// How many are on their way at a time. A store across the network takes as many at once; the others' deadlines begin
/// when it is their turn, or a batch could be late by being long.
const AHEAD: usize = 64;

/// Decides many requests, each by itself, in their order
///
/// As `/v1/check` does, one by one, with one answer for each in its place. One that is wrong, or that the store
/// fails to decide, has a problem in its place and does not disturb the others. At most 1 MiB, and 8 MiB of
/// answers: what comes after these is not decided, and says so in its place (413); as does what the server has no
/// memory for at the moment (503).
#[utoipa::path(
    post,
    path = "/v1/check/batch",
    tag = "decisions",
    request_body(content = BatchRequest, example = json!([
        {"limit": "free", "key": "user:42"}, {"limit": "login", "key": "203.0.113.9", "cost": 2}
    ])),
    responses(
        (status = 200, description = "One answer for each, in the same order.", body = BatchAnswer),
        BodyProblems,
    ),
)]
pub(super) async fn batch(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, Problem> {
    let mut asked = each(&body)?;
    let mut answers = Answers::new(&budget, asked.len())?;
    let mut sent = VecDeque::with_capacity(asked.len().min(AHEAD));
    let answering = async {
        loop {
            // Many are on their way before the first is waited for.
            while sent.len() < AHEAD
                && let Some(asked) = asked.next()
            {
                let room = answers.room_for_one_more(sent.len());
                sent.push_back(room.and_then(|()| send(&pipeline, asked?)));
            }
            match sent.pop_front() {
                Some(sent) => answers.push(&pipeline, sent).await,
                None => return Ok::<_, Problem>(()),
            }
        }
    };
    pipeline.in_store_span(answering).await?;
    Ok(json(answers.into_body()))
}

fn send<'a>(
    pipeline: &Pipeline,
    request: DecisionRequest<'a>,
) -> Result<PendingAnswer<'a>, Problem> {
    pipeline.send(request).map_err(|target| Problem::unknown_target(&target, DOMAIN_IN_BODY))
}

/// What is answered so far, as JSON, and the memory that it holds.
struct Answers {
    json: Vec<u8>,
    held: HeldMemory,
}

impl Answers {
    /// For so many.
    fn new(budget: &Budget, count: usize) -> Result<Answers, Problem> {
        let mut held = budget.held();
        // OK because there are 1,000 at most.
        held.grow_to(count * ANSWER_BYTES)?;
        let mut json = Vec::with_capacity(count * ANSWER_BYTES);
        json.push(b'[');
        Ok(Answers { json, held })
    }

    /// Before one is decided, so that what is decided is told. Others have not been answered yet.
    fn room_for_one_more(&mut self, on_their_way: usize) -> Result<(), Problem> {
        // OK because there are 64 at most.
        let bytes = self.json.len() + (on_their_way + 1) * ON_ITS_WAY_BYTES;
        if bytes > MAX_ANSWER_BYTES {
            return Err(Problem::long_answer());
        }
        Ok(self.held.grow_to(bytes)?)
    }

    async fn push(&mut self, pipeline: &Pipeline, sent: Result<PendingAnswer<'_>, Problem>) {
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        let answered = match sent {
            Ok(mut sent) => pipeline.answer(&mut sent).await.map_err(Problem::from),
            Err(problem) => Err(problem),
        };
        match answered {
            Ok(answer) => write(answer, &mut self.json),
            Err(problem) => append(&mut self.json, &problem),
        }
        self.held.keep(self.json.capacity());
    }

    fn into_body(mut self) -> Body {
        self.json.push(b']');
        match self.json.len() <= SMALL_BYTES {
            true => Body::from(self.json),
            false => self.held.body(self.json),
        }
    }
}

/// The requests of a batch, each right or wrong by itself.
pub(crate) fn each(
    body: &[u8],
) -> Result<impl ExactSizeIterator<Item = Result<DecisionRequest<'_>, Problem>>, Problem> {
    let requests: Requests<'_> =
        serde_json::from_slice(body).map_err(|error| Problem::in_json(&error))?;
    Ok(requests.0.into_iter().map(|request| asked::decode(request.get().as_bytes())))
}

/// An array of 1 to 1,000 of whatever.
struct Requests<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Requests<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Requests<'a>, D::Error> {
        struct OfRequests;

        impl<'de> Visitor<'de> for OfRequests {
            type Value = Requests<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of 1 to {MAX_REQUESTS} checks")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<Requests<'de>, S::Error> {
                let mut requests = Vec::new();
                while let Some(request) = seq.next_element()? {
                    if requests.len() == MAX_REQUESTS {
                        let problem = format!("too many checks; send at most {MAX_REQUESTS}");
                        return Err(S::Error::custom(problem));
                    }
                    requests.push(request);
                }
                match requests.is_empty() {
                    true => Err(S::Error::invalid_length(0, &self)),
                    false => Ok(Requests(requests)),
                }
            }
        }

        json.deserialize_seq(OfRequests)
    }
}
