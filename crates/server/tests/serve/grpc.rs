//! The gRPC port.

use std::future::Future;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tollgate_launcher::{Flavour, Launch};
use tonic::transport::Channel;
use tonic::{Code, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::lifecycle::plain;
use crate::metrics::scrape;
use crate::server::ServerProcess;

/// The preface of an HTTP/2 connection, followed by an empty SETTINGS frame.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

type HealthCheckClient = HealthClient<Channel>;

pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(Duration::from_secs(60), test).await.unwrap() })
}

async fn client(server: &ServerProcess) -> HealthCheckClient {
    let endpoint = Channel::from_shared(format!("http://{}", server.grpc)).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

async fn check(client: &mut HealthCheckClient, service: &str) -> Result<ServingStatus, Code> {
    let result = client.check(HealthCheckRequest { service: service.to_owned() }).await;
    result.map(|answer| answer.into_inner().status()).map_err(|status| status.code())
}

async fn watch(client: &mut HealthCheckClient, service: &str) -> Streaming<HealthCheckResponse> {
    let request = HealthCheckRequest { service: service.to_owned() };
    client.watch(request).await.unwrap().into_inner()
}

/// Returns the next status of a watch; `None` when the watch has ended.
async fn next(stream: &mut Streaming<HealthCheckResponse>) -> Option<ServingStatus> {
    Some(stream.message().await.unwrap()?.status())
}

#[test]
fn health_is_reported_for_the_server_and_its_services() {
    let server = ServerProcess::start(&[]);
    run(async {
        let mut client = client(&server).await;
        for service in ["", "tollgate", "envoy.service.ratelimit.v3.RateLimitService"] {
            assert_eq!(check(&mut client, service).await, Ok(ServingStatus::Serving));
        }
        assert_eq!(check(&mut client, "other").await, Err(Code::NotFound));
        let endless = "x".repeat(5_000);
        assert_eq!(check(&mut client, &endless).await, Err(Code::OutOfRange));
    });
}

#[test]
fn health_is_not_serving_when_the_server_stops() {
    let server = ServerProcess::start(&["--drain-delay", "1m"]);
    run(async {
        let mut client = client(&server).await;
        let mut watched = Vec::new();
        for service in ["", "tollgate"] {
            let mut stream = watch(&mut client, service).await;
            assert_eq!(next(&mut stream).await, Some(ServingStatus::Serving));
            watched.push((service, stream));
        }
        server.signal(Signal::TERM);
        for (service, mut stream) in watched {
            assert_eq!(next(&mut stream).await, Some(ServingStatus::NotServing));
            assert_eq!(check(&mut client, service).await, Ok(ServingStatus::NotServing));
        }
    });
}

#[test]
fn health_is_not_serving_without_the_store_unless_allowed() {
    let mut redis = Launch::new(Flavour::Redis).start().unwrap();
    let strict = ServerProcess::start(&["--store", &redis.url()]);
    let relaxed = ServerProcess::start(&["--store", &redis.url(), "--ready-without-store"]);
    run(async {
        let mut client = client(&strict).await;
        let mut streams = [watch(&mut client, "").await, watch(&mut client, "tollgate").await];
        for stream in &mut streams {
            while next(stream).await != Some(ServingStatus::Serving) {}
        }
        redis.kill();
        for stream in &mut streams {
            assert_eq!(next(stream).await, Some(ServingStatus::NotServing));
        }
        redis.restart().unwrap();
        for stream in &mut streams {
            assert_eq!(next(stream).await, Some(ServingStatus::Serving));
        }
        redis.kill();
    });
    relaxed.wait_for_log(|log| log.contains("the store fails"));
    run(async {
        let mut client = client(&relaxed).await;
        assert_eq!(check(&mut client, "").await, Ok(ServingStatus::Serving));
    });
}

#[test]
fn health_watches_end_when_the_server_stops() {
    let began = Instant::now();
    let server = ServerProcess::start(&["--drain-delay", "0s", "--drain-timeout", "1m"]);
    run(async {
        let mut client = client(&server).await;
        let mut streams = [watch(&mut client, "").await, watch(&mut client, "tollgate").await];
        server.signal(Signal::TERM);
        for stream in &mut streams {
            while next(stream).await.is_some() {}
        }
    });
    let (status, log) = server.wait();
    assert_eq!(status.code(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(50), "{log}");
    assert!(plain(&log).contains("closing: finishes what is in flight connections=1"), "{log}");
    assert!(log.contains("everything in flight was answered"), "{log}");
}

/// Reads until the server has closed the connection.
fn read_to_the_end(mut stream: TcpStream) {
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    match stream.read_to_end(&mut Vec::new()) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset, "{error}"),
    }
}

#[test]
fn silent_and_dribbling_connections_are_closed() {
    let server = ServerProcess::start(&["--first-byte-timeout", "200ms"]);
    for sent in [0, 1, PREFACE.len() - 10] {
        let mut stream = TcpStream::connect(&server.grpc).unwrap();
        stream.write_all(&PREFACE[..sent]).unwrap();
        read_to_the_end(stream);
    }
    run(async {
        let mut client = client(&server).await;
        assert_eq!(check(&mut client, "").await, Ok(ServingStatus::Serving));
    });
}

#[test]
fn established_connection_can_be_idle() {
    let server = ServerProcess::start(&["--first-byte-timeout", "100ms"]);
    run(async {
        let mut client = client(&server).await;
        assert_eq!(check(&mut client, "").await, Ok(ServingStatus::Serving));
        let silent = TcpStream::connect(&server.grpc).unwrap();
        // This silent connection was opened after the first one and is now closed, so the first one has been idle for longer.
        read_to_the_end(silent);
        assert_eq!(check(&mut client, "").await, Ok(ServingStatus::Serving));
    });
}

#[test]
fn health_watchers_do_not_block_new_clients() {
    let server = ServerProcess::start(&["--max-connections", "5"]);
    run(async {
        let mut watchers = Vec::new();
        for _ in 0..5 {
            let mut client = client(&server).await;
            let mut stream = watch(&mut client, "").await;
            assert_eq!(next(&mut stream).await, Some(ServingStatus::Serving));
            watchers.push((client, stream));
        }
        let mut new = client(&server).await;
        assert_eq!(check(&mut new, "").await, Ok(ServingStatus::Serving));
        // The oldest connection was evicted for the new one. The other connections are still open.
        let (_, oldest) = &mut watchers[0];
        assert!(oldest.message().await.is_err());
        for (client, _) in &mut watchers[1..] {
            assert_eq!(check(client, "").await, Ok(ServingStatus::Serving));
        }
    });
    let page = scrape(&server);
    let grpc = [("port", "grpc")];
    assert_eq!(page.value("tollgate_connections_total", &grpc), 6.0);
    let evicted = [("port", "grpc"), ("reason", "evicted")];
    assert_eq!(page.value("tollgate_connections_closed_total", &evicted), 1.0);
    assert_eq!(
        page.value("tollgate_connections_closed_total", &[("port", "http"), evicted[1]]),
        0.0
    );
    let log = server.wait_for_log(|log| log.contains("which is the maximum"));
    assert!(plain(&log).contains("port=\"grpc\""), "{log}");
}

#[test]
fn stalled_handshakes_do_not_block_other_clients() {
    let server = ServerProcess::start(&["--max-connections", "10", "--first-byte-timeout", "1m"]);
    run(async {
        let mut kept = client(&server).await;
        assert_eq!(check(&mut kept, "").await, Ok(ServingStatus::Serving));
        let begin = |sent| {
            let mut stream = TcpStream::connect(&server.grpc).unwrap();
            stream.write_all(&PREFACE[..sent]).unwrap();
            stream
        };
        let _silent: Vec<_> = (0..10).map(|_| begin(0)).collect();
        let _stuck: Vec<_> = (0..10).map(|_| begin(5)).collect();
        let mut new = client(&server).await;
        assert_eq!(check(&mut new, "").await, Ok(ServingStatus::Serving));
        assert_eq!(check(&mut kept, "").await, Ok(ServingStatus::Serving));
    });
}

#[test]
fn silent_connection_is_closed_and_counted() {
    let server = ServerProcess::start(&["--first-byte-timeout", "100ms"]);
    read_to_the_end(TcpStream::connect(&server.grpc).unwrap());
    let late = [("port", "grpc"), ("reason", "first_byte")];
    assert_eq!(scrape(&server).value("tollgate_connections_closed_total", &late), 1.0);
    assert_eq!(scrape(&server).value("tollgate_connections", &[("port", "grpc")]), 0.0);
}

#[test]
fn settings_frame_bounds_streams_windows_and_headers() {
    let server = ServerProcess::start(&[]);
    let mut stream = TcpStream::connect(&server.grpc).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(PREFACE).unwrap();
    let mut head = [0; 9];
    stream.read_exact(&mut head).unwrap();
    assert_eq!(head[3], 4, "the first frame is not SETTINGS");
    let mut settings = vec![0; usize::from(head[2])];
    stream.read_exact(&mut settings).unwrap();
    let value = |id: u8| {
        let setting = settings.chunks(6).find(|setting| setting[..2] == [0, id]);
        setting.map(|setting| u32::from_be_bytes(setting[2..].try_into().unwrap()))
    };
    let (streams, window_bytes, header_bytes) = (value(3), value(4), value(6));
    assert_eq!((streams, window_bytes, header_bytes), (Some(1_024), Some(262_144), Some(71_680)));
}
