//! The task that sends a server's batches, and what happens when its runtime ends.

use std::sync::Arc;

use tokio::time::Instant;

use super::{Node, RequestGroup, flat};
use crate::batcher::Batch;
use crate::breaker::{BatchOutcome, Ticket};
use crate::executor::RuntimeKind;
use crate::waiting::WaitingRequest;

/// A batch that the breaker has admitted. If it is dropped without a report, because its runtime has ended, the breaker
/// may admit another one at once.
struct AdmittedBatch<'a> {
    node: &'a Node,
    /// `None` once it was reported.
    ticket: Option<Ticket>,
}

impl AdmittedBatch<'_> {
    fn report(mut self, outcome: BatchOutcome) {
        if let Some(ticket) = self.ticket.take() {
            let now_us = self.node.shared.clock.now_us();
            self.node.breaker.lock().report(ticket, outcome, now_us);
        }
    }
}

impl Drop for AdmittedBatch<'_> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.node.breaker.lock().withdraw(ticket, self.node.shared.clock.now_us());
        }
    }
}

/// A task that sends batches until nothing waits. When its runtime ends, the batch that it has sent is answered as
/// `on_failure` says, because it may have been charged, and the requests in the queue are sent from the background.
pub(super) struct BatchSender {
    node: Arc<Node>,
    runtime: RuntimeKind,
    is_done: bool,
}

impl BatchSender {
    pub(super) fn new(node: &Arc<Node>) -> BatchSender {
        let runtime = node.shared.executor.runtime_kind();
        BatchSender { node: Arc::clone(node), runtime, is_done: false }
    }

    pub(super) async fn send_all(mut self) {
        loop {
            if !self.node.send().await {
                self.is_done = true;
                return;
            }
            // The callers that were just answered may send more, which goes into the next batch.
            tokio::task::yield_now().await;
        }
    }
}

impl Drop for BatchSender {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        let executor = &self.node.shared.executor;
        executor.leave_callers_runtime();
        let waiting = self.node.batcher.lock().give_up();
        // In the background a sender is dropped only if it has panicked, and might do so again.
        if self.runtime == RuntimeKind::Callers && executor.has_runtime() {
            return self.node.put_back(flat(waiting));
        }
        self.node.connection.lock().close();
        // Dropped without the lock, because dropping the requests answers them.
        drop(waiting);
    }
}

impl Node {
    /// Sends the next batch and delivers the answers. Returns whether there was a batch.
    async fn send(self: &Arc<Self>) -> bool {
        // Held until the batch is sent, so that requests reach the server in the order in which they were made.
        let turn = self.turn.lock().await;
        let Batch { requests, is_slow } = self.batcher.lock().take();
        if requests.is_empty() {
            return false;
        }
        self.decide_batch(requests, turn).await;
        if is_slow {
            self.batcher.lock().finish_slow();
        }
        true
    }

    /// Sends one batch and delivers the answers.
    async fn decide_batch(
        self: &Arc<Self>,
        groups: Vec<RequestGroup>,
        turn: tokio::sync::MutexGuard<'_, ()>,
    ) {
        let now = Instant::now();
        // A request that is late would be charged although its caller gets no answer in time.
        let (late, in_time): (Vec<_>, Vec<_>) =
            flat(groups).partition(|waiting| self.is_late(waiting, now));
        self.fail_late(late);
        let batch = drop_abandoned(in_time);
        if batch.is_empty() {
            return;
        }
        let admitted = self.breaker.lock().admit(self.shared.clock.now_us());
        let admitted = match admitted {
            Ok(ticket) => AdmittedBatch { node: self, ticket: Some(ticket) },
            Err(left_us) => {
                return self.not_sent(batch, &self.breaker_open(left_us));
            }
        };
        let (outcome, report) = self.decide(self.calls(batch), turn).await;
        admitted.report(outcome);
        // After the report: a caller that gets its answer and sends the next request at once must not find the
        // breaker still open.
        self.finish(report);
    }
}

/// Withdraws the requests whose charges would be refunded at once, and returns the others.
fn drop_abandoned(requests: Vec<WaitingRequest>) -> Vec<WaitingRequest> {
    let mut kept = requests;
    for abandoned in kept.extract_if(.., |waiting| waiting.is_abandoned()) {
        abandoned.withdraw();
    }
    kept.iter_mut().for_each(|waiting| waiting.timer = None);
    kept
}
