//! Domains in use: rules that remove one are refused, and a missing one is reported.

use std::fs;
use std::sync::Arc;

use tollgate::rules::{Attributes, RulesFile};
use tollgate::{Error, Limiter};

use crate::log::Log;
use crate::setup::{Fixture, config};

const API: &str = "limits: { one: fixed-window limit=1 window=1d }
rules: [{ name: it, domain: api, key: [ip], limit: one }]
";
const RENAMED: &str = "limits: { one: fixed-window limit=1 window=1d }
rules: [{ name: it, domain: apis, key: [ip], limit: one }]
";
const WITHOUT_RULES: &str = "limits: { one: fixed-window limit=1 window=1d }\n";
const RETIRED: &str = "limits: { one: fixed-window limit=1 window=1d }\nretired_domains: [api]\n";

const PROBLEM: &str = "no rules for domain `api`, which is in use: its requests would not be limited; keep rules for it, \
                       or list it under `retired_domains`";

#[test]
fn new_rules_without_a_checked_domain_are_refused() {
    for text in [RENAMED, WITHOUT_RULES] {
        let fixture = Fixture::new(API);
        assert!(fixture.check(&[("ip", "a")]).is_allowed());
        let error = fixture.rules.replace(&config(text)).unwrap_err();
        assert!(matches!(&error, Error::DomainsInUse { .. }), "{error:?}");
        assert_eq!(error.to_string(), PROBLEM);
        assert_eq!(fixture.rules.generation(), 1);
        assert!(!fixture.check(&[("ip", "a")]).is_allowed(), "the rules are unchanged");
    }
}

#[test]
fn new_rules_without_a_domain_checked_before_an_earlier_reload_are_refused() {
    let fixture = Fixture::new(API);
    fixture.check(&[("ip", "a")]);
    fixture.rules.replace(&config(API)).unwrap();
    assert!(fixture.rules.replace(&config(RENAMED)).is_err());
}

#[test]
fn new_rules_without_an_unused_domain_are_accepted() {
    let fixture = Fixture::new(API);
    assert_eq!(fixture.rules.replace(&config(RENAMED)), Ok(2));
    assert!(fixture.rules.missing_domains().is_empty());
}

#[test]
fn required_domain_cannot_be_removed_and_is_reported_when_missing() {
    let fixture = Fixture::new(API);
    assert!(fixture.rules.require_domain("api"));
    assert!(fixture.rules.replace(&config(RENAMED)).is_err());
    assert!(!fixture.rules.require_domain("web"));
    assert_eq!(fixture.rules.missing_domains().names(), ["web"]);
    fixture.rules.replace(&config(API)).unwrap();
    assert_eq!(fixture.rules.missing_domains().names(), ["web"], "`web` is still missing");
}

#[cfg(feature = "tower")]
#[test]
fn layer_requires_its_domain() {
    let fixture = Fixture::new(API);
    let _layer = tollgate::tower::RateLimitLayer::rules(&fixture.rules, "api");
    assert!(fixture.rules.replace(&config(RENAMED)).is_err());
}

#[test]
fn retired_domain_may_be_removed_and_is_not_missing() {
    let fixture = Fixture::new(API);
    fixture.check(&[("ip", "a")]);
    fixture.rules.replace(&config(RETIRED)).unwrap();
    assert!(fixture.check(&[("ip", "a")]).is_allowed());
    assert!(fixture.rules.missing_domains().is_empty());
}

#[test]
fn checks_of_a_domain_without_rules_are_reported_until_it_has_some() {
    let fixture = Fixture::new(RENAMED);
    assert!(fixture.rules.missing_domains().is_empty());
    assert!(fixture.check(&[("ip", "a")]).is_allowed());
    let missing = fixture.rules.missing_domains();
    assert_eq!(missing.names(), ["api"]);
    let expected = "no rules for domain `api`, which is in use: its requests are not limited; add rules for it, or list \
                    it under `retired_domains`";
    assert_eq!(missing.to_string(), expected);
    fixture.rules.replace(&config(API)).unwrap();
    assert!(fixture.rules.missing_domains().is_empty());
}

#[test]
fn reported_domains_are_bounded_and_escaped() {
    let fixture = Fixture::new(API);
    for number in 0..1_000 {
        let domain = format!("\n{number}{}", "x".repeat(1_000));
        fixture.rules.check(&domain, &Attributes::new()).now().unwrap();
    }
    let missing = fixture.rules.missing_domains();
    assert_eq!(missing.names().len(), 64);
    let text = missing.to_string();
    assert!(text.len() < 600 && !text.contains('\n') && text.contains("59 more"), "{text}");
}

#[test]
fn rules_file_reports_missing_domains_at_every_load() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, RENAMED).unwrap();
    let file = RulesFile::open(&Limiter::memory(), &path).unwrap();
    assert_eq!(file.status().problem, None);
    let log = Log::default();
    let lines = Arc::clone(&log.lines);
    tracing::subscriber::with_default(log, || {
        for _ in 0..2 {
            file.rules().check("api", &Attributes::new()).now().unwrap();
        }
        let status = file.status();
        assert_eq!(status.missing_domains.names(), ["api"]);
        assert_eq!(status.problem, Some(status.missing_domains.to_string()));
        file.reload().unwrap();
        file.rules().check("apis", &Attributes::new().with("ip", "a")).now().unwrap();
        fs::write(&path, API).unwrap();
        file.reload().unwrap_err();
        assert!(file.status().problem.unwrap().contains("no rules for domain `apis`"));
    });
    let lines = lines.lock().unwrap();
    let is_warning = |at: usize, text: &str| lines[at].starts_with(&format!("WARN {text}"));
    assert!(is_warning(0, "checks name a domain that has no rules"), "{lines:?}");
    assert!(is_warning(1, "no rules for domain `api`, which is in use"), "{lines:?}");
    assert!(lines[2].starts_with("INFO rules reloaded"), "{lines:?}");
    assert!(lines[3].starts_with("ERROR rules not reloaded"), "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}
