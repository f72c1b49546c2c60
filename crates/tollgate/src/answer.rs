//! The future of every operation.

use std::future::{self, Future};
use std::pin::Pin;
use std::task::{Context, Poll};

use crate::error::Error;

/// A store's answer. In memory it is there at once: no allocation, nothing boxed, no waiting.
#[derive(Debug)]
#[must_use = "nothing is decided until this is awaited"]
pub struct Answer<T> {
    ready: future::Ready<Result<T, Error>>,
}

impl<T> Answer<T> {
    pub(crate) fn ready(answer: Result<T, Error>) -> Answer<T> {
        Answer { ready: future::ready(answer) }
    }
}

impl<T> Future for Answer<T> {
    type Output = Result<T, Error>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.ready).poll(context)
    }
}
