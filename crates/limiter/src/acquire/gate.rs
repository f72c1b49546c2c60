//! A further condition that holds back all waiters of a queue.

use std::fmt::Debug;
use std::time::Duration;

/// A further condition that the requests of a key have to wait for, for example until the upstream server
/// accepts requests again.
///
/// The code that closes the gate must [wake](crate::Scope::wake_waiters) the first waiter, which then reads
/// the new state.
pub trait Gate: Debug + Send + Sync {
    /// Returns how long the gate stays closed from now on; zero if it is open.
    fn closed_for(&self) -> Duration;
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tokio::time::Instant;

    use super::*;
    use tollgate_core::Limit;

    use crate::{AcquireOutcome, Clock, Limiter};

    /// A gate that closes when it is read for the third time, until a given time.
    #[derive(Debug)]
    struct ClosingGate {
        reads: AtomicUsize,
        until: Instant,
    }

    impl Gate for ClosingGate {
        fn closed_for(&self) -> Duration {
            match self.reads.fetch_add(1, Ordering::Relaxed) {
                0 | 1 => Duration::ZERO,
                _ => self.until.saturating_duration_since(Instant::now()),
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn acquire_waits_and_charges_nothing_when_the_gate_closes_during_a_check() {
        for limit in ["token-bucket capacity=1 refill=1/d", "leaky-bucket capacity=9 leak=1/s"] {
            let limiter = Limiter::builder().clock(Clock::tokio(0)).build();
            let scope = limiter.scope("test", limit.parse::<Limit>().unwrap()).unwrap();
            let until = Instant::now() + Duration::from_secs(5);
            let gate = ClosingGate { reads: AtomicUsize::new(0), until };
            let looking = async {
                tokio::time::sleep(Duration::from_secs(1)).await;
                let size = scope.limit().size();
                assert_eq!(scope.peek("key").now().unwrap().remaining(), size, "{limit}");
                assert_eq!(limiter.waiting(), 1);
            };
            let (acquired, ()) = tokio::join!(biased; scope.acquire("key").through(&gate), looking);
            let AcquireOutcome::Admitted { waited, decision } = acquired.unwrap() else { panic!() };
            assert_eq!(waited, Duration::from_secs(5));
            assert_eq!(decision.remaining(), scope.limit().size() - 1);
        }
    }
}
