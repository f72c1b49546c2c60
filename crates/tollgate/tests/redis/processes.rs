//! P5 across processes: together they admit what one caller would.

use std::env;

use tokio::task::JoinSet;
use tollgate_launcher::Flavour;

use crate::child::{ChildTest, say, wait_for_test};
use crate::setup::{LIMITS, at, open, remaining, scope, start};

const PROCESSES: usize = 4;
const TASKS: usize = 8;

/// The environment variable with the URL of a racer's server.
const URL: &str = "TOLLGATE_RACER_URL";

#[tokio::test]
async fn processes_that_race_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        let url = server.url();
        let racer = || ChildTest::start("processes::racer", &[(URL, &url)]);
        let mut racers: Vec<ChildTest> = (0..PROCESSES).map(|_| racer()).collect();
        for text in LIMITS {
            for racer in &mut racers {
                assert_eq!(racer.next_line(), "ready");
            }
            racers.iter_mut().for_each(ChildTest::go);
            let admitted: Vec<u64> =
                racers.iter_mut().map(|racer| racer.next_line().parse().unwrap()).collect();
            assert_eq!(admitted.iter().sum::<u64>(), 100, "{flavour}, {text}: {admitted:?}");
            assert_eq!(remaining(&scope(&limiter, text), "key").await, 0, "{flavour}, {text}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the test above in a process of its own"]
async fn racer() {
    let Ok(url) = env::var(URL) else { return };
    let limiter = at(&url);
    for text in LIMITS {
        let scope = scope(&limiter, text);
        scope.peek("key").await.unwrap();
        say("ready");
        wait_for_test();
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let scope = scope.clone();
            tasks.spawn(async move {
                let mut admitted = 0_u64;
                for _ in 0..100 / TASKS {
                    admitted += u64::from(scope.check("key").await.unwrap().is_allowed());
                }
                admitted
            });
        }
        let admitted: u64 = tasks.join_all().await.into_iter().sum();
        say(&admitted.to_string());
    }
}
