//! Each session has its own counters.

use std::thread;

use serde_json::json;
use tollgate_launcher::{Flavour, Launch};

use super::{FIRST, PlaygroundClient, calm, on_each_store, on_redis};
use crate::eventually::eventually;
use crate::server::ServerProcess;

/// How many sessions a server remembers.
const MAX_SESSIONS: usize = 1_024;

/// The cookie of an invented session.
fn cookie(number: usize) -> String {
    format!("tollgate_session={number:032x}")
}

fn spent(server: &ServerProcess, cookie: &str) -> u64 {
    let mut player = PlaygroundClient { server, cookie: Some(cookie.to_owned()) };
    let config = json!({"token-bucket": calm("token-bucket", 10)});
    let state = player.ask("state", json!({"config": config}));
    10 - state["algorithms"]["token-bucket"]["remaining"].as_u64().unwrap()
}

/// The number of keys of a Redis whose names contain a text.
fn keys_with(redis: &str, text: &str) -> usize {
    let mut redis = redis::Client::open(redis).unwrap().get_connection().unwrap();
    let keys: Vec<String> = redis::cmd("KEYS").arg(format!("*{text}*")).query(&mut redis).unwrap();
    keys.len()
}

#[test]
fn a_client_without_a_session_is_given_one() {
    let server = ServerProcess::start(&[]);
    let mut ids = Vec::new();
    for path in ["token-bucket", "token-bucket/burst", "state", "reset"] {
        let mut player = PlaygroundClient::new(&server);
        let response = player.send(path, "");
        assert_eq!(response.headers().get_all("set-cookie").iter().count(), 1, "{path}");
        let cookie = response.headers()["set-cookie"].to_str().unwrap();
        let (pair, attributes) = cookie.split_once("; ").unwrap();
        assert_eq!(attributes, "Path=/api/rate-limit; Max-Age=86400; HttpOnly; SameSite=Strict");
        let id = pair.strip_prefix("tollgate_session=").unwrap().to_owned();
        assert!(id.len() == 32 && id.bytes().all(|it| b"0123456789abcdef".contains(&it)), "{id}");
        assert!(!ids.contains(&id));
        ids.push(id);
        let again = player.send(path, "");
        assert!(!again.headers().contains_key("set-cookie"), "{path}: it has one");
    }
    for wrong in ["tollgate_session=1", "tollgate_session=x; a=b", "other=1", "tollgate_session"] {
        let mut player = PlaygroundClient { server: &server, cookie: Some(wrong.to_owned()) };
        let response = player.send("token-bucket", "");
        assert!(response.headers().contains_key("set-cookie"), "{wrong}");
        assert_eq!(response.text().unwrap(), FIRST, "{wrong}");
    }
    let refused = PlaygroundClient::new(&server).send("token-bucket", r#"{"config":1}"#);
    assert!(!refused.headers().contains_key("set-cookie"), "nothing began");
}

#[test]
fn sessions_do_not_see_each_other() {
    on_each_store(|server, _| {
        let (mut one, mut other) = (PlaygroundClient::new(server), PlaygroundClient::new(server));
        for (first, second) in [(9, 9), (8, 8)] {
            let body = json!({"config": calm("token-bucket", 10)});
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
    let mut player = PlaygroundClient::new(&servers[0]);
    for (nth, remaining) in [9, 8, 7, 6].into_iter().enumerate() {
        player.server = &servers[nth % 2];
        let body = json!({"config": calm("sliding-window-log", 10)});
        assert_eq!(player.ask("sliding-window-log", body)["remaining"], remaining);
    }
    player.ask("reset", json!({}));
    player.server = &servers[0];
    let body = json!({"config": calm("sliding-window-log", 10)});
    assert_eq!(player.ask("sliding-window-log", body)["remaining"], 9);
}

#[test]
fn one_session_too_many_evicts_the_least_recently_used() {
    on_each_store(|server, redis| {
        let play = |number: usize| {
            let mut player = PlaygroundClient { server, cookie: Some(cookie(number)) };
            player.ask("token-bucket", json!({"config": calm("token-bucket", 10)}));
        };
        play(0);
        play(1);
        // The first session plays again, so that the second is now the least recently used.
        play(0);
        thread::scope(|scope| {
            for part in 0..4 {
                scope.spawn(move || (2..MAX_SESSIONS).filter(|it| it % 4 == part).for_each(play));
            }
        });
        assert_eq!([0, 1, 2].map(|it| spent(server, &cookie(it))), [2, 1, 1], "all are remembered");
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
fn a_hanging_redis_keeps_no_more_sessions_than_the_maximum() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &redis.url(), "--store-deadline", "50ms"]);
    // The leaky bucket is reset last, so a reset that fails earlier does not reach it.
    let play = |number: usize| {
        let mut player = PlaygroundClient { server: &server, cookie: Some(cookie(number)) };
        let body = json!({"config": calm("leaky-bucket", 10)});
        player.send("leaky-bucket", body.to_string()).status().as_u16()
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
