//! Clients that try to delay decisions beyond Envoy's timeout, after which requests pass without limits.

use std::sync::Barrier;
use std::thread;

use reqwest::StatusCode;
use reqwest::blocking::Client;
use rustix::process::{Signal, WaitId, WaitIdOptions, waitid};

use crate::envoy::frames::Frames;
use crate::envoy::front::EnvoyFront;
use crate::eventually::eventually;

const CONNECTIONS: usize = 16;

const FIFTY: &str = "
limits: { fifty: fixed-window limit=50 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: fifty }]
";

/// Envoy sends 100 of the requests to the server, because the example limits the streams of a connection. The timeout is
/// longer than the 20 ms of the example, because a machine that is busy with other tests would miss it.
#[test]
fn burst_on_one_connection_passes_no_more_than_the_limit() {
    let front = EnvoyFront::start(FIFTY);
    let mut client = Frames::connect(&front.envoy.url);
    let streams = client.get(400);
    client.send();
    assert_eq!(client.refused(streams), 300);
    assert_eq!(front.upstream.served(), 50);
    assert_eq!(["ok", "over_limit", "error"].map(|what| front.counted(what)), [50, 50, 0]);
}

/// More requests than Envoy's default limit for a cluster.
#[test]
fn bursts_to_a_stopped_server_are_all_decided_later() {
    let front = EnvoyFront::start(FIFTY);
    stop(&front);
    let clients: Vec<_> = (0..15)
        .map(|_| {
            let mut client = Frames::connect(&front.envoy.url);
            let streams = client.get(100);
            client.send();
            (client, streams)
        })
        .collect();
    wait_for(&front, "http.ingress.downstream_rq_total", 1_500);
    front.server.signal(Signal::CONT);
    for (client, streams) in clients {
        assert_eq!(client.refused(streams), 0);
    }
    assert_eq!(["ok", "over_limit", "error"].map(|what| front.counted(what)), [50, 1_450, 0]);
}

/// Envoy cancels its calls for these requests on a connection that it also uses for other requests.
#[test]
fn cancelled_requests_do_not_disturb_others() {
    let front = EnvoyFront::start(FIFTY);
    assert_eq!(front.get("/").status(), StatusCode::OK);
    stop(&front);
    let clients: Vec<_> = (0..60)
        .map(|_| {
            let mut client = Frames::connect(&front.envoy.url);
            let cancelled = client.get(99);
            let stays = client.get(1);
            client.reset(&cancelled);
            client.send();
            (client, stays)
        })
        .collect();
    wait_for(&front, "http.ingress.downstream_rq_rx_reset", 60 * 99);
    front.server.signal(Signal::CONT);
    for (client, stays) in clients {
        assert_eq!(client.refused(stays), 0);
    }
    assert_eq!(front.counted("error"), 0);
}

#[test]
fn long_headers_from_many_connections_are_limited() {
    let front = EnvoyFront::start(FIFTY);
    let long = "k".repeat(58_000);
    let together = Barrier::new(CONNECTIONS);
    let passed: usize = thread::scope(|scope| {
        let ask = || {
            let client = Client::new();
            let ask = || client.get(&front.envoy.url).header("x-api-key", &long).send().unwrap();
            together.wait();
            (0..10).filter(|_| ask().status() == StatusCode::OK).count()
        };
        let threads: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(ask)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    assert_eq!((passed, front.counted("error")), (50, 0));
}

/// Stops the server until it gets SIGCONT.
fn stop(front: &EnvoyFront) {
    front.server.signal(Signal::STOP);
    // Waits until the signal has arrived.
    let options = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
    waitid(WaitId::Pid(front.server.pid()), options).unwrap();
}

fn wait_for(front: &EnvoyFront, stat: &str, count: u64) {
    eventually(stat, || (front.envoy.stat(stat) >= count).then_some(()));
}
