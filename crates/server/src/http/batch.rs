//! Requests with many items, each decided by itself: `POST /v1/check/batch`, and the batches of operations on holds.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::response::Response;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::ApiProblem;
use super::body::JsonBody;
use super::check::{DOMAIN_IN_BODY, json, write};
use super::check_body::{self, MAX_REQUESTS};
use super::hold_answers::{ExtendAnswerJson, SettleAnswerJson, write_reserved};
use super::hold_body::{decode_extend, decode_reserve, decode_settle};
use super::json_object::append;
use super::openapi::{BatchAnswer, BatchRequest, BodyProblems};
use crate::budget::{Budget, HeldMemory, SMALL_BYTES};
use crate::pipeline::{
    DecisionRequest, Pipeline, SentDecision, SentExtension, SentReservation, SentSettlement,
};
use crate::receipt::MAX_CHARS;

/// The longest body of a batch.
pub(super) const MAX_BYTES: usize = 1 << 20;

/// The typical length of an answer, and the length that is reserved for each pending answer, which may list rules. The length
/// of receipts and tokens is reserved besides it.
const TYPICAL_ANSWER_BYTES: usize = 128;
const PENDING_ANSWER_BYTES: usize = 1 << 10;

/// The most bytes of all answers of a batch. Requests beyond that are not decided. The answers to 1,000 requests with
/// 20 rules each take 5 MiB.
const MAX_ANSWER_BYTES: usize = 8 << 20;

/// The most requests of a batch that are in flight at a time: as many as a Redis store sends in one script call. The
/// deadline of a request begins when it is sent, so that a request does not miss it only because the batch is long.
const MAX_PENDING: usize = 64;

/// Decides many requests, each by itself, in order
///
/// Decides each request as `/v1/check` does, and returns one answer for each, in the same order. For a request that is
/// not valid, or that the store fails to decide, the answer is a problem, and the other requests are decided all the
/// same. A body has at most 1 MiB, and all answers together have at most 8 MiB. A request beyond these 8 MiB is not
/// decided, and its answer is a problem with status 413. If the server is out of memory for requests, the status is
/// 503.
#[utoipa::path(
    post,
    path = "/v1/check/batch",
    tag = "decisions",
    request_body(content = BatchRequest, example = json!([
        {"limit": "free", "key": "user:42"}, {"limit": "login", "key": "203.0.113.9", "cost": 2}
    ])),
    responses(
        (status = 200, description = "One answer for each request, in the same order.", body = BatchAnswer),
        BodyProblems,
    ),
)]
pub(super) async fn batch(
    State(pipeline): State<Arc<Pipeline>>,
    State(budget): State<Budget>,
    JsonBody(body): JsonBody<MAX_BYTES>,
) -> Result<Response, ApiProblem> {
    answer_each(BatchKind::Checks, &pipeline, &budget, &body).await
}

/// The requests of a batch: all of one kind.
#[derive(Clone, Copy, Debug)]
pub(super) enum BatchKind {
    Checks,
    Reservations,
    Settlements,
    Extensions,
}

/// A request of a batch that was sent to the store.
enum SentItem<'a> {
    Check(SentDecision<'a>),
    Reservation(SentReservation<'a>),
    Settlement(SentSettlement),
    Extension(SentExtension),
}

impl BatchKind {
    /// Returns the length that is reserved for the answer to this item.
    fn answer_bytes(self, item: &[u8]) -> usize {
        // The token of a reservation, besides the receipt of the rules that are charged at once.
        let signed_texts = if let BatchKind::Reservations = self { 2 } else { 1 };
        // Receipts and tokens have the keys of the item, or the content of its token, in base64.
        PENDING_ANSWER_BYTES + signed_texts * (2 * item.len()).min(MAX_CHARS)
    }

    /// Decodes an item and sends its request to the store.
    fn send<'a>(self, pipeline: &Pipeline, item: &'a [u8]) -> Result<SentItem<'a>, ApiProblem> {
        Ok(match self {
            BatchKind::Checks => {
                let sent = pipeline.send(check_body::decode(item)?);
                SentItem::Check(
                    sent.map_err(|target| ApiProblem::unknown_target(&target, DOMAIN_IN_BODY))?,
                )
            }
            BatchKind::Reservations => {
                SentItem::Reservation(pipeline.send_reservation(decode_reserve(item)?)?)
            }
            BatchKind::Settlements => {
                SentItem::Settlement(pipeline.send_settlement(&decode_settle(item)?)?)
            }
            BatchKind::Extensions => {
                SentItem::Extension(pipeline.send_extension(&decode_extend(item)?)?)
            }
        })
    }
}

impl SentItem<'_> {
    /// Waits for the answer and appends it as JSON.
    async fn answer(self, pipeline: &Pipeline, to: &mut Vec<u8>) -> Result<(), ApiProblem> {
        match self {
            SentItem::Check(mut sent) => write(pipeline.answer(&mut sent).await?, to),
            SentItem::Reservation(sent) => {
                write_reserved(pipeline.reserved(sent).await?, to);
            }
            SentItem::Settlement(sent) => {
                append(to, &SettleAnswerJson::from(pipeline.settled(sent).await?));
            }
            SentItem::Extension(sent) => {
                append(to, &ExtendAnswerJson::from(pipeline.extended(sent).await?));
            }
        }
        Ok(())
    }
}

/// Decides each item of a body, and makes the response.
pub(super) async fn answer_each(
    kind: BatchKind,
    pipeline: &Pipeline,
    budget: &Budget,
    body: &[u8],
) -> Result<Response, ApiProblem> {
    let mut requests = split(body)?;
    let mut answers = BatchResponse::new(budget, requests.len())?;
    let mut pending = VecDeque::with_capacity(requests.len().min(MAX_PENDING));
    let answering = async {
        loop {
            // Send many requests before waiting for the first answer.
            while pending.len() < MAX_PENDING
                && let Some(request) = requests.next()
            {
                let bytes = kind.answer_bytes(request);
                let reserved = answers.reserve_next(bytes);
                pending.push_back((bytes, reserved.and_then(|()| kind.send(pipeline, request))));
            }
            match pending.pop_front() {
                Some((bytes, next)) => answers.push(pipeline, bytes, next).await,
                None => return Ok::<_, ApiProblem>(()),
            }
        }
    };
    pipeline.in_store_span(answering).await?;
    Ok(json(answers.into_body()))
}

/// The answers so far, as JSON, and the memory that is charged for them.
struct BatchResponse {
    json: Vec<u8>,
    /// The length that is reserved for the pending answers.
    pending_bytes: usize,
    held: HeldMemory,
}

impl BatchResponse {
    /// Begins the response to `count` requests.
    fn new(budget: &Budget, count: usize) -> Result<BatchResponse, ApiProblem> {
        let mut held = budget.held();
        // OK because there are 1,000 at most.
        held.grow_to(count * TYPICAL_ANSWER_BYTES)?;
        let mut json = Vec::with_capacity(count * TYPICAL_ANSWER_BYTES);
        json.push(b'[');
        Ok(BatchResponse { json, pending_bytes: 0, held })
    }

    /// Reserves `answer_bytes` for one more answer besides the pending ones. Called before a request is sent, so that the
    /// answer to a decided request always fits.
    fn reserve_next(&mut self, answer_bytes: usize) -> Result<(), ApiProblem> {
        // OK because there are 64 at most, each of less than 10 KiB.
        self.pending_bytes += answer_bytes;
        let bytes = self.json.len() + self.pending_bytes;
        if bytes > MAX_ANSWER_BYTES {
            return Err(ApiProblem::answer_too_long());
        }
        Ok(self.held.grow_to(bytes)?)
    }

    /// Waits for one answer, for which `answer_bytes` are reserved, and appends it, or appends a problem.
    async fn push(
        &mut self,
        pipeline: &Pipeline,
        answer_bytes: usize,
        pending: Result<SentItem<'_>, ApiProblem>,
    ) {
        self.pending_bytes -= answer_bytes;
        if self.json.len() > 1 {
            self.json.push(b',');
        }
        let answered = match pending {
            Ok(sent) => sent.answer(pipeline, &mut self.json).await,
            Err(problem) => Err(problem),
        };
        if let Err(problem) = answered {
            append(&mut self.json, &problem);
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

/// Decodes the checks of a batch. A check that is not valid becomes a problem, without an effect on the others.
pub(crate) fn decode(
    body: &[u8],
) -> Result<impl ExactSizeIterator<Item = Result<DecisionRequest<'_>, ApiProblem>>, ApiProblem> {
    Ok(split(body)?.map(check_body::decode))
}

/// Splits a batch into its items.
pub(crate) fn split(body: &[u8]) -> Result<impl ExactSizeIterator<Item = &[u8]>, ApiProblem> {
    let items: JsonArray<'_> =
        serde_json::from_slice(body).map_err(|error| ApiProblem::in_json(&error))?;
    Ok(items.0.into_iter().map(|item| item.get().as_bytes()))
}

/// An array of 1 to 1,000 JSON values.
struct JsonArray<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for JsonArray<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<JsonArray<'a>, D::Error> {
        struct JsonArrayVisitor;

        impl<'de> Visitor<'de> for JsonArrayVisitor {
            type Value = JsonArray<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an array of 1 to {MAX_REQUESTS} requests")
            }

            fn visit_seq<S: SeqAccess<'de>>(self, mut seq: S) -> Result<JsonArray<'de>, S::Error> {
                let mut requests = Vec::new();
                while let Some(request) = seq.next_element()? {
                    if requests.len() == MAX_REQUESTS {
                        let problem = format!("too many requests; send at most {MAX_REQUESTS}");
                        return Err(S::Error::custom(problem));
                    }
                    requests.push(request);
                }
                match requests.is_empty() {
                    true => Err(S::Error::invalid_length(0, &self)),
                    false => Ok(JsonArray(requests)),
                }
            }
        }

        json.deserialize_seq(JsonArrayVisitor)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use tollgate::{HoldId, HoldReference};

    use super::*;
    use crate::receipt::{HeldBy, HoldPlace, Receipts, TokenPart, max_key_bytes};
    use crate::ruleset::SlotWidth;

    /// Returns the longest token of a hold with this key.
    fn token(key: &str) -> String {
        let part = TokenPart {
            scope: "a limit with a long name",
            limit: "",
            key: key.as_bytes(),
            reference: HoldReference { id: HoldId(u64::MAX), expires_us: u64::MAX },
            slot_width: SlotWidth::read(0).unwrap(),
            place: HoldPlace::Store,
        };
        Receipts::default().hold_token(HeldBy::Limit, [part]).unwrap()
    }

    #[test]
    fn length_is_reserved_for_the_token_of_an_answer() {
        for bytes in [0, 100, 1_000, max_key_bytes("a limit with a long name")] {
            let key = "k".repeat(bytes);
            let reserve = format!(r#"{{"limit":"a limit with a long name","key":"{key}"}}"#);
            let extend = format!(r#"{{"hold":"{}","for":"1s"}}"#, token(&key));
            for (kind, item) in
                [(BatchKind::Reservations, reserve), (BatchKind::Extensions, extend)]
            {
                let beside_token = 300;
                let reserved = kind.answer_bytes(item.as_bytes());
                assert!(reserved >= token(&key).len() + beside_token, "{kind:?}, {bytes}");
            }
        }
        // A batch of 64 short reservations needs little more than before it is sent.
        assert!(BatchKind::Reservations.answer_bytes(&[b'x'; 60]) < 1_300);
    }
}
