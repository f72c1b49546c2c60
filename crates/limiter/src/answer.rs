//! The future of every operation.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use crate::error::Error;

/// The answer of a store, as a future. In memory it is ready at once: no allocation, no waiting.
///
/// The operation happens when this is created, not when it is polled: in memory it is done, and on
/// Redis it is sent. Dropping this does not undo it. A dropped check keeps its charge, unless it is
/// [`refunded_if_dropped`](crate::Check::refunded_if_dropped).
///
/// If it is polled again after it was ready, it returns [`Error::AnswerTaken`].
#[must_use = "the answer comes when this is awaited"]
pub struct Answer<T> {
    inner: AnswerState<T>,
}

enum AnswerState<T> {
    Ready(Result<T, Error>),
    Unread(UnreadAnswer<T>),
    Pending(AnswerFuture<T>),
    Taken,
}

type AnswerFuture<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + Sync>>;

impl<T> Answer<T> {
    /// Returns an answer that is ready.
    #[inline]
    pub fn ready(answer: Result<T, Error>) -> Answer<T> {
        Answer { inner: AnswerState::Ready(answer) }
    }

    /// Returns an answer that the future resolves to. The work that the future waits for should have begun.
    pub fn pending(
        answer: impl Future<Output = Result<T, Error>> + Send + Sync + 'static,
    ) -> Answer<T> {
        Answer { inner: AnswerState::Pending(Box::pin(answer)) }
    }

    /// Returns a ready answer, which is passed to `undo` if it is dropped before it is polled.
    pub fn ready_or_else(answer: T, undo: impl Fn(T) + Send + Sync + 'static) -> Answer<T> {
        Answer { inner: AnswerState::Unread(UnreadAnswer::new(answer, undo)) }
    }
}

impl<T: Send + Sync + 'static> Answer<T> {
    /// Maps the answer when it is ready; at once, if it is ready now.
    pub(crate) fn then<U: 'static>(
        self,
        change: impl FnOnce(Result<T, Error>) -> Result<U, Error> + Send + Sync + 'static,
    ) -> Answer<U> {
        match self.inner {
            AnswerState::Ready(answer) => Answer::ready(change(answer)),
            AnswerState::Pending(pending) => {
                Answer::pending(MappedAnswer { pending, change: Some(change) })
            }
            AnswerState::Unread(_) | AnswerState::Taken => {
                Answer::pending(async move { change(self.await) })
            }
        }
    }
}

// OK because no field is ever pinned.
impl<T> Unpin for Answer<T> {}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if let AnswerState::Pending(pending) = &mut this.inner {
            let answer = ready!(pending.as_mut().poll(context));
            this.inner = AnswerState::Taken;
            return Poll::Ready(answer);
        }
        Poll::Ready(match std::mem::replace(&mut this.inner, AnswerState::Taken) {
            AnswerState::Ready(answer) => answer,
            AnswerState::Unread(unread) => unread.read(),
            AnswerState::Pending(_) | AnswerState::Taken => Err(Error::AnswerTaken),
        })
    }
}

impl<T: fmt::Debug> fmt::Debug for Answer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.inner {
            AnswerState::Ready(answer) => f.debug_tuple("Ready").field(answer).finish(),
            AnswerState::Unread(unread) => f.debug_tuple("Ready").field(&unread.answer).finish(),
            AnswerState::Pending(_) => f.write_str("Pending"),
            AnswerState::Taken => f.write_str("Taken"),
        }
    }
}

/// An answer that is mapped when it is ready. Smaller than an async block, which would hold the answer twice.
struct MappedAnswer<T, F> {
    pending: AnswerFuture<T>,
    change: Option<F>,
}

// OK because no field is ever pinned.
impl<T, F> Unpin for MappedAnswer<T, F> {}

impl<T, U, F> Future for MappedAnswer<T, F>
where
    F: FnOnce(Result<T, Error>) -> Result<U, Error>,
{
    type Output = Result<U, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let answer = ready!(self.pending.as_mut().poll(context));
        let change = self.change.take();
        Poll::Ready(change.map_or(Err(Error::AnswerTaken), |change| change(answer)))
    }
}

/// An answer that is passed to `undo` if it is dropped before it is read.
///
/// A store sends it to the [`Answer`] of a caller, for example through a channel. If the caller gives up at any point,
/// even while the answer is in the channel, the answer is undone.
pub struct UnreadAnswer<T> {
    /// `None` once it has been read.
    answer: Option<T>,
    undo: Box<dyn Fn(T) + Send + Sync>,
}

impl<T> UnreadAnswer<T> {
    /// Returns an unread answer.
    pub fn new(answer: T, undo: impl Fn(T) + Send + Sync + 'static) -> UnreadAnswer<T> {
        UnreadAnswer { answer: Some(answer), undo: Box::new(undo) }
    }

    /// Returns the answer. From then on, dropping it does not undo it.
    pub fn read(mut self) -> Result<T, Error> {
        self.answer.take().ok_or(Error::AnswerTaken)
    }
}

impl<T: fmt::Debug> fmt::Debug for UnreadAnswer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("UnreadAnswer").field(&self.answer).finish()
    }
}

impl<T> Drop for UnreadAnswer<T> {
    fn drop(&mut self) {
        if let Some(answer) = self.answer.take() {
            (self.undo)(answer);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::future::ready;
    use std::task::Waker;

    use super::*;

    #[test]
    fn an_answer_polled_again_is_an_error() {
        for mut answer in [
            Answer::ready(Ok(1)),
            Answer::ready_or_else(1, |_| ()),
            Answer::pending(ready(Ok(1))),
            Answer::pending(ready(Ok(0))).then(|answer| Ok(answer? + 1)),
        ] {
            let mut poll = || Pin::new(&mut answer).poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(poll(), Poll::Ready(Ok(1)));
            assert_eq!(poll(), Poll::Ready(Err(Error::AnswerTaken)));
            assert_eq!(poll(), Poll::Ready(Err(Error::AnswerTaken)));
        }
    }
}
