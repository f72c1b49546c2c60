//! Servers, limiters on them, and helpers that read what is on a server.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use redis::Connection;
use tollgate::{Error, Limit, Limiter, OnFailure, Redis, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Server};

/// Every algorithm with a limit of 100. No unit comes back while a test runs.
pub(crate) const LIMITS: [&str; 6] = [
    "fixed-window limit=100 window=366d",
    "sliding-window-log limit=100 window=366d",
    "sliding-window-counter limit=100 window=366d",
    "token-bucket capacity=100 refill=100/366d",
    "leaky-bucket capacity=100 leak=100/366d mode=policing",
    "leaky-bucket capacity=100 leak=100/366d mode=shaping",
];

/// Long enough for any machine: a test that reaches it has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn start(flavour: Flavour) -> Server {
    launch(&Launch::new(flavour))
}

pub(crate) fn launch(launch: &Launch) -> Server {
    launch.start().unwrap_or_else(|error| panic!("{error}"))
}

/// An address on which nothing listens. Servers of other tests use 127.0.0.1, so none of them takes it.
pub(crate) fn free_addr() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::new(127, 77, 0, 1), 0)).unwrap();
    listener.local_addr().unwrap()
}

pub(crate) fn open(server: &Server) -> Limiter {
    at(&server.url())
}

pub(crate) fn at(url: &str) -> Limiter {
    within(url, PATIENCE)
}

pub(crate) fn within(url: &str, deadline: Duration) -> Limiter {
    builder(url).deadline(deadline).build().unwrap()
}

/// A builder with the policy `Closed`, so that a failure of the server is an error.
pub(crate) fn builder(url: &str) -> Redis {
    Redis::at(url).unwrap().on_failure(OnFailure::Closed)
}

/// A limit under its own text as the name.
pub(crate) fn scope(limiter: &Limiter, text: &str) -> Scope {
    named(limiter, text, text)
}

pub(crate) fn named(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}

pub(crate) fn store_error<T: std::fmt::Debug>(answer: Result<T, Error>) -> StoreError {
    match answer {
        Err(Error::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

/// The server's text in an error that it answered with.
pub(crate) fn refusal<T: std::fmt::Debug>(answer: Result<T, Error>) -> String {
    match store_error(answer) {
        StoreError::Refused { problem } => problem,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn remaining(scope: &Scope, key: &str) -> u64 {
    scope.peek(key).await.unwrap().remaining()
}

/// A connection to the server that does not go through a limiter.
pub(crate) fn admin(server: &Server) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Every key on the server, sorted.
pub(crate) fn keys(admin: &mut Connection) -> Vec<Vec<u8>> {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut cursor = 0_u64;
    loop {
        let (next, some): (u64, Vec<Vec<u8>>) =
            redis::cmd("SCAN").arg(cursor).arg("COUNT").arg(1_000).query(admin).unwrap();
        keys.extend(some);
        cursor = next;
        if cursor == 0 {
            keys.sort();
            keys.dedup();
            return keys;
        }
    }
}

/// The only key that contains `part`.
pub(crate) fn key_with(admin: &mut Connection, part: &str) -> String {
    let all = keys(admin).into_iter().map(|key| String::from_utf8(key).unwrap());
    let mut found: Vec<String> = all.filter(|key| key.contains(part)).collect();
    assert_eq!(found.len(), 1, "{part}: {found:?}");
    found.remove(0)
}

/// The value of a key, and when the key expires, in milliseconds since the Unix epoch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    dump: Option<Vec<u8>>,
    pub(crate) ends_ms: i64,
}

pub(crate) fn kept(admin: &mut Connection, key: &[u8]) -> Kept {
    let dump = redis::cmd("DUMP").arg(key).query(admin).unwrap();
    let ends_ms = redis::cmd("PEXPIRETIME").arg(key).query(admin).unwrap();
    Kept { dump, ends_ms }
}

/// The server's clock.
pub(crate) fn time_us(admin: &mut Connection) -> i64 {
    let (seconds, micros): (i64, i64) = redis::cmd("TIME").query(admin).unwrap();
    seconds * 1_000_000 + micros
}

/// How often the server ran a command.
pub(crate) fn calls(admin: &mut Connection, command: &str) -> u64 {
    let stats: String = redis::cmd("INFO").arg("commandstats").query(admin).unwrap();
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

/// How often the server ran a script, by its hash or by its text.
pub(crate) fn scripts_run(admin: &mut Connection) -> u64 {
    calls(admin, "evalsha") + calls(admin, "eval")
}

/// A pseudo-random generator (xorshift): the same numbers in every run.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
