//! Waits for the late reply to a batch that was given up, while the next batch is sent.

use std::pin::Pin;
use std::sync::Arc;

use redis::{RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::super::Node;
use super::replies::BatchReport;
use super::{ScriptCall, drop_answered, flat, next_deadline};
use crate::waiting::{REFUND_DEADLINE, WaitingRequest};

impl Node {
    /// Answers the requests whose deadline has passed or whose caller is gone, and waits for the late reply: for the
    /// other requests, and to refund the charges of callers that are gone.
    pub(super) fn linger<F>(
        self: &Arc<Self>,
        mut calls: Vec<ScriptCall>,
        generation: u64,
        give_up_at: Instant,
        exchange: Pin<Box<F>>,
    ) where
        F: Future<Output = RedisResult<Vec<Value>>> + Send + 'static,
    {
        let is_over = |it: &WaitingRequest| !it.is_awaited() || it.deadline <= give_up_at;
        let members = calls.iter_mut().flat_map(|call| &mut call.members);
        // They stay in their calls, because the replies to a call come in the order of its requests.
        members.filter(|it| is_over(it)).for_each(|it| it.fail_in_place(self.timeout(it.within)));
        let has_refunds =
            calls.iter().flat_map(|call| &call.members).any(WaitingRequest::is_refundable);
        let refunds_until = has_refunds.then(|| give_up_at + REFUND_DEADLINE);
        let until = next_deadline(&calls).or(refunds_until);
        match (until, Arc::clone(&self.lingering).try_acquire_owned()) {
            (Some(_), Ok(permit)) => {
                let node = Arc::clone(self);
                self.shared.executor.spawn(async move {
                    node.await_late_reply(calls, generation, refunds_until, exchange).await;
                    drop(permit);
                });
            }
            _ => flat(calls).for_each(|waiting| self.time_out(waiting)),
        }
    }

    /// Waits until all requests are answered, and then until `refunds_until`.
    async fn await_late_reply<F>(
        self: &Arc<Self>,
        mut calls: Vec<ScriptCall>,
        generation: u64,
        refunds_until: Option<Instant>,
        mut exchange: Pin<Box<F>>,
    ) where
        F: Future<Output = RedisResult<Vec<Value>>>,
    {
        loop {
            let deadline = next_deadline(&calls);
            let Some(next) = deadline.or(refunds_until) else { return };
            match timeout_at(next, exchange.as_mut()).await {
                Ok(reply) => return self.read_late_reply(calls, generation, reply),
                Err(_) if deadline.is_none() => return,
                Err(_) => self.fail_overdue(&mut calls, next),
            }
        }
    }

    fn read_late_reply(
        self: &Arc<Self>,
        calls: Vec<ScriptCall>,
        generation: u64,
        reply: RedisResult<Vec<Value>>,
    ) {
        let values = match reply {
            Ok(values) => values,
            Err(error) => return self.fail_broken(calls, &error, generation),
        };
        let mut report = BatchReport::default();
        let mut again = self.read(calls, values, generation, &mut report);
        // The server did not decide these requests.
        drop_answered(&mut again);
        self.put_back(flat(again));
        self.finish(report);
    }
}
