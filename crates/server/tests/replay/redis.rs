//! Replays with their state on a real Redis and a real Valkey.

use proptest::prelude::*;
use tollgate_launcher::{Cluster, Flavour, Launch, Server};

use crate::command::{
    BUCKET, GrowingTrace, WorkedTrace, assert_decides_each_line, examples, replay, replay_on,
    stderr, stdout,
};

fn servers() -> impl Iterator<Item = Server> {
    Flavour::ALL.into_iter().map(|flavour| Launch::new(flavour).start().unwrap())
}

/// Returns every key on the server, and its time to live in seconds.
fn keys(server: &Server) -> Vec<(String, i64)> {
    let mut admin = redis::Client::open(server.unix_url()).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut admin).unwrap();
    let ttl_s = |key: &String| redis::cmd("TTL").arg(key).query(&mut admin).unwrap();
    let ttls: Vec<i64> = keys.iter().map(ttl_s).collect();
    keys.into_iter().zip(ttls).collect()
}

#[test]
fn reproduces_the_worked_examples() {
    for server in servers() {
        for WorkedTrace { limit, trace, decisions } in examples() {
            for url in [server.url(), server.unix_url()] {
                let output = replay_on(&url, &limit, trace.as_bytes());
                assert_eq!(stdout(&output), decisions, "{limit}: {}", stderr(&output));
            }
        }
    }
}

#[test]
fn reproduces_the_worked_examples_on_a_cluster_and_on_shards() {
    let cluster = Cluster::start(Flavour::Redis, 3, 0).unwrap();
    let shards: Vec<Server> = servers().collect();
    let addrs: Vec<String> = shards.iter().map(|server| server.addr().to_string()).collect();
    for url in [cluster.url(), format!("redis+shards://{}", addrs.join(","))] {
        for WorkedTrace { limit, trace, decisions } in examples() {
            let output = replay_on(&url, &limit, trace.as_bytes());
            assert_eq!(stdout(&output), decisions, "{limit}: {}", stderr(&output));
        }
    }
}

#[test]
fn summary_omits_numbers_of_the_memory_store() {
    for server in servers() {
        let output = replay_on(&server.url(), BUCKET, b"at_us,key,cost\n0,a,1\n0,a,10\n");
        assert!(stderr(&output).starts_with("requests: 2, allowed: 1, denied: 1, in "));
        assert_eq!((output.status.code(), stderr(&output).lines().count()), (Some(0), 1));
    }
}

fn limits() -> impl Strategy<Value = String> {
    let (size, period) = (1..20_u64, prop::sample::select(vec!["7us", "1ms", "1s", "1m", "1d"]));
    let algorithms = prop::sample::select(vec![
        "fixed-window limit=N window=T",
        "sliding-window-log limit=N window=T",
        "sliding-window-counter limit=N window=T",
        "token-bucket capacity=N refill=3/T",
        "leaky-bucket capacity=N leak=3/T mode=policing",
        "leaky-bucket capacity=N leak=3/T mode=shaping",
    ]);
    (algorithms, size, period).prop_map(|(algorithm, size, period)| {
        algorithm.replace('N', &size.to_string()).replace('T', period)
    })
}

/// Generates traces of up to three batches. The time stays the same, advances, jumps, or steps back by less or by more
/// than 10 s.
fn traces() -> impl Strategy<Value = String> {
    let steps_us = prop_oneof![
        4 => Just(0),
        8 => 0..10_i64,
        8 => 0..1_000_000_i64,
        2 => 0..100_000_000_000_i64,
        2 => -1_000_000..0_i64,
        1 => -9_999_999..0_i64,
        1 => -100_000_000_i64..-10_000_000,
    ];
    let costs = prop_oneof![6 => Just(1), 3 => 1..25_u64, 1 => 1..(1_u64 << 53)];
    let request = (steps_us, "[a-c]|\\PC{1,3}", costs);
    let start_us = prop_oneof![Just(0), Just(1_700_000_000_000_000_i64)];
    (start_us, prop::collection::vec(request, 0..1_500)).prop_map(|(mut at_us, requests)| {
        let mut trace = String::from("at_us,key,cost\n");
        for (step_us, key, cost) in requests {
            at_us = (at_us + step_us).max(0);
            trace += &format!("{at_us},\"{}\",{cost}\n", key.replace('"', "\"\""));
        }
        trace
    })
}

#[test]
fn any_trace_is_decided_as_in_memory() {
    for server in servers() {
        let mut config = ProptestConfig::default();
        if std::env::var_os("PROPTEST_CASES").is_none() {
            config.cases = 64;
        }
        proptest!(config, |(limit in limits(), trace in traces())| {
            let (memory, redis) = (
                replay(&limit, trace.as_bytes()),
                replay_on(&server.url(), &limit, trace.as_bytes()),
            );
            prop_assert_eq!(redis.status.code(), Some(0), "{}", stderr(&redis));
            for (redis, memory) in stdout(&redis).lines().zip(stdout(&memory).lines()) {
                prop_assert_eq!(redis, memory);
            }
            prop_assert_eq!(redis.stdout.len(), memory.stdout.len());
        });
    }
}

#[test]
fn runs_are_isolated_and_their_keys_expire() {
    let trace = b"at_us,key,cost\n0,a,10\n0,a,10\n";
    for server in servers() {
        let first = replay_on(&server.url(), BUCKET, trace);
        assert!(stdout(&first).contains(r#""allowed":true"#));
        assert_eq!(stdout(&first), stdout(&replay_on(&server.url(), BUCKET, trace)));
        let keys = keys(&server);
        assert_eq!(keys.len(), 2);
        for (key, ttl_s) in keys {
            let run = key.strip_prefix("tollgate:replay:").unwrap().split(':').next().unwrap();
            assert!(run.len() == 16 && run.bytes().all(|digit| digit.is_ascii_hexdigit()), "{key}");
            // One hour more than the 10 s after which the bucket is full again, with a margin.
            assert!((3_600..3_660).contains(&ttl_s), "{key} lives for {ttl_s} s");
        }
    }
}

#[test]
fn replay_decides_each_line_as_it_arrives() {
    for server in servers() {
        assert_decides_each_line(&server.url());
    }
}

#[test]
fn bad_line_ends_the_replay_after_the_lines_before_it() {
    let good = "0,a,1\n".repeat(1_300);
    let trace = format!("at_us,key,cost\n{good}0,a,0\n{good}");
    let memory = replay(BUCKET, trace.as_bytes());
    for server in servers() {
        let redis = replay_on(&server.url(), BUCKET, trace.as_bytes());
        assert_eq!(stdout(&redis).lines().count(), 1_300);
        assert!(stderr(&redis).contains("standard input:1302: cost is 0"), "{}", stderr(&redis));
        assert_eq!(
            (redis.status.code(), stdout(&redis), stderr(&redis)),
            (Some(2), stdout(&memory), stderr(&memory))
        );
    }
}

#[test]
fn lost_server_ends_the_replay_with_the_decisions_so_far() {
    for server in servers() {
        let (mut replay, addr) = (GrowingTrace::begin(&server.url()), server.addr().to_string());
        replay.write("at_us,key\n0,a\n");
        assert!(replay.decision().starts_with(r#"{"at_us":0,"#));
        drop(server);
        replay.write("1,a\n2,a\n");
        assert_eq!(replay.decision(), "");
        let output = replay.end();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.starts_with(&format!("error: --store: no connection to {addr}: ")));
        assert!(message.ends_with("\n  requests decided before it: 1\n"), "{message}");
    }
}

#[test]
fn wrong_password_is_refused_at_once_and_not_shown() {
    for server in servers() {
        let url = server.url().replace("://", "://nobody:secret@");
        // The trace stays open, but the command does not read it.
        let mut replay = GrowingTrace::begin(&url);
        assert_eq!(replay.decision(), "");
        let output = replay.end();
        let message = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(message.starts_with("error: --store: the server refused: "), "{message}");
        assert!(message.contains("check that user and password are right"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}
