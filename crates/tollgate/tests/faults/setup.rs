//! Servers, limiters on them, and helpers that send commands to a server.

use std::time::{Duration, Instant};

use redis::{Cmd, Connection, FromRedisValue};
use tollgate::{BreakerState, Error, Limit, Limiter, OnFailure, Redis, Scope, StoreError};
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

/// How much later than its deadline an answer may come on a busy machine.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// How long a failure may last after its cause is gone. A breaker is open for at most 1.2 s.
pub(crate) const RECOVERY: Duration = Duration::from_secs(5);

/// A deadline that a working server meets, and that is short enough to wait for when it fails.
pub(crate) const SHORT_DEADLINE: Duration = Duration::from_millis(50);

pub(crate) fn start(flavour: Flavour) -> Server {
    launch(&Launch::new(flavour))
}

pub(crate) fn launch(launch: &Launch) -> Server {
    launch.start().unwrap_or_else(|error| panic!("{error}"))
}

/// A builder with the policy `Closed`, so that a failure of the server is an error.
pub(crate) fn builder(url: &str) -> Redis {
    Redis::at(url).unwrap().on_failure(OnFailure::Closed)
}

/// A builder with the policy `Closed` and a deadline of 30 s.
pub(crate) fn long_deadline(url: &str) -> Redis {
    builder(url).deadline(PATIENCE)
}

pub(crate) fn at(url: &str) -> Limiter {
    long_deadline(url).build().unwrap()
}

/// A limiter with this policy and a deadline of 50 ms.
pub(crate) fn with(url: &str, on_failure: OnFailure) -> Limiter {
    builder(url).deadline(SHORT_DEADLINE).on_failure(on_failure).build().unwrap()
}

pub(crate) fn within(url: &str, deadline: Duration) -> Limiter {
    builder(url).deadline(deadline).build().unwrap()
}

pub(crate) fn named(limiter: &Limiter, name: &str, text: &str) -> Scope {
    limiter.scope(name, text.parse::<Limit>().unwrap()).unwrap()
}

/// A limit under its own text as the name.
pub(crate) fn scope(limiter: &Limiter, text: &str) -> Scope {
    named(limiter, text, text)
}

/// A limit of `limit` units. No unit comes back while a test runs.
pub(crate) fn limited(limiter: &Limiter, name: &str, limit: u64) -> Scope {
    named(limiter, name, &format!("fixed-window limit={limit} window=366d"))
}

pub(crate) fn store_error<T: std::fmt::Debug>(answer: Result<T, Error>) -> StoreError {
    match answer {
        Err(Error::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

pub(crate) async fn remaining(scope: &Scope, key: &str) -> u64 {
    scope.peek(key).await.unwrap().remaining()
}

/// The breaker's state for the only server of a limiter.
pub(crate) fn breaker(limiter: &Limiter) -> BreakerState {
    limiter.health().unwrap().servers[0].breaker
}

/// Waits until `is_so` returns true.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Peeks at a key until the server answers, for at most [`RECOVERY`]. Returns what remains.
pub(crate) async fn until_answered(scope: &Scope, key: &str) -> u64 {
    let began = Instant::now();
    loop {
        match scope.peek(key).await {
            Ok(decision) => return decision.remaining(),
            Err(error) => assert!(began.elapsed() < RECOVERY, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// A connection to the server that does not go through a limiter.
pub(crate) fn admin(server: &Server) -> Connection {
    redis::Client::open(server.url()).unwrap().get_connection().unwrap()
}

/// Makes a command from its words, as in `CLIENT KILL TYPE normal`.
pub(crate) fn command(text: &str) -> Cmd {
    let mut words = text.split(' ');
    let mut command = redis::cmd(words.next().unwrap());
    words.for_each(|word| _ = command.arg(word));
    command
}

/// Sends a command to the server itself, not through a limiter or a proxy.
pub(crate) fn ask<T: FromRedisValue>(server: &Server, text: &str) -> T {
    server.ask(&command(text)).unwrap_or_else(|error| panic!("{text}: {error}"))
}

pub(crate) fn config(server: &Server, name: &str, value: &str) {
    let mut set = command("CONFIG SET");
    server.ask::<()>(set.arg(name).arg(value)).unwrap_or_else(|error| panic!("{name}: {error}"));
}

/// The value of one line of `INFO`.
pub(crate) fn info(server: &Server, name: &str) -> String {
    let all: String = ask(server, "INFO all");
    let value = all.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {all}")).to_owned()
}

/// Peeks until the server decides and every breaker is closed, so that the next check is sent too.
pub(crate) async fn until_decided(scope: &Scope) {
    let began = Instant::now();
    let is_closed = || {
        let servers = scope.limiter().health().unwrap().servers;
        servers.iter().all(|server| server.breaker == BreakerState::Closed)
    };
    while !(scope.peek("probe").await.is_ok_and(|it| !it.is_degraded()) && is_closed()) {
        assert!(began.elapsed() < PATIENCE, "{:?}", scope.limiter().health());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// How often the server ran a script, by its hash or by its text.
pub(crate) fn scripts_run(server: &Server) -> u64 {
    let stats: String = server.ask(redis::cmd("INFO").arg("commandstats")).unwrap();
    let calls = |command: &str| {
        let start = format!("cmdstat_{command}:calls=");
        let line = stats.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    };
    calls("evalsha") + calls("eval")
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
