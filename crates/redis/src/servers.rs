//! All servers of one limiter, and which of them has a key.

use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tollgate_limiter::store::Call;
use tollgate_limiter::{OnFailure, ServerHealth};

use super::address::{Deployment, ServerSettings};
use super::cluster::RedisCluster;
use super::node::{Node, RequestGroup};
use super::rendezvous::Rendezvous;
use super::sentinel::SentinelGroup;
use super::shared::StoreContext;
use super::slots::{ServerAddress, slot_of};
use super::target::Target;
use super::waiting::{FollowUp, REFUND_DEADLINE, Receiver, WaitingRequest};
use super::wire::{ServerCharge, StoreRequest};

/// All servers of one limiter.
pub(super) struct Servers {
    shared: Arc<StoreContext>,
    layout: ServerLayout,
}

/// How the keys are spread over the servers.
enum ServerLayout {
    One(Arc<Node>),
    Cluster(Arc<RedisCluster>),
    /// Servers that know nothing of each other. Each key is on one of them.
    Shards {
        nodes: Vec<Arc<Node>>,
        rendezvous: Rendezvous,
    },
}

impl Servers {
    /// Makes the servers, without connecting to them. `split` decides a check whose keys turn out to be in two places.
    pub(super) fn new(
        shared: &Arc<StoreContext>,
        deployment: Deployment,
        split: impl Fn(WaitingRequest) + Send + Sync + 'static,
    ) -> Servers {
        let node = |target| Node::new(shared, target, None);
        let layout = match deployment {
            Deployment::One(server) => ServerLayout::One(node(Target::of(server))),
            Deployment::Sentinel { sentinels, name, primary } => {
                let sentinels = SentinelGroup::new(shared.clock.clone(), sentinels, name, primary);
                ServerLayout::One(node(Target::Primary(sentinels)))
            }
            Deployment::Cluster { seeds } => {
                let with_address = |server: ServerSettings| {
                    let (host, port) = server.host_and_port()?;
                    let address = ServerAddress { host: host.to_owned(), port };
                    Some((server, address))
                };
                let seeds = seeds.into_iter().filter_map(with_address).collect();
                ServerLayout::Cluster(RedisCluster::new(shared, seeds, Box::new(split)))
            }
            Deployment::Shards(servers) => {
                let rendezvous = Rendezvous::new(servers.iter().map(ServerSettings::name));
                let nodes = servers.into_iter().map(|server| node(Target::of(server))).collect();
                ServerLayout::Shards { nodes, rendezvous }
            }
        };
        Servers { shared: Arc::clone(shared), layout }
    }

    pub(super) fn shared(&self) -> &Arc<StoreContext> {
        &self.shared
    }

    /// Returns the place of a key: its server, or its slot in a cluster. One script can decide keys of one place.
    pub(super) fn place(&self, key: &[u8]) -> usize {
        match &self.layout {
            ServerLayout::One(_) => 0,
            ServerLayout::Cluster(_) => slot_of(key).into(),
            ServerLayout::Shards { rendezvous, .. } => rendezvous.place(key),
        }
    }

    /// Returns the indexes of the charges of each place, in order.
    pub(super) fn grouped(&self, charges: &[ServerCharge]) -> Vec<Vec<usize>> {
        let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
        for (index, charge) in charges.iter().enumerate() {
            let place = self.place(&charge.key);
            match groups.iter_mut().find(|(other, _)| *other == place) {
                Some((_, group)) => group.push(index),
                None => groups.push((place, vec![index])),
            }
        }
        groups.into_iter().map(|(_, group)| group).collect()
    }

    /// Whether the keys of a request are in different places.
    pub(super) fn is_split(&self, request: &StoreRequest) -> bool {
        let mut places = request.charges().iter().map(|charge| self.place(&charge.key));
        match &self.layout {
            ServerLayout::One(_) => false,
            _ => places.next().is_some_and(|first| places.any(|place| place != first)),
        }
    }

    /// Sends a request whose keys are in one place. It is sent even if the receiver is dropped before, unless its charge
    /// would then be refunded.
    pub(super) fn submit(
        &self,
        request: StoreRequest,
        call: &Call,
        follow_up: FollowUp,
    ) -> Receiver {
        let (waiting, receiver) = WaitingRequest::new(&self.shared, request, call);
        self.put(waiting.follow_up(follow_up));
        receiver
    }

    /// Sends requests, each of which has all its keys in one place. The requests of one server are decided in their order.
    pub(super) fn submit_all(&self, requests: Vec<(StoreRequest, Call)>) -> Vec<Receiver> {
        let waiting = |(request, call)| WaitingRequest::new(&self.shared, request, &call);
        let (all, receivers): (Vec<_>, Vec<_>) = requests.into_iter().map(waiting).unzip();
        match &self.layout {
            ServerLayout::One(node) => node.put(RequestGroup::Many(all)),
            ServerLayout::Cluster(cluster) => cluster.put_all(all),
            ServerLayout::Shards { nodes, .. } => {
                let mut groups: Vec<Vec<WaitingRequest>> =
                    nodes.iter().map(|_| Vec::new()).collect();
                for waiting in all {
                    let key = waiting.request.charges().first().map(|charge| &charge.key[..]);
                    let place = self.place(key.unwrap_or_default());
                    groups[place].push(waiting);
                }
                let groups = nodes.iter().zip(groups).filter(|(_, group)| !group.is_empty());
                groups.for_each(|(node, group)| node.put(RequestGroup::Many(group)));
            }
        }
        receivers
    }

    /// Sends one request whose keys are in one place.
    pub(super) fn put(&self, waiting: WaitingRequest) {
        match &self.layout {
            ServerLayout::One(node) => node.put(RequestGroup::One(waiting)),
            ServerLayout::Cluster(cluster) => cluster.put(waiting),
            ServerLayout::Shards { nodes, .. } => {
                let key = waiting.request.charges().first().map(|charge| &charge.key[..]);
                nodes[self.place(key.unwrap_or_default())].put(RequestGroup::One(waiting));
            }
        }
    }

    /// Returns the connection to the server that has a key; `None` if its breaker is open, or if no connection can be opened.
    /// A single server gets no connection from here, because its checks open one.
    pub(super) async fn connection_for(&self, key: &[u8]) -> Option<MultiplexedConnection> {
        match &self.layout {
            ServerLayout::One(node) => node.connection_if_open(),
            ServerLayout::Cluster(cluster) => cluster.node_for(key).connection_if_working().await,
            ServerLayout::Shards { nodes, .. } => {
                nodes[self.place(key)].connection_if_working().await
            }
        }
    }

    /// Sends a refund that no caller waits for.
    pub(super) fn give_back(&self, refund: StoreRequest, follow_up: FollowUp) {
        let deadline = self.shared.deadline.max(REFUND_DEADLINE);
        let call = Call { at_us: refund.at_us(), deadline, on_failure: OnFailure::Closed };
        let (waiting, _) = WaitingRequest::new(&self.shared, refund, &call);
        self.put(waiting.follow_up(follow_up));
    }

    pub(super) fn health(&self) -> Vec<ServerHealth> {
        match &self.layout {
            ServerLayout::One(node) => vec![node.health()],
            ServerLayout::Cluster(cluster) => {
                cluster.nodes().iter().map(|node| node.health()).collect()
            }
            ServerLayout::Shards { nodes, .. } => nodes.iter().map(|node| node.health()).collect(),
        }
    }
}
