//! The future of every operation.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Error;
#[cfg(feature = "redis")]
use crate::store::redis::Sent;

/// A store's answer. In memory it is there at once: no allocation, nothing boxed, no waiting. On
/// Redis the request is on its way when this is made, and dropping this does not call it back.
#[derive(Debug)]
#[must_use = "the answer comes when this is awaited"]
pub struct Answer<T> {
    inner: Inner<T>,
}

#[derive(Debug)]
enum Inner<T> {
    Ready(Result<T, Error>),
    #[cfg(feature = "redis")]
    Sent(Sent<T>),
    Taken,
}

impl<T> Answer<T> {
    #[inline]
    pub(crate) fn ready(answer: Result<T, Error>) -> Answer<T> {
        Answer { inner: Inner::Ready(answer) }
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
            _ => Poll::Pending,
        }
    }
}
