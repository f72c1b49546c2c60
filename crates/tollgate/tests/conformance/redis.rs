//! The Redis store, on a real Redis and a real Valkey, as a user that may touch nothing but our keys
//! with nothing but our commands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Limiter, ManualClock, OnFailure};
use tollgate_launcher::{Flavour, Launch, Server};

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

/// As in tests/redis/acl.rs, which shows that each of them is needed.
const USER: &str = "tollgate on >secret ~tollgate:* resetchannels -@all +evalsha +eval +time +get +set \
                    +getrange +setrange +strlen +expire +del";

/// A server for the tests of one thread, which is one test; it stops with it.
fn start(flavour: Flavour) -> Server {
    Launch::new(flavour).config("user", USER).start().unwrap_or_else(|error| panic!("{error}"))
}

/// A limiter with keys of its own.
fn open(server: &Server, clock: &ManualClock) -> Limiter {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("tollgate:{}:", OPENED.fetch_add(1, Ordering::Relaxed));
    let url = format!("redis://tollgate:secret@{}", server.addr());
    let builder = Limiter::builder().redis(&url).unwrap().prefix(&prefix).unwrap();
    let builder = builder.on_failure(OnFailure::Closed);
    builder.clock(clock).deadline(Duration::from_secs(30)).build().unwrap()
}
