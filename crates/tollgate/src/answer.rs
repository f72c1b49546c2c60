//! The future of every operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Error;
#[cfg(feature = "redis")]
use crate::store::redis::Sent;

/// The answer of a store, as a future. In memory it is ready at once: no allocation, no waiting.
///
/// The operation happens when this is created, not when it is polled: in memory it is done, and on
/// Redis it is sent. Dropping this does not undo it. A dropped check keeps its charge, unless it is
/// [`refunded_if_dropped`](crate::Check::refunded_if_dropped).
#[derive(Debug)]
#[must_use = "the answer comes when this is awaited"]
pub struct Answer<T> {
    inner: Inner<T>,
}

#[derive(Debug)]
enum Inner<T> {
    Ready(Result<T, Error>),
    Unread(UnreadAnswer<T>),
    #[cfg(feature = "redis")]
    Sent(Sent<T>),
    Taken,
}

impl<T> Answer<T> {
    #[inline]
    pub(crate) fn ready(answer: Result<T, Error>) -> Answer<T> {
        Answer { inner: Inner::Ready(answer) }
    }

    /// An answer that is ready, and given to `undo` if it is dropped before it is polled.
    pub(crate) fn ready_or_else(answer: T, undo: impl Fn(T) + Send + Sync + 'static) -> Answer<T> {
        let unread = UnreadAnswer { answer: Some(answer), undo: Box::new(undo) };
        Answer { inner: Inner::Unread(unread) }
    }

    #[cfg(feature = "redis")]
    pub(crate) fn sent(sent: Sent<T>) -> Answer<T> {
        Answer { inner: Inner::Sent(sent) }
    }
}

// Nothing in it is ever pinned.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        #[cfg(feature = "redis")]
        if let Inner::Sent(sent) = &mut this.inner {
            let answer = std::task::ready!(Pin::new(sent).poll(context));
            this.inner = Inner::Taken;
            return Poll::Ready(answer);
        }
        let _ = context;
        match std::mem::replace(&mut this.inner, Inner::Taken) {
            Inner::Ready(answer) => Poll::Ready(answer),
            Inner::Unread(mut unread) => match unread.answer.take() {
                Some(answer) => Poll::Ready(Ok(answer)),
                None => Poll::Pending,
            },
            _ => Poll::Pending,
        }
    }
}

/// An answer in memory that is undone if it is dropped before it is polled.
struct UnreadAnswer<T> {
    /// `None` once it was polled.
    answer: Option<T>,
    undo: Box<dyn Fn(T) + Send + Sync>,
}

impl<T> Drop for UnreadAnswer<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            (self.undo)(answer);
        }
    }
}

impl<T> fmt::Debug for UnreadAnswer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UnreadAnswer").finish_non_exhaustive()
    }
}
