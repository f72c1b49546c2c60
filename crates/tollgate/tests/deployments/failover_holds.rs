//! A failover between a reservation and its settlement, for each failure policy.

use std::time::Duration;

use redis::cmd;
use tollgate::{EndedHold, Hold, HoldReference, Limiter, OnFailure, Scope};
use tollgate_launcher::{Cluster, ClusterNode, Flavour, Server};

use crate::cluster::load::meanwhile;
use crate::cluster::slots::ids_of;
use crate::polling::{remaining, store_error, until, until_well};
use crate::setup::{LIMITS, at, builder, named};
use crate::watched::SentinelDeployment;

const HOUR: Duration = Duration::from_secs(3_600);

/// The deadline of the limiters that are used while there is no primary.
const SHORT_DEADLINE: Duration = Duration::from_millis(250);

/// The size of every limit.
const LIMIT: u64 = 100;

/// The units that are held on the old primary alone.
const LOST: u64 = 70;

/// The units of a reservation while there is no primary.
const DEGRADED: u64 = 25;

/// How many reservations are made then. `Open` admits all of them: more than a whole limit.
const ATTEMPTS: u64 = 5;

/// Each policy, and how many of the attempts it admits.
const POLICIES: [(OnFailure, u64); 3] = [
    (OnFailure::Closed, 0),
    (OnFailure::Open, ATTEMPTS),
    // The share of one of two processes.
    (OnFailure::Local { processes: Some(2) }, LIMIT / 2 / DEGRADED),
];

/// The limits that can have holds.
fn holding() -> impl Iterator<Item = &'static str> {
    LIMITS[..5].iter().copied().chain(["concurrency limit=100 for=1h"])
}

/// A primary with a replica that takes over.
trait Replicated {
    fn url(&self) -> String;

    /// A key on the primary for each policy.
    fn keys(&self) -> Vec<String>;

    fn primary(&mut self) -> &mut Server;

    fn replica(&self) -> &Server;

    /// Waits until the replica is a primary, if nothing else does.
    fn await_promotion(&self) {}
}

impl Replicated for SentinelDeployment {
    fn url(&self) -> String {
        SentinelDeployment::url(self)
    }

    fn keys(&self) -> Vec<String> {
        ["closed", "open", "local"].map(str::to_owned).into()
    }

    fn primary(&mut self) -> &mut Server {
        &mut self.primary
    }

    fn replica(&self) -> &Server {
        &self.replica
    }
}

/// A cluster, and the node whose slots change hands.
struct ClusterDeployment {
    cluster: Cluster,
    primary: ClusterNode,
    replica: ClusterNode,
}

impl ClusterDeployment {
    fn start(flavour: Flavour) -> ClusterDeployment {
        let cluster = Cluster::start(flavour, 3, 1).unwrap();
        let primary = cluster.nodes()[0];
        let replica = cluster.replicas_of(primary).unwrap()[0];
        ClusterDeployment { cluster, primary, replica }
    }
}

impl Replicated for ClusterDeployment {
    fn url(&self) -> String {
        self.cluster.url()
    }

    fn keys(&self) -> Vec<String> {
        ids_of(&self.cluster, self.primary, 3)
    }

    fn primary(&mut self) -> &mut Server {
        &mut self.cluster[self.primary]
    }

    fn replica(&self) -> &Server {
        &self.cluster[self.replica]
    }

    fn await_promotion(&self) {
        meanwhile(|| self.cluster.wait_for_primary(self.replica)).unwrap();
    }
}

/// Reads an offset from `INFO replication`.
fn offset(server: &Server, name: &str) -> u64 {
    let info: String = server.ask(cmd("INFO").arg("replication")).unwrap();
    let value = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_else(|| panic!("no {name} in {info}")).parse().unwrap()
}

/// Waits until the replica has all that the primary has written.
async fn until_replicated(deployment: &mut impl Replicated) {
    let written = offset(deployment.primary(), "master_repl_offset");
    until("the replica has caught up", async || {
        (offset(deployment.replica(), "slave_repl_offset") >= written).then_some(())
    })
    .await;
}

/// Freezes the replica, so that it gets nothing more from the primary.
fn stop_replication(deployment: &mut impl Replicated) {
    deployment.replica().freeze();
    // Cut the replication, or the replica would catch up when it resumes.
    let cut: i64 =
        deployment.primary().ask(cmd("CLIENT").arg("KILL").arg("TYPE").arg("replica")).unwrap();
    assert_eq!(cut, 1);
}

async fn hold(scope: &Scope, key: &str, units: u64) -> HoldReference {
    let reserved = scope.reserve(key).cost(units).hold_for(HOUR).await.unwrap();
    // Under a concurrency limit a dropped hold would be released.
    reserved.into_hold().unwrap().into_reference()
}

/// The holds of one key under one limit, reserved before the failover.
struct HeldKey {
    text: &'static str,
    key: String,
    /// 30 units that the replica has too.
    replicated: HoldReference,
    /// 70 units that it lacks.
    lost: HoldReference,
}

/// Reserves a whole limit for each key. The replica has the first of the two holds.
async fn hold_all(deployment: &mut impl Replicated, limiter: &Limiter) -> Vec<HeldKey> {
    let keys = deployment.keys();
    let mut held = Vec::new();
    for text in holding() {
        for key in &keys {
            let replicated = hold(&named(limiter, text, text), key, LIMIT - LOST).await;
            held.push(HeldKey { text, key: key.clone(), replicated, lost: replicated });
        }
    }
    until_replicated(deployment).await;
    stop_replication(deployment);
    for HeldKey { text, key, replicated, lost } in &mut held {
        let scope = named(limiter, text, text);
        *lost = hold(&scope, key, LOST).await;
        let refused = scope.reserve(key.as_str()).await.unwrap();
        assert!(!refused.is_allowed(), "{text}");
        // The replica lacks this settlement. The last one charges its units too.
        let part = scope.hold(key.as_str(), *replicated).unwrap().settle_part(5).await.unwrap();
        assert_eq!(part.ended(), None, "{text}");
    }
    held
}

/// Asserts what the policy says while there is no primary. Returns the holds that it admitted.
async fn assert_decided_without_a_store(
    limiter: &Limiter,
    (policy, admits): (OnFailure, u64),
    held: &HeldKey,
) -> Vec<Hold> {
    let (text, key) = (held.text, held.key.as_str());
    let context = format!("{text}, {policy:?}");
    let scope = named(limiter, text, text);
    // No policy pretends that it has settled or extended a hold of the store.
    let lost = scope.hold(key, held.lost).unwrap();
    store_error(lost.settle_part(0).await);
    store_error(lost.extend(0, HOUR).await);
    let mut admitted = Vec::new();
    for _ in 0..ATTEMPTS {
        let reserved = scope.reserve(key).cost(DEGRADED).hold_for(HOUR).await;
        if policy == OnFailure::Closed {
            store_error(reserved);
            continue;
        }
        let decided = reserved.unwrap();
        assert!(decided.decision().is_degraded(), "{context}");
        admitted.extend(decided.into_hold());
    }
    assert_eq!(admitted.len() as u64, admits, "{context}");
    admitted
}

/// Asserts that the new primary knows one hold and not the other, and admits the lost units once more.
async fn assert_settled_on_the_new_primary(scope: &Scope, held: &HeldKey, degraded: Vec<Hold>) {
    let (text, key) = (held.text, held.key.as_str());
    for hold in degraded {
        let settled = hold.settle(10).await.unwrap();
        assert!(settled.is_degraded() && settled.ended().is_none(), "{text}");
    }
    assert_eq!(remaining(scope, key).await, LOST, "{text}: what the policy admitted is not stored");
    let lost = scope.hold(key, held.lost).unwrap();
    let extended = lost.extend(0, HOUR).await.unwrap();
    assert_eq!(extended.ended(), Some(EndedHold::Unknown), "{text}");
    let settled = lost.settle(LOST).await.unwrap();
    assert_eq!((settled.ended(), settled.charged_units()), (Some(EndedHold::Unknown), 0), "{text}");
    let replicated = scope.hold(key, held.replicated).unwrap().settle(12).await.unwrap();
    assert_eq!(replicated.ended(), None, "{text}");
    let used = if text.starts_with("concurrency") { 0 } else { 12 };
    assert_eq!(replicated.charged_units(), used, "{text}");
    // All that was admitted: the used and the lost units, and what fits now. That is the limit, and the lost units once
    // more: less than one burst.
    hold(scope, key, LIMIT - used).await;
    let refused = scope.reserve(key).await.unwrap();
    assert!(!refused.is_allowed(), "{text}: more than {LIMIT} and {LOST} units were admitted");
}

async fn fail_over_between_reservation_and_settlement(mut deployment: impl Replicated) {
    let steady = at(&deployment.url());
    let limiters = POLICIES.map(|(policy, _)| {
        let limiter = builder(&deployment.url()).on_failure(policy).deadline(SHORT_DEADLINE);
        limiter.build().unwrap()
    });
    let held = hold_all(&mut deployment, &steady).await;
    deployment.primary().kill();
    let mut degraded = Vec::new();
    for (nth, held) in held.iter().enumerate() {
        let at = nth % POLICIES.len();
        degraded.push(assert_decided_without_a_store(&limiters[at], POLICIES[at], held).await);
    }
    deployment.replica().thaw();
    deployment.await_promotion();
    let keys: Vec<&str> = held.iter().map(|held| held.key.as_str()).collect();
    for limiter in limiters.iter().chain([&steady]) {
        until_well(limiter, &named(limiter, LIMITS[0], LIMITS[0]), &keys).await;
    }
    for (held, degraded) in held.iter().zip(degraded) {
        // With the long deadline, so that a busy machine causes no failure.
        let scope = named(&steady, held.text, held.text);
        assert_settled_on_the_new_primary(&scope, held, degraded).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_a_sentinel_deployment_loses_unreplicated_holds_and_keeps_the_others() {
    for flavour in Flavour::ALL {
        fail_over_between_reservation_and_settlement(SentinelDeployment::start(flavour)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_of_a_cluster_loses_unreplicated_holds_and_keeps_the_others() {
    for flavour in Flavour::ALL {
        fail_over_between_reservation_and_settlement(ClusterDeployment::start(flavour)).await;
    }
}
