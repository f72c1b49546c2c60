//! What may close the way for everybody in a line.

use std::fmt::Debug;
use std::time::Duration;

/// Something else that a key's requests have to wait for, such as the word of the server they go to.
///
/// Whoever closes it [wakes](crate::Scope::wake_waiters) the first waiter, which then learns of it.
pub trait Gate: Debug + Send + Sync {
    /// How long it stays closed from now on; zero if it is open.
    fn closed_for(&self) -> Duration;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;
    use tollgate_core::Limit;

    use crate::{Acquired, Clock, Limiter};

    /// Closes when it was looked at so often, until a time.
    #[derive(Debug)]
    struct Closing {
        looks: AtomicUsize,
        until: Instant,
    }

    impl Gate for Closing {
        fn closed_for(&self) -> Duration {
            match self.looks.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Duration::ZERO,
                _ => self.until.saturating_duration_since(Instant::now()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_gate_that_closes_while_the_store_is_asked_is_waited_for_and_nothing_charged() {
        for limit in ["token-bucket capacity=1 refill=1/d", "leaky-bucket capacity=9 leak=1/s"] {
            let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
            let scope = limiter.scope("test", limit.parse::<Limit>().unwrap()).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            let gate = Closing { looks: AtomicUsize::new(0), until };
            let looking = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let size = scope.limit().size();
                assert_eq!(scope.peek("key").now().unwrap().remaining(), size, "{limit}");
                assert_eq!(limiter.waiting(), 1);
            };
            let (acquired, ()) = tokio::join!(biased; scope.acquire("key").through(&gate), looking);
            let Acquired::Admitted { waited, decision } = acquired.unwrap() else { panic!() };
            assert_eq!(waited, Duration::from_secs(5));
            assert_eq!(decision.remaining(), scope.limit().size() - 1);
        }
    }
}
