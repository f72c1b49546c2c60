//! A batch of requests that are decided in their order.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;
use tollgate_limiter::store::Call;
use tollgate_limiter::{Answer, Error, JointDecision, StoreError};

use super::batcher::MAX_BATCH;
use super::reply::{ReplyFuture, joint};
use super::servers::Servers;
use super::split_check;
use super::waiting::FollowUp;
use super::wire::StoreRequest;

/// Decides requests in their order, and returns the answers in the same order. An element of `requests` that is an error
/// stays that error in the answers. `within` is the time that the caller has for all of them.
pub(super) fn decide(
    servers: &Arc<Servers>,
    requests: Vec<Result<(StoreRequest, Call), Error>>,
    within: Option<Duration>,
) -> Answer<Vec<Result<JointDecision, Error>>> {
    let (sender, receiver) = oneshot::channel();
    let batch = OrderedBatch {
        servers: Arc::clone(servers),
        within,
        began: Instant::now(),
        answers: Vec::new(),
        next: Vec::new(),
        indexes: Vec::new(),
        weight: 0,
    };
    servers.shared().executor.spawn_movable(batch.decide(requests, sender));
    Answer::pending(async move { receiver.await.map_err(|_| StoreError::Gone.into()) })
}

/// Requests that are decided in their order, as many at a time as go in one batch to a server.
struct OrderedBatch {
    servers: Arc<Servers>,
    /// The caller's time for all requests, which began at `began`.
    within: Option<Duration>,
    began: Instant,
    answers: Vec<Option<Result<JointDecision, Error>>>,
    /// The requests to send next, the indexes of their answers, and their weight.
    next: Vec<(StoreRequest, Call)>,
    indexes: Vec<usize>,
    weight: usize,
}

impl OrderedBatch {
    /// Decides all requests, or stops early if the caller has dropped the answer.
    async fn decide(
        mut self,
        requests: Vec<Result<(StoreRequest, Call), Error>>,
        sender: oneshot::Sender<Vec<Result<JointDecision, Error>>>,
    ) {
        for request in requests {
            match request {
                Ok((request, call)) => {
                    let is_split = self.servers.is_split(&request);
                    if is_split || self.weight + request.weight() > MAX_BATCH {
                        self.send().await;
                    }
                    if sender.is_closed() {
                        return;
                    }
                    self.indexes.push(self.answers.len());
                    self.weight += request.weight();
                    self.next.push((request, call));
                    self.answers.push(None);
                    if is_split {
                        self.send().await;
                    }
                }
                Err(error) => self.answers.push(Some(Err(error))),
            }
        }
        self.send().await;
        let gone = || Err(StoreError::Gone.into());
        let all = self.answers.into_iter().map(|answer| answer.unwrap_or_else(gone)).collect();
        // It fails if the caller has dropped the answer.
        let _ = sender.send(all);
    }

    /// Sends the next requests and waits for their replies: one request whose keys are in different places, or several
    /// requests, each of which has all its keys in one place.
    async fn send(&mut self) {
        if self.next.is_empty() {
            return;
        }
        let (mut next, indexes) = (mem::take(&mut self.next), mem::take(&mut self.indexes));
        self.weight = 0;
        let left = self.within.map(|within| within.saturating_sub(self.began.elapsed()));
        next.iter_mut().for_each(|(_, call)| *call = call.bounded(left));
        let receivers = match next.pop_if(|(last, _)| self.servers.is_split(last)) {
            Some((request, call)) => {
                vec![split_check::submit(&self.servers, request, &call, FollowUp::Nothing)]
            }
            None => self.servers.submit_all(next),
        };
        for (index, receiver) in indexes.into_iter().zip(receivers) {
            self.answers[index] = Some(ReplyFuture::new(receiver, joint).await);
        }
    }
}
