use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{Limit, Limiter};

/// Two threads, four keys and a real clock. Every fourth acquire gives up early, at any point.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_acquire_ends_under_real_threads() {
    let limiter = Limiter::memory();
    let limit: Limit = "token-bucket capacity=20 refill=20/ms".parse().unwrap();
    let scope = limiter.scope("test", limit).unwrap();
    let admitted = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for index in 0..2_000_u64 {
        let (scope, admitted) = (scope.clone(), Arc::clone(&admitted));
        tasks.spawn(async move {
            let key = [b'a' + (index % 4) as u8];
            let acquire = scope.acquire(&key).cost(1 + index % 7);
            let patience = match index % 4 {
                0 => Duration::from_micros(index * 3),
                _ => Duration::from_secs(60),
            };
            if let Ok(acquired) = tokio::time::timeout(patience, acquire).await {
                assert!(acquired.unwrap().is_admitted());
                admitted.fetch_add(1, Ordering::Relaxed);
            } else {
                assert_eq!(index % 4, 0, "acquire {index} was never woken");
            }
        });
    }
    tasks.join_all().await;
    assert!(admitted.load(Ordering::Relaxed) >= 1_500);
    assert_eq!(limiter.waiting(), 0);
}
