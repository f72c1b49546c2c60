//! Clusters start, move slots, fail over, and add nodes.

#![allow(clippy::panic, clippy::unwrap_used)]

use redis::cmd;
use tollgate_launcher::{Cluster, ClusterNode, FailOver, Flavour, Launch, LaunchError};

/// The slot of keys with the hash tag `{a}`.
const SLOT_OF_A: u16 = 15_495;

fn start(flavour: Flavour, primaries: u16, replicas_of_each: u16) -> Cluster {
    Cluster::start(flavour, primaries, replicas_of_each).unwrap_or_else(|error| panic!("{error:?}"))
}

fn error_text<T: std::fmt::Debug>(answer: Result<T, LaunchError>) -> String {
    match answer {
        Err(LaunchError::CommandFailed { source, .. }) => {
            format!("{} {}", source.code().unwrap(), source.detail().unwrap())
        }
        other => panic!("{other:?}"),
    }
}

fn value(cluster: &Cluster, node: ClusterNode, key: &str) -> Result<Option<u32>, LaunchError> {
    cluster[node].ask(cmd("GET").arg(key))
}

fn set(cluster: &Cluster, node: ClusterNode, key: &str, value: u32) {
    cluster[node].ask::<()>(cmd("SET").arg(key).arg(value)).unwrap();
}

#[test]
fn cluster_shares_all_slots_and_gives_every_primary_a_replica() {
    for flavour in Flavour::ALL {
        let cluster = start(flavour, 3, 1);
        let nodes = cluster.nodes();
        assert_eq!(cluster.primaries().unwrap(), nodes[..3], "{flavour}");
        for (primary, replica) in nodes[..3].iter().zip(&nodes[3..]) {
            assert_eq!(cluster.replicas_of(*primary).unwrap(), [*replica], "{flavour}");
        }
        for (slot, owner) in [(0, 0), (5_460, 0), (5_461, 1), (10_921, 1), (10_922, 2), (16_383, 2)]
        {
            assert_eq!(cluster.owner_of(slot).unwrap(), nodes[owner], "{flavour} {slot}");
        }
        let addrs: Vec<_> = cluster.servers().iter().map(|it| it.addr().to_string()).collect();
        assert_eq!(cluster.url(), format!("redis+cluster://{}", addrs.join(",")));
        set(&cluster, nodes[2], "a", 7);
        assert!(error_text(value(&cluster, nodes[0], "a")).contains(&addrs[2]), "{flavour}");
    }
}

#[test]
fn slot_moves_in_steps() {
    for flavour in Flavour::ALL {
        let mut cluster = start(flavour, 3, 0);
        let from = cluster.owner_of(SLOT_OF_A).unwrap();
        let to = cluster.add_node().unwrap();
        assert_eq!(cluster.primaries().unwrap().len(), 4, "{flavour}");
        let keys = ["{a}1", "{a}2", "{a}3"];
        for (number, key) in (0..).zip(keys) {
            set(&cluster, from, key, number);
        }

        cluster.begin_migration(SLOT_OF_A, to).unwrap();
        assert_eq!(cluster.move_keys(SLOT_OF_A, to, 2).unwrap(), 2, "{flavour}");
        let asks = keys.iter().filter(|key| value(&cluster, from, key).is_err()).count();
        assert_eq!(asks, 2, "{flavour}");
        assert_eq!(cluster.owner_of(SLOT_OF_A).unwrap(), from, "{flavour}");

        assert_eq!(cluster.move_keys(SLOT_OF_A, to, 2).unwrap(), 1, "{flavour}");
        assert_eq!(cluster.move_keys(SLOT_OF_A, to, 2).unwrap(), 0, "{flavour}");
        assert!(error_text(value(&cluster, from, keys[0])).contains("ASK"), "{flavour}");
        cluster.end_migration(SLOT_OF_A, to).unwrap();
        assert_eq!(cluster.owner_of(SLOT_OF_A).unwrap(), to, "{flavour}");
        for (number, key) in (0..).zip(keys) {
            assert_eq!(value(&cluster, to, key).unwrap(), Some(number), "{flavour}");
        }
        assert!(error_text(value(&cluster, from, keys[0])).contains("MOVED"), "{flavour}");

        cluster.migrate_slot(SLOT_OF_A, from).unwrap();
        assert_eq!(value(&cluster, from, keys[2]).unwrap(), Some(2), "{flavour}");
    }
}

#[test]
fn replica_takes_over_on_command_and_when_its_primary_dies() {
    for flavour in Flavour::ALL {
        let mut cluster = start(flavour, 3, 1);
        let first = cluster.owner_of(SLOT_OF_A).unwrap();
        let second = cluster.replicas_of(first).unwrap()[0];
        for (how, replica) in
            [(FailOver::Agreed, second), (FailOver::Forced, first), (FailOver::TakeOver, second)]
        {
            cluster.fail_over(replica, how).unwrap();
            assert_eq!(cluster.owner_of(SLOT_OF_A).unwrap(), replica, "{flavour} {how:?}");
        }
        assert_eq!(cluster.replicas_of(second).unwrap(), [first], "{flavour}");

        cluster[second].kill();
        cluster.wait_for_primary(first).unwrap();
        assert_eq!(cluster.owner_of(SLOT_OF_A).unwrap(), first, "{flavour}");
        cluster[second].restart().unwrap();
        cluster.wait_until_settled().unwrap();
        assert_eq!(cluster.replicas_of(first).unwrap(), [second], "{flavour}");
    }
}

#[test]
fn frozen_primary_becomes_a_replica_after_it_thaws() {
    for flavour in Flavour::ALL {
        let cluster = start(flavour, 3, 1);
        let primary = cluster.nodes()[0];
        let replica = cluster.replicas_of(primary).unwrap()[0];
        cluster[primary].freeze();
        cluster.wait_for_primary(replica).unwrap();
        assert_eq!(cluster.owner_of(0).unwrap(), replica, "{flavour}");
        cluster[primary].thaw();
        cluster.wait_until_settled().unwrap();
        assert_eq!(cluster.replicas_of(replica).unwrap(), [primary], "{flavour}");
    }
}

#[test]
fn admin_sets_up_a_cluster_with_passwords() {
    for flavour in Flavour::ALL {
        let launch = Launch::new(flavour)
            .config("user", "default off")
            .config("user", "root on >secret ~* &* +@all")
            .config("masteruser", "root")
            .config("masterauth", "secret")
            .admin("root", "secret");
        let cluster = launch.cluster().primaries(2).replicas_of_each(1).start().unwrap();
        let (from, to) = (cluster.nodes()[1], cluster.nodes()[0]);
        set(&cluster, from, "a", 7);
        cluster.migrate_slot(SLOT_OF_A, to).unwrap();
        assert_eq!(value(&cluster, to, "a").unwrap(), Some(7), "{flavour}");
    }
}

#[cfg(feature = "tls")]
#[test]
fn cluster_speaks_tls() {
    let authority = tollgate_launcher::Authority::new("test").unwrap();
    let launch = Launch::new(Flavour::Redis).tls(authority.certify("127.0.0.1").unwrap());
    let cluster = launch.cluster().primaries(2).replicas_of_each(1).start().unwrap();
    assert!(cluster.url().starts_with("rediss+cluster://127.0.0.1:"));
    let (from, to) = (cluster.nodes()[1], cluster.nodes()[0]);
    set(&cluster, from, "a", 7);
    cluster.migrate_slot(SLOT_OF_A, to).unwrap();
    assert_eq!(value(&cluster, to, "a").unwrap(), Some(7));
}
