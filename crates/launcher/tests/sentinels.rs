//! Sentinels watch a primary, and replace it when it dies.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redis::cmd;
use tollgate_launcher::{Flavour, Launch, Sentinels, Server};

fn start_pair(launch: &Launch) -> (Server, Server) {
    let primary = launch.start().unwrap();
    let replica = launch.clone().replica_of(&primary).start().unwrap();
    replica.wait_until_in_sync().unwrap();
    (primary, replica)
}

#[test]
fn sentinels_replace_a_primary_that_dies() {
    for flavour in Flavour::ALL {
        let (mut primary, replica) = start_pair(&Launch::new(flavour));
        let sentinels = Sentinels::start(flavour, 3, "limits", &primary).unwrap();
        let addrs: Vec<_> = sentinels.servers().iter().map(|it| it.addr().to_string()).collect();
        assert_eq!(sentinels.url(), format!("redis+sentinel://{}/limits", addrs.join(",")));
        assert_eq!(sentinels.primary().unwrap(), primary.addr(), "{flavour}");
        primary.kill();
        sentinels.wait_for_primary(replica.addr()).unwrap();
        replica.ask::<()>(cmd("SET").arg("key").arg("written")).unwrap();

        primary.restart().unwrap();
        primary.wait_until_in_sync().unwrap();
        let value: String = primary.ask(cmd("GET").arg("key")).unwrap();
        assert_eq!(value, "written", "{flavour}");
    }
}

#[test]
fn sentinels_fail_over_on_command_when_one_of_them_is_down() {
    for flavour in Flavour::ALL {
        let (primary, replica) = start_pair(&Launch::new(flavour));
        let mut sentinels = Sentinels::start(flavour, 3, "limits", &primary).unwrap();
        sentinels.servers_mut()[0].kill();
        assert_eq!(sentinels.fail_over().unwrap(), replica.addr(), "{flavour}");
        primary.wait_until_in_sync().unwrap();

        sentinels.servers_mut()[0].restart().unwrap();
        sentinels.wait_for_primary(replica.addr()).unwrap();
    }
}

#[test]
fn sentinels_work_with_passwords() {
    for flavour in Flavour::ALL {
        let with_password = || {
            let launch = Launch::new(flavour).config("user", "default off");
            let launch = launch.config("user", "root on >secret ~* &* +@all");
            launch.admin("root", "secret")
        };
        let server = with_password().config("masteruser", "root").config("masterauth", "secret");
        let (mut primary, replica) = start_pair(&server);
        let sentinel = with_password()
            .config("sentinel", "sentinel-user root")
            .config("sentinel", "sentinel-pass secret");
        let sentinels = sentinel
            .sentinels("limits", &primary)
            .count(3)
            .quorum(2)
            .down_after(Duration::from_millis(500))
            .failover_timeout(Duration::from_secs(2))
            .auth("root", "secret")
            .start()
            .unwrap();
        primary.kill();
        sentinels.wait_for_primary(replica.addr()).unwrap();
    }
}

#[cfg(feature = "tls")]
#[test]
fn sentinels_speak_tls() {
    let authority = tollgate_launcher::Authority::new("test").unwrap();
    let launch = Launch::new(Flavour::Redis).tls(authority.certify("127.0.0.1").unwrap());
    let (primary, replica) = start_pair(&launch);
    let sentinels = launch.sentinels("limits", &primary).start().unwrap();
    assert!(sentinels.url().starts_with("rediss+sentinel://127.0.0.1:"));
    assert_eq!(sentinels.fail_over().unwrap(), replica.addr());
}
