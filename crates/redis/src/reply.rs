//! The caller's end of a request: the future that returns the reply.

use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tollgate_limiter::{Decision, Error, JointDecision, StoreError};

use super::refunds::UnreadUnits;
use super::waiting::Receiver;
use super::wire::Reply;

/// The future that returns the reply to a request that was sent.
pub(super) struct ReplyFuture<T> {
    receiver: Receiver,
    read: fn(Reply) -> Option<T>,
    /// The units to give back if this is dropped before it is ready.
    unread: Option<UnreadUnits>,
}

impl<T> ReplyFuture<T> {
    /// Returns the future of a reply of the kind that `read` takes.
    pub(super) fn new(receiver: Receiver, read: fn(Reply) -> Option<T>) -> ReplyFuture<T> {
        ReplyFuture { receiver, read, unread: None }
    }

    /// Gives the units back, if any, when this is dropped before it is ready.
    pub(super) fn giving_back(mut self, unread: Option<UnreadUnits>) -> ReplyFuture<T> {
        self.unread = unread;
        self
    }
}

impl<T> Future for ReplyFuture<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let reply = ready!(Pin::new(&mut self.receiver).poll(context));
        self.unread = None;
        Poll::Ready(match reply {
            // OK because a request is only ever answered by a reply of its own kind.
            Ok(reply) => (self.read)(reply?).ok_or(Error::Store(StoreError::Gone)),
            Err(_) => Err(Error::Store(StoreError::Gone)),
        })
    }
}

impl<T> Drop for ReplyFuture<T> {
    fn drop(&mut self) {
        let Some(unread) = self.unread.take() else { return };
        // A reply that comes after this cannot be sent here any more: the waiting request gives its units back.
        self.receiver.close();
        if let Ok(Ok(reply)) = self.receiver.try_recv() {
            unread.give_back(reply);
        }
    }
}

impl<T> fmt::Debug for ReplyFuture<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyFuture").finish_non_exhaustive()
    }
}

/// Reads the reply to a check of one limit.
pub(super) fn decision(reply: Reply) -> Option<Decision> {
    match reply {
        Reply::Decision(decision) => Some(decision),
        _ => None,
    }
}

/// Reads the reply to a check of several limits.
pub(super) fn joint(reply: Reply) -> Option<JointDecision> {
    match reply {
        Reply::JointDecision(joint) => Some(joint),
        _ => None,
    }
}
