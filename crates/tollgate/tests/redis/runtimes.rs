//! The runtimes and threads on which a limiter can be made and awaited.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{BreakerState, Error, Limiter, OnFailure, Scope, StoreError};
use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, PATIENCE, at, builder, open, scope, start};

/// An executor other than tokio.
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
fn limiter_made_outside_a_runtime_works_on_any_executor() {
    let server = start(Flavour::Redis);
    let limiter = open(&server);
    // Without the shaping limit, under which the second request would have to wait.
    for text in &LIMITS[..5] {
        let scope = scope(&limiter, text);
        let receipt = block_on(scope.check("a").cost(5)).unwrap().into_receipt().unwrap();
        assert_eq!(block_on(scope.peek("a")).unwrap().remaining(), 95);
        assert_eq!(block_on(scope.refund("a", receipt)), Ok(5));
        assert!(block_on(scope.acquire("a")).unwrap().is_admitted());
        let together = block_on(limiter.batch(&[&[scope.check("a")], &[scope.check("b")]]));
        assert_eq!(together.unwrap().len(), 2);
        assert_eq!(block_on(scope.reset("a")), Ok(()));
        // The same scope works on a runtime.
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

/// Asserts that no server has failed to decide a request.
fn assert_nothing_failed(limiter: &Limiter) {
    let health = limiter.health().unwrap();
    assert_eq!((health.failed, health.servers[0].breaker), (0, BreakerState::Closed), "{health:?}");
}

#[test]
fn limiter_outlives_the_runtime_that_it_was_built_in() {
    let server = start(Flavour::Redis);
    let first = runtime();
    let scope = first.block_on(async { scope(&open(&server), LIMITS[0]) });
    assert!(block_on(scope.check("a")).unwrap().is_allowed());
    drop(first);
    assert_nothing_failed(scope.limiter());
    let receipt = block_on(scope.check("a").cost(9)).unwrap().into_receipt().unwrap();
    assert_eq!(runtime().block_on(scope.peek("a").into_future()).unwrap().remaining(), 90);
    assert_eq!(block_on(scope.refund("a", receipt)), Ok(9));
    assert!(runtime().block_on(scope.acquire("a").into_future()).unwrap().is_admitted());
    let batch = block_on(scope.limiter().batch(&[&[scope.check("a")], &[scope.check("b")]]));
    assert!(batch.unwrap().iter().all(Result::is_ok));
    assert_eq!(block_on(scope.reset("a")), Ok(()));
    drop(scope.check("a").refunded_if_dropped().into_future());
    while block_on(scope.peek("a")).unwrap().remaining() < 100 {}
    assert_nothing_failed(scope.limiter());
}

/// Three test functions that share a limiter, as `#[tokio::test(flavor = "multi_thread")]` runs them.
#[test]
fn static_limiter_is_exact_in_the_runtimes_of_several_tests() {
    static SCOPE: OnceLock<Scope> = OnceLock::new();
    let server = start(Flavour::Redis);
    let test = || async {
        let scope = SCOPE.get_or_init(|| scope(&open(&server), LIMITS[0]));
        let mut tasks = JoinSet::new();
        for _ in 0..4 {
            tasks.spawn(async {
                let mut allowed = 0;
                for _ in 0..20 {
                    allowed += u32::from(scope.check("a").await.unwrap().is_allowed());
                }
                allowed
            });
        }
        tasks.join_all().await.into_iter().sum::<u32>()
    };
    assert_eq!(runtime().block_on(test()), 80);
    let allowed: u32 = thread::scope(|threads| {
        let tests = [(); 2].map(|()| threads.spawn(|| runtime().block_on(test())));
        tests.into_iter().map(|test| test.join().unwrap()).sum()
    });
    assert_eq!(allowed, 20);
    assert_nothing_failed(SCOPE.get().unwrap().limiter());
}

/// At most two batches of 64 are in flight. The other requests are sent by the limiter's own thread.
#[test]
fn requests_in_flight_are_answered_once_when_their_runtime_ends() {
    let server = start(Flavour::Redis);
    let first = runtime();
    let scope =
        first.block_on(async { scope(&open(&server), "fixed-window limit=9999 window=366d") });
    block_on(scope.check("a")).unwrap();
    server.freeze();
    let mut answers: Vec<_> = (0..500).map(|_| scope.check("a").into_future()).collect();
    while scope.limiter().health().unwrap().servers[0].waiting == 500 {
        thread::yield_now();
    }
    first.shutdown_background();
    answers.extend((0..500).map(|_| scope.check("a").into_future()));
    server.thaw();
    let answers: Vec<_> = answers.into_iter().map(block_on).collect();
    let (allowed, failed): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
    assert!((1..=128).contains(&failed.len()), "{}", failed.len());
    for error in &failed {
        assert_eq!(*error, Err(Error::Store(StoreError::Gone)));
    }
    let charged = 9_999 - block_on(scope.peek("a")).unwrap().remaining();
    let (least, most) = (1 + allowed.len() as u64, 1_001);
    assert!((least..=most).contains(&charged), "{least} to {most}: {charged}");
    assert_eq!(scope.limiter().health().unwrap().failed, failed.len() as u64);
}

#[test]
fn batch_continues_when_its_runtime_ends() {
    let server = start(Flavour::Redis);
    let first = runtime();
    let builder = builder(&server.url()).deadline(PATIENCE).on_failure(OnFailure::Open);
    let scope = first.block_on(async { scope(&builder.build().unwrap(), LIMITS[0]) });
    server.freeze();
    let check = [scope.check("a")];
    let batch = scope.limiter().batch(&vec![&check[..]; 90]);
    first.shutdown_background();
    server.thaw();
    let answers: Vec<_> = block_on(batch).unwrap().into_iter().map(Result::unwrap).collect();
    let degraded = answers.iter().filter(|answer| answer.is_degraded()).count();
    assert!(answers.len() == 90 && degraded <= 64, "{degraded}");
}

/// Tokio panics in a task that uses I/O on such a runtime.
#[test]
fn limiter_built_on_a_runtime_without_io_works() {
    let server = start(Flavour::Redis);
    let without_io = tokio::runtime::Builder::new_multi_thread().enable_time().build().unwrap();
    let scope = without_io.block_on(async { scope(&open(&server), LIMITS[0]) });
    assert_eq!(block_on(scope.check("a")).unwrap().remaining(), 99);
}

#[tokio::test]
async fn now_is_an_error_on_redis() {
    let scope = scope(&at("redis://127.77.0.1:1"), LIMITS[1]);
    assert_eq!(scope.check("a").now(), Err(Error::MustWait));
    assert_eq!(scope.peek("a").now(), Err(Error::MustWait));
    assert_eq!(scope.reset_now("a"), Err(Error::MustWait));
    assert_eq!(scope.entries_now("a"), Err(Error::MustWait));
    let together = scope.limiter().check_all_now(&[scope.check("a")]);
    assert_eq!(together.unwrap_err(), Error::MustWait);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_answers_delay_no_other_check_and_stay_charged() {
    let server = start(Flavour::Redis);
    let scope = scope(&open(&server), "fixed-window limit=1000000 window=366d");
    let mut sent = 0;
    for round in 0..200_u64 {
        let mut answers: Vec<_> = (0..20).map(|_| scope.check("a").into_future()).collect();
        sent += 20;
        // Some are dropped before they are sent, others in flight.
        answers.truncate(usize::try_from(round % 20).unwrap());
        if round % 3 == 0 {
            tokio::task::yield_now().await;
        }
        if let Some(last) = answers.pop() {
            drop(answers);
            last.await.unwrap();
        }
    }
    // Dropping an answer does not cancel its request.
    let peeked = scope.peek("a").await.unwrap();
    assert_eq!(peeked.remaining(), 1_000_000 - sent);
    assert!(Duration::ZERO < peeked.reset_after());
}
