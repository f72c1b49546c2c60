//! Counts the limiters that share the servers and the prefix: each notes itself under one key every second, and gets the
//! number of all that did so lately.
//!
//! The number is for limiters that decide on their share of a limit while the servers fail. So the beats begin with the
//! first request under such a policy. A task of its own sends them, on the connection that the checks use, and no check
//! waits for a beat. A beat that fails changes nothing: the last number holds, which is what a share needs when the
//! servers fail.
//!
//! All limiters use one key, which is on one server: with shards the one that the key's hash selects, in a cluster the one
//! that has the key's slot. While only that server fails, the last number holds.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::time::{sleep, timeout};
use tollgate_limiter::OnFailure;
use tollgate_limiter::store::Call;

use super::servers::Servers;

const SCRIPT: &str = include_str!("heartbeat.lua");

/// The end of the key. No key of a client is like this, because those have braces.
const KEY: &str = "processes";

/// The shortest time between two beats.
const EVERY_MS: u64 = 1_000;

/// With many limiters each one beats more rarely, so that the server gets at most 50 beats a second. One beat takes it
/// about half a millisecond with a thousand limiters.
const EVERY_MS_FOR_EACH: u64 = 20;

/// How many beats a limiter may miss before it counts as gone.
const BEATS_TO_LIVE: u64 = 5;

/// The most limiters that are counted.
const MAX_LIMITERS: u32 = 1_024;

/// How long a reply is waited for.
const REPLY_TIME: Duration = Duration::from_secs(1);

/// The time until the first try. Doubles with each try while no connection is open.
const FIRST_TRY_MS: u64 = 10;

/// Whether the beats of a limiter are being sent.
#[derive(Clone, Default)]
pub(super) struct Heartbeat {
    is_running: Arc<AtomicBool>,
}

impl Heartbeat {
    /// Begins to send beats, if the policy of a request needs the number of limiters and none are being sent.
    #[inline]
    pub(super) fn start_for(&self, call: &Call, servers: &Arc<Servers>, prefix: &str) {
        let is_needed = call.on_failure == OnFailure::Local { processes: None };
        if is_needed && !self.is_running.load(Ordering::Relaxed) {
            self.start(servers, prefix);
        }
    }

    #[cold]
    fn start(&self, servers: &Arc<Servers>, prefix: &str) {
        if self.is_running.swap(true, Ordering::Relaxed) {
            return;
        }
        let running = RunningBeats { is_running: Arc::clone(&self.is_running) };
        let limiter = Member::new(Arc::downgrade(servers), prefix);
        servers.shared().executor.spawn(async move {
            let _running = running;
            limiter.beat_while_alive().await;
        });
    }
}

/// Beats that are being sent. If they end because their runtime has ended, the next request begins them again elsewhere.
struct RunningBeats {
    is_running: Arc<AtomicBool>,
}

impl Drop for RunningBeats {
    fn drop(&mut self) {
        self.is_running.store(false, Ordering::Relaxed);
    }
}

/// One of the limiters that are counted.
struct Member {
    servers: Weak<Servers>,
    key: String,
    id: String,
    random: RandomState,
}

impl Member {
    fn new(servers: Weak<Servers>, prefix: &str) -> Member {
        let random = RandomState::new();
        let id = format!("{:016x}", random.hash_one(std::process::id()));
        Member { servers, key: format!("{prefix}{KEY}"), id, random }
    }

    /// Sends beats until the limiter is dropped.
    async fn beat_while_alive(self) {
        let (mut every_ms, mut wait_ms) = (EVERY_MS, FIRST_TRY_MS);
        for nth in 0_u64.. {
            sleep(self.jittered(wait_ms, nth)).await;
            let Some(servers) = self.servers.upgrade() else { return };
            let connection = servers.connection_for(self.key.as_bytes()).await;
            let shared = Arc::clone(servers.shared());
            // Not held while the reply is awaited, so that the limiter can be dropped.
            drop(servers);
            wait_ms = match connection {
                Some(connection) => {
                    if let Some(count) = self.beat(connection, every_ms * BEATS_TO_LIVE).await {
                        shared.fallback.set_live_processes(count);
                        every_ms = EVERY_MS.max(EVERY_MS_FOR_EACH * u64::from(count));
                    }
                    every_ms
                }
                None => every_ms.min(wait_ms * 2),
            };
        }
    }

    /// Sends one beat. Returns the number of limiters that are alive.
    async fn beat(&self, mut connection: MultiplexedConnection, alive_ms: u64) -> Option<u32> {
        let mut command = redis::cmd("EVAL");
        command.arg(SCRIPT).arg(1).arg(&self.key).arg(&self.id).arg(alive_ms).arg(MAX_LIMITERS);
        let reply = command.query_async::<u32>(&mut connection);
        let count = timeout(REPLY_TIME, reply).await.ok()?.ok()?;
        (1..=MAX_LIMITERS).contains(&count).then_some(count)
    }

    /// Returns between three and five quarters of this time, so that limiters that start together spread their beats.
    fn jittered(&self, ms: u64, nth: u64) -> Duration {
        Duration::from_millis(ms * 3 / 4 + self.random.hash_one(nth) % (ms / 2 + 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_between_beats_differ_by_up_to_a_quarter() {
        let member = Member::new(Weak::new(), "tollgate:");
        let waits: Vec<u128> =
            (0..1_000).map(|nth| member.jittered(1_000, nth).as_millis()).collect();
        assert!(waits.iter().all(|wait| (750..=1_250).contains(wait)));
        assert!(waits.iter().any(|wait| *wait < 800) && waits.iter().any(|wait| *wait > 1_200));
    }

    #[test]
    fn members_have_ids_of_16_bytes_that_differ() {
        let [one, other] = [(); 2].map(|()| Member::new(Weak::new(), "tollgate:"));
        assert_eq!((one.id.len(), one.key.as_str()), (16, "tollgate:processes"));
        assert_ne!(one.id, other.id);
    }
}
