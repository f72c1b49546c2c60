//! A slot that is moved from node to node while its keys are charged.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::sleep;
use tollgate::{Limiter, Scope};
use tollgate_launcher::{Cluster, ClusterNode, Flavour};

use super::load::{Load, meanwhile, spent, until_spent};
use super::slots::{errors, ids_in};
use crate::setup::{at, named};

const SLOT: u16 = 5_000;

/// Few keys are moved at once, so that most of the time both nodes have some of them.
const KEYS_AT_ONCE: u32 = 2;

/// The last limit is soon spent. Then a check of all four is refused, and its charges are refunded.
const SCOPES: [&str; 4] = [
    "fixed-window limit=1000000 window=366d",
    "sliding-window-log limit=50000 window=366d",
    "token-bucket capacity=9000 refill=100/366d",
    "sliding-window-log limit=60 window=366d",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_are_charged_once_while_a_slot_of_redis_moves() {
    move_there_and_back(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_are_charged_once_while_a_slot_of_valkey_moves() {
    move_there_and_back(Flavour::Valkey).await;
}

async fn move_there_and_back(flavour: Flavour) {
    let cluster = Cluster::start(flavour, 2, 0).unwrap();
    let limiter = at(&cluster.url());
    let scopes = SCOPES.map(|text| named(&limiter, text, text));
    let ids = ids_in(SLOT, 6);
    let load = Load::start(&limiter, &scopes, &ids, 4);
    let new_keys = NewKeys::start(&limiter, &ids[0]);
    load.wait_for_answers(100).await;

    let [here, there] = cluster.nodes()[..] else { panic!() };
    assert_eq!(cluster.owner_of(SLOT).unwrap(), here);
    for to in [there, here] {
        move_slowly(&cluster, &load, to).await;
        load.wait_for_answers(100).await;
        assert_eq!(meanwhile(|| cluster.owner_of(SLOT)).unwrap(), to);
    }

    new_keys.stop().await;
    let tally = load.stop().await;
    assert!(tally.failures.is_empty(), "{flavour}: {:?}", tally.failures[0]);
    for (id, allowed) in ids.iter().zip(&tally.allowed) {
        for (scope, &allowed) in scopes.iter().zip(allowed) {
            // A refund may still be in flight.
            until_spent(scope, id, allowed).await;
        }
        assert!(allowed[3] <= 60, "{allowed:?}");
    }
    let errors = [errors(&cluster, here), errors(&cluster, there)].concat().join(" ");
    for redirect in ["ASK", "TRYAGAIN", "MOVED"] {
        assert!(errors.contains(redirect), "{flavour}: no {redirect} was provoked, only {errors}");
    }
    assert!(!errors.contains("CROSSSLOT"), "{errors}");
}

async fn move_slowly(cluster: &Cluster, load: &Load, to: ClusterNode) {
    meanwhile(|| cluster.begin_migration(SLOT, to)).unwrap();
    load.wait_for_answers(20).await;
    while meanwhile(|| cluster.move_keys(SLOT, to, KEYS_AT_ONCE)).unwrap() > 0 {
        load.wait_for_answers(20).await;
    }
    meanwhile(|| cluster.end_migration(SLOT, to)).unwrap();
}

/// A task that charges new keys: two in one check, twice.
struct NewKeys {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Vec<Scope>>,
    id: String,
}

impl NewKeys {
    fn start(limiter: &Limiter, id: &str) -> NewKeys {
        let (is_over, id) = (Arc::new(AtomicBool::new(false)), id.to_owned());
        let task = tokio::spawn(charge_new_keys(limiter.clone(), id.clone(), Arc::clone(&is_over)));
        NewKeys { is_over, task, id }
    }

    async fn stop(self) {
        self.is_over.store(true, Ordering::Relaxed);
        for scope in self.task.await.unwrap() {
            assert_eq!(spent(&scope, &self.id).await, 2, "{}", scope.name());
        }
    }
}

async fn charge_new_keys(limiter: Limiter, id: String, is_over: Arc<AtomicBool>) -> Vec<Scope> {
    let mut all = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let name = |place| format!("new-{}-{place}", all.len());
        let new = [0, 1].map(|place| named(&limiter, &name(place), SCOPES[place]));
        for _ in 0..2 {
            let checks = [new[0].check(&id), new[1].check(&id)];
            assert!(limiter.check_all(&checks).await.unwrap().is_allowed());
        }
        all.extend(new);
        sleep(Duration::from_millis(5)).await;
    }
    all
}
