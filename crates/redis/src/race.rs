//! Queries several servers that should all give the same answer.

use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::timeout;

/// The time after which the next server is queried as well.
const HEAD_START: Duration = Duration::from_millis(100);

/// Returns the first good answer. Queries a server when the one before it has failed or is slow. Returns the last error if
/// all fail; `None` if there is no server.
pub(super) async fn first_of<T, E, F>(queries: impl IntoIterator<Item = F>) -> Result<T, Option<E>>
where
    T: Send + 'static,
    E: Send + 'static,
    F: Future<Output = Result<T, E>> + Send + 'static,
{
    let mut queries = queries.into_iter();
    let mut running = JoinSet::new();
    let mut failure = None;
    loop {
        let is_last = match queries.next() {
            Some(next) => {
                running.spawn(next);
                false
            }
            None => true,
        };
        let answer = if is_last {
            running.join_next().await
        } else {
            match timeout(HEAD_START, running.join_next()).await {
                Ok(answer) => answer,
                Err(_) => continue,
            }
        };
        match answer {
            Some(Ok(Ok(good))) => return Ok(good),
            Some(Ok(Err(error))) => failure = Some(error),
            // The task was cancelled or panicked; the others continue.
            Some(Err(_)) => {}
            None => return Err(failure),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::{Instant, sleep};

    use super::*;

    async fn answer(after_ms: u64, answer: Result<u8, u8>) -> Result<u8, u8> {
        sleep(Duration::from_millis(after_ms)).await;
        answer
    }

    #[tokio::test(start_paused = true)]
    async fn first_good_answer_is_returned_and_no_more_servers_are_queried() {
        let queries = Arc::new(AtomicUsize::new(0));
        let all = [Err(1), Ok(2), Ok(3)].map(|result| {
            let queries = Arc::clone(&queries);
            async move {
                queries.fetch_add(1, Ordering::Relaxed);
                answer(1, result).await
            }
        });
        assert_eq!(first_of(all).await, Ok(2));
        assert_eq!(queries.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn next_server_is_queried_after_the_head_start_and_the_first_answer_wins() {
        let began = Instant::now();
        let mute = Box::pin(pending()) as std::pin::Pin<Box<dyn Future<Output = _> + Send>>;
        assert_eq!(first_of([mute, Box::pin(answer(1, Ok(2)))]).await, Ok(2));
        assert_eq!(began.elapsed(), Duration::from_millis(101));
        assert_eq!(first_of([answer(120, Ok(1)), answer(500, Ok(2))]).await, Ok(1));
    }

    #[tokio::test(start_paused = true)]
    async fn last_error_is_returned_when_all_fail() {
        assert_eq!(first_of([answer(1, Err(1)), answer(2, Err(2))]).await, Err(Some(2)));
        assert_eq!(first_of([answer(1, Err(1))].into_iter().take(0)).await, Err(None));
    }
}
