//! The task that renews leases and ends the idle ones.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::store::Task;

/// The owner of the leases, which the task calls.
pub(super) trait TickTarget: Send + Sync + 'static {
    /// Does what is due, and returns the time until it must be called again; `None` if nothing will be due until the task
    /// is woken.
    fn tick(self: Arc<Self>) -> Option<Duration>;
}

/// The task: started when it is first needed, and again if its runtime has ended.
#[derive(Debug, Default)]
pub(super) struct Ticker {
    state: Arc<TickerState>,
}

#[derive(Debug, Default)]
struct TickerState {
    is_running: AtomicBool,
    woken: Notify,
}

impl Ticker {
    /// Makes the task call `tick` soon. Returns the task if it does not run yet: the caller starts it.
    pub(super) fn wake(&self, target: &Weak<impl TickTarget>) -> Option<Task> {
        self.state.woken.notify_one();
        if self.state.is_running.swap(true, Ordering::AcqRel) {
            return None;
        }
        let running = Running(Arc::clone(&self.state));
        Some(Box::pin(run(running, Weak::clone(target))))
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        // The task then sees that there is nothing to do any more.
        self.state.woken.notify_one();
    }
}

async fn run(running: Running, target: Weak<impl TickTarget>) {
    loop {
        let Some(due) = target.upgrade() else { return };
        let woken = running.0.woken.notified();
        match due.tick() {
            // OK if it takes longer: the time is only an estimate of when there is work.
            Some(wait) => drop(timeout(wait, woken).await),
            None => woken.await,
        }
    }
}

/// Notes that the task has ended, also when its runtime drops it.
#[derive(Debug)]
struct Running(Arc<TickerState>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.store(false, Ordering::Release);
    }
}
