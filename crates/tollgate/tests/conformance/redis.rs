//! The Redis store, on a real Redis and a real Valkey.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Limiter, ManualClock};
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

/// A server for the tests of one thread, which is one test; it stops with it.
fn start(flavour: Flavour) -> Server {
    Launch::new(flavour).start().unwrap_or_else(|error| panic!("{error}"))
}

/// A limiter with keys of its own.
fn open(server: &Server, clock: &ManualClock) -> Limiter {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("{}:", OPENED.fetch_add(1, Ordering::Relaxed));
    let builder = Limiter::builder().redis(&server.url()).unwrap().prefix(&prefix).unwrap();
    builder.clock(clock).deadline(Duration::from_secs(30)).build().unwrap()
}
