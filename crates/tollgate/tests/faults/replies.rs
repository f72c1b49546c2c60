//! A server that answers with an error: it is told what the server said, which is no denial and no
//! charge, and it is over when its cause is.

use std::fs;
use std::thread;
use std::time::Instant;

use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::setup::{
    MARGIN, PATIENCE, admin, ask, command, config, info, launch, limited, remaining, start, until,
    until_answered, within,
};

const LIMIT: u64 = 100;

/// A limiter that has spent 40 of a key.
async fn prepared(server: &Server) -> (Limiter, Scope) {
    let limiter = within(&server.url(), PATIENCE);
    let scope = limited(&limiter, "scope", LIMIT);
    assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 60);
    (limiter, scope)
}

/// What the server said, now or when it was asked last.
fn said(error: &Error) -> Option<&str> {
    match error {
        Error::Store(StoreError::Refused { problem }) => Some(problem),
        Error::Store(StoreError::BreakerOpen { failure, .. }) => Some(failure),
        _ => None,
    }
}

/// Asks until the server says it, and then some more: every answer says why, and comes at once.
async fn assert_told(scope: &Scope, why: &str) {
    let began = Instant::now();
    loop {
        match scope.check("a").await {
            Err(Error::Store(StoreError::Refused { problem })) if problem.contains(why) => break,
            Err(Error::Store(StoreError::Unreachable { .. } | StoreError::BreakerOpen { .. })) => {}
            other => panic!("{why}: {other:?}"),
        }
        assert!(began.elapsed() < PATIENCE, "{why}");
    }
    for _ in 0..20 {
        let began = Instant::now();
        let error = scope.check("a").await.unwrap_err();
        assert!(said(&error).is_some_and(|said| said.contains(why)), "{why}: {error:?}");
        assert!(began.elapsed() < MARGIN, "{why}: {:?}", began.elapsed());
    }
}

/// Nothing was charged, and it is asked again by itself.
async fn assert_over(scope: &Scope, why: &str) {
    assert_eq!(until_answered(scope, "a").await, 60, "{why}");
    assert_eq!(scope.check("a").await.unwrap().remaining(), 59, "{why}");
}

#[tokio::test]
async fn missing_permission_is_reported_until_it_is_granted() {
    for flavour in Flavour::ALL {
        for (cause, remedy, why) in [
            (
                "CONFIG SET min-replicas-to-write 1",
                "CONFIG SET min-replicas-to-write 0",
                "NOREPLICAS",
            ),
            ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0", "OOM"),
            ("REPLICAOF 127.77.0.1 1", "REPLICAOF NO ONE", "READONLY"),
        ] {
            let server = start(flavour);
            let (_limiter, scope) = prepared(&server).await;
            ask::<()>(&server, cause);
            assert_told(&scope, why).await;
            ask::<()>(&server, remedy);
            assert_over(&scope, why).await;
        }
    }
}

#[tokio::test]
async fn a_replica_that_has_lost_its_primary_says_so() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("replica-serve-stale-data", "no"));
        let (_limiter, scope) = prepared(&server).await;
        ask::<()>(&server, "REPLICAOF 127.77.0.1 1");
        assert_told(&scope, "MASTERDOWN").await;
        ask::<()>(&server, "REPLICAOF NO ONE");
        assert_over(&scope, "MASTERDOWN").await;
    }
}

/// Those who are in stay in; those who come must know it.
#[tokio::test]
async fn a_password_that_is_set_while_connected_is_asked_of_the_next_connection() {
    for flavour in Flavour::ALL {
        let server = launch(
            &Launch::new(flavour)
                .config("user", "admin on >admin ~* &* +@all")
                .admin("admin", "admin"),
        );
        let (_limiter, scope) = prepared(&server).await;
        let wrong = within(&format!("redis://:wrong@{}", server.addr()), PATIENCE);
        config(&server, "requirepass", "secret");
        assert_eq!(remaining(&scope, "a").await, 60);
        ask::<u64>(&server, "CLIENT KILL TYPE normal");
        assert_told(&scope, "NOAUTH").await;
        assert_told(&limited(&wrong, "scope", LIMIT), "WRONGPASS").await;
        config(&server, "requirepass", "");
        assert_over(&scope, "NOAUTH").await;
    }
}

#[tokio::test]
async fn a_server_busy_with_a_script_says_so_until_that_is_killed() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("busy-reply-threshold", "50"));
        let (_limiter, scope) = prepared(&server).await;
        let mut admin = admin(&server);
        let script = thread::spawn(move || {
            let mut endless = redis::cmd("EVAL");
            endless.arg("while true do end").arg(0).query::<()>(&mut admin)
        });
        let is_busy = || server.ask::<String>(&command("PING")).is_err();
        until("it is busy", is_busy).await;
        assert_told(&scope, "BUSY").await;
        ask::<()>(&server, "SCRIPT KILL");
        assert!(script.join().unwrap().is_err());
        assert_over(&scope, "BUSY").await;
    }
}

/// As when its disk is full.
#[tokio::test]
async fn a_server_that_cannot_save_says_so_until_it_can() {
    for flavour in Flavour::ALL {
        let server = launch(
            &Launch::new(flavour)
                .config("save", "3600 1000000")
                .config("stop-writes-on-bgsave-error", "yes")
                .config("dbfilename", "taken.rdb"),
        );
        let taken = server.unix_socket().with_file_name("taken.rdb");
        let (_limiter, scope) = prepared(&server).await;
        fs::create_dir(&taken).unwrap();
        ask::<()>(&server, "BGSAVE");
        until("saving fails", || info(&server, "rdb_last_bgsave_status") == "err").await;
        assert_told(&scope, "MISCONF").await;
        fs::remove_dir(&taken).unwrap();
        ask::<()>(&server, "BGSAVE");
        until("saving works", || info(&server, "rdb_last_bgsave_status") == "ok").await;
        assert_over(&scope, "MISCONF").await;
    }
}

/// It is not taken for one that knows nothing, though it answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_loading_says_so_until_it_has_all_keys() {
    for flavour in Flavour::ALL {
        let mut server = launch(
            &Launch::new(flavour)
                .config("key-load-delay", "1000")
                .config("loading-process-events-interval-bytes", "1024"),
        );
        let (_limiter, scope) = prepared(&server).await;
        let mut fill = redis::cmd("EVAL");
        fill.arg("for i = 1, 1500 do redis.call('SET', i, string.rep('x', 1000) .. i) end").arg(0);
        server.ask::<()>(&fill).unwrap();
        ask::<()>(&server, "CONFIG SET rdbcompression no");
        ask::<()>(&server, "SAVE");
        server.kill();
        let restarting = tokio::task::spawn_blocking(move || {
            server.restart().unwrap();
            server
        });
        assert_told(&scope, "LOADING").await;
        assert!(!restarting.is_finished(), "{flavour}");
        let server = restarting.await.unwrap();
        assert_over(&scope, "LOADING").await;
        drop(server);
    }
}

/// Every call finds it gone, and is charged once all the same.
#[tokio::test]
async fn scripts_flushed_before_every_call_are_sent_again() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, scope) = prepared(&server).await;
        for left in (40..60).rev() {
            ask::<()>(&server, "SCRIPT FLUSH");
            assert_eq!(scope.check("a").await.unwrap().remaining(), left, "{flavour}");
        }
        let scripts = ["eval", "evalsha"].map(|name| {
            let calls = info(&server, &format!("cmdstat_{name}"));
            calls.split(['=', ',']).nth(1).unwrap().parse::<u64>().unwrap()
        });
        // Once in full when the connection was new, and then after every flush.
        assert_eq!(scripts, [1 + 20, 20], "{flavour}");
        assert_eq!(limiter.health().unwrap().failed, 0, "{flavour}");
    }
}
