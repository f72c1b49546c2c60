//! A primary, its replica, and sentinels that watch them.

use redis::cmd;
use tollgate::Scope;
use tollgate_launcher::{Flavour, Launch, Sentinels, Server};

use crate::polling::until_remaining;
use crate::setup::{at, named};

/// The name under which the sentinels watch the primary.
pub(crate) const NAME: &str = "limits";

/// A primary, its replica, and three sentinels.
pub(crate) struct SentinelDeployment {
    pub(crate) primary: Server,
    pub(crate) replica: Server,
    pub(crate) sentinels: Sentinels,
}

impl SentinelDeployment {
    pub(crate) fn start(flavour: Flavour) -> SentinelDeployment {
        let primary = Launch::new(flavour).start().unwrap();
        let replica = Launch::new(flavour).replica_of(&primary).start().unwrap();
        replica.wait_until_in_sync().unwrap();
        let sentinels = Sentinels::start(flavour, 3, NAME, &primary).unwrap();
        SentinelDeployment { primary, replica, sentinels }
    }

    pub(crate) fn url(&self) -> String {
        self.sentinels.url()
    }

    /// Makes every sentinel forget the primary that it watched, and watch this one.
    pub(crate) fn watch_anew(&self, primary: &Server) {
        let addr = primary.addr();
        for sentinel in self.sentinels.servers() {
            sentinel.ask::<()>(cmd("SENTINEL").arg("REMOVE").arg(NAME)).unwrap();
        }
        for sentinel in self.sentinels.servers() {
            let mut monitor = cmd("SENTINEL");
            monitor.arg("MONITOR").arg(NAME).arg(addr.ip().to_string()).arg(addr.port()).arg(2);
            sentinel.ask::<()>(&monitor).unwrap();
        }
    }
}

/// Makes the server a primary.
pub(crate) fn promote(server: &Server) {
    server.ask::<()>(cmd("REPLICAOF").arg("NO").arg("ONE")).unwrap();
}

/// Makes the server a replica of `primary`.
pub(crate) fn demote(server: &Server, primary: &Server) {
    let addr = primary.addr();
    let mut demotion = cmd("REPLICAOF");
    demotion.arg(addr.ip().to_string()).arg(addr.port());
    server.ask::<()>(&demotion).unwrap();
}

/// The same scope on a limiter that uses the server directly, without sentinels.
pub(crate) fn there(server: &Server, scope: &Scope) -> Scope {
    named(&at(&server.url()), scope.name(), &scope.limit().to_string())
}

/// Waits until `wanted` units of a key remain on the server.
pub(crate) async fn until_there(server: &Server, scope: &Scope, key: &str, wanted: u64) {
    until_remaining(&there(server, scope), key, wanted).await;
}

/// Closes every connection of a client to the server.
pub(crate) fn cut_clients(server: &Server) {
    server.ask::<i64>(cmd("CLIENT").arg("KILL").arg("TYPE").arg("normal")).unwrap();
}
