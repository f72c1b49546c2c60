//! The dashboard and the alerts query metrics that exist.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use tollgate_launcher::{Flavour, Launch};

use crate::metrics::scrape;
use crate::prometheus::Page;
use crate::rls::{RlsServer, descriptor};
use crate::server::ServerProcess;

const DASHBOARD: &str = include_str!("../../../../examples/grafana/tollgate.json");
const MANUAL: &str = include_str!("../../../../docs/operate/metrics.md");
const ALERTS: &str = include_str!("../../../../examples/prometheus/alerts.yml");

/// The labels that Prometheus adds.
const ADDED: [&str; 3] = ["instance", "job", "le"];

/// The values of every label of every metric.
type LabelValues = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

fn label_values() -> LabelValues {
    let store = Launch::new(Flavour::Redis).start().unwrap();
    let server = ServerProcess::start(&["--store", &store.url()]);
    server.check(r#"{"limit":"free","key":"a"}"#);
    let page: Page = scrape(&server);
    let mut known = LabelValues::new();
    for sample in page.samples {
        let labels = known.entry(sample.name).or_default();
        for (label, value) in sample.labels {
            labels.entry(label).or_default().insert(value);
        }
    }
    known
}

/// A metric in an expression, with the labels that select its series.
#[derive(Debug, PartialEq)]
struct MetricQuery {
    metric: String,
    /// `outcome`, `=`, `denied`.
    by: Vec<(String, String, String)>,
}

fn is_word(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || letter == '_' || letter == ':'
}

/// Returns the metrics in an expression: words that begin with `tollgate_` or `process_`.
fn metric_queries(expression: &str) -> Vec<MetricQuery> {
    let mut found = Vec::new();
    let mut rest = expression;
    while let Some(start) = rest.find(is_word) {
        let word = &rest[start..];
        let end = word.find(|letter| !is_word(letter)).unwrap_or(word.len());
        let (word, after) = word.split_at(end);
        rest = after;
        if word.starts_with("tollgate_") || word.starts_with("process_") {
            let by =
                after.strip_prefix('{').map(|inner| matchers(inner.split_once('}').unwrap().0));
            found.push(MetricQuery { metric: word.to_owned(), by: by.unwrap_or_default() });
        }
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner.split_once('}').unwrap().1;
        }
    }
    found
}

fn matchers(inner: &str) -> Vec<(String, String, String)> {
    let each = inner.split(',').map(str::trim).map(|matcher| {
        let end = matcher.find(|letter| !is_word(letter)).unwrap();
        let (label, rest) = matcher.split_at(end);
        let (operator, value) = rest.split_once('"').unwrap();
        let value = value.strip_suffix('"').unwrap();
        (label.to_owned(), operator.to_owned(), value.to_owned())
    });
    each.collect()
}

/// Returns the labels of `by (…)` and `on (…)`.
fn grouped(expression: &str) -> Vec<String> {
    let mut labels = Vec::new();
    for opening in ["by (", "on ("] {
        for part in expression.split(opening).skip(1) {
            let inner = part.split_once(')').unwrap().0;
            labels.extend(inner.split(',').map(|label| label.trim().to_owned()));
        }
    }
    labels
}

/// Returns the labels of `{{label}}` and `{{ $labels.label }}`.
fn shown(text: &str) -> Vec<String> {
    let parts = text.split("{{").skip(1).map(|part| part.split_once("}}").unwrap().0.trim());
    let labels = parts.filter(|part| !part.starts_with("$value"));
    labels.map(|part| part.strip_prefix("$labels.").unwrap_or(part).to_owned()).collect()
}

fn check(known: &LabelValues, expression: &str, texts: &[&str]) {
    let metrics = metric_queries(expression);
    assert!(!metrics.is_empty(), "no metric in: {expression}");
    let mut labels: BTreeSet<&str> = ADDED.into();
    for MetricQuery { metric, by } in &metrics {
        let own = known.get(metric).unwrap_or_else(|| panic!("no {metric}: {expression}"));
        labels.extend(own.keys().map(String::as_str));
        for (label, operator, value) in by {
            if ADDED.contains(&&**label) {
                continue;
            }
            let values = own.get(label).unwrap_or_else(|| panic!("no {label}: {expression}"));
            match &**operator {
                "=" | "!=" => assert!(values.contains(value), "no {label}={value}: {expression}"),
                _ if value.starts_with('$') => {}
                _ => assert!(value.split('|').all(|value| values.contains(value)), "{expression}"),
            }
        }
    }
    let shown = texts.iter().flat_map(|text| shown(text));
    for label in grouped(expression).into_iter().chain(shown) {
        assert!(labels.contains(&*label), "no label {label}: {expression}");
    }
}

/// Adds every object in a document to `found`.
fn objects<'v>(value: &'v Value, found: &mut Vec<&'v serde_json::Map<String, Value>>) {
    match value {
        Value::Object(object) => {
            found.push(object);
            object.values().for_each(|value| objects(value, found));
        }
        Value::Array(values) => values.iter().for_each(|value| objects(value, found)),
        _ => {}
    }
}

#[test]
fn dashboard_queries_metrics_that_exist() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let (known, mut all) = (label_values(), Vec::new());
    objects(&dashboard, &mut all);
    let mut used = BTreeSet::new();
    let mut count = 0;
    for target in all.iter().filter(|object| object.contains_key("expr")) {
        let expression = target["expr"].as_str().unwrap();
        check(&known, expression, &[target["legendFormat"].as_str().unwrap()]);
        used.extend(metric_queries(expression).into_iter().map(|query| query.metric));
        count += 1;
    }
    assert!(count >= 20, "{count}");
    // Every metric is on the dashboard.
    let base = |name: &str| {
        let suffixes = ["_bucket", "_sum", "_count"].iter();
        let of = suffixes.filter_map(|end| name.strip_suffix(end)).next();
        of.unwrap_or(name).to_owned()
    };
    let used: BTreeSet<_> = used.iter().map(|name| base(name)).collect();
    let missing = known.keys().map(|name| base(name)).filter(|name| !used.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), ["process_start_time_seconds"]);
}

#[test]
fn dashboard_can_be_imported_with_any_data_source() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    assert!(variables.iter().any(|of| of["name"] == "datasource" && of["type"] == "datasource"));
    let (known, mut all) = (label_values(), Vec::new());
    for variable in variables.iter().filter(|of| of["type"] == "query") {
        let query = variable["query"]["query"].as_str().unwrap();
        let (expression, label) = query.rsplit_once(", ").unwrap();
        let label = format!("{{{{{}}}}}", label.strip_suffix(')').unwrap());
        check(&known, expression, &[&label]);
    }
    let names: Vec<_> = variables.iter().map(|of| of["name"].as_str().unwrap()).collect();
    let known: Vec<_> = names.iter().map(|name| format!("${name}")).collect();
    objects(&dashboard, &mut all);
    let mut ids = BTreeSet::new();
    for object in all {
        if let Some(source) = object.get("datasource") {
            assert_eq!(source["uid"], "${datasource}", "{source}");
        }
        if let Some(id) = object.get("id") {
            assert!(ids.insert(id.as_u64().unwrap()), "panel {id} exists twice");
            assert!(object.contains_key("gridPos") && object.contains_key("title"), "{id}");
        }
        if let Some(expression) = object.get("expr").and_then(Value::as_str) {
            let variables = expression.split('$').skip(1).map(|part| {
                let end = part.find(|letter| !is_word(letter)).unwrap_or(part.len());
                format!("${}", &part[..end])
            });
            for variable in variables.filter(|name| name != "$__rate_interval") {
                assert!(known.contains(&variable), "{variable} in {expression}");
            }
        }
    }
}

#[test]
fn alerts_query_metrics_that_exist() {
    let (known, mut names) = (label_values(), BTreeSet::new());
    for alert in ALERTS.split("- alert: ").skip(1) {
        let name = alert.lines().next().unwrap();
        assert!(names.insert(name), "{name} exists twice");
        let expression = alert.lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap();
        let texts: Vec<_> = alert.lines().filter(|line| line.contains("{{")).collect();
        assert!(alert.contains("summary: ") && alert.contains("severity: "), "{name}");
        check(&known, expression, &texts);
    }
    assert!(names.len() >= 8, "{names:?}");
}

/// Returns the expression of an alert.
fn expression_of(alert: &str) -> &'static str {
    let text = ALERTS.split("- alert: ").find(|text| text.lines().next() == Some(alert));
    text.unwrap().lines().find_map(|line| line.trim().strip_prefix("expr: ")).unwrap()
}

/// Returns the number of requests that the first metric of an expression counts.
fn counted(server: &ServerProcess, expression: &str) -> f64 {
    let MetricQuery { metric, by } = metric_queries(expression).remove(0);
    // A histogram's count is its largest bucket.
    let metric = metric.replace("_bucket", "_count");
    let is_chosen = |labels: &BTreeMap<String, String>| {
        by.iter().all(|(label, operator, value)| match &**operator {
            "=" => labels[label] == *value,
            "=~" => value.split('|').any(|value| labels[label] == value),
            other => panic!("{other}"),
        })
    };
    let samples = scrape(server).samples.into_iter();
    let chosen = samples.filter(|sample| sample.name == metric && is_chosen(&sample.labels));
    chosen.map(|sample| sample.value).sum()
}

#[test]
fn request_alerts_count_requests_of_every_interface() {
    let rules = "identity: { trusted_proxies: [127.0.0.1] }\nlimits: { free: fixed-window limit=9 window=1d }\n\
                 rules: [{ name: all, domain: api, key: [ip], limit: free }]";
    let limits = RlsServer::start(rules);
    let server = &limits.server;
    let check = || drop(server.check(r#"{"limit":"free","key":"a"}"#));
    let batch = || {
        let answer = server.post("/v1/check/batch", r#"[{"limit":"free","key":"a"}]"#);
        assert_eq!(answer.send().unwrap().status(), 200);
    };
    let authorize = || {
        let request = server.get("/v1/authorize").header("x-forwarded-uri", "/");
        let request = request.header("x-forwarded-method", "GET");
        assert_eq!(request.header("x-forwarded-for", "203.0.113.9").send().unwrap().status(), 200);
    };
    let envoy = || drop(limits.ask_all(vec![descriptor(&[("remote_address", "203.0.113.9")])]));
    let ways: [(&str, &dyn Fn()); 4] =
        [("check", &check), ("batch", &batch), ("authorize", &authorize), ("Envoy", &envoy)];
    for (way, request) in ways {
        for alert in ["TollgateNothingDecided", "TollgateSlow"] {
            // A batch can take long, because it has up to 1,000 checks.
            if (way, alert) == ("batch", "TollgateSlow") {
                continue;
            }
            let expression = expression_of(alert);
            let before = counted(server, expression);
            request();
            assert_eq!(counted(server, expression), before + 1.0, "{alert} does not count {way}");
        }
    }
}

/// Returns the names of alerts in a text.
fn alerts_in(text: &str) -> BTreeSet<&str> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric());
    words.filter(|word| word.starts_with("Tollgate") && word.len() > "Tollgate".len()).collect()
}

#[test]
fn manual_and_the_alerts_agree_on_severity() {
    let severity = |wanted: &str| {
        let all = ALERTS.split("- alert: ").skip(1);
        let of = all.filter(|alert| alert.contains(&format!("severity: {wanted} ")));
        of.map(|alert| alert.lines().next().unwrap()).collect::<BTreeSet<_>>()
    };
    let paragraph = |start: &str| {
        let text = MANUAL.split_once(start).unwrap_or_else(|| panic!("no {start}")).1;
        text.split("\n\n").next().unwrap()
    };
    assert_eq!(alerts_in(paragraph("Act at once ")), severity("critical"));
    assert_eq!(alerts_in(paragraph("Act on the same day ")), severity("warning"));
}

#[test]
fn breaker_alert_includes_half_open_breakers() {
    // A breaker whose pause is over is half open until the next request.
    let expression = r#"max by (instance, server) (tollgate_store_breaker{state="closed"}) == 0"#;
    assert!(ALERTS.contains(&format!("expr: {expression}\n")));
}

#[test]
fn expressions_are_parsed() {
    let expression = r#"sum by (a) (rate(tollgate_x_total{a="b", c!~"d|e"}[5m])) / process_y > 3"#;
    let by =
        |label: &str, operator: &str, value: &str| (label.into(), operator.into(), value.into());
    let x = MetricQuery {
        metric: "tollgate_x_total".into(),
        by: vec![by("a", "=", "b"), by("c", "!~", "d|e")],
    };
    let y = MetricQuery { metric: "process_y".into(), by: Vec::new() };
    assert_eq!(metric_queries(expression), [x, y]);
    assert_eq!(grouped(expression), ["a"]);
    assert_eq!(shown("{{a}} {{ $labels.b }} {{ $value | humanize }}"), ["a", "b"]);
}
