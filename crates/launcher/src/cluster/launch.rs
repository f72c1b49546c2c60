//! Starts a cluster.

use std::time::Duration;

use redis::cmd;

use super::{Cluster, SLOTS, meet};
use crate::launch::ProcessRole;
use crate::{Launch, LaunchError, Server, find};

/// A cluster to be started.
#[derive(Clone, Debug)]
pub struct ClusterLaunch {
    node: Launch,
    primaries: u16,
    replicas_of_each: u16,
    node_timeout: Duration,
}

impl Launch {
    /// Returns a cluster of servers with these settings, to be started. It has three primaries by default.
    ///
    /// The launcher itself logs in as `default` or [`Launch::admin`]. That user must have all permissions.
    pub fn cluster(self) -> ClusterLaunch {
        let node_timeout = Duration::from_secs(1);
        ClusterLaunch { node: self, primaries: 3, replicas_of_each: 0, node_timeout }
    }
}

impl ClusterLaunch {
    /// Sets how many nodes share the slots: at least one. Fewer than three cannot hold an election.
    pub fn primaries(self, count: u16) -> ClusterLaunch {
        ClusterLaunch { primaries: count.max(1), ..self }
    }

    /// Sets how many replicas each primary has.
    pub fn replicas_of_each(self, count: u16) -> ClusterLaunch {
        ClusterLaunch { replicas_of_each: count, ..self }
    }

    /// Sets after how long a silent node counts as dead; 1 s by default.
    pub fn node_timeout(self, timeout: Duration) -> ClusterLaunch {
        ClusterLaunch { node_timeout: timeout, ..self }
    }

    /// Starts the cluster, and waits until every node serves and knows every other node.
    pub fn start(&self) -> Result<Cluster, LaunchError> {
        let node = self.node.clone().role(ProcessRole::Node);
        let node = node
            .own_line("cluster-node-timeout", self.node_timeout.as_millis())
            .own_line("cluster-config-file", "nodes.conf")
            .own_line("cluster-require-full-coverage", "no")
            // A replica stays with its primary, and may take over even if its data is old.
            .own_line("cluster-allow-replica-migration", "no")
            .own_line("cluster-replica-validity-factor", 0);
        let binary = find::binary(node.flavour)?;
        let count = usize::from(self.primaries) * (1 + usize::from(self.replicas_of_each));
        let servers = node.start_many(&binary, count)?;
        let ask_id = |server: &Server| server.ask(cmd("CLUSTER").arg("MYID"));
        let ids = servers.iter().map(ask_id).collect::<Result<_, _>>()?;
        let cluster = Cluster { node, binary, servers, ids, node_timeout: self.node_timeout };
        self.assign_slots(&cluster)?;
        introduce(&cluster.servers)?;
        cluster.wait_until("all nodes of a cluster had met", || cluster.have_met())?;
        self.assign_replicas(&cluster)?;
        cluster.wait_until_settled()?;
        Ok(cluster)
    }

    fn assign_slots(&self, cluster: &Cluster) -> Result<(), LaunchError> {
        let first_of =
            |number: u16| u32::from(SLOTS) * u32::from(number) / u32::from(self.primaries);
        for (number, server) in (0..self.primaries).zip(&cluster.servers) {
            let (first, last) = (first_of(number), first_of(number + 1) - 1);
            server.ask::<()>(cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(first).arg(last))?;
            // Each node gets its own epoch, because nodes with equal epochs first have to resolve that conflict.
            server.ask::<()>(cmd("CLUSTER").arg("SET-CONFIG-EPOCH").arg(number + 1))?;
        }
        Ok(())
    }

    fn assign_replicas(&self, cluster: &Cluster) -> Result<(), LaunchError> {
        let primaries = usize::from(self.primaries);
        let (ids, replicas) = (&cluster.ids[..primaries], &cluster.servers[primaries..]);
        for (replica, primary) in replicas.iter().zip(ids.iter().cycle()) {
            replica.ask::<()>(cmd("CLUSTER").arg("REPLICATE").arg(primary))?;
        }
        Ok(())
    }
}

impl Cluster {
    /// Whether every node has completed its handshake with every other node.
    fn have_met(&self) -> Result<bool, LaunchError> {
        let views = self.views()?;
        let is_known = |id: &String| views.iter().all(|(_, view)| view.knows(id));
        Ok(self.ids.iter().all(is_known))
    }
}

/// Introduces every node to every other one, because waiting for gossip takes longer.
fn introduce(servers: &[Server]) -> Result<(), LaunchError> {
    for (index, server) in servers.iter().enumerate() {
        for other in &servers[index + 1..] {
            meet(server, other)?;
        }
    }
    Ok(())
}
