//! A node that joins, and one that leaves.

use std::collections::BTreeSet;

use tollgate::Limiter;
use tollgate_launcher::{Cluster, Flavour};

use super::load::{Load, meanwhile, spent, until};
use super::slots::{ids_of, slot_of};
use crate::setup::{at, named};

/// The servers that the limiter knows.
fn servers_of(limiter: &Limiter) -> BTreeSet<String> {
    limiter.health().unwrap().servers.into_iter().map(|server| server.server).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_continue_while_a_node_joins_and_leaves() {
    // At the same time, because most of the time is spent waiting for the next refresh of the slots.
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
    until("both nodes are known", || servers_of(&limiter) == two).await;

    let new = meanwhile(|| cluster.add_node()).unwrap();
    let three = addrs(&[first, second, new], &cluster);
    for &slot in &slots {
        meanwhile(|| cluster.migrate_slot(slot, new)).unwrap();
        load.wait_for_answers(20).await;
    }
    until("the new node is known", || servers_of(&limiter) == three).await;
    for (&slot, to) in slots.iter().zip([first, second].into_iter().cycle()) {
        meanwhile(|| cluster.migrate_slot(slot, to)).unwrap();
        load.wait_for_answers(20).await;
    }
    cluster[new].kill();
    load.wait_for_answers(100).await;
    until("the node that left is forgotten", || servers_of(&limiter) == two).await;

    let tally = load.stop().await;
    assert!(tally.failures.is_empty(), "{flavour}: {:?}", tally.failures[0]);
    for (id, allowed) in ids.iter().zip(&tally.allowed) {
        assert_eq!(spent(&scope, id).await, allowed[0], "{flavour}");
    }
}
