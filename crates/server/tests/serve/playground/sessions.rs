//! Each session has its own counters.

use std::thread;

use serde_json::json;
use tollgate_launcher::{Flavour, Launch};

use super::{FIRST, PlaygroundClient, on_each_store, on_redis, slow_config};
use crate::eventually::eventually;
use crate::server::ServerProcess;

/// The number of sessions that a server keeps.
const MAX_SESSIONS: usize = 1_024;

/// Returns the cookie of a session that the test invents.
fn cookie(number: usize) -> String {
    format!("tollgate_session={number:032x}")
}

fn spent(server: &ServerProcess, cookie: &str) -> u64 {
    let mut client = PlaygroundClient { server, cookie: Some(cookie.to_owned()) };
    let config = json!({"token-bucket": slow_config("token-bucket", 10)});
    let state = client.ask("state", json!({"config": config}));
    10 - state["algorithms"]["token-bucket"]["remaining"].as_u64().unwrap()
}

/// Returns the number of keys in a Redis whose names contain a text.
fn keys_with(redis: &str, text: &str) -> usize {
    let mut redis = redis::Client::open(redis).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("*{text}*")).query(&mut redis).unwrap();
    keys.len()
}

#[test]
fn client_without_a_session_gets_one() {
    let server = ServerProcess::start(&[]);
    let mut ids = Vec::new();
    for path in ["token-bucket", "token-bucket/burst", "state", "reset"] {
        let mut client = PlaygroundClient::new(&server);
        let response = client.send(path, "");
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 1, "{path}");
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/api/rate-limit; Max-Age=86400; HttpOnly; SameSite=Strict");
        let id = pair.strip_prefix("tollgate_session=").unwrap().to_owned();
        assert!(id.len() == 32 && id.bytes().all(|it| b"0123456789abcdef".contains(&it)), "{id}");
        assert!(!ids.contains(&id));
        ids.push(id);
        let again = client.send(path, "");
        assert!(!again.headers().contains_key("set-cookie"), "{path}: it has one");
    }
    for wrong in ["tollgate_session=1", "tollgate_session=x; a=b", "other=1", "tollgate_session"] {
        let mut client = PlaygroundClient { server: &server, cookie: Some(wrong.to_owned()) };
        let response = client.send("token-bucket", "");
        assert!(response.headers().contains_key("set-cookie"), "{wrong}");
        assert_eq!(response.text().unwrap(), FIRST, "{wrong}");
    }
    let refused = PlaygroundClient::new(&server).send("token-bucket", r#"{"config":1}"#);
    assert!(!refused.headers().contains_key("set-cookie"), "nothing began");
}

#[test]
fn sessions_have_separate_counters() {
    on_each_store(|server, _| {
        let (mut one, mut other) = (PlaygroundClient::new(server), PlaygroundClient::new(server));
        for (first, second) in [(9, 9), (8, 8)] {
            let body = json!({"config": slow_config("token-bucket", 10)});
            assert_eq!(one.ask("token-bucket", body.clone())["remaining"], first);
            assert_eq!(other.ask("token-bucket", body)["remaining"], second);
        }
        one.ask("reset", json!({}));
        assert_eq!(spent(server, one.cookie.as_deref().unwrap()), 0);
        assert_eq!(spent(server, other.cookie.as_deref().unwrap()), 2);
        let among = format!("a=b; {}; c=d", other.cookie.unwrap());
        assert_eq!(spent(server, &among), 2);
    });
}

#[test]
fn servers_on_one_redis_share_a_session() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let servers = [on_redis(&redis.url()), on_redis(&redis.url())];
    let mut client = PlaygroundClient::new(&servers[0]);
    for (nth, remaining) in [9, 8, 7, 6].into_iter().enumerate() {
        client.server = &servers[nth % 2];
        let body = json!({"config": slow_config("sliding-window-log", 10)});
        assert_eq!(client.ask("sliding-window-log", body)["remaining"], remaining);
    }
    client.ask("reset", json!({}));
    client.server = &servers[0];
    let body = json!({"config": slow_config("sliding-window-log", 10)});
    assert_eq!(client.ask("sliding-window-log", body)["remaining"], 9);
}

#[test]
fn new_session_evicts_the_least_recently_used_one() {
    on_each_store(|server, redis| {
        let play = |number: usize| {
            let mut client = PlaygroundClient { server, cookie: Some(cookie(number)) };
            client.ask("token-bucket", json!({"config": slow_config("token-bucket", 10)}));
        };
        play(0);
        play(1);
        // The first session sends another request, so that the second one is now the least recently used.
        play(0);
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || (2..MAX_SESSIONS).filter(|it| it % 4 == part).for_each(play));
            }
        });
        assert_eq!(
            [0, 1, 2].map(|it| spent(server, &cookie(it))),
            [2, 1, 1],
            "all sessions are kept"
        );
        if let Some(redis) = redis {
            assert_eq!(keys_with(redis, &format!("{:032x}", 1)), 1);
        }
        play(MAX_SESSIONS);
        assert_eq!([0, 1, MAX_SESSIONS].map(|it| spent(server, &cookie(it))), [2, 0, 1]);
        if let Some(redis) = redis {
            assert_eq!(keys_with(redis, &format!("{:032x}", 1)), 0);
            assert_eq!(
                keys_with(redis, "playground"),
                MAX_SESSIONS,
                "the evicted session's keys are gone"
            );
        }
    });
}

#[test]
fn hanging_redis_keeps_no_more_sessions_than_the_maximum() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url(), "--store-deadline", "50ms"]);
    // The leaky bucket is reset last, so a reset that fails earlier does not reach it.
    let play = |number: usize| {
        let mut client = PlaygroundClient { server: &server, cookie: Some(cookie(number)) };
        let body = json!({"config": slow_config("leaky-bucket", 10)});
        client.send("leaky-bucket", body.to_string()).status().as_u16()
    };
    let keep_trying =
        |number: usize| eventually("Redis answers in time", || (play(number) == 200).then_some(()));
    thread::scope(|scope| {
        for part in 0..4 {
            scope
                .spawn(move || (0..MAX_SESSIONS).filter(|it| it % 4 == part).for_each(keep_trying));
        }
    });
    assert_eq!(keys_with(&redis.url(), "playground"), MAX_SESSIONS);
    let pause = redis::cmd("CLIENT").arg("PAUSE").arg(1_500).to_owned();
    redis.ask::<()>(&pause).unwrap();
    let newcomers = MAX_SESSIONS..MAX_SESSIONS + 8;
    thread::scope(|scope| {
        for number in newcomers.clone() {
            scope.spawn(move || assert_ne!(play(number), 200));
        }
    });
    newcomers.for_each(keep_trying);
    let left = keys_with(&redis.url(), "playground");
    assert!(left <= MAX_SESSIONS, "{left}");
}
