//! `tollgate serve`: puts a server together and runs it until it is told to stop.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use axum::body::Body;
use hyper::Request;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::http::Peer;
use tollgate::rules::{Config, FileFollower, Rules, RulesFile};
use tollgate::{Limiter, Redis};
use tollgate_playground::Playground;

use crate::cli::ServeArgs;
use crate::endpoint::RequestEndpoint;
use crate::http::{self, Api};
use crate::lifecycle::{self, Lifecycle};
use crate::listener::{self, Bounds, Connection};
use crate::logs::{Log, RefusalLog, Start};
use crate::operators::OperatorAccess;
use crate::parts::{ConfiguredParts, ServerParts};
use crate::receipt::Receipts;
use crate::refused::Refused;
use crate::ruleset::RuleSet;
use crate::stop::{Drain, Signals};
use crate::store::{StoreKind, StoreMonitor};
use crate::traces::{self, Traces};
use crate::{grpc, logs};

/// Limits and rules to try the server with.
const EXAMPLE: &str = include_str!("../../../examples/rules.yaml");

/// How long the end waits for what does not end by itself.
const MAX_END: Duration = Duration::from_secs(1);

/// What was refunded is remembered in a fourth of what keys may take, beside that.
const REFUNDS_SHARE: usize = 4;

/// The most servers of a store that are named.
const MAX_NAMED: usize = 8;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let log = logs::start(&args.log, args.log_format)?;
    let traces = traces::start(args.otlp_endpoint.as_deref())?;
    // With a thread for each core that the process may use.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("no threads to serve with; raise the limit of the system")?;
    let outcome = runtime.block_on(serve(args, &log, traces.clone()));
    // What was cut is over then, with its span. The name of a store that is being looked up, or a file that is
    // being read, is not waited for.
    runtime.shutdown_timeout(MAX_END);
    if let Some(traces) = traces {
        traces.stop();
    }
    log.flush();
    outcome
}

pub(crate) async fn serve(
    args: &ServeArgs,
    log: &Log,
    traces: Option<Traces>,
) -> anyhow::Result<()> {
    let signals = Signals::new().context("signals cannot be listened for")?;
    let (phase, lifecycle) = lifecycle::lifecycle();
    let (foundation, following) = foundation(args, log, lifecycle.clone(), traces)?;
    let bounds = Bounds {
        max_connections: foundation.max_connections,
        first_byte: args.first_byte_timeout,
        request: args.request_timeout,
        idle: args.idle_timeout,
    };
    let ServerParts { api, grpc: grpc_parts, watched, http_connections } =
        ServerParts::new(foundation);
    let (store, receipts) = (Arc::clone(&watched.store), Arc::clone(&api.receipts));
    // The first requests find a connection.
    if store.kind().is_remote() && store.is_answering().await {
        // If this fails, it is asked again.
        let _ = receipts.learn().await;
    }
    let http = bind(args.listen, "--listen")?;
    let grpc = bind(args.grpc_listen, "--grpc-listen")?;
    announce(args, log, &api.rules, &http, &grpc)?;
    let (probed, phases) = (Arc::clone(&store), lifecycle.clone());
    tokio::spawn(async move { probed.watch(&phases).await });
    tokio::spawn(watched.watch(lifecycle.clone()));
    tokio::spawn(async move { receipts.follow(|| store.was_answering()).await });

    let api = http::service(Api::new(api));
    let http = listener::serve(
        http,
        api,
        describe_connection,
        bounds,
        lifecycle.clone(),
        http_connections,
    );
    let http = tokio::spawn(http);
    let grpc = tokio::spawn(grpc::serve(grpc, bounds, grpc_parts));

    let finished = async {
        let _ = http.await;
        let _ = grpc.await;
    };
    let drain = Drain { delay: args.drain_delay, timeout: args.drain_timeout };
    drain.when_told(signals, &phase, &lifecycle, finished).await;
    // Nor is its thread, which may be reading the file: it ends with the process.
    std::mem::forget(following);
    Ok(())
}

/// Adds to a request what its handler needs to know of the connection. Only answers of `/v1/authorize` are held back.
fn describe_connection(request: &mut Request<Body>, connection: &Connection<'_>) {
    let is_held_back = RequestEndpoint::of(request.uri().path()) == RequestEndpoint::Authorize;
    let extensions = request.extensions_mut();
    extensions.insert(Peer(connection.peer()));
    if is_held_back {
        extensions.insert(connection.hold());
    }
}

/// The rules on their store, and all that the flags determine; and what follows the file, for as long as it is kept.
fn foundation(
    args: &ServeArgs,
    log: &Log,
    lifecycle: Lifecycle,
    traces: Option<Traces>,
) -> anyhow::Result<(ConfiguredParts, Option<FileFollower>)> {
    let limiter = limiter(args)?;
    // First: the rules may take all the limits there can be.
    let store = StoreMonitor::new(&limiter, args.max_memory)?;
    let receipts = match store.kind() {
        StoreKind::Memory => Receipts::in_memory(args.max_memory / REFUNDS_SHARE),
        StoreKind::Redis => Receipts::on_servers(&limiter, args.receipt_secret.as_ref())?,
    };
    let (rules, following) = match &args.config {
        Some(path) => {
            let file = RulesFile::open(&limiter, path)?;
            let following = file.follow().and_then(FileFollower::and_on_hangup);
            let following = following.context("--config cannot be followed")?;
            (RuleSet::of_file(file), Some(following))
        }
        None => {
            let config = Config::parse("the example", EXAMPLE)?;
            reload_nothing().context("signals cannot be listened for")?;
            (RuleSet::of_text(Rules::new(&limiter, &config)?, EXAMPLE), None)
        }
    };
    for domain in &args.required_domains {
        if !rules.rules().require_domain(domain) {
            return Err(without_rules(domain, &rules.rules().domains()));
        }
    }
    let playground = match args.no_playground {
        true => None,
        false if limiter.is_local() => Some(Playground::in_memory()),
        false => Some(Playground::on_servers(&limiter, args.store_deadline)?),
    };
    let foundation = ConfiguredParts {
        rules,
        store,
        receipts,
        refused: Refused::logging(args.log_refusals.map(RefusalLog::every)),
        operators: OperatorAccess::new(args.operator_token.clone()),
        playground,
        lifecycle,
        log: log.clone(),
        traces,
        is_ready_without_store: args.ready_without_store,
        max_connections: max_connections(args),
    };
    Ok((foundation, following))
}

/// Returns how many connections each port may have: fewer than wanted, with a warning, if files are too few.
fn max_connections(args: &ServeArgs) -> u32 {
    let wanted = args.max_connections;
    let Err(too_few) = listener::allow_open_files(wanted) else { return wanted };
    tracing::warn!(
        "--max-connections {wanted}: {too_few}: no more are accepted; raise `ulimit -n`, or lower --max-connections"
    );
    too_few.max_connections
}

/// Says that a required domain has no rules.
pub(crate) fn without_rules(domain: &str, domains: &[String]) -> anyhow::Error {
    let there = match domains {
        [] => "there are no rules at all".to_owned(),
        domains => format!("there are rules for {}", domains.join(", ")),
    };
    anyhow!("--require-domain {domain}: no rules for this domain; {there}")
}

/// Without this, SIGHUP would end the process.
fn reload_nothing() -> io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::warn!("SIGHUP: there is no file to reload; give one with --config");
        }
    });
    Ok(())
}

fn limiter(args: &ServeArgs) -> anyhow::Result<Limiter> {
    if args.store == "memory" {
        return Ok(Limiter::builder().max_bytes(args.max_memory).build());
    }
    let builder = Redis::at(&args.store).context("--store")?.max_bytes(args.max_memory);
    let builder = builder.prefix(&args.store_prefix).context("--store-prefix")?;
    builder.deadline(args.store_deadline).build().context("--store")
}

fn bind(address: SocketAddr, flag: &str) -> anyhow::Result<TcpListener> {
    listener::listen(address).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::AddrInUse => "stop what listens there, or choose another port",
            ErrorKind::AddrNotAvailable => "choose one of this machine, or 0.0.0.0 for all",
            ErrorKind::PermissionDenied => "choose a port from 1024 on",
            _ => "choose another address",
        };
        anyhow!("{flag} {address}: cannot listen there: {error}; {remedy}")
    })
}

/// Where it listens, with which store and rules.
fn announce(
    args: &ServeArgs,
    log: &Log,
    rules: &RuleSet,
    http: &TcpListener,
    grpc: &TcpListener,
) -> anyhow::Result<()> {
    let http = http.local_addr()?;
    log.announce(&Start {
        http,
        grpc: grpc.local_addr()?,
        store: store(args, rules.limiter()),
        rules: rules.rules().counts().len(),
        limits: rules.limits().len(),
        config: args.config.as_ref().map(|path| path.display().to_string()),
    });
    if args.config.is_none() && !http.ip().is_loopback() {
        tracing::warn!("{http} is reached from elsewhere with the example's rules; use --config");
    }
    Ok(())
}

/// `memory, at most 64 MiB`, or `redis at 10.0.0.1:6379`: without user and password.
fn store(args: &ServeArgs, limiter: &Limiter) -> String {
    let Some(health) = limiter.health() else {
        let most = args.max_memory;
        return match most.is_multiple_of(1 << 20) {
            true => format!("memory, at most {} MiB", most >> 20),
            false => format!("memory, at most {most} bytes"),
        };
    };
    let servers = health.servers.iter().take(MAX_NAMED).map(|server| &*server.server);
    let servers = servers.collect::<Vec<_>>().join(", ");
    match health.servers.len().checked_sub(MAX_NAMED) {
        None | Some(0) => format!("redis at {servers}"),
        Some(more) => format!("redis at {servers} and {more} more"),
    }
}
