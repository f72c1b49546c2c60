//! `tollgate serve`: creates a server from the flags, and runs it until a signal stops it.

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
use crate::logs::{RefusalLog, ServerLog, StartReport};
use crate::operators::OperatorAccess;
use crate::parts::{ConfiguredParts, ServerParts};
use crate::receipt::Receipts;
use crate::refusals::Refusals;
use crate::ruleset::RuleSet;
use crate::stop::{Drain, Signals};
use crate::store::{StoreKind, StoreMonitor};
use crate::traces::{self, Traces};
use crate::{grpc, logs};

/// The limits and rules of a server without `--config`.
const EXAMPLE: &str = include_str!("../../../examples/rules.yaml");

/// How long the process waits at its end for tasks that do not end by themselves.
const MAX_END: Duration = Duration::from_secs(1);

/// The memory for refunded receipts is the memory for keys divided by this, and comes on top of it.
const REFUNDS_SHARE: usize = 4;

/// The most servers of a store that the first log lines name.
const MAX_NAMED: usize = 8;

pub(crate) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let log = logs::start(&args.log, args.log_format)?;
    let traces = traces::start(args.otlp_endpoint.as_deref())?;
    // One thread for each core that the process may use.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.context("cannot start threads; raise the system's limit of threads")?;
    let outcome = runtime.block_on(serve(args, &log, traces.clone()));
    // Requests that were cut end here, with their spans. A blocking task, such as the look-up of a store's name or the
    // read of a file, is not waited for.
    runtime.shutdown_timeout(MAX_END);
    if let Some(traces) = traces {
        traces.stop();
    }
    log.flush();
    outcome
}

pub(crate) async fn serve(
    args: &ServeArgs,
    log: &ServerLog,
    traces: Option<Traces>,
) -> anyhow::Result<()> {
    let signals = Signals::new().context("cannot listen for signals")?;
    let (phase, lifecycle) = lifecycle::lifecycle();
    let (configured, file_follower) = configure(args, log, lifecycle.clone(), traces)?;
    let bounds = Bounds {
        max_connections: configured.max_connections,
        first_byte: args.first_byte_timeout,
        request: args.request_timeout,
        idle: args.idle_timeout,
    };
    let ServerParts { api, grpc: grpc_parts, watch, http_connections } =
        ServerParts::new(configured);
    let (store, receipts) = (Arc::clone(&watch.store), Arc::clone(&api.receipts));
    let limiter = api.rules.limiter().clone();
    // Connects to the store before the first requests arrive.
    if store.kind().is_remote() && store.is_answering().await {
        // A failure is ignored: `follow` tries again.
        let _ = receipts.refresh_lifetime().await;
    }
    let http = bind(args.listen, "--listen")?;
    let grpc = bind(args.grpc_listen, "--grpc-listen")?;
    announce(args, log, &api.rules, &http, &grpc)?;
    let (probed, phases) = (Arc::clone(&store), lifecycle.clone());
    tokio::spawn(async move { probed.watch(&phases).await });
    tokio::spawn(watch.run(lifecycle.clone()));
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
    let last = end_leases(&limiter);
    drain.after_signal(signals, &phase, &lifecycle, finished, last).await;
    // Not dropped: that would wait for its thread, which may be reading the file. The thread ends with the process.
    std::mem::forget(file_follower);
    Ok(())
}

/// Gives the unused units of leases back to the store, which would charge them when the leases expire.
async fn end_leases(limiter: &Limiter) {
    match tokio::time::timeout(MAX_END, limiter.end_leases()).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            tracing::warn!(%error, "leases were not given back; the store charges their unused units when they expire");
        }
        Err(_) => {
            tracing::warn!(timeout = ?MAX_END, "the store has not taken leases back in time; it charges their unused units when they expire");
        }
    }
}

/// Adds the address of the connection's peer to a request. A request to `/v1/authorize` also gets a watch on its client,
/// because its answer may be delayed.
fn describe_connection(request: &mut Request<Body>, connection: &Connection<'_>) {
    let may_be_delayed = RequestEndpoint::of(request.uri().path()) == RequestEndpoint::Authorize;
    let extensions = request.extensions_mut();
    extensions.insert(Peer(connection.peer()));
    if may_be_delayed {
        extensions.insert(connection.client_watch());
    }
}

/// Creates everything that the flags determine: the rules on their store, and the rest. Also returns the follower of
/// the rules file, which follows the file until it is dropped.
fn configure(
    args: &ServeArgs,
    log: &ServerLog,
    lifecycle: Lifecycle,
    traces: Option<Traces>,
) -> anyhow::Result<(ConfiguredParts, Option<FileFollower>)> {
    let limiter = limiter(args)?;
    // Before the rules: they may use all limits that the limiter can have, and the probe needs one.
    let store = StoreMonitor::new(&limiter, args.max_memory)?;
    let receipts = match store.kind() {
        StoreKind::Memory => Receipts::in_memory(args.max_memory / REFUNDS_SHARE),
        StoreKind::Redis => Receipts::on_servers(&limiter, args.receipt_secret.as_ref())?,
    };
    let (rules, file_follower) = match &args.config {
        Some(path) => {
            let file = RulesFile::open(&limiter, path)?;
            let follower = file.follow().and_then(FileFollower::and_on_hangup);
            let follower = follower.context("--config: cannot watch the file for changes")?;
            (RuleSet::of_file(file), Some(follower))
        }
        None => {
            let config = Config::parse("the example", EXAMPLE)?;
            ignore_hangups().context("cannot listen for signals")?;
            (RuleSet::of_text(Rules::new(&limiter, &config)?, EXAMPLE), None)
        }
    };
    for domain in &args.required_domains {
        if !rules.rules().require_domain(domain) {
            return Err(no_rules_for_domain(domain, &rules.rules().domains()));
        }
    }
    let playground = match args.no_playground {
        true => None,
        false if limiter.is_local() => Some(Playground::in_memory()),
        false => Some(Playground::on_servers(&limiter, args.store_deadline)?),
    };
    let configured = ConfiguredParts {
        rules,
        store,
        receipts,
        refused: Refusals::logging(args.log_refusals.map(RefusalLog::every)),
        operators: OperatorAccess::new(args.operator_token.clone()),
        playground,
        lifecycle,
        log: log.clone(),
        traces,
        is_ready_without_store: args.ready_without_store,
        max_connections: max_connections(args),
    };
    Ok((configured, file_follower))
}

/// Returns how many connections each port may have. Warns and returns fewer than `--max-connections` if the process may
/// not open enough files.
fn max_connections(args: &ServeArgs) -> u32 {
    let wanted = args.max_connections;
    let Err(too_few) = listener::allow_open_files(wanted) else { return wanted };
    tracing::warn!(
        "--max-connections {wanted}: {too_few}: no more are accepted; raise `ulimit -n`, or lower --max-connections"
    );
    too_few.max_connections
}

/// Returns the error that a required domain has no rules.
fn no_rules_for_domain(domain: &str, domains: &[String]) -> anyhow::Error {
    let there = match domains {
        [] => "the file has no rules".to_owned(),
        domains => format!("the file has rules for {}", domains.join(", ")),
    };
    anyhow!("--require-domain {domain}: no rules for this domain; {there}")
}

/// Logs a warning on SIGHUP, which would end the process otherwise.
fn ignore_hangups() -> io::Result<()> {
    let mut hangups = signal(SignalKind::hangup())?;
    tokio::spawn(async move {
        while hangups.recv().await.is_some() {
            tracing::warn!("SIGHUP: no rules file to reload; give one with --config");
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
            ErrorKind::AddrNotAvailable => {
                "choose an address of this machine, or 0.0.0.0 for all of them"
            }
            ErrorKind::PermissionDenied => "choose a port of 1024 or higher",
            _ => "choose another address",
        };
        anyhow!("{flag} {address}: cannot listen there: {error}; {remedy}")
    })
}

/// Logs where the server listens, and its store and rules.
fn announce(
    args: &ServeArgs,
    log: &ServerLog,
    rules: &RuleSet,
    http: &TcpListener,
    grpc: &TcpListener,
) -> anyhow::Result<()> {
    let http = http.local_addr()?;
    log.announce(&StartReport {
        http,
        grpc: grpc.local_addr()?,
        store: describe_store(args, rules.limiter()),
        rules: rules.rules().counts().len(),
        limits: rules.limits().len(),
        config: args.config.as_ref().map(|path| path.display().to_string()),
    });
    if args.config.is_none() && !http.ip().is_loopback() {
        tracing::warn!(
            "other machines can reach {http}, which has the rules of the example; use --config for your own"
        );
    }
    Ok(())
}

/// Describes the store without user and password: `memory, at most 64 MiB`, or `redis at 10.0.0.1:6379`.
fn describe_store(args: &ServeArgs, limiter: &Limiter) -> String {
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
