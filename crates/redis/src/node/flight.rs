//! One batch on its way to the server and back.
//!
//! - `replies`: reading the reply; `linger`: waiting for the late reply to a batch that was given up

mod linger;
mod replies;

use std::future::poll_fn;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use redis::aio::MultiplexedConnection;
use redis::{Pipeline, RedisError};
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};
use tollgate_limiter::StoreError;

use super::call::{Commands, ScriptCall};
use super::{MAX_BATCH_WAIT, Node, fail};
use crate::breaker::BatchOutcome;
use crate::waiting::WaitingRequest;
use replies::BatchReport;

impl Node {
    /// Returns the calls that decide a batch: one for all requests, or in a cluster one for each slot, because the keys of
    /// a script must be in one slot.
    pub(super) fn calls(&self, batch: Vec<WaitingRequest>) -> Vec<ScriptCall> {
        if self.cluster.is_none() {
            return vec![ScriptCall::of(batch)];
        }
        let mut calls: Vec<ScriptCall> = Vec::new();
        for waiting in batch {
            let route = waiting.route;
            // The last call of the slot, so that requests of one key keep their order.
            let last = calls.iter_mut().rev().find(|call| call.members[0].route.slot == route.slot);
            match last {
                Some(call) if call.members[0].route == route && !route.is_alone => {
                    call.members.push(waiting);
                }
                _ => calls.push(ScriptCall::of(vec![waiting])),
            }
        }
        calls
    }

    /// Sends calls and reads the reply. Fails the requests whose deadline passes meanwhile. The report has the requests
    /// with a reply, which the caller of this function must still answer.
    pub(super) async fn decide(
        self: &Arc<Self>,
        mut calls: Vec<ScriptCall>,
        turn: MutexGuard<'_, ()>,
    ) -> (BatchOutcome, BatchReport) {
        self.follow_primary();
        let mut report = BatchReport::default();
        let (open, generation) = match self.connect(&mut calls).await {
            Ok(connection) => connection,
            Err(outcome) => return (outcome, report),
        };
        let sent = Instant::now();
        let until = self.give_up_at(&calls, sent);
        let mut turn = Some(turn);
        loop {
            // A request that was answered already must not be charged: its caller no longer waits.
            drop_answered(&mut calls);
            if calls.is_empty() {
                return (report.outcome(), report);
            }
            let commands = self.commands(&calls, generation);
            let mut exchange = Box::pin(commands.send(open.clone()));
            // The first poll sends the commands.
            let polled = poll_fn(|context| Poll::Ready(exchange.as_mut().poll(context))).await;
            drop(turn.take());
            let reply = match polled {
                Poll::Ready(reply) => Some(reply),
                Poll::Pending => self.in_time(&mut calls, until, exchange.as_mut()).await,
            };
            let values = match reply {
                Some(Ok(values)) => values,
                Some(Err(error)) => {
                    self.fail_broken(calls, &error, generation);
                    return (BatchOutcome::Failed, report);
                }
                None => {
                    self.connection.lock().note_silence(generation, sent);
                    self.linger(calls, generation, until, exchange);
                    return (self.note_timeout(), report);
                }
            };
            self.connection.lock().note_answer();
            calls = self.read(calls, values, generation, &mut report);
            if calls.is_empty() {
                return (report.outcome(), report);
            }
            self.answer(&mut report);
        }
    }

    /// Returns the connection and its generation. If no connection is open in time, takes the calls and sends their
    /// requests elsewhere or later.
    async fn connect(
        self: &Arc<Self>,
        calls: &mut Vec<ScriptCall>,
    ) -> Result<(MultiplexedConnection, u64), BatchOutcome> {
        let until = self.give_up_at(calls, Instant::now());
        let opening = self.connection();
        match self.in_time(calls, until, pin!(opening)).await {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(error)) => {
                self.connection.lock().failure = Some(error.clone());
                self.not_sent(flat(mem::take(calls)), &error);
                Err(BatchOutcome::Failed)
            }
            None => {
                self.put_back(flat(mem::take(calls)));
                Err(self.note_timeout())
            }
        }
    }

    /// Returns when a batch is given up: after the limiter's deadline, or later if a caller waits longer, but after
    /// [`MAX_BATCH_WAIT`] at the latest.
    fn give_up_at(&self, calls: &[ScriptCall], sent: Instant) -> Instant {
        let deadline = self.shared.deadline;
        let awaited = calls.iter().flat_map(|call| &call.members).filter(|it| it.is_awaited());
        let longest = awaited.map(|it| it.deadline).max().unwrap_or(sent);
        longest.clamp(sent + deadline, sent + deadline.max(MAX_BATCH_WAIT))
    }

    fn note_timeout(&self) -> BatchOutcome {
        self.note_failure(&self.timeout(self.shared.deadline));
        BatchOutcome::Slow
    }

    /// Fails the requests of calls whose connection broke. The connection is not used again.
    fn fail_broken(&self, calls: Vec<ScriptCall>, error: &RedisError, generation: u64) {
        self.connection.lock().give_up(generation);
        let error = StoreError::from(self.fault(error));
        self.note_failure(&error);
        fail(flat(calls), &error);
    }

    /// Waits for a connection or a reply until the batch is given up. Meanwhile fails the requests whose deadline passes,
    /// in the batch and in the queue. Only queued requests with a timer are removed by a task of their own.
    async fn in_time<F: Future>(
        self: &Arc<Self>,
        calls: &mut [ScriptCall],
        until: Instant,
        mut future: Pin<&mut F>,
    ) -> Option<F::Output> {
        loop {
            // Requests that join the queue from now on have a timer, or a queue deadline at most `SLACK` before this time.
            let next_check = Instant::now() + self.shared.deadline;
            let next = next_deadline(calls).into_iter().chain(self.next_queue_deadline());
            let next = next.min().unwrap_or(until).min(next_check).min(until);
            if let Ok(output) = timeout_at(next, future.as_mut()).await {
                return Some(output);
            }
            self.fail_overdue(calls, next);
            self.remove_overdue(next);
            if next == until {
                return None;
            }
        }
    }

    /// Fails the requests whose deadline has passed. They stay in their calls, because the replies to a call come in the
    /// order of its requests.
    fn fail_overdue(&self, calls: &mut [ScriptCall], now: Instant) {
        for waiting in calls.iter_mut().flat_map(|call| &mut call.members) {
            if waiting.deadline <= now {
                waiting.fail_in_place(self.timeout(waiting.within));
            }
        }
    }

    /// Returns the commands that run the scripts of the calls, in one write.
    fn commands(&self, calls: &[ScriptCall], generation: u64) -> Commands {
        let command = |call: &ScriptCall| {
            let arguments = call.arguments();
            let script = arguments.abilities.script();
            // The first time on a connection, the script's text is sent: the server may not know the script yet.
            let is_known = !call.is_resent_with_text
                && self.connection.lock().note_script(generation, arguments.abilities);
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
}

fn flat(calls: Vec<ScriptCall>) -> impl Iterator<Item = WaitingRequest> {
    calls.into_iter().flat_map(|call| call.members)
}

/// Returns the earliest deadline among the unanswered requests.
fn next_deadline(calls: &[ScriptCall]) -> Option<Instant> {
    let members = calls.iter().flat_map(|call| &call.members);
    members.filter(|waiting| !waiting.is_answered()).map(|waiting| waiting.deadline).min()
}

/// Drops the requests that were answered.
fn drop_answered(calls: &mut Vec<ScriptCall>) {
    calls.iter_mut().for_each(|call| call.members.retain(|waiting| !waiting.is_answered()));
    calls.retain(|call| !call.members.is_empty());
}
