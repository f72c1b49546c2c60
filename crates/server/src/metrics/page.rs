//! The page that Prometheus reads: the recorded metrics, and numbers read from the parts of the server.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use tollgate::http::JwksStatus;
use tollgate::rules::Counts;
use tollgate::{BreakerState, Health};

use super::text::{MetricKind, MetricsText, unix_seconds};
use super::{Metrics, holds, leases, process};
use crate::budget::{Budget, BudgetExhausted};
use crate::delays::DelayedRequests;
use crate::lifecycle::Phase;
use crate::listener::Connections;
use crate::logs::ServerLog;
use crate::operators::OperatorAccess;
use crate::readiness::Readiness;
use crate::ruleset::{Loads, RuleSet};
use crate::store::{FailuresByKind, StoreMonitor};
use crate::traces::Traces;

/// The parts of the server whose numbers are on the page.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) operators: Arc<OperatorAccess>,
    pub(crate) delayed: Arc<DelayedRequests>,
    /// The connections of the HTTP port, then of the gRPC port.
    pub(crate) connections: [Arc<Connections>; 2],
    /// The most connections that each port may have.
    pub(crate) max_connections: u32,
    pub(crate) log: ServerLog,
    /// `None` unless traces are collected.
    pub(crate) traces: Option<Traces>,
}

/// The page that Prometheus reads. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct MetricsPage {
    sources: Arc<Sources>,
    /// Locked while the page is written, so that concurrent requests write it one after the other.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl MetricsPage {
    pub(crate) fn new(sources: Sources) -> MetricsPage {
        MetricsPage { sources: Arc::new(sources), writing: Arc::default() }
    }

    /// Writes the page on a thread for blocking work, because it takes milliseconds with thousands of rules. The page's
    /// memory is charged to the budget until it is sent. `None` if the process is ending.
    pub(crate) async fn body(&self, budget: &Budget) -> Option<Result<Body, BudgetExhausted>> {
        let sources = Arc::clone(&self.sources);
        let _writing = self.writing.lock().await;
        let text = tokio::task::spawn_blocking(move || sources.render()).await.ok()?;
        Some(budget.body(text.into_bytes()))
    }

    #[cfg(test)]
    pub(super) fn render(&self) -> String {
        self.sources.render()
    }
}

impl Sources {
    fn render(&self) -> String {
        let mut text = MetricsText::default();
        self.metrics.write_recorded(&mut text);
        self.write(&mut text);
        self.metrics.write_counted(&mut text);
        process::write(&mut text, self.metrics.started());
        text.into_string()
    }

    fn write(&self, text: &mut MetricsText) {
        let Sources { rules: rule_set, readiness, .. } = self;
        // Written before the decisions of each rule, so that a page that counts a reload has the rules of that reload
        // or of a later one.
        rules(text, rule_set, self.metrics.started());
        decisions(text, rule_set);
        holds::write(text, rule_set);
        leases::write(text, rule_set.limiter());
        keys(text, readiness.store());
        if let Some(health) = readiness.store().limiter().health() {
            store(text, &health, &readiness.store().failed_by_kind(&health));
        }
        let [http, grpc] = &self.connections;
        connections(text, [http, grpc]);
        let help = "Most connections that each port may have.";
        text.single("tollgate_max_connections", MetricKind::Gauge, help, self.max_connections);
        authorizing(text, &self.delayed, &self.metrics);
        tokens(text, rule_set);
        operators(text, &self.operators);
        lost(text, &self.log, self.traces.as_ref());
        let help = "1 if requests should be sent to this server, as in /readyz, and otherwise 0.";
        text.single("tollgate_ready", MetricKind::Gauge, help, u8::from(readiness.is_ready()));
        let help =
            "1 while the server is stopping and should get no more requests, and otherwise 0.";
        let is_draining = readiness.lifecycle().phase() > Phase::Serving;
        text.single("tollgate_draining", MetricKind::Gauge, help, u8::from(is_draining));
        let help = "Always 1. The label has the version of the server.";
        text.metric("tollgate_build_info", MetricKind::Gauge, help);
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    }
}

fn decisions(text: &mut MetricsText, rules: &RuleSet) {
    let help = "Decisions of rules, by outcome. leased is true for decisions of this process with leased units, degraded is \
                true for decisions without the store, which failed.";
    text.metric("tollgate_decisions_total", MetricKind::Counter, help);
    for (name, counts) in rules.rules().counts() {
        for OutcomeCount { labels, count } in outcomes(&counts) {
            let (domain, rule) = (("domain", name.domain()), ("rule", name.name()));
            text.sample(&[&[domain, rule], &labels[..]].concat(), count);
        }
    }
    let help = "Decisions of limits in checks by name, by outcome. leased is true for decisions of this process with leased \
                units, degraded is true for decisions without the store, which failed.";
    text.metric("tollgate_limit_decisions_total", MetricKind::Counter, help);
    for (name, limit) in rules.limits() {
        let all = outcomes(&limit.tally.counts());
        // A check by name has no shadow rule.
        for OutcomeCount { labels, count } in all.filter(|own| own.labels[0].1 != "shadow_denied") {
            text.sample(&[&[("limit", &*name)], &labels[..]].concat(), count);
        }
    }
}

/// The number of decisions with the same labels.
struct OutcomeCount {
    /// The outcome first.
    labels: [(&'static str, &'static str); 3],
    count: u64,
}

/// Splits counts so that each decision is in one outcome. Counts of leases are left out if leases decided nothing.
fn outcomes(counts: &Counts) -> impl Iterator<Item = OutcomeCount> + use<> {
    let of = |outcome, leased, degraded, count| OutcomeCount {
        labels: [("outcome", outcome), ("leased", leased), ("degraded", degraded)],
        count,
    };
    let all = [
        ("allowed", counts.allowed, counts.leased_allowed, counts.degraded_allowed),
        ("denied", counts.denied, counts.leased_denied, counts.degraded_denied),
        (
            "shadow_denied",
            counts.shadow_denied,
            counts.leased_shadow_denied,
            counts.degraded_shadow_denied,
        ),
    ];
    let has_leased = all.iter().any(|(_, _, leased, _)| *leased > 0);
    let split = move |(outcome, all, leased, degraded)| {
        // OK because the counts of all decisions include the others.
        let by_store = of(outcome, "false", "false", all - leased - degraded);
        let leased = of(outcome, "true", "false", leased);
        let degraded = of(outcome, "false", "true", degraded);
        [Some(by_store), has_leased.then_some(leased), Some(degraded)]
    };
    let failed = of("failed", "false", "false", counts.failed);
    all.into_iter().flat_map(split).flatten().chain([failed])
}

fn keys(text: &mut MetricsText, store: &StoreMonitor) {
    let (limiter, usage) = (store.limiter(), store.limiter().usage());
    let help = "Keys with a state in the memory of this process.";
    text.single("tollgate_keys", MetricKind::Gauge, help, usage.keys);
    let help = "Memory allocated for keys in this process, in bytes.";
    text.single("tollgate_key_bytes", MetricKind::Gauge, help, usage.bytes);
    let help = "Most memory that keys may take in this process, in bytes (--max-memory).";
    text.single("tollgate_key_bytes_max", MetricKind::Gauge, help, store.max_key_bytes());
    let help = "Checks of new keys that used a shared state, because the memory for keys was full.";
    text.single("tollgate_overflowed_total", MetricKind::Counter, help, usage.overflowed);
    let help = "Entries of sliding window logs that were merged, so that they count for longer, because the memory for \
                keys was full.";
    text.single("tollgate_logs_coarsened_total", MetricKind::Counter, help, usage.coarsened);
    let help = "Requests that wait until a limit allows them.";
    text.single("tollgate_waiting", MetricKind::Gauge, help, limiter.waiting());
    let help = "Live processes by which local rules divide limits while the store fails; 0 if the store has not counted.";
    let processes = limiter.live_processes().unwrap_or(0);
    text.single("tollgate_live_processes", MetricKind::Gauge, help, processes);
}

fn store(text: &mut MetricsText, health: &Health, failed: &FailuresByKind) {
    let help = "Requests that the store failed to decide, by kind of failure.";
    text.metric("tollgate_store_errors_total", MetricKind::Counter, help);
    for (kind, count) in failed {
        text.sample(&[("kind", kind)], count);
    }
    let help = "State of the circuit breaker of a server of the store: 1 for the current state, 0 for the others.";
    text.metric("tollgate_store_breaker", MetricKind::Gauge, help);
    for server in &health.servers {
        let states = [
            ("closed", BreakerState::Closed),
            ("open", BreakerState::Open),
            ("half_open", BreakerState::HalfOpen),
        ];
        for (name, state) in states {
            let labels = [("server", &*server.server), ("state", name)];
            text.sample(&labels, u8::from(server.breaker == state));
        }
    }
    let help = "Work in the queue of a server of the store: 1 for each charge, and more for requests on logs of more than \
                64 units.";
    text.metric("tollgate_store_waiting", MetricKind::Gauge, help);
    for server in &health.servers {
        text.sample(&[("server", &server.server)], server.waiting);
    }
}

fn rules(text: &mut MetricsText, rules: &RuleSet, started: SystemTime) {
    // Read before the generation and the hash, for the same reason: a reload is counted after it has replaced the
    // rules.
    let Loads { accepted, refused, since } = rules.loads();
    let help = "Generation of the rules: 1 at the start, and 1 more after each replacement.";
    text.single("tollgate_rules_generation", MetricKind::Gauge, help, rules.rules().generation());
    let help =
        "Always 1. The label has a hash of the rules, the same on all servers with the same rules.";
    text.metric("tollgate_rules_info", MetricKind::Gauge, help);
    text.sample(&[("hash", &rules.hash())], 1);
    let help = "1 while the rules file is refused, so that older rules decide, while a domain in use has no rules, so that \
                its requests are not limited, or while the key set of tokens cannot be fetched. Otherwise 0.";
    let has_problem = rules.problem().is_some();
    text.single("tollgate_rules_problem", MetricKind::Gauge, help, u8::from(has_problem));
    let help = "Reloads of the rules, by result: ok if they were replaced, failed if the file was refused.";
    text.metric("tollgate_rules_reloads_total", MetricKind::Counter, help);
    text.sample(&[("result", "ok")], accepted);
    text.sample(&[("result", "failed")], refused);
    let help = "Time at which the present rules were loaded, in seconds since 1970.";
    let name = "tollgate_rules_loaded_timestamp_seconds";
    text.single(name, MetricKind::Gauge, help, unix_seconds(since.unwrap_or(started)));
}

/// Writes the metrics of `/v1/authorize`.
fn authorizing(text: &mut MetricsText, delayed: &DelayedRequests, metrics: &Metrics) {
    let help = "Requests to /v1/authorize that a shaping limit delays, or may delay because they are not decided yet.";
    text.single("tollgate_authorize_delayed", MetricKind::Gauge, help, delayed.count());
    let help = "Requests to /v1/authorize from addresses that are not trusted proxies.";
    let untrusted = metrics.untrusted_proxies();
    text.single("tollgate_authorize_untrusted_total", MetricKind::Counter, help, untrusted);
}

/// Writes the metrics of clients' tokens, if the rules say how tokens are verified.
fn tokens(text: &mut MetricsText, rules: &RuleSet) {
    let now = rules.rules().snapshot();
    let rejected = now.identity().map(|identity| identity.rejected_tokens()).unwrap_or_default();
    if rejected.is_empty() {
        return;
    }
    let help = "Rejected tokens of clients, by reason. no_expiry is a token without `exp`, not_verified a token from a \
                client's address that had sent too many invalid tokens.";
    text.metric("tollgate_tokens_rejected_total", MetricKind::Counter, help);
    for (reason, count) in rejected {
        text.sample(&[("reason", reason)], count);
    }
    let sets = now.identity().map(|identity| identity.key_sets()).unwrap_or_default();
    if let Some(keys) = sets.first() {
        key_set(text, &keys.status());
    }
}

/// Writes the metrics of the key set that tokens are verified with.
fn key_set(text: &mut MetricsText, keys: &JwksStatus) {
    let help = "Keys of the issuer's key set with which tokens are verified.";
    text.single("tollgate_token_keys", MetricKind::Gauge, help, keys.keys);
    let help = "Keys of the issuer's key set that are skipped, because they are not for signatures or not supported.";
    text.single("tollgate_token_keys_skipped", MetricKind::Gauge, help, keys.skipped);
    let help = "Fetches of the issuer's key set, by result: ok or failed.";
    text.metric("tollgate_token_key_refreshes_total", MetricKind::Counter, help);
    text.sample(&[("result", "ok")], keys.refreshes);
    text.sample(&[("result", "failed")], keys.failures);
    if let Some(loaded) = keys.loaded {
        let help = "Time at which the issuer's key set was last fetched, in seconds since 1970.";
        let name = "tollgate_token_keys_loaded_timestamp_seconds";
        text.single(name, MetricKind::Gauge, help, unix_seconds(loaded));
    }
}

fn operators(text: &mut MetricsText, operators: &OperatorAccess) {
    let help = "Operator tokens that were not accepted, by reason. not_compared is a token from a client's address that \
                had sent too many wrong tokens.";
    text.metric("tollgate_operator_token_failures_total", MetricKind::Counter, help);
    text.sample(&[("reason", "wrong")], operators.wrong());
    text.sample(&[("reason", "not_compared")], operators.not_compared());
}

/// Writes the numbers of lost log lines and spans.
fn lost(text: &mut MetricsText, log: &ServerLog, traces: Option<&Traces>) {
    let help =
        "Log lines that were lost, because standard error was read too slowly or a write failed.";
    text.single("tollgate_log_lines_lost_total", MetricKind::Counter, help, log.lost());
    let help =
        "Spans that were lost, because the collector did not accept them or their queue was full.";
    let spans = traces.map_or(0, Traces::lost);
    text.single("tollgate_spans_lost_total", MetricKind::Counter, help, spans);
}

fn connections(text: &mut MetricsText, ports: [&Connections; 2]) {
    text.metric("tollgate_connections", MetricKind::Gauge, "Open connections, by port.");
    for own in ports {
        text.sample(&[("port", own.port().name())], own.open());
    }
    let help = "Accepted connections, by port.";
    text.metric("tollgate_connections_total", MetricKind::Counter, help);
    for own in ports {
        text.sample(&[("port", own.port().name())], own.accepted());
    }
    let help = "Connections that the server closed while their clients still used them, by port and reason.";
    text.metric("tollgate_connections_closed_total", MetricKind::Counter, help);
    for own in ports {
        for (reason, count) in own.closed() {
            text.sample(&[("port", own.port().name()), ("reason", reason.name())], count);
        }
    }
}
