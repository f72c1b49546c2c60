//! Clients that send the most expensive requests. The checks of other clients are still decided by the server.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;
use tollgate::{Limiter, OnFailure, Receipt, Scope};
use tollgate_launcher::Flavour;

use super::setup::{at, limited, named, start, with};

/// The charges in the attacked log. A refund took 20 ms when it rewrote all later charges.
const CHARGES: usize = 40_000;

const ATTACKERS: usize = 64;
const HONEST_CALLERS: usize = 8;

/// The number of refunds in the attack: `SOAK_REFUNDS`, or 3,000.
fn refunds() -> usize {
    std::env::var("SOAK_REFUNDS").map_or(3_000, |refunds| refunds.parse().unwrap())
}

/// Fills the log, one batch of charges at a time. Returns the receipts.
async fn filled(log: &Scope) -> Vec<Option<Receipt>> {
    let mut charged = Vec::with_capacity(CHARGES);
    while charged.len() < CHARGES {
        let checks: Vec<_> = (0..64).map(|_| log.check("attacker").into_future()).collect();
        for check in checks {
            charged.push(check.await.unwrap().into_receipt());
        }
    }
    charged
}

/// Chooses the next charge to refund: in turn from the oldest, the newest and two random ones.
fn chosen(number: usize) -> usize {
    match number % 4 {
        0 => number / 4 % CHARGES,
        1 => CHARGES - 1 - number / 4 % CHARGES,
        _ => (number * 7_919) % CHARGES,
    }
}

/// The limit during the attack: the one under which the log was filled, and a lower one, which does not shorten the log.
const ATTACKED: [&str; 2] =
    ["sliding-window-log limit=65536 window=1h", "sliding-window-log limit=64 window=1h"];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunds_from_a_long_log_degrade_at_most_2_percent_of_other_checks() {
    for flavour in Flavour::ALL {
        for attacked in ATTACKED {
            let server = start(flavour);
            let charged = filled(&named(&at(&server.url()), "log", ATTACKED[0])).await;
            // Attackers and honest callers share one limiter, as in a server. It allows requests that Redis answers too late.
            let limiter = with(&server.url(), OnFailure::Open);
            let log = named(&limiter, "log", attacked);
            let (checks, degraded) = attack(&limiter, &log, charged).await;
            println!(
                "{flavour:?}, {attacked}: {checks} honest checks, {degraded} of them degraded"
            );
            assert!(degraded * 50 <= checks, "{degraded} of {checks} honest checks were degraded");
            assert!(checks >= 1_000, "only {checks} honest checks were answered");
        }
    }
}

/// Refunds charges of the log from 64 tasks at once. Returns how many checks the honest callers made meanwhile,
/// and how many of these were decided without the server.
async fn attack(limiter: &Limiter, log: &Scope, charged: Vec<Option<Receipt>>) -> (u64, u64) {
    let charged = Arc::new(Mutex::new(charged));
    let refunds = refunds();
    let (is_over, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut honest = JoinSet::new();
    for caller in 0..HONEST_CALLERS {
        let (scope, is_over) = (limited(limiter, "others", 1 << 40), Arc::clone(&is_over));
        honest.spawn(async move {
            let (mut checks, mut degraded) = (0_u64, 0_u64);
            while !is_over.load(Ordering::Relaxed) {
                let decision = scope.check(&format!("caller {caller}")).await.unwrap();
                checks += 1;
                degraded += u64::from(decision.is_degraded());
            }
            (checks, degraded)
        });
    }
    let mut attackers = JoinSet::new();
    for _ in 0..ATTACKERS {
        let (log, charged, next) = (log.clone(), Arc::clone(&charged), Arc::clone(&next));
        attackers.spawn(async move {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= refunds {
                    return;
                }
                let receipt = charged.lock().unwrap()[chosen(number)].take();
                // A refund may fail: checks go first, and refunds have a quota.
                if let Some(receipt) = receipt {
                    let _ = log.refund("attacker", receipt).await;
                }
            }
        });
    }
    attackers.join_all().await;
    is_over.store(true, Ordering::Relaxed);
    let tallies = honest.join_all().await;
    tallies.iter().fold((0, 0), |(checks, degraded), own| (checks + own.0, degraded + own.1))
}
