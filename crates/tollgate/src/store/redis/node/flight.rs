//! One batch on its way to the server and back.
//!
//! - `linger`: waiting on for one that was given up

mod linger;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, Weak};
use std::task::Poll;

use redis::{ErrorKind, Pipeline, RedisError, ServerErrorKind, Value};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};

use super::call::{Call, Commands};
use super::{MAX_HOLD, Node, fail};
use crate::error::StoreError;
use crate::store::redis::breaker::Outcome;
use crate::store::redis::slots::Redirect;
use crate::store::redis::waiting::WaitingRequest;
use crate::store::redis::wire::{Answers, Reply, RequestEnd};

/// What a batch came to.
pub(super) struct Landed {
    pub(super) outcome: Outcome,
    /// Those who are still to be told.
    decided: Vec<Decided>,
    /// Those who are still to be sent on.
    redirected: Vec<Redirected>,
    /// Requests that the server left for a later call.
    later: Vec<WaitingRequest>,
}

/// Requests that a server said belong elsewhere.
struct Redirected {
    members: Vec<WaitingRequest>,
    redirect: Redirect,
}

/// Requests, and what each of them is told.
struct Decided {
    members: Vec<WaitingRequest>,
    replies: Vec<Result<Reply, StoreError>>,
}

/// What the calls of a batch came to, together. One that is answered shows that the server is well,
/// whatever is the matter with a slot.
#[derive(Default)]
struct Heard {
    has_answered: bool,
    has_failed: bool,
    redirected: Vec<Redirected>,
    later: Vec<WaitingRequest>,
}

impl Node {
    /// One for all; in a cluster, where a script has the keys of one slot, one for each.
    pub(super) fn calls(&self, batch: Vec<WaitingRequest>) -> Vec<Call> {
        if self.cluster.is_none() {
            return vec![Call::of(batch)];
        }
        let mut calls: Vec<Call> = Vec::new();
        for waiting in batch {
            let route = waiting.route;
            // The last of its slot, so that requests of a key keep their order.
            let last = calls.iter_mut().rev().find(|call| call.members[0].route.slot == route.slot);
            match last {
                Some(call) if call.members[0].route == route && !route.is_alone => {
                    call.members.push(waiting);
                }
                _ => calls.push(Call::of(vec![waiting])),
            }
        }
        calls
    }

    /// Has the calls decided, and tells in time those that are not; the others are left to be told.
    pub(super) async fn decide(
        self: &Arc<Self>,
        mut calls: Vec<Call>,
        turn: MutexGuard<'_, ()>,
    ) -> Landed {
        self.follow_primary();
        let until = self.given_up(&calls, Instant::now());
        let opening = self.connection();
        let (open, generation) = match self.in_time(&mut calls, until, pin!(opening)).await {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                self.connection.lock().failure = Some(error.clone());
                self.not_sent(flat(calls), &error);
                return Landed::with(Outcome::Failed);
            }
            None => {
                self.put_back(flat(calls));
                return self.was_too_slow();
            }
        };
        let sent = Instant::now();
        let until = self.given_up(&calls, sent);
        let mut heard = Heard::default();
        let mut turn = Some(turn);
        loop {
            // Who was told already would be charged for nothing.
            drop_told(&mut calls);
            if calls.is_empty() {
                return heard.landed(Vec::new());
            }
            let commands = self.commands(&calls, generation);
            let mut asking = Box::pin(commands.send(open.clone()));
            // Once it has been polled, it is on its way.
            let polled = poll_fn(|context| Poll::Ready(asking.as_mut().poll(context))).await;
            drop(turn.take());
            let reply = match polled {
                Poll::Ready(reply) => Some(reply),
                Poll::Pending => self.in_time(&mut calls, until, asking.as_mut()).await,
            };
            let values = match reply {
                Some(Ok(values)) => values,
                Some(Err(error)) => {
                    let error = self.broke(&error, generation);
                    self.is_failing(&error);
                    fail(flat(calls), &error);
                    return heard.landed_with(Outcome::Failed);
                }
                None => {
                    self.connection.lock().was_silent(generation, sent);
                    self.linger(calls, generation, until, asking);
                    return heard.landed_with(self.was_too_slow().outcome);
                }
            };
            self.connection.lock().has_answered();
            let (decided, again) = self.read(calls, values, generation, &mut heard);
            if again.is_empty() {
                return heard.landed(decided);
            }
            decided.into_iter().for_each(|decided| self.tell(decided));
            calls = again;
        }
    }

    /// When a batch is given up: after the limiter's deadline, or as soon after it as nobody waits for it
    /// who has longer.
    fn given_up(&self, calls: &[Call], sent: Instant) -> Instant {
        let deadline = self.shared.deadline;
        let awaited = calls.iter().flat_map(|call| &call.members).filter(|it| it.is_awaited());
        let longest = awaited.map(|it| it.deadline).max().unwrap_or(sent);
        longest.clamp(sent + deadline, sent + deadline.max(MAX_HOLD))
    }

    fn was_too_slow(&self) -> Landed {
        self.is_failing(&self.timeout(self.shared.deadline));
        Landed::with(Outcome::Slow)
    }

    /// Waits for what is to come, and tells those whose own time is over before. Those in the queue as
    /// well: nobody else is awake.
    async fn in_time<F: Future>(
        self: &Arc<Self>,
        calls: &mut [Call],
        until: Instant,
        mut coming: Pin<&mut F>,
    ) -> Option<F::Output> {
        loop {
            // Those who come to the queue meanwhile are not over before that.
            let look_again = Instant::now() + self.shared.deadline;
            let next = next_deadline(calls).into_iter().chain(self.next_in_queue());
            let next = next.min().unwrap_or(until).min(look_again).min(until);
            if let Ok(come) = timeout_at(next, coming.as_mut()).await {
                return Some(come);
            }
            self.tell_over(calls, next);
            self.tell_queue(next);
            if next == until {
                return None;
            }
        }
    }

    /// Tells those whose own time is over.
    fn tell_over(&self, calls: &mut [Call], now: Instant) {
        for waiting in calls.iter_mut().flat_map(|call| &mut call.members) {
            if waiting.deadline <= now {
                waiting.fail_in_place(self.timeout(waiting.within));
            }
        }
    }

    fn commands(&self, calls: &[Call], generation: u64) -> Commands {
        let command = |call: &Call| {
            let arguments = call.arguments();
            let script = arguments.abilities.script();
            // The first time on a connection with its text, which the server may not know yet.
            let is_known = !call.is_in_full
                && self.connection.lock().has_script(generation, arguments.abilities);
            match is_known {
                true => arguments.command("EVALSHA", &script.hash),
                false => arguments.command("EVAL", &script.text),
            }
        };
        if let ([call], true) = (calls, self.cluster.is_none()) {
            return Commands::One(command(call));
        }
        let mut pipeline = Pipeline::with_capacity(calls.len());
        let mut count = 0;
        for call in calls {
            if call.is_asking() {
                pipeline.add_command(redis::cmd("ASKING"));
                count += 1;
            }
            pipeline.add_command(command(call));
            count += 1;
        }
        Commands::Many(pipeline, count)
    }

    /// Reads what came of each call, and tells those that failed; and the calls that are to be sent
    /// again.
    fn read(
        self: &Arc<Self>,
        calls: Vec<Call>,
        values: Vec<Value>,
        generation: u64,
        heard: &mut Heard,
    ) -> (Vec<Decided>, Vec<Call>) {
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
                        heard.redirected.push(Redirected { members: call.members, redirect });
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
        heard: &mut Heard,
    ) -> (Decided, Vec<Call>) {
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
        (Decided { members, replies }, Call::carrying_over(put_off))
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
    pub(super) fn land(self: &Arc<Self>, landed: Landed) {
        landed.decided.into_iter().for_each(|decided| self.tell(decided));
        self.put_back(landed.later.into_iter());
        let Some(cluster) = self.cluster.as_ref().and_then(Weak::upgrade) else { return };
        for Redirected { members, redirect } in landed.redirected {
            cluster.redirect(self, members, redirect);
        }
    }

    fn tell(&self, decided: Decided) {
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

fn flat(calls: Vec<Call>) -> impl Iterator<Item = WaitingRequest> {
    calls.into_iter().flat_map(|call| call.members)
}

/// When the time of the next is over that was not told yet.
fn next_deadline(calls: &[Call]) -> Option<Instant> {
    let members = calls.iter().flat_map(|call| &call.members);
    members.filter(|waiting| !waiting.is_answered()).map(|waiting| waiting.deadline).min()
}

fn drop_told(calls: &mut Vec<Call>) {
    calls.iter_mut().for_each(|call| call.members.retain(|waiting| !waiting.is_answered()));
    calls.retain(|call| !call.members.is_empty());
}

fn is_no_script(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

impl Landed {
    /// With nobody left to tell.
    fn with(outcome: Outcome) -> Landed {
        Landed { outcome, decided: Vec::new(), redirected: Vec::new(), later: Vec::new() }
    }
}

impl Heard {
    fn landed(self, decided: Vec<Decided>) -> Landed {
        let is_bad = self.has_failed && !self.has_answered;
        let outcome = if is_bad { Outcome::Failed } else { Outcome::Answered };
        Landed { outcome, decided, redirected: self.redirected, later: self.later }
    }

    fn landed_with(self, outcome: Outcome) -> Landed {
        Landed { outcome, ..self.landed(Vec::new()) }
    }
}
