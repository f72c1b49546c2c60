//! Reading the reply to a batch, and answering its requests.

use std::sync::{Arc, Weak};

use redis::{ErrorKind, RedisError, ServerErrorKind, Value};

use super::super::call::Call;
use super::super::{Node, fail};
use crate::error::StoreError;
use crate::store::redis::breaker::Outcome;
use crate::store::redis::slots::Redirect;
use crate::store::redis::waiting::WaitingRequest;
use crate::store::redis::wire::{Answers, Reply, RequestEnd};

/// What a batch came to.
pub(in crate::store::redis::node) struct BatchResult {
    pub(in crate::store::redis::node) outcome: Outcome,
    /// Those who are still to be told.
    decided: Vec<AnsweredCall>,
    /// Those who are still to be sent on.
    redirected: Vec<RedirectedCall>,
    /// Requests that the server left for a later call.
    later: Vec<WaitingRequest>,
}

/// Requests that a server said belong elsewhere.
struct RedirectedCall {
    members: Vec<WaitingRequest>,
    redirect: Redirect,
}

/// Requests, and what each of them is told.
pub(super) struct AnsweredCall {
    members: Vec<WaitingRequest>,
    replies: Vec<Result<Reply, StoreError>>,
}

/// What the calls of a batch came to, together. One that is answered shows that the server is well,
/// whatever is the matter with a slot.
#[derive(Default)]
pub(super) struct BatchReport {
    has_answered: bool,
    has_failed: bool,
    redirected: Vec<RedirectedCall>,
    later: Vec<WaitingRequest>,
}

impl Node {
    /// Reads what came of each call, and tells those that failed; and the calls that are to be sent
    /// again.
    pub(super) fn read(
        self: &Arc<Self>,
        calls: Vec<Call>,
        values: Vec<Value>,
        generation: u64,
        heard: &mut BatchReport,
    ) -> (Vec<AnsweredCall>, Vec<Call>) {
        let mut values = values.into_iter();
        let mut decided = Vec::with_capacity(calls.len());
        let mut again = Vec::new();
        for call in calls {
            // That the server took note; or that this user may not ask.
            let noted = if call.is_asking() { values.next() } else { None };
            let noted = noted.unwrap_or(Value::Nil).extract_error();
            let answers = match values.next().unwrap_or(Value::Nil).extract_error() {
                Ok(value) => Answers::of(value),
                Err(error) if is_no_script(&error) && !call.is_in_full => {
                    // It was flushed, or this is another server than a moment ago: normal, once.
                    again.push(call.in_full());
                    continue;
                }
                Err(error) if is_no_script(&error) => {
                    Err(StoreError::refused("NOSCRIPT, though it was sent the script"))
                }
                Err(error) => match (self.redirect(&error), noted) {
                    (Some(_), Err(refused)) => Err(self.error(&refused)),
                    (Some(redirect), Ok(_)) => {
                        heard.has_answered = true;
                        heard.redirected.push(RedirectedCall { members: call.members, redirect });
                        continue;
                    }
                    (None, _) => Err(self.error(&error)),
                },
            };
            match answers {
                Ok(answers) => {
                    let (told, put_off) = self.read_call(call, answers, generation, heard);
                    decided.push(told);
                    again.extend(put_off);
                }
                Err(error) => {
                    heard.has_failed |= !is_of_a_slot_alone(&error);
                    self.may_be_elsewhere(&error, generation);
                    self.is_failing(&error);
                    fail(call.members, &error);
                }
            }
        }
        (decided, again)
    }

    /// Reads the replies to a call's members, and makes the calls that carry over: for members whose key has a state under
    /// another limit.
    fn read_call(
        &self,
        call: Call,
        mut answers: Answers,
        generation: u64,
        heard: &mut BatchReport,
    ) -> (AnsweredCall, Vec<Call>) {
        let mut members = Vec::with_capacity(call.members.len());
        let mut replies = Vec::with_capacity(call.members.len());
        let mut put_off = Vec::new();
        for mut waiting in call.members {
            let reply = match answers.next(&waiting.request) {
                RequestEnd::PutOff if !call.is_carrying_over => {
                    put_off.push(waiting);
                    continue;
                }
                RequestEnd::PutOff => {
                    Err(StoreError::refused("put off by the script that is there for it"))
                }
                RequestEnd::Later => {
                    waiting.is_on_long_logs = true;
                    heard.later.push(waiting);
                    continue;
                }
                RequestEnd::Reply(reply) => reply,
            };
            members.push(waiting);
            replies.push(reply);
        }
        let errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        match errors.into_iter().find(|error| self.may_be_elsewhere(error, generation)) {
            Some(error) => {
                heard.has_failed = true;
                self.is_failing(error);
            }
            None => heard.has_answered = true,
        }
        (AnsweredCall { members, replies }, Call::carrying_over(put_off))
    }

    /// A server that has become a replica: the next connection may find the primary.
    fn may_be_elsewhere(&self, error: &StoreError, generation: u64) -> bool {
        let is_replica =
            matches!(error, StoreError::Refused { problem } if problem.contains("READONLY"));
        if is_replica {
            self.connection.lock().give_up(generation);
        }
        is_replica
    }

    /// Tells those who are left, and sends the others on.
    pub(in crate::store::redis::node) fn land(self: &Arc<Self>, landed: BatchResult) {
        landed.decided.into_iter().for_each(|decided| self.tell(decided));
        self.put_back(landed.later.into_iter());
        let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) else { return };
        for RedirectedCall { members, redirect } in landed.redirected {
            cluster.redirect(self, members, redirect);
        }
    }

    pub(super) fn tell(&self, decided: AnsweredCall) {
        for (waiting, reply) in decided.members.into_iter().zip(decided.replies) {
            waiting.reply(reply);
        }
    }
}

/// Whether a server says that nobody has the slot: whoever is asked says so, and keys of other slots
/// are none the worse.
fn is_of_a_slot_alone(error: &StoreError) -> bool {
    matches!(error, StoreError::Refused { problem } if problem.contains("Hash slot not served"))
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl BatchResult {
    /// With nobody left to tell.
    pub(super) fn with(outcome: Outcome) -> BatchResult {
        BatchResult { outcome, decided: Vec::new(), redirected: Vec::new(), later: Vec::new() }
    }
}

impl BatchReport {
    pub(super) fn landed(self, decided: Vec<AnsweredCall>) -> BatchResult {
        let is_bad = self.has_failed && !self.has_answered;
        let outcome = if is_bad { Outcome::Failed } else { Outcome::Answered };
        BatchResult { outcome, decided, redirected: self.redirected, later: self.later }
    }

    pub(super) fn landed_with(self, outcome: Outcome) -> BatchResult {
        BatchResult { outcome, ..self.landed(Vec::new()) }
    }
}
