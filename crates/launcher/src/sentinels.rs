//! Sentinels: processes that watch a primary and replace it by a replica.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use redis::cmd;

use crate::launch::ProcessRole;
use crate::{Flavour, Launch, LaunchError, Server, find, wait};

/// Intervals of a sentinel that are shorter than the defaults, in milliseconds.
///
/// In this order: between two checks of a server, between two announcements to the other sentinels, and how long
/// the sentinel does nothing after it was frozen.
const PERIODS: [(&str, u32); 3] =
    [("info-period", 500), ("publish-period", 500), ("tilt-period", 2_000)];

/// Sentinels to be started.
#[derive(Clone, Debug)]
pub struct SentinelLaunch<'a> {
    sentinel: Launch,
    name: String,
    primary: &'a Server,
    count: usize,
    quorum: Option<usize>,
    down_after: Duration,
    failover_timeout: Duration,
    auth: Option<(String, String)>,
}

impl Launch {
    /// Returns sentinels that watch `primary` under a name, to be started; three by default.
    ///
    /// The configuration lines and [`Launch::admin`] apply to the sentinels.
    pub fn sentinels<'a>(self, name: &str, primary: &'a Server) -> SentinelLaunch<'a> {
        SentinelLaunch {
            sentinel: self,
            name: name.to_owned(),
            primary,
            count: 3,
            quorum: None,
            down_after: Duration::from_secs(1),
            failover_timeout: Duration::from_secs(3),
            auth: None,
        }
    }
}

impl SentinelLaunch<'_> {
    /// Sets the number of sentinels.
    pub fn count(self, count: usize) -> Self {
        SentinelLaunch { count, ..self }
    }

    /// Sets how many sentinels must report the primary as dead; by default more than half.
    pub fn quorum(self, quorum: usize) -> Self {
        SentinelLaunch { quorum: Some(quorum), ..self }
    }

    /// Sets after how long a silent primary counts as dead; 1 s by default.
    pub fn down_after(self, silence: Duration) -> Self {
        SentinelLaunch { down_after: silence, ..self }
    }

    /// Sets how long the sentinels try one fail-over before they try another; 3 s by default.
    pub fn failover_timeout(self, timeout: Duration) -> Self {
        SentinelLaunch { failover_timeout: timeout, ..self }
    }

    /// Sets the user that the sentinels log in as at the primary and its replicas.
    pub fn auth(self, user: &str, password: &str) -> Self {
        SentinelLaunch { auth: Some((user.to_owned(), password.to_owned())), ..self }
    }

    /// Starts the sentinels, and waits until they know each other, the primary and all its replicas.
    pub fn start(&self) -> Result<Sentinels, LaunchError> {
        let binary = find::binary(self.sentinel.flavour)?;
        let servers = self.configured().start_many(&binary, self.count)?;
        let sentinels = Sentinels { name: self.name.clone(), servers };
        for server in &sentinels.servers {
            for (period, milliseconds) in PERIODS {
                server.ask::<()>(cmd("SENTINEL").arg("DEBUG").arg(period).arg(milliseconds))?;
            }
        }
        wait::until("all sentinels knew each other and the replicas", || {
            let replicas = connected_replicas(self.primary)?;
            sentinels.all(|server| sentinels.knows_all(server, replicas))
        })?;
        Ok(sentinels)
    }

    fn configured(&self) -> Launch {
        let (name, addr) = (&self.name, self.primary.addr());
        let (ip, port) = (addr.ip(), addr.port());
        let quorum = self.quorum.unwrap_or(self.count / 2 + 1);
        let (down, timeout) = (self.down_after.as_millis(), self.failover_timeout.as_millis());
        let mut launch = self.sentinel.clone().role(ProcessRole::Sentinel);
        launch = launch
            .own_line("sentinel", format_args!("monitor {name} {ip} {port} {quorum}"))
            .own_line("sentinel", format_args!("down-after-milliseconds {name} {down}"))
            .own_line("sentinel", format_args!("failover-timeout {name} {timeout}"));
        if let Some((user, password)) = &self.auth {
            launch = launch
                .own_line("sentinel", format_args!("auth-user {name} {user}"))
                .own_line("sentinel", format_args!("auth-pass {name} {password}"));
        }
        if self.primary.speaks_tls() { launch.own_line("tls-replication", "yes") } else { launch }
    }
}

/// Processes that watch a primary and replace it by a replica; dropping this stops them.
///
/// ```no_run
/// use tollgate_launcher::{Flavour, Launch, Sentinels};
///
/// let mut primary = Launch::new(Flavour::Redis).start()?;
/// let replica = Launch::new(Flavour::Redis).replica_of(&primary).start()?;
/// replica.wait_until_in_sync()?;
/// let sentinels = Sentinels::start(Flavour::Redis, 3, "limits", &primary)?;
/// primary.kill();
/// sentinels.wait_for_primary(replica.addr())?;
/// # Ok::<(), tollgate_launcher::LaunchError>(())
/// ```
#[derive(Debug)]
pub struct Sentinels {
    name: String,
    servers: Vec<Server>,
}

impl Sentinels {
    /// Starts `count` sentinels that watch `primary` under a name; [`Launch::sentinels`] has more settings.
    pub fn start(
        flavour: Flavour,
        count: usize,
        name: &str,
        primary: &Server,
    ) -> Result<Sentinels, LaunchError> {
        Launch::new(flavour).sentinels(name, primary).count(count).start()
    }

    /// Returns the sentinels.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// Returns the sentinels, to be killed or restarted.
    pub fn servers_mut(&mut self) -> &mut [Server] {
        &mut self.servers
    }

    /// Returns the address: `redis+sentinel://127.0.0.1:14123,127.0.0.1:14124/limits`.
    pub fn url(&self) -> String {
        let scheme = self.servers.first().map_or("redis", Server::scheme);
        let addrs: Vec<_> = self.servers.iter().map(|server| server.addr().to_string()).collect();
        format!("{scheme}+sentinel://{}/{}", addrs.join(","), self.name)
    }

    /// Returns the address of the primary, as the first live sentinel reports it.
    pub fn primary(&self) -> Result<SocketAddr, LaunchError> {
        self.primary_by(self.live()?)
    }

    /// Makes the sentinels replace the primary by a replica; returns the new primary's address once all of
    /// them agree.
    pub fn fail_over(&self) -> Result<SocketAddr, LaunchError> {
        let before = self.primary()?;
        let sentinel = self.live()?;
        // The sentinel refuses as long as it finds no suitable replica.
        wait::until("a sentinel began to fail over", || {
            sentinel.ask::<()>(cmd("SENTINEL").arg("FAILOVER").arg(&self.name))?;
            Ok(true)
        })?;
        wait::until("the sentinels reported another primary", || Ok(self.primary()? != before))?;
        let after = self.primary()?;
        self.wait_for_primary(after)?;
        Ok(after)
    }

    /// Waits until every live sentinel reports that the primary is at `addr` and is healthy.
    pub fn wait_for_primary(&self, addr: SocketAddr) -> Result<(), LaunchError> {
        wait::until(&format!("all sentinels reported {addr} as the primary"), || {
            self.all(|server| {
                let facts = self.facts(server)?;
                let is_well = facts.get("flags").is_some_and(|flags| flags == "master");
                let is_primary = facts.get("role-reported").is_some_and(|role| role == "master");
                Ok(is_well && is_primary && self.primary_by(server)? == addr)
            })
        })
    }

    /// Returns the first live sentinel.
    fn live(&self) -> Result<&Server, LaunchError> {
        let live = self.servers.iter().find(|server| server.is_live());
        live.ok_or(LaunchError::NoSentinels)
    }

    /// Whether a condition holds for all live sentinels.
    fn all(
        &self,
        mut holds: impl FnMut(&Server) -> Result<bool, LaunchError>,
    ) -> Result<bool, LaunchError> {
        for server in self.servers.iter().filter(|server| server.is_live()) {
            if !holds(server)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns the primary's address, as one sentinel reports it.
    fn primary_by(&self, server: &Server) -> Result<SocketAddr, LaunchError> {
        let mut command = cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let (ip, port): (String, u16) = server.ask(&command)?;
        // OK because every server that the launcher starts is at 127.0.0.1.
        Ok((ip.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)), port).into())
    }

    /// Returns what a sentinel knows about the primary.
    fn facts(&self, server: &Server) -> Result<HashMap<String, String>, LaunchError> {
        server.ask(cmd("SENTINEL").arg("MASTER").arg(&self.name))
    }

    /// Whether a sentinel knows all other sentinels and the healthy primary with this number of healthy replicas.
    fn knows_all(&self, server: &Server, replicas: usize) -> Result<bool, LaunchError> {
        let facts = self.facts(server)?;
        let others = (self.servers.len() - 1).to_string();
        if facts.get("num-other-sentinels") != Some(&others)
            || facts.get("num-slaves") != Some(&replicas.to_string())
            || facts.get("flags").is_none_or(|flags| flags != "master")
        {
            return Ok(false);
        }
        let replicas: Vec<HashMap<String, String>> =
            server.ask(cmd("SENTINEL").arg("REPLICAS").arg(&self.name))?;
        let is_well = |facts: &HashMap<String, String>| {
            let is = |name, wanted| facts.get(name).is_some_and(|value| value == wanted);
            is("flags", "slave") && is("master-link-status", "ok")
        };
        Ok(replicas.iter().all(is_well))
    }
}

/// Returns how many replicas the primary has.
fn connected_replicas(primary: &Server) -> Result<usize, LaunchError> {
    let info: String = primary.ask(cmd("INFO").arg("replication"))?;
    let count = info.lines().find_map(|line| line.strip_prefix("connected_slaves:"));
    Ok(count.and_then(|count| count.trim().parse().ok()).unwrap_or_default())
}
