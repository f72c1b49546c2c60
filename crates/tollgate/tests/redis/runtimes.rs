//! Where a limiter can be made and awaited.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tollgate::{Error, StoreError};
use tollgate_launcher::Flavour;

use crate::fake::Mute;
use crate::setup::{LIMITS, PATIENCE, at, open, scope, start, store_error};

/// An executor that knows nothing of tokio.
fn block_on<T>(future: impl IntoFuture<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = Box::pin(future.into_future());
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

#[test]
fn a_limiter_made_outside_a_runtime_is_awaited_on_any_executor() {
    let server = start(Flavour::Redis);
    let limiter = open(&server);
    // But the shaping one: it would let the second wait.
    for text in &LIMITS[..5] {
        let scope = scope(&limiter, text);
        let receipt = block_on(scope.check("a").cost(5)).unwrap().into_receipt().unwrap();
        assert_eq!(block_on(scope.peek("a")).unwrap().remaining(), 95);
        assert_eq!(block_on(scope.refund("a", receipt)), Ok(5));
        assert!(block_on(scope.acquire("a")).unwrap().is_admitted());
        let together = block_on(limiter.batch(&[&[scope.check("a")], &[scope.check("b")]]));
        assert_eq!(together.unwrap().len(), 2);
        assert_eq!(block_on(scope.reset("a")), Ok(()));
        // And on a runtime.
        assert_eq!(runtime().block_on(scope.peek("a").into_future()).unwrap().remaining(), 100);
    }
}

#[test]
fn threads_without_a_runtime_share_one_limiter() {
    let server = start(Flavour::Redis);
    let scope = scope(&open(&server), LIMITS[0]);
    let admitted: u64 = thread::scope(|threads| {
        let check = || (0..50).filter(|_| block_on(scope.check("a")).unwrap().is_allowed()).count();
        let running: Vec<_> = (0..4).map(|_| threads.spawn(check)).collect();
        running.into_iter().map(|thread| thread.join().unwrap() as u64).sum()
    });
    assert_eq!(admitted, 100);
}

#[test]
fn a_limiter_whose_runtime_has_ended_says_so() {
    let server = start(Flavour::Redis);
    let first = runtime();
    let scope = first.block_on(async { scope(&open(&server), LIMITS[0]) });
    assert!(block_on(scope.check("a")).unwrap().is_allowed());
    drop(first);
    for _ in 0..3 {
        assert_eq!(store_error(block_on(scope.check("a"))), StoreError::Gone);
    }
    assert_eq!(store_error(runtime().block_on(scope.peek("a").into_future())), StoreError::Gone);
    assert_eq!(store_error(block_on(scope.acquire("a"))), StoreError::Gone);
    let batch = block_on(scope.limiter().batch(&[&[scope.check("a")]]));
    assert!(matches!(store_error(batch), StoreError::Gone));
}

/// Nobody waits for a runtime that ended while a request was on its way, or in the queue.
#[test]
fn what_is_on_its_way_when_the_runtime_ends_is_told() {
    let mute = Mute::start();
    let first = runtime();
    let scope = first.block_on(async { scope(&at(&mute.url()), LIMITS[0]) });
    let began = Instant::now();
    let answers: Vec<_> = (0..200).map(|_| scope.check("a").into_future()).collect();
    mute.until_connected();
    let late: Vec<_> = (0..200).map(|_| scope.check("a").into_future()).collect();
    first.shutdown_background();
    for answer in answers.into_iter().chain(late) {
        assert_eq!(store_error(block_on(answer)), StoreError::Gone);
    }
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[tokio::test]
async fn deciding_without_waiting_is_an_error_that_says_what_to_do() {
    let scope = scope(&at("redis://127.77.0.1:1"), LIMITS[1]);
    assert_eq!(scope.check("a").now(), Err(Error::MustWait));
    assert_eq!(scope.peek("a").now(), Err(Error::MustWait));
    assert_eq!(scope.reset_now("a"), Err(Error::MustWait));
    assert_eq!(scope.entries_now("a"), Err(Error::MustWait));
    let together = scope.limiter().check_all_now(&[scope.check("a")]);
    assert_eq!(together.unwrap_err(), Error::MustWait);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_that_nobody_waits_for_hold_up_nobody() {
    let server = start(Flavour::Redis);
    let scope = scope(&open(&server), "fixed-window limit=1000000 window=366d");
    let mut sent = 0;
    for round in 0..200_u64 {
        let mut answers: Vec<_> = (0..20).map(|_| scope.check("a").into_future()).collect();
        sent += 20;
        // Some before they are sent, some while they are on their way.
        answers.truncate(usize::try_from(round % 20).unwrap());
        if round % 3 == 0 {
            tokio::task::yield_now().await;
        }
        if let Some(last) = answers.pop() {
            drop(answers);
            last.await.unwrap();
        }
    }
    // Dropping an answer does not call its request back.
    let peeked = scope.peek("a").await.unwrap();
    assert_eq!(peeked.remaining(), 1_000_000 - sent);
    assert!(Duration::ZERO < peeked.reset_after());
}
