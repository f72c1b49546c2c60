//! Every caller is told in time, whoever else waits, and whatever the server does.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate::{Answer, BreakerState, Decision, OnFailure, Redis, Scope, StoreError};
use tollgate_launcher::{Flavour, Proxy};

use crate::setup::{
    LIMITS, MARGIN, PATIENCE, at, named, patient, remaining, scripts_run, start, store_error,
    until_decided,
};

const LARGE: &str = "fixed-window limit=1000000 window=366d";

/// What is left of a caller's 20 ms for the server.
const OWN: Duration = Duration::from_millis(20);
const FOR_THE_SERVER: Duration = Duration::from_millis(17);

/// After how long it timed out, as it says itself.
fn timed_out_after<T: std::fmt::Debug>(answer: Result<T, tollgate::Error>) -> Duration {
    match store_error(answer) {
        StoreError::Timeout { after, .. } => after,
        other => panic!("{other:?}"),
    }
}

fn assert_took(began: Instant, at_least: Duration) {
    let took = began.elapsed();
    assert!(at_least <= took && took < at_least + MARGIN, "{took:?}, not {at_least:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn default_deadline_is_10_ms() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let ms = Duration::from_millis;
        for (deadline, want) in [(None, ms(10)), (Some(ms(150)), ms(150))] {
            let builder = Redis::at(&server.url()).unwrap();
            let builder = builder.on_failure(OnFailure::Closed);
            let limiter = match deadline {
                Some(deadline) => builder.deadline(deadline).build().unwrap(),
                None => builder.build().unwrap(),
            };
            let scope = named(&limiter, "scope", LIMITS[0]);
            until_decided(&scope).await;
            server.freeze();
            loop {
                let began = Instant::now();
                match store_error(scope.check("a").await) {
                    StoreError::Timeout { after, .. } => {
                        assert_took(began, want);
                        assert_eq!(after, want, "{flavour}");
                        break;
                    }
                    // The machine was too busy to send it in time.
                    StoreError::Overloaded { .. } => assert_took(began, Duration::ZERO),
                    other => panic!("{other:?}"),
                }
            }
            server.thaw();
        }
    }
}

/// So many checks, the one of this number in a hurry, put in while nothing can be sent: the limiter's
/// only thread is the one that puts them in.
async fn put_together(scope: &Scope, count: usize, hurried: usize) -> Vec<Answer<Decision>> {
    let scope = scope.clone();
    let put = async move {
        let check = |number| match number == hurried {
            true => scope.check("a").within(OWN).into_future(),
            false => scope.check("a").into_future(),
        };
        (0..count).map(check).collect::<Vec<_>>()
    };
    tokio::spawn(put).await.unwrap()
}

/// In the first batch, in the second, and in the queue behind them: batches are of 64.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn short_deadline_is_kept_among_hundreds_of_long_ones() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for (round, (hurried, charged)) in
            [(0, 300), (10, 300), (63, 300), (100, 300), (299, 299)].into_iter().enumerate()
        {
            let limiter = at(&server.url());
            let scope = named(&limiter, &round.to_string(), LARGE);
            until_decided(&scope).await;
            server.freeze();
            let began = Instant::now();
            let mut answers = put_together(&scope, 300, hurried).await;
            let first = answers.remove(hurried);
            assert_eq!(timed_out_after(first.await), FOR_THE_SERVER, "{flavour}, {hurried}");
            assert_took(began, FOR_THE_SERVER);
            assert_eq!(limiter.health().unwrap().failed, 1);
            server.thaw();
            // All others are answered, each once and in order.
            let mut left = 1_000_000;
            for answer in answers {
                let now_left = answer.await.unwrap().remaining();
                assert!(now_left < left, "{flavour}, {hurried}");
                left = now_left;
            }
            // One in a batch on its way was charged; one in the queue was never sent.
            // A busy machine may be too late to send it at all.
            let spent = 1_000_000 - remaining(&scope, "a").await;
            assert!((299..=charged).contains(&spent), "{flavour}, {hurried}: {spent}");
            let health = limiter.health().unwrap();
            assert_eq!(health.failed, 1);
            assert_eq!(health.servers[0].breaker, BreakerState::Closed);
        }
    }
}

/// It comes when two batches are on their way, and hundreds wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_deadline_is_kept_behind_hundreds_of_checks() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = at(&server.url());
        let scope = named(&limiter, "scope", LARGE);
        until_decided(&scope).await;
        server.freeze();
        let others: Vec<_> = (0..300).map(|_| scope.check("a").into_future()).collect();
        let began = Instant::now();
        while limiter.health().unwrap().servers[0].waiting > 298 {
            assert!(began.elapsed() < PATIENCE);
            tokio::task::yield_now().await;
        }
        let began = Instant::now();
        assert_eq!(timed_out_after(scope.check("a").within(OWN).await), FOR_THE_SERVER);
        assert_eq!(timed_out_after(scope.peek("a").within(OWN).await), FOR_THE_SERVER);
        assert_took(began, 2 * FOR_THE_SERVER);
        let began = Instant::now();
        let several = [scope.check("a").within(PATIENCE), scope.check("b").within(OWN)];
        assert_eq!(timed_out_after(limiter.check_all(&several).await), FOR_THE_SERVER);
        assert_took(began, FOR_THE_SERVER);
        server.thaw();
        for answer in others {
            answer.await.unwrap();
        }
        // None of those in a hurry was sent.
        assert_eq!(remaining(&scope, "a").await, 1_000_000 - 300);
        assert_eq!(remaining(&scope, "b").await, 1_000_000);
    }
}

/// More than go in two batches, while the connection takes nearly as long to open as they have.
/// What nobody waits for may take its time, and must not keep others waiting behind it: what callers
/// who went away had charged is given back, each in a batch of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_refunds_delay_no_check() {
    const KEYS: usize = 20;
    let deadline = Duration::from_secs(1);
    let server = start(Flavour::Redis);
    let limiter = patient(&server.url()).deadline(deadline).build().unwrap();
    let scope = named(&limiter, "log", "sliding-window-log limit=100 window=366d");
    until_decided(&scope).await;
    let ids: Vec<String> = (0..KEYS).map(|id| id.to_string()).collect();
    let mut acquiring: Vec<_> = ids.iter().map(|id| scope.acquire(id).into_future()).collect();
    let mut asking = 0;
    for acquiring in &mut acquiring {
        let asked = poll_fn(|context| Poll::Ready(Pin::new(&mut *acquiring).poll(context))).await;
        // Now and then a server is faster than this.
        asking += usize::from(asked.is_pending());
    }
    assert!(asking > KEYS / 2, "{asking}");
    let other = named(&at(&server.url()), "log", "sliding-window-log limit=100 window=366d");
    for id in &ids {
        while remaining(&other, id).await == 100 {}
    }
    server.freeze();
    drop(acquiring);
    let began = Instant::now();
    store_error(scope.check("somebody").await);
    assert!(began.elapsed() < deadline + MARGIN / 2, "{:?}", began.elapsed());
    server.thaw();
    until_decided(&scope).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_checks_time_out_while_a_connection_opens() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    proxy.delay(|| Duration::from_millis(2_900));
    let deadline = Duration::from_secs(3);
    let limiter = patient(&proxy.url()).deadline(deadline).build().unwrap();
    let scope = named(&limiter, "scope", LARGE);
    let began = Instant::now();
    let answers: Vec<_> = (0..400).map(|_| scope.check("a").into_future()).collect();
    for answer in answers {
        store_error(answer.await);
    }
    // Not 5.8 s: the time to connect, and the time for an answer.
    assert_took(began, Duration::from_millis(2_900));
}

/// However many parts it is sent in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_takes_no_longer_than_the_least_time_in_it() {
    for on_failure in [OnFailure::Closed, OnFailure::Open] {
        let server = start(Flavour::Redis);
        let limiter = patient(&server.url()).on_failure(on_failure).build().unwrap();
        let scope = named(&limiter, "scope", LARGE);
        until_decided(&scope).await;
        server.freeze();
        let own = Duration::from_millis(300);
        let check = |number| match number {
            3 => [scope.check("a").within(own)],
            _ => [scope.check("a")],
        };
        // 20 parts, which would take 6 s one after the other.
        let checks: Vec<_> = (0..20 * 64).map(check).collect();
        let requests: Vec<_> = checks.iter().map(|check| &check[..]).collect();
        let began = Instant::now();
        let answers = limiter.batch(&requests).await.unwrap();
        assert_took(began, own - Duration::from_millis(3));
        assert_eq!(answers.len(), 20 * 64);
        for answer in answers {
            match on_failure {
                OnFailure::Open => assert!(answer.unwrap().is_degraded()),
                _ => assert!(timed_out_after(answer) < own),
            }
        }
        server.thaw();
        // A batch that has the time is decided.
        let answers = limiter.batch(&requests[4..]).await.unwrap();
        assert!(answers.into_iter().all(|answer| !answer.unwrap().is_degraded()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn zero_deadline_fails_at_once_without_a_charge() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = at(&server.url());
        let scope = named(&limiter, "scope", LIMITS[0]);
        until_decided(&scope).await;
        for is_frozen in [false, true] {
            let before = scripts_run(&server);
            if is_frozen {
                server.freeze();
            }
            for own in [0, 1, 1_000, 2_999, 3_000].map(Duration::from_micros) {
                let began = Instant::now();
                assert_eq!(timed_out_after(scope.check("a").within(own).await), Duration::ZERO);
                assert_eq!(timed_out_after(scope.peek("a").within(own).await), Duration::ZERO);
                let several = [scope.check("a").within(own), scope.check("b")];
                assert_eq!(timed_out_after(limiter.check_all(&several).await), Duration::ZERO);
                let mut all = limiter.batch(&[&[scope.check("b")], &several]).await.unwrap();
                all.drain(..).for_each(|it| assert_eq!(timed_out_after(it), Duration::ZERO));
                assert_took(began, Duration::ZERO);
            }
            server.thaw();
            assert_eq!(scripts_run(&server), before, "{flavour}");
        }
        assert_eq!((remaining(&scope, "a").await, remaining(&scope, "b").await), (100, 100));
        assert_eq!(limiter.health().unwrap().servers[0].breaker, BreakerState::Closed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_caller_with_more_time_waits_no_longer_than_any() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let server = start(Flavour::Redis);
    let limiter = patient(&server.url()).deadline(DEADLINE).build().unwrap();
    let scope = named(&limiter, "scope", LIMITS[0]);
    until_decided(&scope).await;
    server.freeze();
    let began = Instant::now();
    assert_eq!(timed_out_after(scope.check("a").within(PATIENCE).await), DEADLINE);
    assert_eq!(timed_out_after(scope.check("a").within(Duration::MAX).await), DEADLINE);
    assert_took(began, 2 * DEADLINE);
    // 3 ms more than any has are as much as any has.
    let own = DEADLINE + Duration::from_millis(3);
    assert_eq!(timed_out_after(scope.check("a").within(own).await), DEADLINE);
}

/// The server is well; it is the callers who have no time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn impatient_callers_do_not_open_the_breaker() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = at(&proxy.url());
    let scope = named(&limiter, "scope", LIMITS[0]);
    until_decided(&scope).await;
    proxy.delay(|| Duration::from_millis(100));
    let mut failed = 0;
    for _ in 0..30 {
        // Answered only if the machine was so busy that the answer came before anybody looked.
        if let Err(error) = scope.check("a").within(OWN).await {
            assert_eq!(timed_out_after::<()>(Err(error)), FOR_THE_SERVER);
            failed += 1;
        }
        assert_eq!(limiter.health().unwrap().servers[0].breaker, BreakerState::Closed);
    }
    assert!(failed > 5, "{failed}");
    assert!(scope.check("a").await.unwrap().is_allowed());
    assert_eq!(limiter.health().unwrap().servers[0].breaker, BreakerState::Closed);
    assert_eq!(limiter.health().unwrap().failed, failed);
    // Those that waited for a place on the way were never sent; none was charged twice.
    let left = remaining(&scope, "a").await;
    assert!((69..=99).contains(&left), "{left}");
}

/// One who was told already is not decided again when an error comes late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_check_is_not_decided_again() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let local = OnFailure::Local { processes: 2 };
        let limiter = patient(&server.url()).on_failure(local).build().unwrap();
        let scope = named(&limiter, "scope", LIMITS[0]);
        scope.check("a").await.unwrap();
        let keys: Vec<String> = server.ask(redis::cmd("KEYS").arg("*")).unwrap();
        assert_eq!(keys.len(), 1);
        // No state of a limit: the check of this key fails alone.
        server.ask::<()>(redis::cmd("DEL").arg(&keys[0])).unwrap();
        server.ask::<()>(redis::cmd("LPUSH").arg(&keys[0]).arg("1")).unwrap();
        server.freeze();
        let told = scope.check("a").within(OWN).await.unwrap();
        assert!(told.is_degraded());
        assert_eq!((told.limit(), told.remaining()), (50, 49));
        server.thaw();
        // Behind it on the same connection.
        assert!(!scope.check("b").await.unwrap().is_degraded());
        assert_eq!(limiter.health().unwrap().failed, 1, "{flavour}");
        let look = scope.peek("a").await.unwrap();
        assert!(look.is_degraded());
        assert_eq!(look.remaining(), 49, "{flavour}");
    }
}
