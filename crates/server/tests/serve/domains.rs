//! A domain that is in use and has no rules is reported to operators.

use std::fs;
use std::path::PathBuf;

use rustix::process::Signal;
use tempfile::TempDir;

use crate::eventually::eventually;
use crate::metrics::scrape;
use crate::readiness::readyz;
use crate::rls::{RlsServer, descriptor, request};
use crate::server::ServerProcess;

fn rules(domain: &str) -> String {
    format!(
        "limits: {{ one: fixed-window limit=1 window=365d }}\n\
         rules: [{{ name: it, domain: {domain}, key: [user], limit: one }}]\n"
    )
}

fn file(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    fs::write(&path, text).unwrap();
    (directory, path)
}

fn has_problem(server: &ServerProcess) -> bool {
    scrape(server).value("tollgate_rules_problem", &[]) == 1.0
}

fn problem(server: &ServerProcess) -> Option<String> {
    readyz(server).1["rules_problem"].as_str().map(str::to_owned)
}

const CHECK: &str = r#"{"domain":"api","attributes":{"user":"a"}}"#;

#[test]
fn reload_that_removes_a_domain_in_use_is_refused_until_it_is_retired() {
    let (_directory, path) = file(&rules("api"));
    let server = ServerProcess::start(&["--config", path.to_str().unwrap()]);
    assert_eq!(server.check(CHECK)["allowed"], true);
    assert!(!has_problem(&server));

    fs::write(&path, rules("apis")).unwrap();
    let refused = eventually("the file is refused", || problem(&server));
    assert!(refused.starts_with("no rules for domain `api`, which is in use"), "{refused}");
    assert!(has_problem(&server));
    assert_eq!(server.check(CHECK)["allowed"], false, "the rules are unchanged");
    server.wait_for_log(|log| log.contains("ERROR") && log.contains("no rules for domain `api`"));

    fs::write(&path, format!("{}retired_domains: [api]\n", rules("apis"))).unwrap();
    eventually("the file is loaded", || problem(&server).is_none().then_some(()));
    assert_eq!(server.post("/v1/check", CHECK).send().unwrap().status(), 404);
    assert!(!has_problem(&server));
}

#[test]
fn domain_that_envoy_names_and_that_has_no_rules_is_a_problem() {
    let limits = RlsServer::start(&rules("web"));
    assert_eq!(problem(&limits.server), None);
    limits.ask(request(vec![descriptor(&[("user", "a")])]));
    let missing = problem(&limits.server).unwrap();
    assert!(missing.starts_with("no rules for domain `api`, which is in use"), "{missing}");
    assert!(has_problem(&limits.server));
    limits.server.wait_for_log(|log| log.contains("checks name a domain that has no rules"));
    limits.server.signal(Signal::HUP);
    limits.server.wait_for_log(|log| log.contains("no rules for domain `api`"));
}

#[test]
fn required_domain_cannot_be_removed() {
    let (_directory, path) = file(&rules("api"));
    let flags = ["--config", path.to_str().unwrap(), "--require-domain", "api"];
    let server = ServerProcess::start(&flags);
    fs::write(&path, rules("apis")).unwrap();
    let refused = eventually("the file is refused", || problem(&server));
    assert!(refused.starts_with("no rules for domain `api`"), "{refused}");
}
