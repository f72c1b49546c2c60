//! Waiting on for a batch that was given up: the next is on its way, and the breaker has been told.

use std::pin::Pin;
use std::sync::Arc;

use redis::{RedisResult, Value};
use tokio::time::{Instant, timeout_at};

use super::super::{Node, fail};
use super::{Call, Heard, drop_told, flat, next_deadline};
use crate::store::redis::waiting::Waiting;

impl Node {
    /// Tells those whose time is over or whom nobody waits for, and waits on for the others.
    pub(super) fn linger<F>(
        self: &Arc<Self>,
        mut calls: Vec<Call>,
        generation: u64,
        given_up: Instant,
        asking: Pin<Box<F>>,
    ) where
        F: Future<Output = RedisResult<Vec<Value>>> + Send + 'static,
    {
        let is_over = |it: &Waiting| !it.is_awaited() || it.deadline <= given_up;
        let members = calls.iter_mut().flat_map(|call| &mut call.members);
        // They keep their places, in which their answers will be.
        members.filter(|it| is_over(it)).for_each(|it| it.fail(self.timeout(it.within)));
        match (next_deadline(&calls), Arc::clone(&self.lingering).try_acquire_owned()) {
            (Some(_), Ok(permit)) => {
                let node = Arc::clone(self);
                self.shared.executor.spawn(async move {
                    node.hear_late(calls, generation, asking).await;
                    drop(permit);
                });
            }
            _ => flat(calls).for_each(|waiting| self.time_out(waiting)),
        }
    }

    /// Waits until all were told.
    async fn hear_late<F>(
        self: &Arc<Self>,
        mut calls: Vec<Call>,
        generation: u64,
        mut asking: Pin<Box<F>>,
    ) where
        F: Future<Output = RedisResult<Vec<Value>>>,
    {
        while let Some(next) = next_deadline(&calls) {
            match timeout_at(next, asking.as_mut()).await {
                Ok(reply) => return self.heard_late(calls, generation, reply),
                Err(_) => self.tell_over(&mut calls, next),
            }
        }
    }

    fn heard_late(
        self: &Arc<Self>,
        calls: Vec<Call>,
        generation: u64,
        reply: RedisResult<Vec<Value>>,
    ) {
        let values = match reply {
            Ok(values) => values,
            Err(error) => {
                let error = self.broke(&error, generation);
                self.is_failing(&error);
                return fail(flat(calls), &error);
            }
        };
        let mut heard = Heard::default();
        let (decided, mut unknown) = self.read(calls, values, generation, &mut heard);
        // Nothing of these was done.
        drop_told(&mut unknown);
        self.put_back(flat(unknown));
        self.land(heard.landed(decided));
    }
}
