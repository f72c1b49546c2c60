use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::setup::{Polled, ms, remaining, scope, waited, would_wait};

#[tokio::test(start_paused = true)]
async fn burst_above_the_capacity_leaves_evenly() {
    let scope = scope("leaky-bucket capacity=4 leak=1/10ms mode=shaping");
    let left = Arc::new(Mutex::new(Vec::new()));
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    for index in 0..12_u32 {
        let (scope, left) = (scope.clone(), Arc::clone(&left));
        tasks.spawn(async move {
            let acquired = scope.acquire("key").await.unwrap();
            assert_eq!(waited(&acquired), began.elapsed());
            left.lock().unwrap().push((index, began.elapsed()));
        });
        tokio::task::yield_now().await;
    }
    tasks.join_all().await;
    let evenly: Vec<_> = (0..12).map(|index| (index, ms(10) * index)).collect();
    assert_eq!(*left.lock().unwrap(), evenly);
}

#[tokio::test(start_paused = true)]
async fn delay_counts_against_max_wait() {
    let scope = scope("leaky-bucket capacity=4 leak=1/10ms mode=shaping");
    scope.check("key").cost(4).now().unwrap();
    // The acquire would be charged after 10 ms, and leave after 40 ms.
    let refused = Polled::new(scope.acquire("key").max_wait(ms(39))).poll().unwrap().unwrap();
    assert_eq!(would_wait(&refused), Some(ms(40)));
    assert_eq!(waited(&scope.acquire("key").max_wait(ms(40)).await.unwrap()), ms(40));
}

#[tokio::test(start_paused = true)]
async fn last_place_is_refunded_when_dropped_during_its_delay() {
    let scope = scope("leaky-bucket capacity=4 leak=1/10ms mode=shaping");
    scope.check("key").now().unwrap();
    let delayed = Polled::new(scope.acquire("key").cost(3)).must_wait();
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (0, 0));
    drop(delayed);
    assert_eq!(remaining(&scope), 3);
}

#[tokio::test(start_paused = true)]
async fn place_stays_spent_when_dropped_with_others_behind_it() {
    let scope = scope("leaky-bucket capacity=4 leak=1/10ms mode=shaping");
    scope.check("key").now().unwrap();
    let delayed = Polled::new(scope.acquire("key")).must_wait();
    let behind = Polled::new(scope.acquire("key")).must_wait();
    drop(delayed);
    assert_eq!(remaining(&scope), 1);
    assert_eq!(waited(&behind.finish().await), ms(20));
}

#[tokio::test(start_paused = true)]
async fn refunded_place_goes_to_the_front_waiter_at_once() {
    let scope = scope("leaky-bucket capacity=4 leak=1/10ms mode=shaping");
    scope.check("key").now().unwrap();
    let delayed = Polled::new(scope.acquire("key").cost(3)).must_wait();
    let front = scope.acquire("key").cost(2);
    let began = Instant::now();
    let (front, ()) = tokio::join!(biased; front, async {
        assert_eq!(scope.limiter().waiting(), 1);
        drop(delayed);
    });
    // The place right behind the first charge.
    assert_eq!((waited(&front.unwrap()), began.elapsed()), (ms(10), ms(10)));
}
