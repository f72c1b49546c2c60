//! A Redis Cluster: which server has which slot, and requests that are redirected.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::RwLock;
use redis::{RedisResult, Value};
use tokio::time::timeout;
use tollgate_limiter::StoreError;

use super::address::ServerSettings;
use super::connect::{MAX_OPENING, connect};
use super::fault::Fault;
use super::node::{Node, RequestGroup, Reroute};
use super::race::first_of;
use super::shared::StoreContext;
use super::slots::{Redirect, ServerAddress, SlotMap, slot_of};
use super::target::Target;
use super::waiting::WaitingRequest;

/// The time between two refreshes of the slots while there are requests.
const REFRESH_US: u64 = 10_000_000;

/// The time between two refreshes while servers redirect requests or fail.
const FAILING_REFRESH_US: u64 = 100_000;

/// How long a node without slots is kept after the last redirect that said that a slot is being moved to it.
const IMPORTING_US: u64 = 10_000_000;

/// The most redirects of one request. Two in a row are usual while a slot is being moved.
const MAX_HOPS: u8 = 8;

/// The most nodes that are kept, however many servers the cluster's replies name.
const MAX_NODES: usize = 2_048;

/// A Redis Cluster.
pub(super) struct RedisCluster {
    shared: Arc<StoreContext>,
    /// At least one.
    seeds: Vec<(ServerSettings, ServerAddress)>,
    topology: RwLock<Topology>,
    /// When the slots were last refreshed; `u64::MAX` while a refresh is under way.
    refreshed_us: AtomicU64,
    /// A request whose slot has no known owner goes to the seed `(seed_offset + slot) % seeds`. Grows by 1 whenever
    /// requests could not be sent.
    seed_offset: AtomicUsize,
    /// The server that the next refresh queries first. It rotates, because one server may be wrong.
    next: AtomicUsize,
    split: SplitCheckFn,
    itself: Weak<RedisCluster>,
}

/// Decides a request of several keys one key at a time, because their slot is being moved: some keys are on one server and
/// some on another.
pub(super) type SplitCheckFn = Box<dyn Fn(WaitingRequest) + Send + Sync>;

/// The servers and their slots.
#[derive(Default)]
struct Topology {
    slots: SlotMap,
    nodes: HashMap<ServerAddress, KnownNode>,
}

/// A node, and whether a slot is being moved to it.
struct KnownNode {
    node: Arc<Node>,
    /// When a redirect last said that a slot is being moved to it. Such a node may have no other slot yet.
    importing_us: AtomicU64,
}

impl RedisCluster {
    pub(super) fn new(
        shared: &Arc<StoreContext>,
        seeds: Vec<(ServerSettings, ServerAddress)>,
        split: SplitCheckFn,
    ) -> Arc<RedisCluster> {
        Arc::new_cyclic(|itself| RedisCluster {
            shared: Arc::clone(shared),
            seeds,
            topology: RwLock::default(),
            refreshed_us: AtomicU64::new(0),
            seed_offset: AtomicUsize::new(0),
            next: AtomicUsize::new(0),
            split,
            itself: Weak::clone(itself),
        })
    }

    /// Sends a request to the server that has its slot.
    pub(super) fn put(&self, mut waiting: WaitingRequest) {
        let Some(charge) = waiting.request.charges().first() else { return };
        waiting.route.slot = slot_of(&charge.key);
        self.refresh(REFRESH_US);
        self.node_of(waiting.route.slot).put(RequestGroup::One(waiting));
    }

    /// Sends requests: the ones for one server together, and in their order.
    pub(super) fn put_all(&self, all: Vec<WaitingRequest>) {
        let mut groups: Vec<(Arc<Node>, Vec<WaitingRequest>)> = Vec::new();
        for mut waiting in all {
            let Some(charge) = waiting.request.charges().first() else { continue };
            waiting.route.slot = slot_of(&charge.key);
            let node = self.node_of(waiting.route.slot);
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &node)) {
                Some((_, group)) => group.push(waiting),
                None => groups.push((node, vec![waiting])),
            }
        }
        self.refresh(REFRESH_US);
        groups.into_iter().for_each(|(node, group)| node.put(RequestGroup::Many(group)));
    }

    /// Returns the node that has a key.
    pub(super) fn node_for(&self, key: &[u8]) -> Arc<Node> {
        self.node_of(slot_of(key))
    }

    /// Returns the node that has a slot, or a seed if no owner is known: a seed redirects the request.
    fn node_of(&self, slot: u16) -> Arc<Node> {
        let topology = self.topology.read();
        let owner = topology.slots.owner(slot).and_then(|owner| topology.nodes.get(owner));
        if let Some(known) = owner {
            return Arc::clone(&known.node);
        }
        drop(topology);
        // The same seed for a slot until it fails, so that requests keep their order.
        let offset = self.seed_offset.load(Ordering::Relaxed);
        let seed = (offset + usize::from(slot)) % self.seeds.len();
        self.node_at(&self.seeds[seed].1)
    }

    /// Returns the node at an address, which is made if it does not exist yet.
    fn node_at(&self, address: &ServerAddress) -> Arc<Node> {
        if let Some(known) = self.topology.read().nodes.get(address) {
            return Arc::clone(&known.node);
        }
        let mut topology = self.topology.write();
        if topology.nodes.len() >= MAX_NODES {
            return self.node(address);
        }
        let known = || KnownNode { node: self.node(address), importing_us: AtomicU64::new(0) };
        Arc::clone(&topology.nodes.entry(address.clone()).or_insert_with(known).node)
    }

    /// Returns the node at an address that a slot is being moved to.
    fn importing_node_at(&self, address: &ServerAddress) -> Arc<Node> {
        let node = self.node_at(address);
        if let Some(known) = self.topology.read().nodes.get(address) {
            known.importing_us.store(self.shared.clock.now_us(), Ordering::Relaxed);
        }
        node
    }

    fn node(&self, address: &ServerAddress) -> Arc<Node> {
        // With the user and the TLS of the seeds, which are the same for all servers.
        let server = self.seeds[0].0.at(&address.host, address.port);
        let cluster: Weak<dyn Reroute> = self.itself.clone();
        Node::new(&self.shared, Target::of(server), Some(cluster))
    }

    /// Sends a request again that the server cannot decide while it moves the slot; a request of several keys is split.
    fn decide_separately(&self, waiting: WaitingRequest, from: &Arc<Node>) {
        match &waiting.request {
            request if request.charges().len() > 1 => (self.split)(waiting),
            // A single key is never on two servers: the request is sent to the same server again, up to `MAX_HOPS` times.
            _ => from.put(RequestGroup::One(waiting)),
        }
    }

    /// Begins to refresh the slots, if the last refresh was at least `after_us` ago and no refresh is under way.
    fn refresh(&self, after_us: u64) {
        let (now_us, last_us) =
            (self.shared.clock.now_us(), self.refreshed_us.load(Ordering::Relaxed));
        if now_us < last_us.saturating_add(after_us) {
            return;
        }
        let taken = self.refreshed_us.compare_exchange(
            last_us,
            u64::MAX,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        if let (Ok(_), Some(cluster)) = (taken, self.itself.upgrade()) {
            let refresh = Refresh { cluster, is_done: false };
            self.shared.executor.spawn(async move {
                if let Ok(Ok(slots)) = timeout(MAX_OPENING, refresh.cluster.query_slots()).await {
                    refresh.cluster.use_slots(slots);
                }
                refresh.finish();
            });
        }
    }

    /// Queries the servers for the slots, until one answers.
    async fn query_slots(&self) -> Result<SlotMap, Option<StoreError>> {
        let known: Vec<ServerAddress> = self.topology.read().slots.owners().cloned().collect();
        let seeds = self.seeds.iter().filter(|(_, address)| !known.contains(address)).cloned();
        let mut servers: Vec<(ServerSettings, ServerAddress)> = known
            .iter()
            .map(|address| (self.seeds[0].0.at(&address.host, address.port), address.clone()))
            .chain(seeds)
            .collect();
        let first = self.next.fetch_add(1, Ordering::Relaxed) % servers.len().max(1);
        servers.rotate_left(first);
        // Servers whose breakers are closed come first.
        servers.sort_by_key(|(_, address)| !self.is_breaker_closed(address));
        first_of(
            servers
                .into_iter()
                .map(|(server, address)| async move { slots_at(&server, &address).await }),
        )
        .await
    }

    fn is_breaker_closed(&self, address: &ServerAddress) -> bool {
        self.topology.read().nodes.get(address).is_none_or(|known| known.node.is_breaker_closed())
    }

    /// Replaces the slots. Drops the nodes that have no slot, unless a slot is being moved to them.
    fn use_slots(&self, slots: SlotMap) {
        let now_us = self.shared.clock.now_us();
        let mut topology = self.topology.write();
        topology.nodes.retain(|address, known| {
            let importing_us = known.importing_us.load(Ordering::Relaxed);
            now_us < importing_us.saturating_add(IMPORTING_US)
                || slots.owners().any(|owner| owner == address)
        });
        for owner in slots.owners() {
            let known = || KnownNode { node: self.node(owner), importing_us: AtomicU64::new(0) };
            topology.nodes.entry(owner.clone()).or_insert_with(known);
        }
        topology.slots = slots;
    }

    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        let topology = self.topology.read();
        let nodes = topology.nodes.values().map(|known| Arc::clone(&known.node));
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort_by(|a, b| a.name().cmp(b.name()));
        nodes
    }
}

impl Reroute for RedisCluster {
    fn redirect(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, redirect: Redirect) {
        let keys: usize = requests.iter().map(|waiting| waiting.request.charges().len()).sum();
        let is_one = requests.len() == 1;
        for mut waiting in requests.into_iter().filter(|waiting| !waiting.is_answered()) {
            if waiting.route.hops == MAX_HOPS {
                let problem = format!(
                    "redirect loop: the request was sent on {MAX_HOPS} times, last by {}",
                    from.name()
                );
                waiting.fail(StoreError::refused(&problem));
                continue;
            }
            waiting.route.hops += 1;
            (waiting.route.is_alone, waiting.route.is_asking) = (false, false);
            match &redirect {
                Redirect::Moved { slot, to } => {
                    self.topology.write().slots.set(*slot, to.clone());
                    self.refresh(FAILING_REFRESH_US);
                    self.node_at(to).put(RequestGroup::One(waiting));
                }
                Redirect::Ask { to } if keys == 1 => {
                    (waiting.route.is_alone, waiting.route.is_asking) = (true, true);
                    self.importing_node_at(to).put(RequestGroup::One(waiting));
                }
                // Some of the keys are on this server and some on the other, so each request is sent in a call of its own.
                // Redis before version 7 replies ASK in that case too, although only the keys that this server does not
                // have are on the other server.
                Redirect::Ask { .. } | Redirect::TryAgain => {
                    waiting.route.is_alone = true;
                    if is_one {
                        self.decide_separately(waiting, from);
                    } else {
                        from.put(RequestGroup::One(waiting));
                    }
                }
            }
        }
    }

    fn resend(&self, from: &Arc<Node>, requests: Vec<WaitingRequest>, error: &StoreError) {
        self.refresh(FAILING_REFRESH_US);
        self.seed_offset.fetch_add(1, Ordering::Relaxed);
        for mut waiting in requests {
            let node = self.node_of(waiting.route.slot);
            if Arc::ptr_eq(&node, from) || waiting.route.hops == MAX_HOPS {
                waiting.fail(error.clone());
                continue;
            }
            waiting.route.hops += 1;
            waiting.route.is_asking = false;
            node.put(RequestGroup::One(waiting));
        }
    }

    fn server_failed(&self) {
        self.refresh(FAILING_REFRESH_US);
    }
}

/// Queries one server for the slots.
async fn slots_at(server: &ServerSettings, address: &ServerAddress) -> Result<SlotMap, StoreError> {
    let mut open = connect(server).await?;
    let reply: RedisResult<Value> = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut open).await;
    let reply = reply.map_err(|error| Fault::from_command(&error, server.name()))?;
    let slots = SlotMap::of(&reply, address).filter(|slots| slots.covered() > 0);
    slots.ok_or_else(|| StoreError::refused("CLUSTER SLOTS names no server"))
}

/// A refresh of the slots that is under way. If it is dropped before it is done, because its runtime has ended, the next
/// request begins another one.
struct Refresh {
    cluster: Arc<RedisCluster>,
    is_done: bool,
}

impl Refresh {
    fn finish(mut self) {
        self.is_done = true;
    }
}

impl Drop for Refresh {
    fn drop(&mut self) {
        let refreshed_us = if self.is_done { self.cluster.shared.clock.now_us() } else { 0 };
        self.cluster.refreshed_us.store(refreshed_us, Ordering::Relaxed);
    }
}

impl fmt::Debug for RedisCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").field("nodes", &self.nodes()).finish_non_exhaustive()
    }
}
