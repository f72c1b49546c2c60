//! Servers with wrong redirects and wrong slot maps.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Error, Limiter, Scope, StoreError};
use tollgate_launcher::{Cluster, Flavour, Server};

use super::fake::{CommandKind, Fake};
use super::load::{until, until_answered};
use crate::setup::{LIMITS, at, builder, named};

const DEADLINE: Duration = Duration::from_secs(1);

/// How much later than its deadline an answer may come on a busy machine.
const MARGIN: Duration = Duration::from_secs(2);

/// The most times that a request is sent: once, and then after 8 redirects.
const MAX_TRIES: usize = 9;

fn limiter_of(fake: &Fake) -> (Limiter, Scope) {
    let limiter = builder(&fake.url()).deadline(DEADLINE).build().unwrap();
    let scope = named(&limiter, "scope", "fixed-window limit=100 window=366d");
    (limiter, scope)
}

/// The error of a check, which must come in time.
async fn failure(scope: &Scope, id: &str) -> StoreError {
    let began = Instant::now();
    let answer = scope.check(id).await;
    assert!(began.elapsed() < DEADLINE + MARGIN, "{:?}", began.elapsed());
    match answer {
        Err(Error::Store(error)) => error,
        other => panic!("{other:?}"),
    }
}

async fn refusal(scope: &Scope, id: &str) -> String {
    match failure(scope, id).await {
        StoreError::Refused { problem } => problem,
        other => panic!("{other:?}"),
    }
}

/// Answers scripts with `answer`, and has no slot map.
fn to_scripts(
    answer: impl Fn(SocketAddr) -> String + Send + Sync + 'static,
) -> impl Fn(CommandKind, SocketAddr) -> Option<String> + Send + Sync {
    move |command, addr| {
        Some(match command {
            CommandKind::Script => answer(addr),
            CommandKind::Slots => "-ERR This instance has cluster support disabled\r\n".to_owned(),
            CommandKind::Asking | CommandKind::Other => "+OK\r\n".to_owned(),
        })
    }
}

#[tokio::test]
async fn circular_redirects_end_after_nine_tries() {
    for (to_itself, asking) in [("MOVED 7", 0), ("ASK 7", MAX_TRIES - 1), ("TRYAGAIN", 0)] {
        let fake = Fake::start(to_scripts(move |addr| match to_itself {
            "TRYAGAIN" => "-TRYAGAIN Multiple keys request during rehashing of slot\r\n".to_owned(),
            other => format!("-{other} {addr}\r\n"),
        }));
        let (limiter, scope) = limiter_of(&fake);
        let problem = refusal(&scope, "a").await;
        assert!(problem.contains("redirect loop"), "{to_itself}: {problem}");
        assert_eq!(fake.received(CommandKind::Script), MAX_TRIES, "{to_itself}");
        assert_eq!(fake.received(CommandKind::Asking), asking, "{to_itself}");
        // Several limits of one id are sent together, and then each by itself. That is bounded too.
        let other = named(&limiter, "other", "fixed-window limit=100 window=366d");
        let several = limiter.check_all(&[scope.check("a"), other.check("a")]).await;
        assert!(matches!(several, Err(Error::Store(StoreError::Refused { .. }))), "{several:?}");
        assert!(
            fake.received(CommandKind::Script) <= 3 * MAX_TRIES + 1,
            "{}",
            fake.received(CommandKind::Script)
        );
    }
}

#[tokio::test]
async fn redirects_between_two_servers_end_after_nine_tries() {
    let other_addr = Arc::new(std::sync::OnceLock::<SocketAddr>::new());
    let kept = Arc::clone(&other_addr);
    let first = Fake::start(to_scripts(move |_| format!("-MOVED 7 {}\r\n", kept.get().unwrap())));
    let first_addr = first.addr();
    let second = Fake::start(to_scripts(move |_| format!("-ASK 7 {first_addr}\r\n")));
    other_addr.set(second.addr()).unwrap();
    let (_, scope) = limiter_of(&first);
    let problem = refusal(&scope, "a").await;
    assert!(problem.contains("redirect loop"), "{problem}");
    assert_eq!(
        first.received(CommandKind::Script) + second.received(CommandKind::Script),
        MAX_TRIES
    );
}

#[tokio::test]
async fn invalid_redirect_is_reported_as_the_servers_error() {
    for nonsense in [
        "MOVED",
        "MOVED 7",
        "MOVED x 127.0.0.1:1",
        "MOVED 16384 127.0.0.1:1",
        "MOVED -1 127.0.0.1:1",
        "MOVED 7 127.0.0.1:0",
        "MOVED 7 127.0.0.1:65536",
        "MOVED 7 127.0.0.1",
        "ASK 7 nowhere",
        "ASK",
    ] {
        let fake = Fake::start(to_scripts(move |_| format!("-{nonsense}\r\n")));
        let (limiter, scope) = limiter_of(&fake);
        let problem = refusal(&scope, "a").await;
        let code = nonsense.split(' ').next().unwrap();
        assert!(problem.contains(code), "{nonsense}: {problem}");
        assert_eq!(fake.received(CommandKind::Script), 1, "{nonsense}");
        assert_eq!(limiter.health().unwrap().servers.len(), 1, "{nonsense}");
    }
}

/// Each redirect names another address, on which nothing listens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redirects_do_not_add_unbounded_servers() {
    for slots_are_known in [false, true] {
        let named = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&named);
        let fake = Fake::start(move |command, addr| {
            let port = addr.port();
            Some(match command {
                CommandKind::Script => {
                    let number = counted.fetch_add(1, Ordering::Relaxed);
                    let (high, low) = (number / 250, number % 250);
                    format!("-MOVED {} 127.78.{high}.{}:1\r\n", number % 16_384, low + 1)
                }
                CommandKind::Slots if slots_are_known => {
                    format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n$9\r\n127.0.0.1\r\n:{port}\r\n")
                }
                CommandKind::Slots => "*0\r\n".to_owned(),
                CommandKind::Asking | CommandKind::Other => "+OK\r\n".to_owned(),
            })
        });
        let (limiter, scope) = limiter_of(&fake);
        let mut most = 0;
        for start in (0..3_000).step_by(100) {
            let ids: Vec<String> = (start..start + 100).map(|number| format!("{number}")).collect();
            let checks: Vec<_> = ids.iter().map(|id| scope.check(id).into_future()).collect();
            for check in checks {
                assert!(matches!(check.await, Err(Error::Store(_))));
            }
            most = most.max(limiter.health().unwrap().servers.len());
        }
        assert!(named.load(Ordering::Relaxed) > 2_100, "{named:?}");
        assert!(most <= 2_048, "{most}");
        if slots_are_known {
            // A refresh of the slots forgets servers that the slot map does not name.
            until("at most two servers are known", || {
                drop(scope.check("again").into_future());
                limiter.health().unwrap().servers.len() <= 2
            })
            .await;
        }
    }
}

/// How often a server received `CLUSTER SLOTS`.
fn slot_queries(server: &Server) -> u64 {
    let stats: String = server.ask(redis::cmd("INFO").arg("commandstats")).unwrap();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_cluster|slots:calls="));
    calls.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn invalid_slot_map_is_ignored_and_redirects_are_followed() {
    let cluster = Cluster::start(Flavour::Valkey, 1, 0).unwrap();
    let real = cluster.servers()[0].addr();
    let bulk = "$9\r\n127.0.0.1\r\n";
    for nonsense in [
        "+OK\r\n".to_owned(),
        ":1\r\n".to_owned(),
        "$-1\r\n".to_owned(),
        "*0\r\n".to_owned(),
        "*1\r\n*0\r\n".to_owned(),
        "-ERR This instance has cluster support disabled\r\n".to_owned(),
        // A range that is reversed, one past the last slot, and a slot named twice.
        format!("*1\r\n*3\r\n:9\r\n:1\r\n*2\r\n{bulk}:1\r\n"),
        format!("*1\r\n*3\r\n:0\r\n:16384\r\n*2\r\n{bulk}:1\r\n"),
        format!("*2\r\n*3\r\n:0\r\n:9\r\n*2\r\n{bulk}:1\r\n*3\r\n:9\r\n:9\r\n*2\r\n{bulk}:2\r\n"),
        // A server without a port, and a range without a server.
        format!("*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n{bulk}:0\r\n"),
        "*1\r\n*2\r\n:0\r\n:9\r\n".to_owned(),
    ] {
        let slots = nonsense.clone();
        let fake = Fake::start(move |command, _| {
            Some(match command {
                CommandKind::Script => format!("-MOVED 15495 {real}\r\n"),
                CommandKind::Slots => slots.clone(),
                CommandKind::Asking | CommandKind::Other => "+OK\r\n".to_owned(),
            })
        });
        let before = slot_queries(&cluster.servers()[0]);
        // With a long deadline, because nothing here depends on time.
        let limiter = at(&fake.url());
        let scope = named(&limiter, "api", LIMITS[0]);
        assert_eq!(super::slots::slot_of("a"), 15_495);
        for _ in 0..3 {
            assert!(scope.check("a").await.unwrap().is_allowed(), "{nonsense:?}");
        }
        // The real server may be known by then, and be queried instead.
        until("a server is queried for the slots", || {
            fake.received(CommandKind::Slots) > 0 || slot_queries(&cluster.servers()[0]) > before
        })
        .await;
        assert!(scope.check("a").await.unwrap().is_allowed(), "{nonsense:?}");
        // Only the first check was sent to the fake server.
        assert_eq!(fake.received(CommandKind::Script), 1, "{nonsense:?}");
        assert!(limiter.health().unwrap().servers.len() <= 2, "{nonsense:?}");
        scope.reset("a").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clusterdown_is_reported_until_the_cluster_is_up() {
    let cluster = Cluster::start(Flavour::Redis, 1, 0).unwrap();
    let (real, is_up) = (cluster.servers()[0].addr(), Arc::new(AtomicBool::new(false)));
    let watched = Arc::clone(&is_up);
    let fake = Fake::start(to_scripts(move |_| match watched.load(Ordering::Relaxed) {
        true => format!("-MOVED 15495 {real}\r\n"),
        false => "-CLUSTERDOWN The cluster is down\r\n".to_owned(),
    }));
    let (_, scope) = limiter_of(&fake);
    for _ in 0..4 {
        assert!(refusal(&scope, "a").await.contains("CLUSTERDOWN"));
    }
    let mut has_opened = false;
    for _ in 0..20 {
        match failure(&scope, "a").await {
            StoreError::BreakerOpen { failure, .. } => {
                assert!(failure.contains("CLUSTERDOWN"), "{failure}");
                has_opened = true;
            }
            StoreError::Refused { problem } => {
                assert!(problem.contains("CLUSTERDOWN"), "{problem}")
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(has_opened);
    is_up.store(true, Ordering::Relaxed);
    let took = until_answered(&scope, "a").await;
    assert!(took < Duration::from_secs(3), "{took:?}");
}

/// Like a server that died after the connection was made, without closing it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slot_query_is_repeated_when_it_gets_no_answer() {
    let fake = Fake::start(|command, _| match command {
        CommandKind::Script => Some("-CLUSTERDOWN The cluster is down\r\n".to_owned()),
        CommandKind::Slots => None,
        CommandKind::Asking | CommandKind::Other => Some("+OK\r\n".to_owned()),
    });
    let (_, scope) = limiter_of(&fake);
    until("the slots are queried again", || {
        drop(scope.check("a").into_future());
        fake.received(CommandKind::Slots) > 1
    })
    .await;
}
