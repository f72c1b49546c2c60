//! A server whose memory is full. It refuses charges, or evicts keys; an evicted key has one more burst.

use std::collections::HashMap;
use std::time::Instant;

use tollgate::StoreError;
use tollgate_launcher::{Flavour, Launch};

use crate::setup::{
    MARGIN, PATIENCE, config, info, launch, limited, remaining, start, store_error, until_answered,
    within,
};

/// The limit of a key, and more keys than fit in the server's memory.
const LIMIT: u64 = 5;
const KEYS: usize = 3_000;

#[tokio::test]
async fn full_server_without_eviction_refuses_charges_and_answers_peeks() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        config(&server, "maxmemory-policy", "noeviction");
        let limiter = within(&server.url(), PATIENCE);
        let scope = limited(&limiter, "scope", LIMIT);
        for key in ["a", "b"] {
            assert_eq!(scope.check(key).cost(3).await.unwrap().remaining(), 2);
        }
        config(&server, "maxmemory", "1");
        // More failures than open a breaker: an OOM error does not count as one.
        for _ in 0..20 {
            let began = Instant::now();
            for key in ["a", "b", "new"] {
                match store_error(scope.check(key).await) {
                    StoreError::Refused { problem } => {
                        assert!(problem.contains("OOM"), "{problem}")
                    }
                    other => panic!("{flavour}: {other:?}"),
                }
            }
            assert_eq!(remaining(&scope, "a").await, 2, "{flavour}");
            assert_eq!(remaining(&scope, "new").await, LIMIT, "{flavour}");
            assert!(began.elapsed() < MARGIN, "{flavour}: {:?}", began.elapsed());
        }
        assert_eq!(info(&server, "evicted_keys"), "0", "{flavour}");
        config(&server, "maxmemory", "0");
        assert_eq!(until_answered(&scope, "a").await, 2, "{flavour}");
        assert_eq!(scope.check("new").await.unwrap().remaining(), LIMIT - 1, "{flavour}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_eviction_of_a_key_admits_at_most_one_more_burst() {
    for flavour in Flavour::ALL {
        for policy in ["volatile-ttl", "allkeys-lru"] {
            assert_a_burst_for_each_eviction(flavour, policy).await;
        }
    }
}

async fn assert_a_burst_for_each_eviction(flavour: Flavour, policy: &str) {
    let what = format!("{flavour}, {policy}");
    let server = launch(
        &Launch::new(flavour)
            .config("notify-keyspace-events", "Ee")
            .config("maxmemory-policy", policy),
    );
    let mut listener = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
    let mut evictions = listener.as_pubsub();
    evictions.subscribe("__keyevent@0__:evicted").unwrap();
    evictions.set_read_timeout(Some(PATIENCE)).unwrap();
    let limiter = within(&server.url(), PATIENCE);
    let scope = limited(&limiter, "scope", LIMIT);
    // The memory holds some of the keys.
    until_answered(&scope, "a").await;
    let used: u64 = info(&server, "used_memory").parse().unwrap();
    config(&server, "maxmemory", &(used + 200_000).to_string());
    let mut admitted: HashMap<String, u64> = HashMap::new();
    for _ in 0..3 {
        let ids: Vec<String> = (0..KEYS).map(|number| format!("client-{number}-")).collect();
        for some in ids.chunks(500) {
            let turns = some.iter().flat_map(|id| [id, id, id]);
            let answers: Vec<_> = turns.map(|id| (id, scope.check(id).into_future())).collect();
            for (id, answer) in answers {
                let is_allowed = answer.await.unwrap().is_allowed();
                *admitted.entry(id.clone()).or_default() += u64::from(is_allowed);
            }
        }
    }
    let count: u64 = info(&server, "evicted_keys").parse().unwrap();
    assert!(count > 100, "{what}: {count}");
    let mut evicted: HashMap<String, u64> = HashMap::new();
    for _ in 0..count {
        let key: String = evictions.get_message().unwrap().get_payload().unwrap();
        let id = key.find("client-").map(|start| key[start..].to_owned());
        *evicted.entry(id.unwrap_or(key)).or_default() += 1;
    }
    let times = |id: &str| {
        let same = |(key, count): (&String, &u64)| key.starts_with(id).then_some(*count);
        evicted.iter().filter_map(same).sum::<u64>()
    };
    let mut more = 0;
    for (id, admitted) in &admitted {
        let most = LIMIT * (1 + times(id));
        assert!(*admitted <= most, "{what}: {id} {admitted} of {most}");
        more += u64::from(*admitted > LIMIT);
    }
    // Some keys must have had another burst, or the test has shown nothing.
    assert!(more > 0, "{what}");
    assert_eq!(limiter.health().unwrap().failed, 0, "{what}");
}
