//! `POST /v1/check/batch`: decides many requests at once.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::Problem;
use super::asked::Asked;
use super::body::JsonBody;
use super::check::{Sent, append, json};
use super::openapi::{BatchAnswer, BatchRequest, BodyProblems};
use crate::served::Served;
use crate::traces;

/// The longest body of a batch.
const MAX_BYTES: usize = 1 << 20;

/// The most requests of a batch.
pub(super) const MAX_REQUESTS: usize = 1_000;

/// How many of a batch are on their way at a time. A store across the network takes as many at once; the others'
/// deadlines begin when it is their turn, or a batch could be late by being long.
const IN_FLIGHT: usize = 64;

/// What a decision takes in a batch, as a rule.
const ANSWER_BYTES: usize = 128;

/// Decides many requests, each by itself, in their order
///
/// As `/v1/check` does, one by one, with one answer for each in its place. One that is wrong, or that the store
/// fails to decide, has a problem in its place and does not disturb the others. At most 1 MiB.
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
    State(served): State<Arc<Served>>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, Problem> {
    let asked = each(&body)?;
    let mut answers = Vec::with_capacity(asked.len() * ANSWER_BYTES);
    let answering = async {
        let mut coming = asked.map(|asked| Sent::new(asked?, &served));
        let mut sent: VecDeque<_> = coming.by_ref().take(IN_FLIGHT).collect();
        answers.push(b'[');
        while let Some(first) = sent.pop_front() {
            let answered = match first {
                Ok(first) => first.answer(&served, &mut answers).await,
                Err(problem) => Err(problem),
            };
            if let Err(problem) = answered {
                append(&mut answers, &problem);
            }
            sent.extend(coming.next());
            answers.push(if sent.is_empty() { b']' } else { b',' });
        }
        Ok::<_, Problem>(())
    };
    traces::store(&served, answering).await?;
    Ok(json(answers))
}

/// The requests of a batch, each right or wrong by itself.
pub(crate) fn each(
    body: &[u8],
) -> Result<impl ExactSizeIterator<Item = Result<Asked<'_>, Problem>>, Problem> {
    let requests: Requests<'_> =
        serde_json::from_slice(body).map_err(|error| Problem::in_json(&error))?;
    Ok(requests.0.into_iter().map(|request| Asked::decode(request.get().as_bytes())))
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
