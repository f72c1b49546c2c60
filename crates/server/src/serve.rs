//! `tollgate serve`: puts a server together and runs it until it is told to stop.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow};
use siphasher::sip::SipHasher13;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::Limiter;
use tollgate::rules::{Config, Following, Rules, RulesFile};

use crate::cli::ServeArgs;
use crate::http::{Observed, Playground};
use crate::lifecycle::{self, Lifecycle};
use crate::listener::{self, Bounds};
use crate::logs::{Log, RefusalLog, Start};
use crate::observe::Observer;
use crate::probe::Probe;
use crate::receipt::Receipts;
use crate::refused::Refused;
use crate::served::Served;
use crate::stop::{Drain, Signals};
use crate::store::StoreKind;
use crate::traces::{self, Traces};
use crate::{grpc, http, logs, probe};

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
    let (served, following) = served(args, log, lifecycle.clone(), traces)?;
    // The first requests find a connection.
    if let Some(probe) = &served.probe
        && probe.is_answered().await
    {
        // If this fails, it is asked again.
        let _ = served.receipts.learn().await;
    }
    let http = bind(args.listen, "--listen")?;
    let grpc = bind(args.grpc_listen, "--grpc-listen")?;
    announce(args, log, &served, &http, &grpc)?;
    tokio::spawn(probe::watch(Arc::clone(&served)));
    tokio::spawn(logs::watch(Arc::clone(&served)));

    let api = Observed::new(http::router(Arc::clone(&served)), http::check, Arc::clone(&served));
    let bounds = Bounds {
        max_connections: served.max_connections,
        first_byte: args.first_byte_timeout,
        request: args.request_timeout,
        idle: args.idle_timeout,
    };
    let shared = Arc::clone(&served);
    tokio::spawn(async move {
        shared.receipts.follow(|| shared.is_store_answered()).await;
    });
    let connections = Arc::clone(&served.connections);
    let http = tokio::spawn(listener::serve(http, api, bounds, lifecycle.clone(), connections));
    let grpc = tokio::spawn(grpc::serve(grpc, bounds, Arc::clone(&served)));

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

/// The rules on their store; and what follows the file, for as long as it is kept.
fn served(
    args: &ServeArgs,
    log: &Log,
    lifecycle: Lifecycle,
    traces: Option<Traces>,
) -> anyhow::Result<(Arc<Served>, Option<Following>)> {
    let limiter = limiter(args)?;
    // First: the rules may take all the limits there can be.
    let probe = Probe::new(&limiter)?;
    let receipts = match StoreKind::of(&limiter) {
        StoreKind::Memory => Receipts::in_memory(args.max_memory / REFUNDS_SHARE),
        StoreKind::Redis => Receipts::on_servers(&limiter, args.receipt_secret.as_ref())?,
    };
    let (rules, file, following) = match &args.config {
        Some(path) => {
            let file = RulesFile::open(&limiter, path)?;
            let following = file.follow().and_then(Following::and_on_hangup);
            let following = following.context("--config cannot be followed")?;
            (file.rules().clone(), Some(file), Some(following))
        }
        None => {
            let config = Config::parse("the example", EXAMPLE)?;
            reload_nothing().context("signals cannot be listened for")?;
            (Rules::new(&limiter, &config)?, None, None)
        }
    };
    for domain in &args.required_domains {
        if !rules.require_domain(domain) {
            return Err(without_rules(domain, &rules.domains()));
        }
    }
    let mut served = Served::new(rules, file, lifecycle);
    served.receipts = receipts;
    if !args.no_playground {
        served.playground = Some(Playground::on(served.limiter(), args.store_deadline)?);
    }
    served.operator_token = args.operator_token.clone();
    served.is_ready_without_store = args.ready_without_store;
    served.probe = probe;
    served.traces = traces.clone();
    served.observer = Arc::new(Observer::new(Arc::clone(&served.metrics), traces, served.store));
    served.log = Some(log.clone());
    served.refused = Refused::logging(args.log_refusals.map(RefusalLog::every));
    served.max_key_bytes = args.max_memory;
    served.max_connections = listener::allow_open_files(args.max_connections);
    served.example_hash = SipHasher13::new().hash(EXAMPLE.as_bytes());
    Ok((Arc::new(served), following))
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
    let builder = Limiter::builder().max_bytes(args.max_memory);
    if args.store == "memory" {
        return Ok(builder.build());
    }
    let builder = builder.redis(&args.store).context("--store")?;
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
    served: &Served,
    http: &TcpListener,
    grpc: &TcpListener,
) -> anyhow::Result<()> {
    let http = http.local_addr()?;
    log.announce(&Start {
        http,
        grpc: grpc.local_addr()?,
        store: store(args, served),
        rules: served.rules.counts().len(),
        limits: served.limits().len(),
        config: args.config.as_ref().map(|path| path.display().to_string()),
    });
    if args.config.is_none() && !http.ip().is_loopback() {
        tracing::warn!("{http} is reached from elsewhere with the example's rules; use --config");
    }
    Ok(())
}

/// `memory, at most 64 MiB`, or `redis at 10.0.0.1:6379`: without user and password.
fn store(args: &ServeArgs, served: &Served) -> String {
    let Some(health) = served.limiter().health() else {
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
