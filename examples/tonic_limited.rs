//! A gRPC service with a limit, and a client that waits as long as a refusal says:
//! `cargo run -p tollgate --features tonic --example tonic_limited`

use tokio::net::TcpListener;
use tollgate::tower::RateLimitLayer;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let layer = RateLimitLayer::per_ip("token-bucket capacity=2 refill=1/s")?;
    // gRPC's own health service; any other service works in the same way.
    let (_, service) = tonic_health::server::health_reporter();
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}", listener.local_addr()?);
    let server = Server::builder().layer(layer).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));

    let mut client = HealthClient::new(Channel::from_shared(url)?.connect().await?);
    for call in 1..=3 {
        while let Err(status) = client.check(HealthCheckRequest::default()).await {
            let Some(wait) = wait_of(&status) else { return Err(status.into()) };
            println!("call {call}: {:?}: {}", status.code(), status.message());
            println!("call {call}: waits {} ms", wait.as_millis());
            tokio::time::sleep(wait).await;
        }
        println!("call {call}: answered");
    }
    Ok(())
}

/// Returns the wait in the details of a refusal. It is exact to the microsecond, while `Retry-After` has whole seconds.
fn wait_of(status: &Status) -> Option<std::time::Duration> {
    let retry =
        status.get_details_retry_info().filter(|_| status.code() == Code::ResourceExhausted);
    retry.and_then(|retry| retry.retry_delay)
}
