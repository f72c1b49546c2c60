//! The Redis store, on a real Redis, a real Valkey, three that share the keys, and a cluster of three,
//! as a user that may touch nothing but our keys with nothing but our commands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tollgate::{Limiter, ManualClock, OnFailure, Redis};
use tollgate_launcher::{Cluster, Flavour, Launch, Server};

mod on_redis {
    use super::*;

    crate::suite::suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        SERVER.with(|server| open(server, clock))
    }

    thread_local! {
        static SERVER: Server = start(Flavour::Redis);
    }
}

mod on_valkey {
    use super::*;

    crate::suite::suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        SERVER.with(|server| open(server, clock))
    }

    thread_local! {
        static SERVER: Server = start(Flavour::Valkey);
    }
}

mod on_shards {
    use super::*;

    crate::suite::suite!(make, in several places);

    fn make(clock: &ManualClock) -> Limiter {
        SERVERS.with(|servers| {
            let addrs: Vec<String> =
                servers.iter().map(|server| server.addr().to_string()).collect();
            open_at(&format!("redis+shards://tollgate:secret@{}", addrs.join(",")), clock)
        })
    }

    thread_local! {
        static SERVERS: Arc<[Server; 3]> = SHARED.get(|| [(); 3].map(|()| start(Flavour::Redis)));
    }

    static SHARED: Shared<[Server; 3]> = Shared::new();
}

mod on_a_cluster {
    use super::*;

    crate::suite::suite!(make, in several places);

    fn make(clock: &ManualClock) -> Limiter {
        CLUSTER.with(|cluster| {
            let url = cluster.url().replace("://", "://tollgate:secret@");
            open_at(&url, clock)
        })
    }

    thread_local! {
        static CLUSTER: Arc<Cluster> = SHARED.get(|| {
            let user = format!("{USER} +cluster|slots +asking");
            let launch = Launch::new(Flavour::Valkey).config("user", &user).cluster().primaries(3).replicas_of_each(0);
            launch.start().unwrap_or_else(|error| panic!("{error}"))
        });
    }

    static SHARED: Shared<Cluster> = Shared::new();
}

/// What tests that run at the same time share; it stops with the last of them.
struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    const fn new() -> Shared<T> {
        Shared(Mutex::new(Weak::new()))
    }

    fn get(&self, start: impl FnOnce() -> T) -> Arc<T> {
        let mut shared = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let started = Arc::new(start());
            *shared = Arc::downgrade(&started);
            started
        })
    }
}

/// As in tests/redis/acl.rs, which shows that each of them is needed.
const USER: &str = "tollgate on >secret ~tollgate:* resetchannels -@all +evalsha +eval +time +get +set \
                    +getrange +setrange +strlen +expire +del";

/// A server for the tests of one thread, which is one test; it stops with it.
fn start(flavour: Flavour) -> Server {
    Launch::new(flavour).config("user", USER).start().unwrap_or_else(|error| panic!("{error}"))
}

/// A limiter with keys of its own.
fn open(server: &Server, clock: &ManualClock) -> Limiter {
    open_at(&format!("redis://tollgate:secret@{}", server.addr()), clock)
}

fn open_at(url: &str, clock: &ManualClock) -> Limiter {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("tollgate:{}:", OPENED.fetch_add(1, Ordering::Relaxed));
    let builder = Redis::at(url).unwrap().prefix(&prefix).unwrap();
    let builder = builder.on_failure(OnFailure::Closed);
    builder.clock(clock).deadline(Duration::from_secs(30)).build().unwrap()
}
