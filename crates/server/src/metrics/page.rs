//! The page that Prometheus reads: what the server counts, and what its parts tell when the page is asked for.

use std::sync::Arc;
use std::time::SystemTime;

use axum::body::Body;
use tollgate::http::JwksStatus;
use tollgate::rules::Counts;
use tollgate::{BreakerState, Health};

use super::text::{Kind, Text, unix_seconds};
use super::{Metrics, process};
use crate::budget::{Budget, Exhausted};
use crate::held::HeldRequests;
use crate::lifecycle::Phase;
use crate::listener::Connections;
use crate::logs::ServerLog;
use crate::operators::OperatorAccess;
use crate::readiness::Readiness;
use crate::ruleset::{Loads, RuleSet};
use crate::store::{FailuresByKind, StoreMonitor};
use crate::traces::Traces;

/// The parts of the server that the page tells of.
#[derive(Debug)]
pub(crate) struct Sources {
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) operators: Arc<OperatorAccess>,
    pub(crate) held: Arc<HeldRequests>,
    /// The HTTP port's, then the gRPC port's.
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
    /// Held while the page is written: at most one at a time, however many ask.
    writing: Arc<tokio::sync::Mutex<()>>,
}

impl MetricsPage {
    pub(crate) fn new(sources: Sources) -> MetricsPage {
        MetricsPage { sources: Arc::new(sources), writing: Arc::default() }
    }

    /// Writes the page on a thread that may take its time: with thousands of rules that takes milliseconds. The page
    /// takes its memory from the budget until it is sent. `None` if the server is about to end.
    pub(crate) async fn body(&self, budget: &Budget) -> Option<Result<Body, Exhausted>> {
        let sources = Arc::clone(&self.sources);
        let _alone = self.writing.lock().await;
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
        let mut text = Text::default();
        self.metrics.write_recorded(&mut text);
        self.write(&mut text);
        self.metrics.write_counted(&mut text);
        process::write(&mut text, self.metrics.started());
        text.into_string()
    }

    fn write(&self, text: &mut Text) {
        let Sources { rules: rule_set, readiness, .. } = self;
        // Before what is told of each rule: a page that tells of a reload then has the rules after it.
        rules(text, rule_set, self.metrics.started());
        decisions(text, rule_set);
        keys(text, readiness.store());
        if let Some(health) = readiness.store().limiter().health() {
            store(text, &health, &readiness.store().failed_by_kind(&health));
        }
        let [http, grpc] = &self.connections;
        connections(text, [http, grpc]);
        let help = "The most connections that a port may have.";
        text.single("tollgate_max_connections", Kind::Gauge, help, self.max_connections);
        authorizing(text, &self.held, &self.metrics);
        tokens(text, rule_set);
        operators(text, &self.operators);
        lost(text, &self.log, self.traces.as_ref());
        let help = "1 while requests should be sent here, as /readyz says.";
        text.single("tollgate_ready", Kind::Gauge, help, u8::from(readiness.is_ready()));
        let help = "1 while the server is about to stop, and wants no more requests.";
        let is_draining = readiness.lifecycle().phase() > Phase::Serving;
        text.single("tollgate_draining", Kind::Gauge, help, u8::from(is_draining));
        text.metric("tollgate_build_info", Kind::Gauge, "1, and which version it is.");
        text.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1);
    }
}

fn decisions(text: &mut Text, rules: &RuleSet) {
    let help = "What rules decided; degraded is without the store, which failed.";
    text.metric("tollgate_decisions_total", Kind::Counter, help);
    for (name, counts) in rules.rules().counts() {
        for Outcome { outcome, degraded, count } in outcomes(&counts) {
            let (domain, rule) = (("domain", name.domain()), ("rule", name.name()));
            text.sample(&[domain, rule, ("outcome", outcome), ("degraded", degraded)], count);
        }
    }
    let help = "What limits decided that were asked for by their names; degraded as above.";
    text.metric("tollgate_limit_decisions_total", Kind::Counter, help);
    for (name, limit) in rules.limits() {
        let all = outcomes(&limit.tally.counts());
        // Who asks for a limit does not only watch.
        for Outcome { outcome, degraded, count } in
            all.into_iter().filter(|of| of.outcome != "shadow_denied")
        {
            let labels = [("limit", &*name), ("outcome", outcome), ("degraded", degraded)];
            text.sample(&labels, count);
        }
    }
}

struct Outcome {
    outcome: &'static str,
    degraded: &'static str,
    count: u64,
}

/// Every decision is in one of them.
fn outcomes(counts: &Counts) -> [Outcome; 7] {
    let of = |outcome, degraded, count| Outcome { outcome, degraded, count };
    // OK because degraded ones are among all of them.
    [
        of("allowed", "false", counts.allowed - counts.degraded_allowed),
        of("allowed", "true", counts.degraded_allowed),
        of("denied", "false", counts.denied - counts.degraded_denied),
        of("denied", "true", counts.degraded_denied),
        of("shadow_denied", "false", counts.shadow_denied - counts.degraded_shadow_denied),
        of("shadow_denied", "true", counts.degraded_shadow_denied),
        of("failed", "false", counts.failed),
    ]
}

fn keys(text: &mut Text, store: &StoreMonitor) {
    let (limiter, usage) = (store.limiter(), store.limiter().usage());
    let help = "Keys in the memory of this server; none if the store is elsewhere.";
    text.single("tollgate_keys", Kind::Gauge, help, usage.keys);
    let help = "Memory that these keys take, used or not.";
    text.single("tollgate_key_bytes", Kind::Gauge, help, usage.bytes);
    let help = "The most memory that these keys may take.";
    text.single("tollgate_key_bytes_max", Kind::Gauge, help, store.max_key_bytes());
    let help = "Checks that shared a state with others, for want of memory for their keys.";
    text.single("tollgate_overflowed_total", Kind::Counter, help, usage.overflowed);
    let help =
        "Entries of sliding window logs that were merged, for want of memory: they count longer.";
    text.single("tollgate_logs_coarsened_total", Kind::Counter, help, usage.coarsened);
    let help = "Requests that wait in line for their turn.";
    text.single("tollgate_waiting", Kind::Gauge, help, limiter.waiting());
}

fn store(text: &mut Text, health: &Health, failed: &FailuresByKind) {
    let help = "Requests that the store failed to decide, whatever became of them.";
    text.metric("tollgate_store_errors_total", Kind::Counter, help);
    for (kind, count) in failed {
        text.sample(&[("kind", kind)], count);
    }
    let help = "1 for how a server's breaker is: open, the server is not asked.";
    text.metric("tollgate_store_breaker", Kind::Gauge, help);
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
    let help = "Charges that wait to be sent to a server.";
    text.metric("tollgate_store_waiting", Kind::Gauge, help);
    for server in &health.servers {
        text.sample(&[("server", &server.server)], server.waiting);
    }
}

fn rules(text: &mut Text, rules: &RuleSet, started: SystemTime) {
    // First, for the same reason: it is told of a reload when that is done.
    let Loads { accepted, refused, since } = rules.loads();
    let help = "1 for the first rules, one more whenever they are replaced.";
    text.single("tollgate_rules_generation", Kind::Gauge, help, rules.rules().generation());
    let help =
        "1, and a hash of the rules that decide: the same on all servers that have the same.";
    text.metric("tollgate_rules_info", Kind::Gauge, help);
    text.sample(&[("hash", &rules.hash())], 1);
    let help = "1 while the rules file is one that was refused, so that older rules decide, while a domain in use \
                has no rules, so that its requests are not limited, or while the keys of tokens cannot be fetched.";
    let has_problem = rules.problem().is_some();
    text.single("tollgate_rules_problem", Kind::Gauge, help, u8::from(has_problem));
    let help = "How often the rules were read again, and taken over (ok) or refused (failed).";
    text.metric("tollgate_rules_reloads_total", Kind::Counter, help);
    text.sample(&[("result", "ok")], accepted);
    text.sample(&[("result", "failed")], refused);
    let help = "Since when the rules decide, in seconds since 1970.";
    let name = "tollgate_rules_loaded_timestamp_seconds";
    text.single(name, Kind::Gauge, help, unix_seconds(since.unwrap_or(started)));
}

/// What proxies ask.
fn authorizing(text: &mut Text, held: &HeldRequests, metrics: &Metrics) {
    let help = "Requests that are held back until a shaping limit lets them go.";
    text.single("tollgate_authorize_held", Kind::Gauge, help, held.count());
    let help = "Questions to /v1/authorize of those that are not trusted proxies.";
    let untrusted = metrics.untrusted_proxies();
    text.single("tollgate_authorize_untrusted_total", Kind::Counter, help, untrusted);
}

/// The tokens of clients, where the rules say how those are verified.
fn tokens(text: &mut Text, rules: &RuleSet) {
    let now = rules.rules().snapshot();
    let rejected = now.identity().map(|identity| identity.rejected_tokens()).unwrap_or_default();
    if rejected.is_empty() {
        return;
    }
    let help = "Tokens of clients that were rejected: no_expiry is a token without `exp`, not_verified a token whose \
                address had sent too many invalid ones.";
    text.metric("tollgate_tokens_rejected_total", Kind::Counter, help);
    for (reason, count) in rejected {
        text.sample(&[("reason", reason)], count);
    }
    let sets = now.identity().map(|identity| identity.key_sets()).unwrap_or_default();
    if let Some(keys) = sets.first() {
        key_set(text, &keys.status());
    }
}

/// The key set that tokens are verified with.
fn key_set(text: &mut Text, keys: &JwksStatus) {
    let help = "Keys of the issuer's key set that tokens are verified with.";
    text.single("tollgate_token_keys", Kind::Gauge, help, keys.keys);
    let help = "Keys of the issuer's key set that are not used, because they are not for signatures or not supported.";
    text.single("tollgate_token_keys_skipped", Kind::Gauge, help, keys.skipped);
    let help = "How often the issuer's key set was fetched (ok), or could not be (failed).";
    text.metric("tollgate_token_key_refreshes_total", Kind::Counter, help);
    text.sample(&[("result", "ok")], keys.refreshes);
    text.sample(&[("result", "failed")], keys.failures);
    if let Some(loaded) = keys.loaded {
        let help = "When the issuer's key set was last fetched, in seconds since 1970.";
        let name = "tollgate_token_keys_loaded_timestamp_seconds";
        text.single(name, Kind::Gauge, help, unix_seconds(loaded));
    }
}

fn operators(text: &mut Text, operators: &OperatorAccess) {
    let help = "Operator tokens that were not accepted: wrong, or not_compared because their address had sent too \
                many wrong ones.";
    text.metric("tollgate_operator_token_failures_total", Kind::Counter, help);
    text.sample(&[("reason", "wrong")], operators.wrong());
    text.sample(&[("reason", "not_compared")], operators.not_compared());
}

/// What should have been told elsewhere.
fn lost(text: &mut Text, log: &ServerLog, traces: Option<&Traces>) {
    let help = "Log lines that were not written: standard error is read too slowly, or writing to it fails.";
    text.single("tollgate_log_lines_lost_total", Kind::Counter, help, log.lost());
    let help = "Spans that the collector did not take, or that found no room to wait for it.";
    let spans = traces.map_or(0, Traces::lost);
    text.single("tollgate_spans_lost_total", Kind::Counter, help, spans);
}

fn connections(text: &mut Text, ports: [&Connections; 2]) {
    text.metric("tollgate_connections", Kind::Gauge, "Connections that are open.");
    for seen in ports {
        text.sample(&[("port", seen.port().name())], seen.open());
    }
    let help = "Connections that were accepted.";
    text.metric("tollgate_connections_total", Kind::Counter, help);
    for seen in ports {
        text.sample(&[("port", seen.port().name())], seen.accepted());
    }
    let help = "Connections that the server closed for what their clients did not do in time.";
    text.metric("tollgate_connections_closed_total", Kind::Counter, help);
    for seen in ports {
        for (reason, count) in seen.closed() {
            text.sample(&[("port", seen.port().name()), ("reason", reason.name())], count);
        }
    }
}
