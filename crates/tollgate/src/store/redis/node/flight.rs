//! One batch on its way to the server and back.
//!
//! - `replies`: reading the reply; `linger`: waiting for the late reply to a batch that was given up

mod linger;
mod replies;

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use redis::Pipeline;
use tokio::sync::MutexGuard;
use tokio::time::{Instant, timeout_at};

use super::call::{Call, Commands};
use super::{MAX_HOLD, Node, fail};
use crate::store::redis::breaker::Outcome;
use crate::store::redis::waiting::WaitingRequest;
use replies::{BatchReport, BatchResult};

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
    ) -> BatchResult {
        self.follow_primary();
        let until = self.given_up(&calls, Instant::now());
        let opening = self.connection();
        let (open, generation) = match self.in_time(&mut calls, until, pin!(opening)).await {
            Some(Ok(connection)) => connection,
            Some(Err(error)) => {
                self.connection.lock().failure = Some(error.clone());
                self.not_sent(flat(calls), &error);
                return BatchResult::with(Outcome::Failed);
            }
            None => {
                self.put_back(flat(calls));
                return self.was_too_slow();
            }
        };
        let sent = Instant::now();
        let until = self.given_up(&calls, sent);
        let mut heard = BatchReport::default();
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

    fn was_too_slow(&self) -> BatchResult {
        self.is_failing(&self.timeout(self.shared.deadline));
        BatchResult::with(Outcome::Slow)
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
