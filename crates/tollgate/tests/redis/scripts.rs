//! The server may forget its scripts at any time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use tokio::task::JoinSet;
use tollgate_launcher::{Flavour, Server};

use crate::setup::{LIMITS, admin, calls, open, remaining, scope, start};

/// A thread that flushes the scripts again and again, on its own connection.
struct Flushing {
    rounds: Arc<AtomicU64>,
    is_over: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Flushing {
    fn start(server: &Server) -> Flushing {
        let (rounds, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut admin = admin(server);
        let (counted, stop) = (Arc::clone(&rounds), Arc::clone(&is_over));
        let flush = move || {
            while !stop.load(Ordering::Relaxed) {
                redis::cmd("SCRIPT").arg("FLUSH").exec(&mut admin).unwrap();
                counted.fetch_add(1, Ordering::Relaxed);
            }
        };
        Flushing { rounds, is_over, thread: Some(thread::spawn(flush)) }
    }
}

impl Drop for Flushing {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

async fn until_flushed_again(rounds: &AtomicU64) {
    let before = rounds.load(Ordering::Relaxed);
    while rounds.load(Ordering::Relaxed) < before + 2 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_flushed_under_load_lose_no_check_and_admit_exactly_the_limit() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let limiter = open(&server);
        let flushing = Flushing::start(&server);
        for text in LIMITS {
            let scope = scope(&limiter, text);
            let mut tasks = JoinSet::new();
            for _ in 0..16 {
                let (scope, rounds) = (scope.clone(), Arc::clone(&flushing.rounds));
                tasks.spawn(async move {
                    let mut admitted = 0;
                    for turn in 0..10 {
                        if turn % 3 == 0 {
                            until_flushed_again(&rounds).await;
                        }
                        admitted += u64::from(scope.check("key").await.unwrap().is_allowed());
                    }
                    admitted
                });
            }
            let admitted: u64 = tasks.join_all().await.into_iter().sum();
            assert_eq!(admitted, 100, "{flavour}, {text}");
            assert_eq!(remaining(&scope, "key").await, 0, "{flavour}, {text}");
        }
        drop(flushing);
        // Each limit's script was sent more than twice, so some calls found it missing.
        let evals = calls(&mut admin(&server), "eval");
        assert!(evals > 2 * LIMITS.len() as u64, "{flavour}: {evals}");
    }
}
