//! Servers, and the faults that are injected into them.

use std::collections::VecDeque;
use std::thread::sleep;
use std::time::Duration;

use tollgate_launcher::{Cluster, FailOver, Flavour, Launch, Proxy, Sentinels, Server};

/// The servers of a deployment, and the faults to come.
pub(crate) struct World {
    servers: Servers,
    /// The faults of this round that are still to come.
    to_come: VecDeque<Fault>,
    random: Random,
}

enum Servers {
    One { server: Server, proxy: Proxy },
    Sentinels { servers: Vec<Server>, sentinels: Sentinels },
    Cluster(Cluster),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// A server freezes for a while.
    Freeze,
    /// A server is killed. It is started again without its state, or a replica takes over.
    Kill,
    /// A primary freezes until a replica has taken over, then resumes.
    ReturnOfAStalePrimary,
    /// A planned failover to a replica.
    FailOver,
    /// All connections break.
    CutConnections,
    /// Replies to scripts are lost after the scripts ran.
    LoseReplies,
    /// Connections break in the middle of a reply.
    CutReplies,
    /// Replies are late.
    Delay,
    FlushScripts,
    /// A slot moves to another server.
    MoveSlots,
}

impl Fault {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Fault::Freeze => "frozen for a moment",
            Fault::Kill => "killed",
            Fault::ReturnOfAStalePrimary => "a stale primary came back",
            Fault::FailOver => "failed over as planned",
            Fault::CutConnections => "connections cut",
            Fault::LoseReplies => "replies lost",
            Fault::CutReplies => "replies cut",
            Fault::Delay => "replies late",
            Fault::FlushScripts => "scripts flushed",
            Fault::MoveSlots => "slots moved",
        }
    }

    /// Whether the fault may lose charges. Replication is asynchronous, so a replica may lack the last charges.
    pub(crate) fn may_lose_state(self) -> bool {
        matches!(self, Fault::Kill | Fault::ReturnOfAStalePrimary | Fault::FailOver)
    }
}

impl World {
    pub(crate) fn one(seed: u64) -> World {
        let server = Launch::new(Flavour::Redis).start().unwrap_or_else(|error| panic!("{error}"));
        let proxy = Proxy::start(server.addr()).unwrap();
        World::new(Servers::One { server, proxy }, seed)
    }

    pub(crate) fn sentinels(seed: u64) -> World {
        let start = || {
            let primary = Launch::new(Flavour::Redis).start()?;
            let replica = Launch::new(Flavour::Redis).replica_of(&primary).start()?;
            replica.wait_until_in_sync()?;
            let sentinels = Sentinels::start(Flavour::Redis, 3, "soak", &primary)?;
            Ok(Servers::Sentinels { servers: vec![primary, replica], sentinels })
        };
        let started: Result<_, tollgate_launcher::LaunchError> = start();
        World::new(started.unwrap_or_else(|error| panic!("{error}")), seed)
    }

    pub(crate) fn cluster(seed: u64) -> World {
        let cluster =
            Cluster::start(Flavour::Valkey, 3, 1).unwrap_or_else(|error| panic!("{error}"));
        World::new(Servers::Cluster(cluster), seed)
    }

    fn new(servers: Servers, seed: u64) -> World {
        World { servers, to_come: VecDeque::new(), random: Random(seed | 1) }
    }

    pub(crate) fn url(&self) -> String {
        match &self.servers {
            Servers::One { proxy, .. } => proxy.url(),
            Servers::Sentinels { sentinels, .. } => sentinels.url(),
            Servers::Cluster(cluster) => cluster.url(),
        }
    }

    /// The next fault: all faults of the deployment in random order, then all again.
    pub(crate) fn next(&mut self) -> Fault {
        if self.to_come.is_empty() {
            let mut faults = match &self.servers {
                Servers::One { .. } => vec![
                    Fault::Freeze,
                    Fault::Kill,
                    Fault::CutConnections,
                    Fault::LoseReplies,
                    Fault::CutReplies,
                    Fault::Delay,
                    Fault::FlushScripts,
                ],
                Servers::Sentinels { .. } => vec![
                    Fault::Freeze,
                    Fault::Kill,
                    Fault::ReturnOfAStalePrimary,
                    Fault::FailOver,
                    Fault::CutConnections,
                    Fault::FlushScripts,
                ],
                Servers::Cluster(_) => vec![
                    Fault::Freeze,
                    Fault::Kill,
                    Fault::ReturnOfAStalePrimary,
                    Fault::FailOver,
                    Fault::CutConnections,
                    Fault::FlushScripts,
                    Fault::MoveSlots,
                ],
            };
            while !faults.is_empty() {
                let at = self.random.below(faults.len() as u64) as usize;
                self.to_come.push_back(faults.swap_remove(at));
            }
        }
        self.to_come.pop_front().unwrap()
    }

    pub(crate) fn inject(&mut self, fault: Fault) {
        let a_while = Duration::from_millis(20 + self.random.below(400));
        match &mut self.servers {
            Servers::One { server, proxy } => hurt_one(server, proxy, fault, a_while),
            Servers::Sentinels { servers, sentinels } => {
                hurt_primary(servers, sentinels, fault, a_while);
            }
            Servers::Cluster(cluster) => {
                hurt_cluster(cluster, fault, a_while, &mut self.random);
            }
        }
    }
}

fn hurt_one(server: &mut Server, proxy: &Proxy, fault: Fault, a_while: Duration) {
    match fault {
        Fault::Kill => {
            server.kill();
            server.restart().unwrap();
        }
        Fault::LoseReplies => {
            proxy.drop_replies(3);
            sleep(a_while);
            // A connection on which a reply is missing carries no more replies, and is closed after a second.
            proxy.pass();
        }
        Fault::CutReplies => {
            proxy.cut_mid_reply(2);
            proxy.cut_after_request(2);
            sleep(a_while);
            proxy.pass();
        }
        Fault::Delay => {
            let mut random = Random(a_while.as_micros() as u64 | 1);
            proxy.delay(move || Duration::from_micros(random.below(120_000)));
            sleep(a_while * 3);
            proxy.pass();
        }
        _ => hurt_server(server, fault, a_while),
    }
}

/// Injects a fault that every deployment can have.
fn hurt_server(server: &Server, fault: Fault, a_while: Duration) {
    match fault {
        Fault::Freeze => {
            // Too short for a replica to take over.
            server.freeze();
            sleep(a_while);
            server.thaw();
        }
        Fault::CutConnections => {
            for _ in 0..5 {
                // Errors are ignored: the server may have no connections.
                let _ = server.ask::<i64>(redis::cmd("CLIENT").arg(&["KILL", "TYPE", "normal"]));
                sleep(a_while / 10);
            }
        }
        Fault::FlushScripts => server.ask(redis::cmd("SCRIPT").arg("FLUSH")).unwrap(),
        other => panic!("{other:?} is not a fault of a single server"),
    }
}

fn hurt_primary(servers: &mut [Server], sentinels: &Sentinels, fault: Fault, a_while: Duration) {
    let addr = sentinels.primary().unwrap();
    let primary = servers.iter().position(|server| server.addr() == addr).unwrap();
    let replica = 1 - primary;
    match fault {
        Fault::Kill => {
            servers[primary].kill();
            sentinels.wait_for_primary(servers[replica].addr()).unwrap();
            servers[primary].restart().unwrap();
            wait_until_replica(&servers[primary]);
        }
        Fault::ReturnOfAStalePrimary => {
            servers[primary].freeze();
            sentinels.wait_for_primary(servers[replica].addr()).unwrap();
            servers[primary].thaw();
            wait_until_replica(&servers[primary]);
        }
        Fault::FailOver => {
            sentinels.fail_over().unwrap();
            wait_until_replica(&servers[primary]);
        }
        _ => hurt_server(&servers[primary], fault, a_while),
    }
}

/// Waits until the sentinels have made the server a replica.
fn wait_until_replica(server: &Server) {
    let is_replica = || {
        // An error is ignored: a server that becomes a replica closes its connections.
        let role = server.ask::<redis::Value>(&redis::cmd("ROLE"));
        role.is_ok_and(|role| format!("{role:?}").contains("slave"))
    };
    for _ in 0..6_000 {
        if is_replica() {
            return server.wait_until_in_sync().unwrap();
        }
        sleep(Duration::from_millis(10));
    }
    panic!("{} did not become a replica", server.addr());
}

fn hurt_cluster(cluster: &mut Cluster, fault: Fault, a_while: Duration, random: &mut Random) {
    let slot = random.below(16_384) as u16;
    let owner = cluster.owner_of(slot).unwrap();
    let replica = cluster.replicas_of(owner).unwrap()[0];
    match fault {
        Fault::Kill => {
            cluster[owner].kill();
            cluster.wait_for_primary(replica).unwrap();
            cluster[owner].restart().unwrap();
            cluster.wait_until_settled().unwrap();
        }
        Fault::ReturnOfAStalePrimary => {
            cluster[owner].freeze();
            cluster.wait_for_primary(replica).unwrap();
            cluster[owner].thaw();
            cluster.wait_until_settled().unwrap();
        }
        Fault::FailOver => {
            cluster.fail_over(replica, FailOver::Agreed).unwrap();
            cluster.wait_until_settled().unwrap();
        }
        Fault::MoveSlots => {
            let primaries = cluster.primaries().unwrap();
            let to = *primaries.iter().find(|&&primary| primary != owner).unwrap();
            cluster.migrate_slot(slot, to).unwrap();
        }
        _ => hurt_server(&cluster[owner], fault, a_while),
    }
}

/// A pseudo-random generator (xorshift): the same numbers in every run.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
