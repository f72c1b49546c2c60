//! Reservations: what is held while a request is under way, and what is charged when it ends.
//!
//! - `ends`: one test for each row of the table in docs/guide/middleware.md
//! - `renewals`: holds of requests that take longer than their time
//! - `handles`: handlers that settle and extend their holds
//! - `bodies`: types of body; `grpc`: trailers
//! - `sockets`: clients that hang up, and upgraded connections
//! - `concurrency`: places under concurrency limits
//! - `rules`: several limits of one request
//! - `failures`: stores that fail; `store`: such a store
//! - `on_redis`: holds on a real server, as another process sees them
//! - `streams`: many streams on one budget

mod bodies;
mod concurrency;
mod ends;
mod failures;
mod grpc;
mod handles;
mod on_redis;
mod renewals;
mod rules;
mod sockets;
mod store;
mod streams;

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use axum::Router;
use axum::body::Body;
use axum::routing::any;
use bytes::Bytes;
use http::{HeaderMap, Response, StatusCode};
use hyper::body::Frame;
use tokio::sync::mpsc;
use tollgate::tower::RateLimitLayer;
use tollgate::{Clock, Limiter, Scope};

use crate::support::*;

/// 1,000 units that never come back.
const LIMIT: &str = "fixed-window limit=1000 window=366d";

fn tokens(limiter: &Limiter) -> Scope {
    scope(limiter, "tokens", LIMIT)
}

/// A scope in memory.
fn in_memory() -> Scope {
    tokens(&at_midnight().1)
}

/// A scope on tokio's clock, which is paused and advances when all tasks wait.
fn on_tokios_clock() -> Scope {
    tokens(&Limiter::builder().clock(Clock::tokio(MIDNIGHT_US)).build())
}

/// A layer that reserves 100 units for each request.
fn hundred(scope: &Scope) -> RateLimitLayer {
    RateLimitLayer::new(scope.clone()).reserve(|_| 100)
}

/// Returns the units that remain for the client of [`get`].
fn left(scope: &Scope) -> u64 {
    scope.peek("ip=203.0.113.9").now().unwrap().remaining()
}

/// Returns how many unexpired holds the client of [`get`] has.
fn held(scope: &Scope) -> usize {
    let mut state = pin!(scope.state("ip=203.0.113.9"));
    let Poll::Ready(state) = poll_once(state.as_mut()) else { panic!("not in memory") };
    let state = state.unwrap();
    state.holds.iter().filter(|hold| hold.expires_us > state.now_us).count()
}

/// Polls a future once.
fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Returns the remaining units in the headers of a response.
fn shown<B>(response: &Response<B>) -> Option<String> {
    header(response.headers(), "x-ratelimit-remaining")
}

type BodyFrame = Result<Frame<Bytes>, std::io::Error>;

/// A body whose frames the test sends. It ends when the sender is dropped.
struct SentBody(mpsc::UnboundedReceiver<BodyFrame>);

#[derive(Clone)]
struct FrameSender(mpsc::UnboundedSender<BodyFrame>);

fn sent_body() -> (FrameSender, SentBody) {
    let (sender, receiver) = mpsc::unbounded_channel();
    (FrameSender(sender), SentBody(receiver))
}

impl FrameSender {
    fn data(&self, text: &str) {
        self.0.send(Ok(Frame::data(text.to_owned().into()))).ok();
    }

    fn trailers(&self, trailers: HeaderMap) {
        self.0.send(Ok(Frame::trailers(trailers))).ok();
    }

    fn fail(&self) {
        self.0.send(Err(std::io::Error::other("broken"))).ok();
    }
}

impl hyper::body::Body for SentBody {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<BodyFrame>> {
        self.0.poll_recv(context)
    }
}

/// An application that answers once with a response, behind a layer.
fn answering(layer: RateLimitLayer, response: Response<Body>) -> Router {
    let response = Arc::new(Mutex::new(Some(response)));
    let answer = move || {
        let response = response.lock().unwrap().take();
        async move { response.ok_or(StatusCode::NOT_FOUND) }
    };
    Router::new().fallback(any(answer).layer(layer))
}

/// An application that answers with a body that the test sends, and its sender.
fn streaming(layer: RateLimitLayer) -> (Router, FrameSender) {
    let (sender, body) = sent_body();
    (answering(layer, Response::new(Body::new(body))), sender)
}
