use crate::setup::{Polled, ms, remaining, scope, waited};

#[tokio::test(start_paused = true)]
async fn next_waiter_checks_at_once_when_the_front_gives_up() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    scope.check("key").cost(4).now().unwrap();
    let front = Polled::new(scope.acquire("key").cost(4)).must_wait();
    let behind = Polled::new(scope.acquire("key").cost(1)).must_wait();
    let giving_up = async {
        tokio::time::sleep(ms(25)).await;
        drop(front);
    };
    let (behind, ()) = tokio::join!(behind.finish(), giving_up);
    assert_eq!(waited(&behind), ms(25));
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn woken_acquire_passes_on_its_turn_when_dropped() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    scope.check("key").cost(4).now().unwrap();
    let front = Polled::new(scope.acquire("key")).must_wait();
    let woken = Polled::new(scope.acquire("key")).must_wait();
    let last = Polled::new(scope.acquire("key")).must_wait();
    let giving_up = async {
        tokio::time::sleep(ms(5)).await;
        drop(front);
        drop(woken);
    };
    let (last, ()) = tokio::join!(last.finish(), giving_up);
    assert_eq!(waited(&last), ms(10));
}

#[tokio::test(start_paused = true)]
async fn dropped_waiter_does_not_delay_the_waiters_behind_it() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    scope.check("key").cost(4).now().unwrap();
    let front = Polled::new(scope.acquire("key")).must_wait();
    let middle = Polled::new(scope.acquire("key").cost(4)).must_wait();
    let last = Polled::new(scope.acquire("key")).must_wait();
    drop(middle);
    let (front, last) = tokio::join!(front.finish(), last.finish());
    assert_eq!((waited(&front), waited(&last)), (ms(10), ms(20)));
}

#[tokio::test(start_paused = true)]
async fn front_waiter_checks_at_once_after_a_refund_or_reset() {
    let scope = scope("fixed-window limit=2 window=1d");
    let receipt = scope.check("key").cost(2).now().unwrap().into_receipt().unwrap();
    let (waiting, ()) = tokio::join!(biased; scope.acquire("key").cost(2), async {
        tokio::time::sleep(ms(5)).await;
        scope.refund_now("key", receipt).unwrap();
    });
    assert_eq!(waited(&waiting.unwrap()), ms(5));
    let (waiting, ()) = tokio::join!(biased; scope.acquire("key"), async {
        tokio::time::sleep(ms(7)).await;
        scope.reset_now("key").unwrap();
    });
    assert_eq!(waited(&waiting.unwrap()), ms(7));
}

#[tokio::test(start_paused = true)]
async fn acquired_charge_can_be_refunded() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    let receipt = scope.acquire("key").cost(3).await.unwrap().into_receipt().unwrap();
    assert_eq!(remaining(&scope), 1);
    assert_eq!(scope.refund_now("key", receipt), Ok(3));
}

#[test]
fn unpolled_acquire_is_not_queued() {
    let scope = scope("token-bucket capacity=4 refill=1/10ms");
    drop(Polled::new(scope.acquire("key")));
    assert_eq!((remaining(&scope), scope.limiter().waiting()), (4, 0));
}
