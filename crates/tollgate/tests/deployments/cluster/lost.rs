//! A cluster whose replies are lost.

use std::time::Duration;

use redis::cmd;
use tollgate::{Error, StoreError};
use tollgate_launcher::{Cluster, Flavour, Proxy};

use super::load::{spent, until_answered};
use crate::setup::{builder, named};

const DEADLINE: Duration = Duration::from_millis(500);

/// A method of the proxy that loses the next replies.
type Lose = fn(&Proxy, u64);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_is_not_sent_again_when_its_reply_is_lost() {
    let cluster = Cluster::start(Flavour::Redis, 1, 0).unwrap();
    let server = &cluster.servers()[0];
    let proxy = Proxy::start(server.addr()).unwrap();
    // The cluster's slot map names the proxy, not the server.
    let mut announce = cmd("CONFIG");
    let port = proxy.addr().port();
    server.ask::<()>(announce.arg("SET").arg("cluster-announce-port").arg(port)).unwrap();
    let url = format!("redis+cluster://{}", proxy.addr());
    let limiter = builder(&url).deadline(DEADLINE).build().unwrap();
    let scope = named(&limiter, "scope", "fixed-window limit=1000000 window=366d");
    until_answered(&scope, "a").await;

    let mut charged = 0;
    for (times, lose) in [
        (10, Proxy::cut_after_request as Lose),
        (10, Proxy::cut_mid_reply),
        (2, Proxy::drop_replies),
    ] {
        for _ in 0..times {
            lose(&proxy, 1);
            let answer = scope.check("a").await;
            let is_lost = matches!(
                answer,
                Err(Error::Store(StoreError::Unreachable { .. } | StoreError::Timeout { .. }))
            );
            assert!(is_lost, "{answer:?}");
            proxy.pass();
            until_answered(&scope, "a").await;
            charged += 1;
            assert_eq!(spent(&scope, "a").await, charged);
        }
    }
    let names: Vec<String> =
        limiter.health().unwrap().servers.into_iter().map(|server| server.server).collect();
    assert_eq!(names, [proxy.addr().to_string()], "some requests did not go through the proxy");
}
