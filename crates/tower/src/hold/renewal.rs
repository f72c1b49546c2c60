//! Moves the expiry of a hold while its request is under way.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep};
use tollgate_limiter::{Answer, Clock, Error, JointExtension};

/// A hold that can be renewed.
pub(super) trait Renewable: Send + Sync + 'static {
    /// Sends an extension that adds no units and moves the expiry. Returns `None` once the hold has ended.
    fn renew(&self) -> Option<Answer<JointExtension>>;

    /// Removes the limits under which the answer to an extension says that the hold has ended. Returns false if there are no
    /// such limits, or no others.
    fn forget_ended(&self, extension: &JointExtension) -> bool;

    /// Logs that the store failed; the hold is renewed again soon.
    fn log_failure(&self, error: &Error);

    /// Logs that the hold has ended on the store.
    fn log_early_end(&self);
}

/// How often a hold is renewed, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct RenewalTimes {
    pub(super) hold_for: Duration,
    pub(super) max_hold: Duration,
}

/// The renewal of a hold. Dropping it ends the renewal.
pub(super) enum Renewal {
    /// A task on the runtime that serves the request. The body is no place for the timer: while a slow client does not
    /// read, the server does not poll the body.
    Task(AbortHandle),
    /// Without a runtime the hold is renewed when the response is polled.
    Polled { due_us: u64, until_us: u64 },
}

impl Renewal {
    /// Starts to renew a hold that was reserved at `now_us`.
    pub(super) fn start<H: Renewable>(hold: &Arc<H>, times: RenewalTimes, now_us: u64) -> Renewal {
        match Handle::try_current() {
            Ok(runtime) => {
                let renewing = renew(Arc::downgrade(hold), times);
                Renewal::Task(runtime.spawn(renewing).abort_handle())
            }
            Err(_) => Renewal::Polled {
                due_us: now_us.saturating_add(micros(times.interval())),
                until_us: now_us.saturating_add(micros(times.max_hold)),
            },
        }
    }

    /// Returns whether a hold that no task renews must be renewed now.
    pub(super) fn is_due(&mut self, times: RenewalTimes, clock: &Clock) -> bool {
        let Renewal::Polled { due_us, until_us } = self else { return false };
        let now_us = clock.now_us();
        let is_due = (*due_us..*until_us).contains(&now_us);
        if is_due {
            *due_us = now_us.saturating_add(micros(times.interval()));
        }
        is_due
    }
}

impl Drop for Renewal {
    fn drop(&mut self) {
        if let Renewal::Task(task) = self {
            task.abort();
        }
    }
}

impl RenewalTimes {
    /// Returns the time between two renewals: half of the hold's time, and at least the resolution of timers.
    fn interval(self) -> Duration {
        (self.hold_for / 2).max(Duration::from_millis(1))
    }

    /// Returns the time after which a failed renewal is tried again: four tries before the hold expires.
    fn retry_interval(self) -> Duration {
        (self.hold_for / 8).max(Duration::from_millis(1))
    }
}

async fn renew<H: Renewable>(hold: Weak<H>, times: RenewalTimes) {
    let began = Instant::now();
    let (mut renewed, mut wait) = (began, times.interval());
    loop {
        sleep(wait).await;
        if began.elapsed() >= times.max_hold {
            return;
        }
        let Some(answer) = hold.upgrade().and_then(|hold| hold.renew()) else { return };
        let sent = Instant::now();
        let answer = answer.await;
        let Some(hold) = hold.upgrade() else { return };
        wait = match answer {
            Ok(extension) if extension.is_granted() => {
                renewed = sent;
                times.interval()
            }
            // An extension is for all limits or for none, so the others are extended now.
            Ok(extension) if hold.forget_ended(&extension) => {
                hold.log_early_end();
                Duration::ZERO
            }
            Err(error) if renewed.elapsed() < times.hold_for => {
                hold.log_failure(&error);
                times.retry_interval()
            }
            Ok(_) | Err(_) => return hold.log_early_end(),
        };
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
