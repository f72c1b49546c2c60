//! A cluster of servers that share the slots.

mod launch;
mod migration;
mod view;

pub use launch::ClusterLaunch;

use std::ops::{Index, IndexMut};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use redis::cmd;

use crate::error::Scene;
use crate::{Flavour, Launch, LaunchError, Server, wait};
use view::ClusterView;

/// The number of slots.
const SLOTS: u16 = 16_384;

/// The time after which a replica gives up a requested fail-over.
const FAIL_OVER_TIMEOUT: Duration = Duration::from_secs(6);

/// The shortest time for which votes count. They count for two node timeouts if that is longer.
const MIN_VOTE_LIFETIME: Duration = Duration::from_secs(2);

/// The number of lines of each node's log that the error shows when a wait has timed out.
const LOG_LINES_SHOWN: usize = 40;

/// A cluster of servers that share the slots. Dropping it stops all of them.
///
/// ```no_run
/// use tollgate_launcher::{Cluster, FailOver, Flavour};
///
/// let mut cluster = Cluster::start(Flavour::Valkey, 3, 1)?;
/// let owner = cluster.owner_of(42)?;
/// let replica = cluster.replicas_of(owner)?[0];
/// cluster[owner].kill();
/// cluster.wait_for_primary(replica)?;
/// # Ok::<(), tollgate_launcher::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct Cluster {
    node: Launch,
    binary: PathBuf,
    servers: Vec<Server>,
    /// The ids of the nodes, in the order of `servers`.
    ids: Vec<String>,
    node_timeout: Duration,
}

/// One node of a [`Cluster`]. Indexing with it returns its server: `cluster[node].freeze()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClusterNode(usize);

/// How a replica takes over from its primary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailOver {
    /// Both agree, and no write is lost.
    Agreed,
    /// The other primaries agree; the replica's own primary may be down.
    Forced,
    /// The replica takes over without any agreement.
    TakeOver,
}

impl Index<ClusterNode> for Cluster {
    type Output = Server;

    fn index(&self, node: ClusterNode) -> &Server {
        &self.servers[node.0]
    }
}

impl IndexMut<ClusterNode> for Cluster {
    fn index_mut(&mut self, node: ClusterNode) -> &mut Server {
        &mut self.servers[node.0]
    }
}

impl Cluster {
    /// Starts `primaries` primaries with `replicas_of_each` replicas each, and waits until all nodes agree.
    pub fn start(
        flavour: Flavour,
        primaries: u16,
        replicas_of_each: u16,
    ) -> Result<Cluster, LaunchError> {
        let launch = Launch::new(flavour).cluster();
        launch.primaries(primaries).replicas_of_each(replicas_of_each).start()
    }

    /// Returns every node: first the primaries it was started with, then their replicas, then added nodes.
    pub fn nodes(&self) -> Vec<ClusterNode> {
        (0..self.servers.len()).map(ClusterNode).collect()
    }

    /// Returns the servers, in the same order.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the address: `redis+cluster://127.0.0.1:14123,127.0.0.1:14124`, or `rediss+cluster://…`.
    pub fn url(&self) -> String {
        let scheme = self.servers.first().map_or("redis", Server::scheme);
        let addrs: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("{scheme}+cluster://{}", addrs.join(","))
    }

    /// Returns the live nodes that report that they are primaries, with slots or without.
    pub fn primaries(&self) -> Result<Vec<ClusterNode>, LaunchError> {
        self.live_nodes_where(|view| view.myself().is_some_and(|known| known.primary.is_none()))
    }

    /// Returns the live nodes that report that they are replicas of this one.
    pub fn replicas_of(&self, primary: ClusterNode) -> Result<Vec<ClusterNode>, LaunchError> {
        let id = Some(&self.ids[primary.0]);
        self.live_nodes_where(|view| {
            view.myself().is_some_and(|known| known.primary.as_ref() == id)
        })
    }

    fn live_nodes_where(
        &self,
        holds: impl Fn(&ClusterView) -> bool,
    ) -> Result<Vec<ClusterNode>, LaunchError> {
        let views = self.views()?;
        Ok(views.iter().filter(|(_, view)| holds(view)).map(|(node, _)| *node).collect())
    }

    /// Returns the node that owns a slot; where live nodes differ, the one with the latest claim.
    pub fn owner_of(&self, slot: u16) -> Result<ClusterNode, LaunchError> {
        let views = self.views()?;
        let claims = views.iter().filter_map(|(_, view)| view.owner_of(slot));
        let latest = claims.max_by_key(|known| known.epoch);
        latest.and_then(|known| self.by_id(&known.id)).ok_or(LaunchError::SlotUnowned { slot })
    }

    /// Adds an empty primary, and waits until all nodes know it.
    pub fn add_node(&mut self) -> Result<ClusterNode, LaunchError> {
        let server = self.node.start_program(&self.binary)?;
        self.ids.push(server.ask(cmd("CLUSTER").arg("MYID"))?);
        for other in self.servers.iter().filter(|server| server.is_live()) {
            meet(&server, other)?;
        }
        self.servers.push(server);
        self.wait_until_settled()?;
        Ok(ClusterNode(self.servers.len() - 1))
    }

    /// Makes a replica take over from its primary, and waits until all live nodes agree.
    ///
    /// After an election, it also waits until the votes have expired. Redis forgets to discard them
    /// ([redis#8752](https://github.com/redis/redis/issues/8752)): in the next election such a node counts
    /// them as new ones, and calls itself a primary while no other node agrees.
    pub fn fail_over(&self, replica: ClusterNode, how: FailOver) -> Result<(), LaunchError> {
        let mut command = cmd("CLUSTER");
        command.arg("FAILOVER");
        match how {
            FailOver::Agreed => &mut command,
            FailOver::Forced => command.arg("FORCE"),
            FailOver::TakeOver => command.arg("TAKEOVER"),
        };
        self[replica].ask::<()>(&command)?;
        let mut requested_at = Instant::now();
        self.wait_until("a replica became the primary", || {
            if requested_at.elapsed() > FAIL_OVER_TIMEOUT && !self.is_primary(replica)? {
                requested_at = Instant::now();
                self[replica].ask::<()>(&command)?;
            }
            Ok(self.is_primary(replica)? && self.is_settled()?)
        })?;
        if how != FailOver::TakeOver {
            thread::sleep((2 * self.node_timeout).max(MIN_VOTE_LIFETIME));
        }
        Ok(())
    }

    /// Waits until a node is a primary and all live nodes agree, as after its primary has died.
    ///
    /// Unlike [`Cluster::fail_over`], it does not wait until the votes of the election have expired. Before this
    /// node takes part in another election, the cluster has to notice two more deaths, its own and then its
    /// successor's, and the votes expire in that time.
    pub fn wait_for_primary(&self, node: ClusterNode) -> Result<(), LaunchError> {
        self.wait_until("a node was the primary and all agreed", || {
            Ok(self.is_primary(node)? && self.is_settled()?)
        })
    }

    /// Waits until all live nodes are up and in sync, and the view that each has of another equals that node's
    /// view of itself.
    pub fn wait_until_settled(&self) -> Result<(), LaunchError> {
        self.wait_until("all nodes of a cluster agreed", || self.is_settled())
    }

    /// Does the same as [`wait::until`]. If the wait times out, the error shows each node's view of the cluster
    /// and its log.
    fn wait_until(
        &self,
        what: &str,
        holds: impl FnMut() -> Result<bool, LaunchError>,
    ) -> Result<(), LaunchError> {
        wait::until(what, holds).map_err(|error| match error {
            LaunchError::TimedOut { what, waited, last, .. } => {
                LaunchError::TimedOut { what, waited, scene: self.scene(), last }
            }
            other => other,
        })
    }

    /// Returns each node's view of the cluster and the end of its log.
    fn scene(&self) -> Scene {
        let describe = |(server, id): (&Server, &String)| {
            let nodes = server.ask(cmd("CLUSTER").arg("NODES"));
            let nodes: String = nodes.unwrap_or_else(|error| format!("{error}\n"));
            let log = server.log();
            let start = log.lines().count().saturating_sub(LOG_LINES_SHOWN);
            let log: Vec<_> = log.lines().skip(start).collect();
            format!("\n{id} at {}:\n{nodes}{}\n", server.addr(), log.join("\n"))
        };
        Scene(self.servers.iter().zip(&self.ids).map(describe).collect())
    }

    fn is_primary(&self, node: ClusterNode) -> Result<bool, LaunchError> {
        Ok(self.primaries()?.contains(&node))
    }

    fn is_settled(&self) -> Result<bool, LaunchError> {
        let views = self.views()?;
        for (_, view) in &views {
            let Some(itself) = view.myself() else { return Ok(false) };
            if !views.iter().all(|(_, other)| other.sees(itself)) {
                return Ok(false);
            }
        }
        for (node, view) in &views {
            let info: String = self[*node].ask(cmd("CLUSTER").arg("INFO"))?;
            let is_replica = view.myself().is_some_and(|known| known.primary.is_some());
            if !info.contains("cluster_state:ok") || is_replica && !self[*node].is_in_sync()? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the view that every live node has of the cluster.
    fn views(&self) -> Result<Vec<(ClusterNode, ClusterView)>, LaunchError> {
        let live = self.nodes().into_iter().filter(|node| self[*node].is_live());
        live.map(|node| Ok((node, ClusterView::of(&self[node])?))).collect()
    }

    fn by_id(&self, id: &str) -> Option<ClusterNode> {
        self.ids.iter().position(|known| known == id).map(ClusterNode)
    }
}

fn meet(server: &Server, other: &Server) -> Result<(), LaunchError> {
    let addr = other.addr();
    let mut command = cmd("CLUSTER");
    command.arg("MEET").arg(addr.ip().to_string()).arg(addr.port()).arg(other.bus_port());
    server.ask(&command)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn scene_shows_the_view_and_the_log_of_every_node() {
        let mut cluster = Cluster::start(Flavour::Valkey, 2, 0).unwrap();
        cluster[ClusterNode(1)].kill();
        let scene = cluster.scene().to_string();
        for server in cluster.servers() {
            assert!(scene.contains(&format!("at {}:", server.addr())), "{scene}");
        }
        assert!(scene.contains("myself,master") && scene.contains("failed at"), "{scene}");
        assert!(scene.contains("Ready to accept connections"), "{scene}");
    }
}
