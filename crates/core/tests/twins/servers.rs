//! A Redis and a Valkey that run the text of the twins.

use std::cell::RefCell;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};
use redis::Connection;
use tollgate_core::store::twins;
use tollgate_launcher::{Flavour, Launch, Server, SharedServers};

/// The texts of all twins, each after the twins that it uses.
const TWINS: [&str; 10] = [
    twins::MULDIV,
    twins::ALGORITHM,
    twins::FIXED_WINDOW,
    twins::SLIDING_WINDOW_COUNTER,
    twins::SLIDING_WINDOW_LOG,
    twins::BUCKET,
    twins::TOKEN_BUCKET,
    twins::LEAKY_BUCKET,
    twins::CONCURRENCY,
    twins::HOLDS,
];

/// One server of each flavour, in the order of [`Flavour::ALL`]. Tests only run scripts that store nothing on it.
static SERVERS: SharedServers<[Server; 2]> = SharedServers::new();

/// A connection to each server.
pub(crate) struct Servers {
    each: Vec<(Flavour, RefCell<Connection>)>,
}

impl Servers {
    pub(crate) fn connect() -> Servers {
        let start = |flavour| Launch::new(flavour).start();
        let [redis, valkey] = Flavour::ALL;
        let servers = SERVERS.get(|| Ok([start(redis)?, start(valkey)?]));
        let servers = servers.unwrap_or_else(|error| panic!("{error}"));
        let connect = |(flavour, server): (Flavour, &Server)| {
            let client = redis::Client::open(server.unix_url()).unwrap();
            (flavour, RefCell::new(client.get_connection().unwrap()))
        };
        Servers { each: Flavour::ALL.into_iter().zip(servers).map(connect).collect() }
    }

    /// Runs the twins and then `script` on each server. Each server returns a text for every argument.
    pub(crate) fn eval(&self, script: &str, arguments: &[String]) -> Vec<(Flavour, Vec<String>)> {
        let body = format!("{}{script}", TWINS.concat());
        let answer = |(flavour, connection): &(Flavour, RefCell<Connection>)| {
            let mut eval = redis::cmd("EVAL");
            eval.arg(&body).arg(0).arg(arguments);
            let texts = eval.query(&mut *connection.borrow_mut());
            (*flavour, texts.unwrap_or_else(|error| panic!("{flavour}: {error}")))
        };
        self.each.iter().map(answer).collect()
    }
}

/// The default number of random values, which `PROPTEST_CASES` overrides. Each value is many decisions.
const CASES: u32 = 64;

/// Tests random values of `strategy` on both servers.
pub(crate) fn prove<S: Strategy>(
    strategy: S,
    holds: impl Fn(&Servers, S::Value) -> Result<(), TestCaseError>,
) {
    let servers = Servers::connect();
    let mut config = Config { failure_persistence: None, ..Config::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    let result = TestRunner::new(config).run(&strategy, |value| holds(&servers, value));
    result.unwrap_or_else(|error| panic!("{error}"));
}
