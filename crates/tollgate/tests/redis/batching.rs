//! The number of round trips.

use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, admin, calls, open, scope, scripts_run, start};

#[tokio::test]
async fn single_caller_takes_one_round_trip_for_each_check() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, mut admin) = (open(&server), admin(&server));
        for text in LIMITS {
            let scope = scope(&limiter, text);
            scope.check("a").await.unwrap();
            let mut of = |command| calls(&mut admin, command);
            let before = (of("evalsha"), of("eval"), of("time"), of("client"));
            for _ in 0..20 {
                scope.check("a").await.unwrap();
            }
            let after = (of("evalsha"), of("eval"), of("time"), of("client"));
            // Each script reads the clock once.
            let want = (before.0 + 20, before.1, before.2 + 20, before.3);
            assert_eq!(after, want, "{flavour}, {text}");
        }
    }
}

#[tokio::test]
async fn each_kind_of_operation_takes_one_round_trip() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, mut admin) = (open(&server), admin(&server));
        for text in LIMITS {
            let scope = scope(&limiter, text);
            let receipt = scope.check("a").await.unwrap().into_receipt().unwrap();
            let mut before = scripts_run(&mut admin);
            let mut one_more = |what: &str| {
                let now = scripts_run(&mut admin);
                assert_eq!(now, before + 1, "{flavour}, {text}, {what}");
                before = now;
            };
            scope.peek("a").await.unwrap();
            one_more("peek");
            scope.refund("a", receipt).await.unwrap();
            one_more("refund");
            scope.entries("a").await.unwrap();
            one_more("entries");
            scope.reset("a").await.unwrap();
            one_more("reset");
            assert!(scope.acquire("a").await.unwrap().is_admitted());
            one_more("acquire");
            let three = ["a", "b", "c"].map(|key| scope.check(key));
            limiter.check_all(&three).await.unwrap();
            one_more("check of several");
            limiter.batch(&[&three[..1], &three[1..]]).await.unwrap();
            one_more("batch");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_share_round_trips() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, mut admin) = (open(&server), admin(&server));
        let scope = scope(&limiter, "fixed-window limit=1000000 window=366d");
        scope.check("a").await.unwrap();
        let before = scripts_run(&mut admin);
        for _ in 0..10 {
            let answers: Vec<_> = (0..64).map(|_| scope.check("a").into_future()).collect();
            for answer in answers {
                answer.await.unwrap();
            }
        }
        let taken = scripts_run(&mut admin) - before;
        assert!(taken <= 160, "{flavour}: {taken} round trips for 640 checks");
        assert_eq!(scope.peek("a").await.unwrap().remaining(), 1_000_000 - 641);
    }
}

#[tokio::test]
async fn script_is_sent_once_and_then_called_by_its_hash() {
    let server = start(Flavour::Redis);
    let (limiter, mut admin) = (open(&server), admin(&server));
    let scope = scope(&limiter, LIMITS[0]);
    for _ in 0..5 {
        scope.check("a").await.unwrap();
    }
    assert_eq!((calls(&mut admin, "evalsha"), calls(&mut admin, "eval")), (4, 1));
}

#[tokio::test]
async fn joint_check_above_256_units_of_work_is_an_error() {
    let server = start(Flavour::Redis);
    let limiter = open(&server);
    let check = async |limit: &str, count: usize| {
        let scope = scope(&limiter, limit);
        let keys: Vec<String> = (0..count).map(|key| key.to_string()).collect();
        let checks: Vec<_> = keys.iter().map(|key| scope.check(key)).collect();
        limiter.check_all(&checks).await
    };
    for (limit, most) in [
        ("sliding-window-log limit=4097 window=1m", 4),
        ("sliding-window-log limit=65 window=1m", 16),
        ("sliding-window-log limit=64 window=1m", 128),
        ("fixed-window limit=64 window=1m", 256),
    ] {
        assert!(check(limit, most).await.unwrap().is_allowed(), "{limit}");
        assert!(check(limit, most + 1).await.is_err(), "{limit}");
    }
    let error = check("sliding-window-log limit=65 window=1m", 17).await.unwrap_err();
    insta::assert_snapshot!(error, @"the limits of one check come to 272 units of work for Redis: 64 for a sliding window log above 4096 units, 16 for one above 64 units, 2 for a smaller one, 1 for any other limit; a hold counts as 64 under a log above 4096 units and as 16 under any other limit; use at most 256");
}
