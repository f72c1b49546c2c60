//! Reading the reply to a batch, and answering its requests.

use std::mem;
use std::sync::{Arc, Weak};

use redis::Value;
use tollgate_limiter::StoreError;

use super::super::call::ScriptCall;
use super::super::{Node, fail};
use crate::breaker::BatchOutcome;
use crate::fault::{Fault, FaultKind};
use crate::slots::Redirect;
use crate::waiting::WaitingRequest;
use crate::wire::{Reply, RequestOutcome, ScriptReply};

/// The result of a batch: the requests that are still to be answered or to be sent on, and what the breaker must know.
#[derive(Default)]
pub(in crate::node) struct BatchReport {
    /// Whether a call was answered or redirected. The breaker then counts the batch as answered, even if another call
    /// failed.
    has_answered: bool,
    has_failed: bool,
    answered: Vec<AnsweredCall>,
    redirected: Vec<RedirectedCall>,
    /// Requests that the server left for a later call.
    later: Vec<WaitingRequest>,
}

/// The requests of a call and the replies to them, in the same order.
struct AnsweredCall {
    members: Vec<WaitingRequest>,
    replies: Vec<Result<Reply, Fault>>,
}

/// Requests that a server redirects.
struct RedirectedCall {
    members: Vec<WaitingRequest>,
    redirect: Redirect,
}

impl BatchReport {
    /// Returns what the breaker must know of a batch whose reply came in time.
    pub(super) fn outcome(&self) -> BatchOutcome {
        match self.has_failed && !self.has_answered {
            true => BatchOutcome::Failed,
            false => BatchOutcome::Answered,
        }
    }
}

impl Node {
    /// Reads the reply to each call. Returns the calls that are to be sent again; their requests were not decided.
    pub(super) fn read(
        self: &Arc<Self>,
        calls: Vec<ScriptCall>,
        values: Vec<Value>,
        generation: u64,
        report: &mut BatchReport,
    ) -> Vec<ScriptCall> {
        let mut values = values.into_iter();
        let mut again = Vec::new();
        for call in calls {
            // The reply to ASKING: OK, or an error if the user may not use that command.
            let asking = if call.is_asking() { values.next() } else { None };
            let asking = asking.unwrap_or(Value::Nil).extract_error();
            let answers = match values.next().unwrap_or(Value::Nil).extract_error() {
                Ok(value) => ScriptReply::of(value),
                Err(error) => match (self.redirect(&error), asking) {
                    (Some(_), Err(refused)) => Err(self.fault(&refused)),
                    (Some(redirect), Ok(_)) => {
                        report.has_answered = true;
                        report.redirected.push(RedirectedCall { members: call.members, redirect });
                        continue;
                    }
                    (None, _) => Err(self.fault(&error)),
                },
            };
            match answers {
                Ok(answers) => again.extend(self.read_call(call, answers, generation, report)),
                // The scripts were flushed, or another server now has this address. Both are normal, once.
                Err(Fault { kind: FaultKind::NoScript, .. }) if !call.is_resent_with_text => {
                    again.push(call.resent_with_text());
                }
                Err(Fault { kind: FaultKind::NoScript, .. }) => {
                    let fault = Fault::refused(
                        "NOSCRIPT, although the script's text was sent; check that a Redis or Valkey server answers at \
                         this address",
                    );
                    self.fail_call(call, fault, generation, report);
                }
                Err(fault) => self.fail_call(call, fault, generation, report),
            }
        }
        again
    }

    /// Fails the requests of a call that a server refused as a whole.
    fn fail_call(&self, call: ScriptCall, fault: Fault, generation: u64, report: &mut BatchReport) {
        report.has_failed |= fault.kind != FaultKind::SlotNotServed;
        self.leave_replica(fault.kind, generation);
        let error = StoreError::from(fault);
        self.note_failure(&error);
        fail(call.members, &error);
    }

    /// Reads the replies to a call's members. Returns the calls for members whose key has a state under another limit, or
    /// has holds.
    fn read_call(
        &self,
        call: ScriptCall,
        mut answers: ScriptReply,
        generation: u64,
        report: &mut BatchReport,
    ) -> Vec<ScriptCall> {
        let mut members = Vec::with_capacity(call.members.len());
        let mut replies = Vec::with_capacity(call.members.len());
        let (mut put_off, mut have_holds) = (Vec::new(), Vec::new());
        for mut waiting in call.members {
            let reply = match answers.next(&waiting.request) {
                RequestOutcome::PutOffForHolds
                    if !call.is_beside_holds && !call.is_carrying_over =>
                {
                    have_holds.push(waiting);
                    continue;
                }
                RequestOutcome::PutOff | RequestOutcome::PutOffForHolds
                    if !call.is_carrying_over =>
                {
                    put_off.push(waiting);
                    continue;
                }
                RequestOutcome::PutOff | RequestOutcome::PutOffForHolds => Err(Fault::refused(
                    "the script that carries states over did not decide a request",
                )),
                RequestOutcome::Later => {
                    waiting.is_on_long_logs = true;
                    report.later.push(waiting);
                    continue;
                }
                RequestOutcome::Reply(reply) => reply,
            };
            members.push(waiting);
            replies.push(reply);
        }
        let mut faults = replies.iter().filter_map(|reply| reply.as_ref().err());
        match faults.find(|fault| self.leave_replica(fault.kind, generation)) {
            Some(fault) => {
                report.has_failed = true;
                self.note_failure(&fault.error);
            }
            None => report.has_answered = true,
        }
        report.answered.push(AnsweredCall { members, replies });
        let mut again = ScriptCall::carrying_over(put_off);
        again.extend(ScriptCall::beside_holds(have_holds));
        again
    }

    /// Gives the connection up if the server has become a replica: the next connection may lead to the primary. Returns
    /// whether it has.
    fn leave_replica(&self, kind: FaultKind, generation: u64) -> bool {
        let is_replica = kind == FaultKind::Replica;
        if is_replica {
            self.connection.lock().give_up(generation);
        }
        is_replica
    }

    /// Answers the requests that have a reply, and queues or redirects the others.
    pub(in crate::node) fn finish(self: &Arc<Self>, mut report: BatchReport) {
        self.answer(&mut report);
        self.put_back(report.later.into_iter());
        let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) else { return };
        for RedirectedCall { members, redirect } in report.redirected {
            cluster.redirect(self, members, redirect);
        }
    }

    /// Answers the requests that have a reply.
    pub(super) fn answer(&self, report: &mut BatchReport) {
        for AnsweredCall { members, replies } in mem::take(&mut report.answered) {
            for (waiting, reply) in members.into_iter().zip(replies) {
                waiting.reply(reply.map_err(StoreError::from));
            }
        }
    }
}
