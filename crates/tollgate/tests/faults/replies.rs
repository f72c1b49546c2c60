//! A server that answers with an error. The caller gets the server's text as an error, not as a denial;
//! nothing is charged; and the failure ends with its cause.

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

/// A limiter on the server, and a scope of which the key `a` has spent 40 of 100.
async fn prepared(server: &Server) -> (Limiter, Scope) {
    let limiter = within(&server.url(), PATIENCE);
    let scope = limited(&limiter, "scope", LIMIT);
    assert_eq!(scope.check("a").cost(40).await.unwrap().remaining(), 60);
    (limiter, scope)
}

/// The text of the server's error, from this reply or from the one that opened the breaker.
fn problem(error: &Error) -> Option<&str> {
    match error {
        Error::Store(StoreError::Refused { problem }) => Some(problem),
        Error::Store(StoreError::BreakerOpen { failure, .. }) => Some(failure),
        _ => None,
    }
}

/// Checks until the server refuses with this error, then asserts that each of 20 more checks fails at
/// once and names it.
async fn assert_reported(scope: &Scope, why: &str) {
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
        assert!(problem(&error).is_some_and(|own| own.contains(why)), "{why}: {error:?}");
        assert!(began.elapsed() < MARGIN, "{why}: {:?}", began.elapsed());
    }
}

/// Asserts that nothing was charged meanwhile, and that the limiter uses the server again.
async fn assert_recovered(scope: &Scope, why: &str) {
    assert_eq!(until_answered(scope, "a").await, 60, "{why}");
    assert_eq!(scope.check("a").await.unwrap().remaining(), 59, "{why}");
}

#[tokio::test]
async fn oom_readonly_and_noreplicas_are_reported_until_the_cause_is_removed() {
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
            assert_reported(&scope, why).await;
            ask::<()>(&server, remedy);
            assert_recovered(&scope, why).await;
        }
    }
}

#[tokio::test]
async fn masterdown_is_reported_while_a_replica_has_no_primary() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("replica-serve-stale-data", "no"));
        let (_limiter, scope) = prepared(&server).await;
        ask::<()>(&server, "REPLICAOF 127.77.0.1 1");
        assert_reported(&scope, "MASTERDOWN").await;
        ask::<()>(&server, "REPLICAOF NO ONE");
        assert_recovered(&scope, "MASTERDOWN").await;
    }
}

/// Open connections keep working; new ones have to authenticate.
#[tokio::test]
async fn new_password_is_required_only_of_new_connections() {
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
        assert_reported(&scope, "NOAUTH").await;
        assert_reported(&limited(&wrong, "scope", LIMIT), "WRONGPASS").await;
        config(&server, "requirepass", "");
        assert_recovered(&scope, "NOAUTH").await;
    }
}

#[tokio::test]
async fn busy_is_reported_until_the_running_script_is_killed() {
    for flavour in Flavour::ALL {
        let server = launch(&Launch::new(flavour).config("busy-reply-threshold", "50"));
        let (_limiter, scope) = prepared(&server).await;
        let mut admin = admin(&server);
        let script = thread::spawn(move || {
            let mut endless = redis::cmd("EVAL");
            endless.arg("while true do end").arg(0).query::<()>(&mut admin)
        });
        let is_busy = || server.ask::<String>(&command("PING")).is_err();
        until("the server is busy", is_busy).await;
        assert_reported(&scope, "BUSY").await;
        ask::<()>(&server, "SCRIPT KILL");
        assert!(script.join().unwrap().is_err());
        assert_recovered(&scope, "BUSY").await;
    }
}

/// The directory in place of the dump file makes `BGSAVE` fail, as a full disk does.
#[tokio::test]
async fn misconf_is_reported_until_the_server_can_save() {
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
        assert_reported(&scope, "MISCONF").await;
        fs::remove_dir(&taken).unwrap();
        ask::<()>(&server, "BGSAVE");
        until("saving works", || info(&server, "rdb_last_bgsave_status") == "ok").await;
        assert_recovered(&scope, "MISCONF").await;
    }
}

/// A server that is still loading answers, but is not taken for one without state.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn loading_is_reported_until_the_server_has_loaded_its_keys() {
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
        assert_reported(&scope, "LOADING").await;
        assert!(!restarting.is_finished(), "{flavour}");
        let server = restarting.await.unwrap();
        assert_recovered(&scope, "LOADING").await;
        drop(server);
    }
}

/// Every call finds the script missing, and is still charged once.
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
        // The text was sent once when the connection was new, and once after every flush.
        assert_eq!(scripts, [1 + 20, 20], "{flavour}");
        assert_eq!(limiter.health().unwrap().failed, 0, "{flavour}");
    }
}
