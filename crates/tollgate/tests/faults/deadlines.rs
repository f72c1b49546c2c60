//! Every caller gets its answer by its own deadline, with any queue and any behaviour of the server.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;
use std::time::{Duration, Instant};

use tollgate::{Answer, BreakerState, Decision, OnFailure, Redis, Scope, StoreError};
use tollgate_launcher::{Flavour, Proxy};

use crate::setup::{
    LIMITS, MARGIN, PATIENCE, at, long_deadline, named, remaining, scripts_run, start, store_error,
    until_decided,
};

const LARGE: &str = "fixed-window limit=1000000 window=366d";

/// A caller's deadline, and what is left of it for the server: 3 ms less.
const OWN: Duration = Duration::from_millis(20);
const FOR_THE_SERVER: Duration = Duration::from_millis(17);

/// The time in a timeout error.
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
async fn default_deadline_is_10_ms_and_can_be_set() {
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
                    // The machine was too busy to send the check in time.
                    StoreError::Overloaded { .. } => assert_took(began, Duration::ZERO),
                    other => panic!("{other:?}"),
                }
            }
            server.thaw();
        }
    }
}

/// Queues `count` checks before any of them can be sent, because the runtime's only thread is busy
/// queueing them. The check at index `short` has a deadline of 20 ms.
async fn queue_together(scope: &Scope, count: usize, short: usize) -> Vec<Answer<Decision>> {
    let scope = scope.clone();
    let queue = async move {
        let check = |number| match number == short {
            true => scope.check("a").within(OWN).into_future(),
            false => scope.check("a").into_future(),
        };
        (0..count).map(check).collect::<Vec<_>>()
    };
    tokio::spawn(queue).await.unwrap()
}

/// The check with the short deadline is in the first batch, in the second, or in the queue behind them. A
/// batch has 64 checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn short_deadline_is_kept_among_hundreds_of_long_ones() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        for (round, (short, charged)) in
            [(0, 300), (10, 300), (63, 300), (100, 300), (299, 299)].into_iter().enumerate()
        {
            let limiter = at(&server.url());
            let scope = named(&limiter, &round.to_string(), LARGE);
            until_decided(&scope).await;
            server.freeze();
            let began = Instant::now();
            let mut answers = queue_together(&scope, 300, short).await;
            let first = answers.remove(short);
            assert_eq!(timed_out_after(first.await), FOR_THE_SERVER, "{flavour}, {short}");
            assert_took(began, FOR_THE_SERVER);
            assert_eq!(limiter.health().unwrap().failed, 1);
            server.thaw();
            // All others are answered, each once and in order.
            let mut left = 1_000_000;
            for answer in answers {
                let now_left = answer.await.unwrap().remaining();
                assert!(now_left < left, "{flavour}, {short}");
                left = now_left;
            }
            // In a batch in flight the check was charged; in the queue it was never sent.
            // A busy machine may be too late to send it at all.
            let spent = 1_000_000 - remaining(&scope, "a").await;
            assert!((299..=charged).contains(&spent), "{flavour}, {short}: {spent}");
            let health = limiter.health().unwrap();
            assert_eq!(health.failed, 1);
            assert_eq!(health.servers[0].breaker, BreakerState::Closed);
        }
    }
}

/// The checks with a short deadline arrive when two batches are in flight and hundreds of checks wait.
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
        // None of the checks with a short deadline was sent.
        assert_eq!(remaining(&scope, "a").await, 1_000_000 - 300);
        assert_eq!(remaining(&scope, "b").await, 1_000_000);
    }
}

/// When callers drop their `acquire`, their charges are refunded, each in a batch of its own because the
/// limit is a log. No caller waits for these refunds, so they must not delay checks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_refunds_delay_no_check() {
    const KEYS: usize = 20;
    let deadline = Duration::from_secs(1);
    let server = start(Flavour::Redis);
    let limiter = long_deadline(&server.url()).deadline(deadline).build().unwrap();
    let scope = named(&limiter, "log", "sliding-window-log limit=100 window=366d");
    until_decided(&scope).await;
    let ids: Vec<String> = (0..KEYS).map(|id| id.to_string()).collect();
    let mut acquiring: Vec<_> = ids.iter().map(|id| scope.acquire(id).into_future()).collect();
    let mut pending = 0;
    for acquiring in &mut acquiring {
        let polled = poll_fn(|context| Poll::Ready(Pin::new(&mut *acquiring).poll(context))).await;
        // Some may be answered already.
        pending += usize::from(polled.is_pending());
    }
    assert!(pending > KEYS / 2, "{pending}");
    let other = named(&at(&server.url()), "log", "sliding-window-log limit=100 window=366d");
    for id in &ids {
        while remaining(&other, id).await == 100 {}
    }
    server.freeze();
    drop(acquiring);
    let began = Instant::now();
    store_error(scope.check("another").await);
    assert!(began.elapsed() < deadline + MARGIN / 2, "{:?}", began.elapsed());
    server.thaw();
    until_decided(&scope).await;
}

/// 400 checks, more than two batches hold. The connection takes 2.9 s of their 3 s to open.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_checks_time_out_while_a_connection_opens() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    proxy.delay(|| Duration::from_millis(2_900));
    let deadline = Duration::from_secs(3);
    let limiter = long_deadline(&proxy.url()).deadline(deadline).build().unwrap();
    let scope = named(&limiter, "scope", LARGE);
    let began = Instant::now();
    let answers: Vec<_> = (0..400).map(|_| scope.check("a").into_future()).collect();
    for answer in answers {
        store_error(answer.await);
    }
    // Not 5.8 s, the time to connect and then the time for an answer.
    assert_took(began, Duration::from_millis(2_900));
}

/// Also when the batch is sent in 20 parts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_takes_no_longer_than_its_shortest_deadline() {
    for on_failure in [OnFailure::Closed, OnFailure::Open] {
        let server = start(Flavour::Redis);
        let limiter = long_deadline(&server.url()).on_failure(on_failure).build().unwrap();
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
        // A batch without the short deadline is decided.
        let answers = limiter.batch(&requests[4..]).await.unwrap();
        assert!(answers.into_iter().all(|answer| !answer.unwrap().is_degraded()));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deadline_of_at_most_3_ms_fails_at_once_without_a_charge() {
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
async fn callers_deadline_is_capped_at_the_limiters() {
    const DEADLINE: Duration = Duration::from_millis(500);
    let server = start(Flavour::Redis);
    let limiter = long_deadline(&server.url()).deadline(DEADLINE).build().unwrap();
    let scope = named(&limiter, "scope", LIMITS[0]);
    until_decided(&scope).await;
    server.freeze();
    let began = Instant::now();
    assert_eq!(timed_out_after(scope.check("a").within(PATIENCE).await), DEADLINE);
    assert_eq!(timed_out_after(scope.check("a").within(Duration::MAX).await), DEADLINE);
    assert_took(began, 2 * DEADLINE);
    // A caller's deadline less 3 ms is here the limiter's deadline.
    let own = DEADLINE + Duration::from_millis(3);
    assert_eq!(timed_out_after(scope.check("a").within(own).await), DEADLINE);
}

/// The server answers within the limiter's deadline, so the timeouts do not count against it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_caller_deadlines_do_not_open_the_breaker() {
    let server = start(Flavour::Redis);
    let proxy = Proxy::start(server.addr()).unwrap();
    let limiter = at(&proxy.url());
    let scope = named(&limiter, "scope", LIMITS[0]);
    until_decided(&scope).await;
    proxy.delay(|| Duration::from_millis(100));
    let mut failed = 0;
    for _ in 0..30 {
        // On a busy machine the answer can come before the timer is polled.
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
    // Checks that timed out in the queue were never sent; none was charged twice.
    let left = remaining(&scope, "a").await;
    assert!((69..=99).contains(&left), "{left}");
}

/// The local share is charged once: by the timeout, and not again by the error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_out_check_is_not_decided_again_when_its_error_comes_late() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let local = OnFailure::Local { processes: Some(2) };
        let limiter = long_deadline(&server.url()).on_failure(local).build().unwrap();
        let scope = named(&limiter, "scope", LIMITS[0]);
        scope.check("a").await.unwrap();
        let keys: Vec<String> = server.ask(redis::cmd("KEYS").arg("*")).unwrap();
        assert_eq!(keys.len(), 1);
        // A list is not the state of a limit, so the check of this key alone fails.
        server.ask::<()>(redis::cmd("DEL").arg(&keys[0])).unwrap();
        server.ask::<()>(redis::cmd("LPUSH").arg(&keys[0]).arg("1")).unwrap();
        server.freeze();
        let decision = scope.check("a").within(OWN).await.unwrap();
        assert!(decision.is_degraded());
        // The server answered that one unit was spent, and this check spends another.
        assert_eq!((decision.limit(), decision.remaining()), (50, 48));
        server.thaw();
        // This check is behind it on the same connection.
        assert!(!scope.check("b").await.unwrap().is_degraded());
        assert_eq!(limiter.health().unwrap().failed, 1, "{flavour}");
        let peeked = scope.peek("a").await.unwrap();
        assert!(peeked.is_degraded());
        assert_eq!(peeked.remaining(), 48, "{flavour}");
    }
}
