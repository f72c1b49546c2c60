//! Shards: servers that share the keys and do not know of each other.

use std::hash::Hasher;
use std::time::Duration;

use siphasher::sip::SipHasher13;
use tollgate::{BreakerState, Limiter};
use tollgate_launcher::{Flavour, Launch, Server};

use crate::polling::{ids_on, keys_on, remaining, store_error, until_well};
use crate::setup::{LIMITS, at, builder, named};

pub(crate) fn start(launch: &Launch, count: usize) -> Vec<Server> {
    (0..count).map(|_| launch.start().unwrap()).collect()
}

pub(crate) fn url<'a>(login: &str, servers: impl IntoIterator<Item = &'a Server>) -> String {
    let addrs: Vec<_> = servers.into_iter().map(|server| server.addr().to_string()).collect();
    format!("redis+shards://{login}{}", addrs.join(","))
}

/// The index of the server that has an id, by the documented weights. A second implementation, so that a change of
/// the first is noticed.
fn heaviest(servers: &[Server], id: &str) -> usize {
    let hash = |text: &str| {
        let mut hasher = SipHasher13::new_with_key(b"tollgate servers");
        hasher.write(text.as_bytes());
        hasher.finish()
    };
    let weight = |server: &Server| {
        let mut bits = hash(id) ^ hash(&server.addr().to_string());
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        bits ^ (bits >> 31)
    };
    (0..servers.len()).max_by_key(|&at| weight(&servers[at])).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_id_is_on_the_server_with_the_largest_weight() {
    for flavour in Flavour::ALL {
        let servers = start(&Launch::new(flavour), 3);
        let limiter = at(&url("", &servers));
        let scopes = LIMITS.map(|text| named(&limiter, text, text));
        let ids: Vec<String> = (0..60).map(|number| format!("user:{number}")).collect();
        for id in &ids {
            for scope in &scopes {
                assert!(scope.check(id).cost(7).await.unwrap().is_allowed());
            }
        }
        let mut counts = [0; 3];
        for id in &ids {
            let tag = format!("{{{id}}}");
            let wanted = heaviest(&servers, id);
            counts[wanted] += 1;
            for (at, server) in servers.iter().enumerate() {
                let there = keys_on(server).iter().filter(|key| key.contains(&tag)).count();
                assert_eq!(there, if at == wanted { LIMITS.len() } else { 0 }, "{flavour}, {id}");
            }
        }
        assert!(counts.iter().all(|&count| count > 5), "{counts:?}");
        // The order of the servers in the URL does not matter.
        let reversed = at(&url("", servers.iter().rev()));
        for text in LIMITS {
            let scope = named(&reversed, text, text);
            for id in &ids {
                assert_eq!(remaining(&scope, id).await, 93, "{flavour}, {text}, {id}");
            }
        }
    }
}

fn breakers(limiter: &Limiter) -> Vec<BreakerState> {
    limiter.health().unwrap().servers.iter().map(|server| server.breaker).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_shard_fails_only_its_own_keys() {
    let mut servers = start(&Launch::new(Flavour::Valkey), 3);
    let limiter = builder(&url("", &servers)).deadline(Duration::from_millis(250)).build().unwrap();
    let scope = named(&limiter, "scope", LIMITS[0]);
    let ids = ids_on(&at(&url("", &servers)), &servers).await;
    for is_killed in [false, true] {
        until_well(&limiter, &scope, &ids).await;
        match is_killed {
            false => servers[1].freeze(),
            true => servers[1].kill(),
        }
        for _ in 0..8 {
            store_error(scope.check(&ids[1]).await);
            assert!(scope.check(&ids[0]).await.unwrap().is_allowed());
            assert!(scope.check(&ids[2]).await.unwrap().is_allowed());
        }
        let states = breakers(&limiter);
        assert_ne!(states[1], BreakerState::Closed, "{is_killed}");
        assert_eq!([states[0], states[2]], [BreakerState::Closed; 2], "{is_killed}");
        match is_killed {
            false => servers[1].thaw(),
            true => servers[1].restart().unwrap(),
        }
        until_well(&limiter, &scope, &ids).await;
    }
    assert_eq!(remaining(&scope, &ids[0]).await, 100 - 16);
    assert_eq!(remaining(&scope, &ids[2]).await, 100 - 16);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shard_needs_the_same_permissions_as_a_single_server() {
    let rules = "~tollgate:* resetchannels -@all +evalsha +eval +time +get +set +getrange +setrange \
                 +strlen +expire +del";
    for flavour in Flavour::ALL {
        let launch = Launch::new(flavour)
            .config("user", "default off")
            .config("user", "admin on >root ~* &* +@all")
            .config("user", &format!("tollgate on >secret {rules}"));
        let servers = start(&launch.admin("admin", "root"), 3);
        let limiter = at(&url("tollgate:secret@", &servers));
        let ids = ids_on(&limiter, &servers).await;
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let several: Vec<_> = ids.iter().map(|id| scope.check(id).cost(60)).collect();
            assert!(limiter.check_all(&several).await.unwrap().is_allowed(), "{flavour}, {text}");
            assert!(!limiter.check_all(&several).await.unwrap().is_allowed(), "{flavour}, {text}");
        }
        let error =
            store_error(named(&at(&url("", &servers)), "scope", LIMITS[0]).check("a").await);
        assert!(error.to_string().contains("NOAUTH"), "{flavour}: {error}");
    }
}
