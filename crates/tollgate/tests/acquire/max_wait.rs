use tokio::time::Instant;
use tollgate::{CostError, Error};

use crate::setup::{Polled, ms, remaining, scope, waited, would_wait};

const EVERY_LIMIT: [&str; 6] = [
    "fixed-window limit=4 window=40ms",
    "sliding-window-log limit=4 window=40ms",
    "sliding-window-counter limit=4 window=40ms",
    "token-bucket capacity=4 refill=1/10ms",
    "leaky-bucket capacity=4 leak=1/10ms mode=policing",
    "leaky-bucket capacity=4 leak=1/10ms mode=shaping",
];

#[tokio::test(start_paused = true)]
async fn cost_above_the_limit_is_refused_at_once() {
    for limit in EVERY_LIMIT {
        let scope = scope(limit);
        let refused = Polled::new(scope.acquire("key").cost(5)).poll().unwrap().unwrap();
        assert_eq!(would_wait(&refused), None, "{limit}");
        assert_eq!(refused.decision().retry_after(), None);
        scope.check("key").cost(4).now().unwrap();
        let _front = Polled::new(scope.acquire("key").cost(4)).must_wait();
        let refused = Polled::new(scope.acquire("key").cost(5)).poll().unwrap().unwrap();
        assert_eq!(would_wait(&refused), None, "{limit}, with a line");
        assert_eq!(refused.into_receipt(), None);
    }
}

#[tokio::test(start_paused = true)]
async fn cost_of_0_is_an_error() {
    let scope = scope(EVERY_LIMIT[0]);
    let result = scope.acquire("key").cost(0).await;
    assert_eq!(result, Err(Error::Cost(CostError::Zero)));
}

#[tokio::test(start_paused = true)]
async fn too_long_wait_is_refused_at_once_without_a_charge() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    scope.check("key").cost(4).now().unwrap();
    let began = Instant::now();
    let refused = scope.acquire("key").cost(2).max_wait(ms(19)).await.unwrap();
    assert_eq!(would_wait(&refused), Some(ms(20)));
    assert_eq!(refused.decision().retry_after(), Some(ms(20)));
    assert_eq!((began.elapsed(), scope.limiter().waiting()), (ms(0), 0));
    let admitted = scope.acquire("key").cost(2).max_wait(ms(20)).await.unwrap();
    assert_eq!(waited(&admitted), ms(20));
    assert_eq!(remaining(&scope), 0);
}

#[tokio::test(start_paused = true)]
async fn wait_includes_the_waiters_ahead() {
    // Limit, and how long an acquire of 2 waits behind acquires of 4, 3 and 1 when all units are spent.
    let table = [
        ("fixed-window limit=4 window=40ms", 120),
        ("sliding-window-log limit=4 window=40ms", 120),
        ("token-bucket capacity=4 refill=1/10ms", 100),
        ("leaky-bucket capacity=4 leak=1/10ms mode=policing", 100),
        ("leaky-bucket capacity=4 leak=1/10ms mode=shaping", 120),
    ];
    for (limit, want_ms) in table {
        let scope = scope(limit);
        scope.check("key").cost(4).now().unwrap();
        let ahead = [4, 3, 1].map(|cost| Polled::new(scope.acquire("key").cost(cost)).must_wait());
        let own = |max_wait| scope.acquire("key").cost(2).max_wait(max_wait);
        let refused = Polled::new(own(ms(want_ms - 1))).poll().unwrap().unwrap();
        let would = would_wait(&refused).unwrap();
        // The forecast stops when the wait is too long.
        assert!(would > ms(want_ms - 1) && would <= ms(want_ms), "{limit}: {would:?}");
        let admitted = Polled::new(own(ms(want_ms))).must_wait();
        let [a, b, c] = ahead;
        let (.., admitted) = tokio::join!(a.finish(), b.finish(), c.finish(), admitted.finish());
        assert_eq!(waited(&admitted), ms(want_ms), "{limit}");
    }
}

#[tokio::test(start_paused = true)]
async fn overtaken_acquire_is_refused_once_it_would_be_late() {
    let scope = scope("fixed-window limit=1 window=100ms");
    scope.check("key").now().unwrap();
    let began = Instant::now();
    let first = Polled::new(scope.acquire("key").max_wait(ms(150))).must_wait();
    let second = Polled::new(scope.acquire("key").max_wait(ms(250))).must_wait();
    let overtaking = async {
        tokio::time::advance(ms(100)).await;
        assert!(scope.check("key").now().unwrap().is_allowed());
    };
    let ended = |refused| (would_wait(&refused), began.elapsed());
    let ((), first, second) = tokio::join!(
        biased;
        overtaking,
        async { ended(first.finish().await) },
        async { second.finish().await },
    );
    assert_eq!(first, (Some(ms(200)), ms(100)));
    assert_eq!(waited(&second), ms(200));
}

#[tokio::test(start_paused = true)]
async fn waiters_are_refused_at_once_when_the_front_makes_them_late() {
    let scope = scope("fixed-window limit=2 window=100ms");
    scope.check("key").cost(2).now().unwrap();
    let began = Instant::now();
    // Each in its own task, because in one task polling one would poll the other.
    let [front, behind] = [scope.clone(), scope.clone()];
    let front = tokio::spawn(async move { front.acquire("key").cost(2).await.unwrap() });
    tokio::task::yield_now().await;
    let behind = tokio::spawn(async move {
        let refused = behind.acquire("key").max_wait(ms(250)).await.unwrap();
        (would_wait(&refused), began.elapsed())
    });
    for _ in 0..2 {
        tokio::time::sleep(ms(100)).await;
        scope.check("key").now().unwrap();
    }
    assert_eq!(waited(&front.await.unwrap()), ms(300));
    assert_eq!(behind.await.unwrap(), (Some(ms(300)), ms(200)));
}

#[tokio::test(start_paused = true)]
async fn unpolled_front_does_not_hold_waiters_past_their_max_wait() {
    let scope = scope("token-bucket capacity=1 refill=1/10ms");
    scope.check("key").now().unwrap();
    let _kept = Polled::new(scope.acquire("key")).must_wait();
    let began = Instant::now();
    let refused = scope.acquire("key").max_wait(ms(50)).await.unwrap();
    assert!(!refused.is_admitted());
    assert_eq!(began.elapsed(), ms(60));
}
