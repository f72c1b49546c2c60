//! A Redis Cluster.

mod acl;
mod arrivals;
mod fake;
mod kills;
pub(crate) mod load;
mod lost;
mod migration;
mod redirects;
mod seeds;
pub(crate) mod slots;
mod stale;
mod steady;
mod takeover;

use tollgate_launcher::{Cluster, Flavour};

use crate::setup::{LIMITS, at, named};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_on_every_node_are_limited() {
    for flavour in Flavour::ALL {
        let cluster = Cluster::start(flavour, 3, 0).unwrap();
        let limiter = at(&cluster.url());
        for text in LIMITS {
            let scope = named(&limiter, text, text);
            let checks: Vec<_> = (0..100)
                .flat_map(|client| std::iter::repeat_n(format!("client {client}"), 2))
                .map(|id| {
                    let scope = scope.clone();
                    tokio::spawn(
                        async move { scope.check(&id).cost(60).await.unwrap().is_allowed() },
                    )
                })
                .collect();
            let mut allowed = 0;
            for check in checks {
                allowed += usize::from(check.await.unwrap());
            }
            assert_eq!(allowed, 100, "{flavour}, {text}");
        }
    }
}
