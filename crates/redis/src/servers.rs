//! All servers of one limiter, and which of them has a key.

use std::sync::Arc;

use tollgate_limiter::store::Call;
use tollgate_limiter::{OnFailure, ServerHealth};

use super::address::{Deployment, Server};
use super::cluster::Cluster;
use super::node::{Load, Node};
use super::rendezvous::Rendezvous;
use super::sentinel::Sentinels;
use super::shared::Shared;
use super::slots::{Address, slot_of};
use super::target::Target;
use super::waiting::{AndThen, REFUND_DEADLINE, Receiver, WaitingRequest};
use super::wire::Request;

/// All servers of one limiter.
pub(super) struct Servers {
    shared: Arc<Shared>,
    kind: Kind,
}

enum Kind {
    One(Arc<Node>),
    Cluster(Arc<Cluster>),
    /// Servers that know nothing of each other. Each key is on one of them.
    Shards {
        nodes: Vec<Arc<Node>>,
        rendezvous: Rendezvous,
    },
}

impl Servers {
    /// Begins to use servers; none is connected yet. `split` decides a check whose keys turn out to be in two places.
    pub(super) fn new(
        shared: &Arc<Shared>,
        deployment: Deployment,
        split: impl Fn(WaitingRequest) + Send + Sync + 'static,
    ) -> Servers {
        let node = |target| Node::new(shared, target, None);
        let kind = match deployment {
            Deployment::One(server) => Kind::One(node(Target::of(server))),
            Deployment::Sentinel { sentinels, name, primary } => {
                let sentinels = Sentinels::new(shared.clock.clone(), sentinels, name, primary);
                Kind::One(node(Target::Primary(sentinels)))
            }
            Deployment::Cluster { seeds } => {
                let with_address = |server: Server| {
                    let (host, port) = server.host_and_port()?;
                    let address = Address { host: host.to_owned(), port };
                    Some((server, address))
                };
                let seeds = seeds.into_iter().filter_map(with_address).collect();
                Kind::Cluster(Cluster::new(shared, seeds, Box::new(split)))
            }
            Deployment::Shards(servers) => {
                let rendezvous = Rendezvous::new(servers.iter().map(Server::name));
                let nodes = servers.into_iter().map(|server| node(Target::of(server))).collect();
                Kind::Shards { nodes, rendezvous }
            }
        };
        Servers { shared: Arc::clone(shared), kind }
    }

    pub(super) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// Returns the place of a key: its server, or its slot in a cluster. One script can decide keys of one place.
    pub(super) fn place(&self, key: &[u8]) -> usize {
        match &self.kind {
            Kind::One(_) => 0,
            Kind::Cluster(_) => slot_of(key).into(),
            Kind::Shards { rendezvous, .. } => rendezvous.place(key),
        }
    }

    /// Whether the keys of a request are in different places.
    pub(super) fn is_across(&self, request: &Request) -> bool {
        let mut places = request.charges().iter().map(|charge| self.place(&charge.key));
        match &self.kind {
            Kind::One(_) => false,
            _ => places.next().is_some_and(|first| places.any(|place| place != first)),
        }
    }

    /// Sends a request whose keys are in one place. It stays sent when the receiver is dropped.
    pub(super) fn submit(&self, request: Request, call: &Call, and_then: AndThen) -> Receiver {
        let (waiting, receiver) = WaitingRequest::new(&self.shared, request, call);
        self.put(waiting.and_then(and_then));
        receiver
    }

    /// Sends requests that have all their keys in one place each. The requests of one server are decided in their order.
    pub(super) fn submit_all(&self, requests: Vec<(Request, Call)>) -> Vec<Receiver> {
        let waiting = |(request, call)| WaitingRequest::new(&self.shared, request, &call);
        let (all, receivers): (Vec<_>, Vec<_>) = requests.into_iter().map(waiting).unzip();
        match &self.kind {
            Kind::One(node) => node.put(Load::Many(all)),
            Kind::Cluster(cluster) => cluster.put_all(all),
            Kind::Shards { nodes, .. } => {
                let mut loads: Vec<Vec<WaitingRequest>> =
                    nodes.iter().map(|_| Vec::new()).collect();
                for waiting in all {
                    let key = waiting.request.charges().first().map(|charge| &charge.key[..]);
                    let place = self.place(key.unwrap_or_default());
                    loads[place].push(waiting);
                }
                let loads = nodes.iter().zip(loads).filter(|(_, load)| !load.is_empty());
                loads.for_each(|(node, load)| node.put(Load::Many(load)));
            }
        }
        receivers
    }

    /// Sends one request whose keys are in one place.
    pub(super) fn put(&self, waiting: WaitingRequest) {
        match &self.kind {
            Kind::One(node) => node.put(Load::One(waiting)),
            Kind::Cluster(cluster) => cluster.put(waiting),
            Kind::Shards { nodes, .. } => {
                let key = waiting.request.charges().first().map(|charge| &charge.key[..]);
                nodes[self.place(key.unwrap_or_default())].put(Load::One(waiting));
            }
        }
    }

    /// Sends a refund that no caller waits for.
    pub(super) fn give_back(&self, refund: Request, and_then: AndThen) {
        let deadline = self.shared.deadline.max(REFUND_DEADLINE);
        let call = Call { at_us: refund.at_us(), deadline, on_failure: OnFailure::Closed };
        let (waiting, _) = WaitingRequest::new(&self.shared, refund, &call);
        self.put(waiting.and_then(and_then));
    }

    pub(super) fn health(&self) -> Vec<ServerHealth> {
        match &self.kind {
            Kind::One(node) => vec![node.health()],
            Kind::Cluster(cluster) => cluster.nodes().iter().map(|node| node.health()).collect(),
            Kind::Shards { nodes, .. } => nodes.iter().map(|node| node.health()).collect(),
        }
    }
}
