//! The default failure policy across processes: their shares follow the number of live processes, which the server knows,
//! and begin with the last state that each process saw.

use std::env;
use std::io::stdin;
use std::time::{Duration, Instant};

use tollgate::{Limiter, Redis};
use tollgate_launcher::{Flavour, Server};

use crate::child::{ChildTest, say};
use crate::setup::{LIMITS, PATIENCE, admin, at, keys, scope, start, time_us};

/// The environment variable with the URL of a sharer's server.
const URL: &str = "TOLLGATE_SHARER_URL";

/// Another process with the default policy.
struct Sharer(ChildTest);

impl Sharer {
    fn start(server: &Server) -> Sharer {
        let mut sharer = Sharer(ChildTest::start("shares::sharer", &[(URL, &server.url())]));
        assert_eq!(sharer.0.next_line(), "ready");
        sharer
    }

    fn answer(&mut self, command: &str) -> String {
        self.0.send(command);
        self.0.next_line()
    }

    /// Waits until the process knows that `processes` processes are alive.
    fn knows(&mut self, processes: usize) {
        assert_eq!(self.answer(&format!("live {processes}")), "ok");
    }

    /// Peeks at the key under every limit.
    fn sees(&mut self, remaining: u64) {
        let want = vec![remaining.to_string(); LIMITS.len()].join(" ");
        assert_eq!(self.answer("peek"), want);
    }

    /// Makes 100 checks of the key under every limit while the server fails. Returns how many were admitted of each.
    fn spends(&mut self) -> Vec<u64> {
        let answer = self.answer("spend");
        answer.split(' ').map(|admitted| admitted.parse().unwrap()).collect()
    }
}

fn start_all(server: &Server, processes: usize) -> Vec<Sharer> {
    let mut sharers: Vec<Sharer> = (0..processes).map(|_| Sharer::start(server)).collect();
    sharers.iter_mut().for_each(|sharer| sharer.knows(processes));
    sharers
}

/// Returns how many checks of the key all processes admit under each limit while the server fails.
fn admitted_by_all(sharers: &mut [Sharer]) -> Vec<u64> {
    let mut sums = vec![0; LIMITS.len()];
    for sharer in sharers {
        let admitted = sharer.spends();
        sums.iter_mut().zip(admitted).for_each(|(sum, admitted)| *sum += admitted);
    }
    sums
}

/// 100 units for three processes are 33 each. If 60 are spent already, each one has a third of the other 40.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_of_live_processes_stay_within_what_remained() {
    for flavour in Flavour::ALL {
        for (spent, want) in [(0, 99), (60, 39), (100, 0)] {
            let mut server = start(flavour);
            let mut sharers = start_all(&server, 3);
            let limiter = at(&server.url());
            for text in LIMITS {
                if spent > 0 {
                    let decision = scope(&limiter, text).check("key").cost(spent).await.unwrap();
                    assert!(decision.is_allowed());
                }
            }
            sharers.iter_mut().for_each(|sharer| sharer.sees(100 - spent));
            server.kill();
            assert_eq!(admitted_by_all(&mut sharers), [want; 6], "{flavour}, {spent} spent");
        }
    }
}

/// The number falls when a process was killed, and rises when one starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn share_follows_processes_that_join_and_leave() {
    let mut server = start(Flavour::Redis);
    let mut sharers = start_all(&server, 2);
    sharers.push(Sharer::start(&server));
    sharers.push(Sharer::start(&server));
    sharers.iter_mut().for_each(|sharer| sharer.knows(4));
    sharers.truncate(3);
    sharers.iter_mut().for_each(|sharer| sharer.knows(3));
    sharers.truncate(2);
    sharers.iter_mut().for_each(|sharer| sharer.knows(2));
    server.kill();
    assert_eq!(admitted_by_all(&mut sharers), [100; 6]);
    // The last number holds while the server fails.
    sharers.iter_mut().for_each(|sharer| sharer.knows(2));
}

/// Without a count, a process that has seen the key continues alone under the whole limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn spent_key_stays_spent_when_the_server_is_killed() {
    let mut server = start(Flavour::Valkey);
    let limiter = with_default_policy(&server.url());
    for text in LIMITS {
        let own = scope(&limiter, text);
        for (key, cost) in [("spent", 100), ("half", 50)] {
            assert!(!own.check(key).cost(cost).await.unwrap().is_degraded());
        }
    }
    until_live(&limiter, 1).await;
    server.kill();
    for text in LIMITS {
        let own = scope(&limiter, text);
        let refused = own.check("spent").await.unwrap();
        assert!(refused.is_degraded() && !refused.is_allowed(), "{text}");
        assert!(own.check("half").cost(50).await.unwrap().is_allowed(), "{text}");
        assert!(!own.check("half").await.unwrap().is_allowed(), "{text}");
        assert_eq!(own.peek("never seen").await.unwrap().remaining(), 100, "{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_limiters_whose_policy_needs_the_number_are_counted() {
    let server = start(Flavour::Redis);
    let closed = at(&server.url());
    assert!(scope(&closed, LIMITS[0]).check("key").await.unwrap().is_allowed());
    let limiter = with_default_policy(&server.url());
    assert_eq!(limiter.live_processes(), None);
    assert!(!scope(&limiter, LIMITS[0]).check("key").await.unwrap().is_degraded());
    until_live(&limiter, 1).await;
    assert_eq!(closed.live_processes(), None);
    // Limits under another prefix are not shared.
    let other = Redis::at(&server.url()).unwrap().prefix("other:").unwrap();
    let other = other.deadline(PATIENCE).build().unwrap();
    assert!(!scope(&other, LIMITS[0]).check("key").await.unwrap().is_degraded());
    until_live(&other, 1).await;
    let names = keys(&mut admin(&server)).into_iter().map(|key| String::from_utf8(key).unwrap());
    let names: Vec<String> = names.filter(|key| key.ends_with("processes")).collect();
    assert_eq!(names, ["other:processes", "tollgate:processes"]);
}

/// A value that the list of limiters cannot be is not changed, and the share is the whole limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_value_under_the_key_of_the_limiters_is_left_alone() {
    let server = start(Flavour::Redis);
    let mut commands = admin(&server);
    redis::cmd("SET").arg("tollgate:processes").arg("not a list").exec(&mut commands).unwrap();
    let limiter = with_default_policy(&server.url());
    let own = scope(&limiter, LIMITS[0]);
    let mut statistics = admin(&server);
    let mut has_refused_a_beat = || {
        let errors: String = redis::cmd("INFO").arg("errorstats").query(&mut statistics).unwrap();
        errors.contains("errorstat_ERR")
    };
    let began = Instant::now();
    while !has_refused_a_beat() {
        assert!(!own.check("key").await.unwrap().is_degraded());
        assert!(began.elapsed() < PATIENCE);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(limiter.live_processes(), None);
    let value: String = redis::cmd("GET").arg("tollgate:processes").query(&mut commands).unwrap();
    assert_eq!(value, "not a list");
}

/// Members that are gone, and members from a clock that is an hour ahead, do not count. At most 1,024 do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_of_limiters_is_cleaned_and_bounded_and_expires() {
    let server = start(Flavour::Valkey);
    let mut admin = admin(&server);
    let now_ms = time_us(&mut admin) / 1_000;
    let members = |count: usize, gone_ms: i64| -> String {
        (0..count).map(|nth| format!("{:016x}{gone_ms:014}", nth + 1)).collect()
    };
    for (alive, want) in [(3, 4), (2_000, 1_024)] {
        let list = [
            members(10, now_ms - 1),
            members(10, now_ms + 2 * 3_600_000),
            members(alive, now_ms + 600_000),
        ];
        redis::cmd("SET").arg("tollgate:processes").arg(list.concat()).exec(&mut admin).unwrap();
        let limiter = with_default_policy(&server.url());
        assert!(scope(&limiter, LIMITS[0]).check("key").await.unwrap().is_allowed());
        until_live(&limiter, want).await;
        let bytes: u32 = redis::cmd("STRLEN").arg("tollgate:processes").query(&mut admin).unwrap();
        assert_eq!(bytes, want * 30);
        let ttl_ms: i64 = redis::cmd("PTTL").arg("tollgate:processes").query(&mut admin).unwrap();
        assert!((1..=3_600_000).contains(&ttl_ms), "{ttl_ms}");
    }
}

/// A limiter with the default policy and a deadline that a working server always meets.
fn with_default_policy(url: &str) -> Limiter {
    Redis::at(url).unwrap().deadline(PATIENCE).build().unwrap()
}

async fn until_live(limiter: &Limiter, processes: u32) {
    let began = Instant::now();
    while limiter.live_processes() != Some(processes) {
        assert!(began.elapsed() < PATIENCE, "{:?}", limiter.live_processes());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "run by the tests above in a process of its own"]
async fn sharer() {
    let Ok(url) = env::var(URL) else { return };
    let limiter = with_default_policy(&url);
    scope(&limiter, LIMITS[0]).peek("ready").await.unwrap();
    say("ready");
    loop {
        let mut line = String::new();
        if stdin().read_line(&mut line).unwrap() == 0 {
            return;
        }
        let mut answers = Vec::new();
        match line.trim().split_once(' ').unwrap_or((line.trim(), "")) {
            ("live", processes) => {
                until_live(&limiter, processes.parse().unwrap()).await;
                answers.push("ok".to_owned());
            }
            ("peek", _) => {
                for text in LIMITS {
                    let decision = scope(&limiter, text).peek("key").await.unwrap();
                    assert!(!decision.is_degraded());
                    answers.push(decision.remaining().to_string());
                }
            }
            _ => {
                for text in LIMITS {
                    let own = scope(&limiter, text);
                    let mut admitted = 0;
                    for _ in 0..100 {
                        let decision = own.check("key").await.unwrap();
                        assert!(decision.is_degraded());
                        admitted += u64::from(decision.is_allowed());
                    }
                    answers.push(admitted.to_string());
                }
            }
        }
        say(&answers.join(" "));
    }
}
