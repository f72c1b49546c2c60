//! `tollgate serve`: puts a server together and runs it until it is told to stop.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Limiter;
use tollgate::rules::{Config, Following, Rules, RulesFile};

use crate::cli::ServeArgs;
use crate::lifecycle::{self, Lifecycle, Phase};
use crate::listener::{self, Bounds};
use crate::observe::Observed;
use crate::served::Served;
use crate::{grpc, http, logs, print_error};

/// Limits and rules to try the server with.
const EXAMPLE: &str = include_str!("../../../examples/rules.yaml");

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    logs::start(&args.log, args.log_format)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(serve(args))
}

async fn serve(args: &ServeArgs) -> anyhow::Result<()> {
    let (phase, lifecycle) = lifecycle::lifecycle();
    let (served, _following) = served(args, lifecycle.clone())?;
    let http = bind(args.listen, "--listen").await?;
    let grpc = bind(args.grpc_listen, "--grpc-listen").await?;
    announce(args, &served, &http, &grpc)?;

    let api = Observed::new(http::router(Arc::clone(&served)), Arc::clone(&served));
    let bounds = Bounds {
        max_connections: args.max_connections,
        first_byte: args.first_byte_timeout,
        request: args.request_timeout,
        idle: args.idle_timeout,
    };
    let http = tokio::spawn(listener::serve(http, api, bounds, lifecycle.clone()));
    let grpc = tokio::spawn(grpc::serve(grpc, lifecycle));

    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    phase.send_replace(Phase::Draining);
    tokio::time::sleep(args.drain_delay).await;
    phase.send_replace(Phase::Closing);
    let finished = async {
        let _ = http.await;
        let _ = grpc.await;
    };
    let _ = tokio::time::timeout(args.drain_timeout, finished).await;
    Ok(())
}

/// The rules on their store; and what follows the file, for as long as it is kept.
fn served(
    args: &ServeArgs,
    lifecycle: Lifecycle,
) -> anyhow::Result<(Arc<Served>, Option<Following>)> {
    let limiter = limiter(args)?;
    let store = if args.store == "memory" { "memory" } else { "redis" };
    let (rules, file, following) = match &args.config {
        Some(path) => {
            let file = RulesFile::open(&limiter, path)?;
            let following = file.follow().context("--config cannot be followed")?;
            (file.rules().clone(), Some(file), Some(following))
        }
        None => {
            let config = Config::parse("the example", EXAMPLE)?;
            (Rules::new(&limiter, &config)?, None, None)
        }
    };
    let mut served = Served::new(rules, file, store, lifecycle);
    served.operator_token = args.operator_token.clone();
    served.is_ready_without_store = args.ready_without_store;
    Ok((Arc::new(served), following))
}

fn limiter(args: &ServeArgs) -> anyhow::Result<Limiter> {
    let builder = Limiter::builder().max_bytes(args.max_memory);
    if args.store == "memory" {
        return Ok(builder.build());
    }
    let builder = builder.redis(&args.store).context("--store")?;
    Ok(builder.prefix(&args.store_prefix).context("--store-prefix")?.build()?)
}

async fn bind(address: std::net::SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address)
        .await
        .with_context(|| format!("{flag} {address}: cannot listen there; choose another address"))
}

/// Where it listens, with which store and rules.
fn announce(
    args: &ServeArgs,
    served: &Served,
    http: &TcpListener,
    grpc: &TcpListener,
) -> anyhow::Result<()> {
    let (http, grpc) = (http.local_addr()?, grpc.local_addr()?);
    print_error(&format!("tollgate {}: http://{http}, gRPC {grpc}", env!("CARGO_PKG_VERSION")));
    print_error(&format!("store: {}", served.store));
    let rules = (served.rules.counts().len(), served.rules.limits().len());
    let from = match &args.config {
        Some(path) => path.display().to_string(),
        None => "of the example; give your own with --config".to_owned(),
    };
    print_error(&format!("{} rules, {} limits: {from}", rules.0, rules.1));
    let _ = Duration::ZERO;
    Ok(())
}
