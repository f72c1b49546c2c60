//! A limiter on tokio's clock, and futures that are polled by hand.

use std::future::IntoFuture;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{Acquire, AcquireFuture, AcquireOutcome, Clock, Error, Limit, Limiter, Scope};

/// A midnight (UTC), at which every window that divides a day starts.
pub(crate) const START_US: u64 = 1_699_920_000_000_000;

pub(crate) fn scope(limit: &str) -> Scope {
    let limiter = Limiter::builder().clock(Clock::tokio(START_US)).build();
    limiter.scope("test", limit.parse::<Limit>().unwrap()).unwrap()
}

/// An acquire that a test polls itself.
pub(crate) struct Polled<'a>(Pin<Box<AcquireFuture<'a>>>);

impl<'a> Polled<'a> {
    pub(crate) fn new(acquire: Acquire<'a>) -> Polled<'a> {
        Polled(Box::pin(acquire.into_future()))
    }

    /// Polls once, with a waker that does nothing.
    pub(crate) fn poll(&mut self) -> Option<Result<AcquireOutcome, Error>> {
        match self.0.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(result) => Some(result),
            Poll::Pending => None,
        }
    }

    /// Polls once, and asserts that the acquire has to wait.
    pub(crate) fn must_wait(mut self) -> Polled<'a> {
        assert!(self.poll().is_none());
        self
    }

    /// Waits for the outcome.
    pub(crate) async fn finish(self) -> AcquireOutcome {
        self.0.await.unwrap()
    }
}

pub(crate) fn waited(acquired: &AcquireOutcome) -> Duration {
    match acquired {
        AcquireOutcome::Admitted { waited, .. } => *waited,
        AcquireOutcome::Refused { .. } => panic!("{acquired:?}"),
    }
}

pub(crate) fn would_wait(acquired: &AcquireOutcome) -> Option<Duration> {
    match acquired {
        AcquireOutcome::Refused { would_wait, .. } => *would_wait,
        AcquireOutcome::Admitted { .. } => panic!("{acquired:?}"),
    }
}

pub(crate) fn remaining(scope: &Scope) -> u64 {
    scope.peek("key").now().unwrap().remaining()
}

pub(crate) const fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}
