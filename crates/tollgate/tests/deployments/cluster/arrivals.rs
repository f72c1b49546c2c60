//! A node that joins, and one that leaves.

use std::collections::BTreeSet;

use tollgate::Limiter;
use tollgate_launcher::{Cluster, Flavour};

use super::load::{Load, meanwhile, spent, until};
use super::slots::{ids_of, slot_of};
use crate::setup::{at, named};

/// The servers that the limiter says it knows.
fn servers_of(limiter: &Limiter) -> BTreeSet<String> {
    limiter.health().unwrap().servers.into_iter().map(|server| server.server).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_continue_while_a_node_joins_and_leaves() {
    // Side by side: most of the time is spent waiting until a limiter looks again.
    for flavour in Flavour::ALL.map(|flavour| tokio::spawn(join_and_leave(flavour))) {
        flavour.await.unwrap();
    }
}

async fn join_and_leave(flavour: Flavour) {
    let mut cluster = Cluster::start(flavour, 2, 0).unwrap();
    let limiter = at(&cluster.url());
    let scope = named(&limiter, "scope", "token-bucket capacity=9000 refill=100/366d");
    let [first, second] = cluster.nodes()[..] else { panic!() };
    let ids = [ids_of(&cluster, first, 3), ids_of(&cluster, second, 3)].concat();
    let slots: Vec<u16> = ids.iter().map(|id| slot_of(id)).collect();
    let load = Load::start(&limiter, std::slice::from_ref(&scope), &ids, 4);
    let addrs = |nodes: &[_], cluster: &Cluster| -> BTreeSet<String> {
        nodes.iter().map(|&node| cluster[node].addr().to_string()).collect()
    };
    let two = addrs(&[first, second], &cluster);
    until("both were known", || servers_of(&limiter) == two).await;

    let new = meanwhile(|| cluster.add_node()).unwrap();
    let three = addrs(&[first, second, new], &cluster);
    for &slot in &slots {
        meanwhile(|| cluster.migrate_slot(slot, new)).unwrap();
        load.goes_on_for(20).await;
    }
    until("the new one was known", || servers_of(&limiter) == three).await;
    for (&slot, to) in slots.iter().zip([first, second].into_iter().cycle()) {
        meanwhile(|| cluster.migrate_slot(slot, to)).unwrap();
        load.goes_on_for(20).await;
    }
    cluster[new].kill();
    load.goes_on_for(100).await;
    until("the one that left was forgotten", || servers_of(&limiter) == two).await;

    let told = load.stop().await;
    assert!(told.failures.is_empty(), "{flavour}: {:?}", told.failures[0]);
    for (id, allowed) in ids.iter().zip(&told.allowed) {
        assert_eq!(spent(&scope, id).await, allowed[0], "{flavour}");
    }
}
