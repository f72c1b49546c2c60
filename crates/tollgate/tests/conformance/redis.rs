//! The Redis store on a real Redis, a real Valkey, three shards, and a cluster of three. The user of the
//! connection may use only our keys, with only our commands.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Limiter, ManualClock, OnFailure, Redis};
use tollgate_launcher::{
    Cluster, Flavour, Launch, LaunchError, Server, ServerGroup, SharedServers,
};

mod on_redis {
    use super::*;

    crate::suite::suite!(make);
    crate::suite::hold_suite!(make);
    crate::suite::lease_suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        let server = shared(&SERVER, || start(Flavour::Redis));
        open_at(&format!("redis://tollgate:secret@{}", server.addr()), clock)
    }

    static SERVER: SharedServers<Server> = SharedServers::new();
}

mod on_valkey {
    use super::*;

    crate::suite::suite!(make);
    crate::suite::hold_suite!(make);
    crate::suite::lease_suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        let server = shared(&SERVER, || start(Flavour::Valkey));
        open_at(&format!("redis://tollgate:secret@{}", server.addr()), clock)
    }

    static SERVER: SharedServers<Server> = SharedServers::new();
}

mod on_shards {
    use super::*;

    crate::suite::suite!(make, in several places);
    crate::suite::hold_suite!(make, in several places);
    crate::suite::lease_suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        let one = || start(Flavour::Redis);
        let servers = shared(&SERVERS, || Ok([one()?, one()?, one()?]));
        let addrs = servers.each_ref().map(|server| server.addr().to_string());
        open_at(&format!("redis+shards://tollgate:secret@{}", addrs.join(",")), clock)
    }

    static SERVERS: SharedServers<[Server; 3]> = SharedServers::new();
}

mod on_a_cluster {
    use super::*;

    crate::suite::suite!(make, in several places);
    crate::suite::hold_suite!(make, in several places);
    crate::suite::lease_suite!(make);

    fn make(clock: &ManualClock) -> Limiter {
        let cluster = shared(&CLUSTER, || {
            let user = format!("{USER} +cluster|slots +asking");
            let node = Launch::new(Flavour::Valkey).config("user", &user);
            node.cluster().primaries(3).replicas_of_each(0).start()
        });
        open_at(&cluster.url().replace("://", "://tollgate:secret@"), clock)
    }

    static CLUSTER: SharedServers<Cluster> = SharedServers::new();
}

/// The same rights as in `tests/redis/acl.rs`, which shows that each of them is needed.
const USER: &str = "tollgate on >secret ~tollgate:* resetchannels -@all +evalsha +eval +time +get +set \
                    +getrange +setrange +strlen +expire +del";

fn start(flavour: Flavour) -> Result<Server, LaunchError> {
    Launch::new(flavour).config("user", USER).start()
}

/// Returns the shared server, and starts it first if necessary. Limiters have different prefixes, so tests can share it.
fn shared<T: ServerGroup>(
    server: &'static SharedServers<T>,
    start: impl FnOnce() -> Result<T, LaunchError>,
) -> &'static T {
    server.get(start).unwrap_or_else(|error| panic!("{error}"))
}

/// Opens a limiter with its own prefix of keys.
fn open_at(url: &str, clock: &ManualClock) -> Limiter {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("tollgate:{}:", OPENED.fetch_add(1, Ordering::Relaxed));
    let builder = Redis::at(url).unwrap().prefix(&prefix).unwrap();
    let builder = builder.on_failure(OnFailure::Closed);
    builder.clock(clock).deadline(Duration::from_secs(30)).build().unwrap()
}
