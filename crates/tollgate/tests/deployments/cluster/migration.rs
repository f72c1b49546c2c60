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

/// So few keys are moved at once that most of the time some are here and some there.
const KEYS_AT_ONCE: u32 = 2;

/// The last one is spent soon: then a check of all is refused, and gives back what it took.
const SCOPES: [&str; 4] = [
    "fixed-window limit=1000000 window=366d",
    "sliding-window-log limit=50000 window=366d",
    "token-bucket capacity=9000 refill=100/366d",
    "sliding-window-log limit=60 window=366d",
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_charged_twice_while_a_slot_of_redis_moves() {
    move_there_and_back(Flavour::Redis).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_charged_twice_while_a_slot_of_valkey_moves() {
    move_there_and_back(Flavour::Valkey).await;
}

async fn move_there_and_back(flavour: Flavour) {
    let cluster = Cluster::start(flavour, 2, 0).unwrap();
    let limiter = at(&cluster.url());
    let scopes = SCOPES.map(|text| named(&limiter, text, text));
    let ids = ids_in(SLOT, 6);
    let load = Load::start(&limiter, &scopes, &ids, 4);
    let newcomers = Newcomers::start(&limiter, &ids[0]);
    load.goes_on_for(100).await;

    let [here, there] = cluster.nodes()[..] else { panic!() };
    assert_eq!(cluster.owner_of(SLOT).unwrap(), here);
    for to in [there, here] {
        move_slowly(&cluster, &load, to).await;
        load.goes_on_for(100).await;
        assert_eq!(meanwhile(|| cluster.owner_of(SLOT)).unwrap(), to);
    }

    newcomers.stop().await;
    let told = load.stop().await;
    assert!(told.failures.is_empty(), "{flavour}: {:?}", told.failures[0]);
    for (id, allowed) in ids.iter().zip(&told.allowed) {
        for (scope, &allowed) in scopes.iter().zip(allowed) {
            // What is given back may still be on its way.
            until_spent(scope, id, allowed).await;
        }
        assert!(allowed[3] <= 60, "{allowed:?}");
    }
    let said = [errors(&cluster, here), errors(&cluster, there)].concat().join(" ");
    for redirect in ["ASK", "TRYAGAIN", "MOVED"] {
        assert!(
            said.contains(redirect),
            "{flavour}: no {redirect} was put to the test, but {said}"
        );
    }
    assert!(!said.contains("CROSSSLOT"), "{said}");
}

async fn move_slowly(cluster: &Cluster, load: &Load, to: ClusterNode) {
    meanwhile(|| cluster.begin_migration(SLOT, to)).unwrap();
    load.goes_on_for(20).await;
    while meanwhile(|| cluster.move_keys(SLOT, to, KEYS_AT_ONCE)).unwrap() > 0 {
        load.goes_on_for(20).await;
    }
    meanwhile(|| cluster.end_migration(SLOT, to)).unwrap();
}

/// Charges keys that there never were: two in one check, twice.
struct Newcomers {
    is_over: Arc<AtomicBool>,
    task: JoinHandle<Vec<Scope>>,
    id: String,
}

impl Newcomers {
    fn start(limiter: &Limiter, id: &str) -> Newcomers {
        let (is_over, id) = (Arc::new(AtomicBool::new(false)), id.to_owned());
        let task = tokio::spawn(charge_new_keys(limiter.clone(), id.clone(), Arc::clone(&is_over)));
        Newcomers { is_over, task, id }
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
