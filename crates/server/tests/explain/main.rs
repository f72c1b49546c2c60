//! The command `tollgate explain`.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs `tollgate explain` in the workspace's root, because the paths of the examples are relative to it.
fn explain(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    for name in ["FORMAT", "DOMAIN", "ATTRIBUTE", "CLAIM"] {
        command.env_remove(format!("TOLLGATE_{name}"));
    }
    command.arg("explain").args(args).output().unwrap()
}

/// Returns the exit code, standard output and standard error.
fn printed(output: &Output) -> (Option<i32>, &str, &str) {
    let text = |bytes| str::from_utf8(bytes).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Runs `tollgate explain` on the example rules, and returns its output.
fn rules_explained(args: &[&str]) -> String {
    let output = explain(&[&["examples/rules.yaml"], args].concat());
    let (code, text, errors) = printed(&output);
    assert_eq!((code, errors), (Some(0), ""), "{args:?}");
    text.to_owned()
}

#[test]
fn explain_says_which_rules_match_and_why() {
    let login = ["--domain", "api", "--attribute", "method=POST", "--attribute", "path=/login"];
    let from = ["--attribute", "ip=203.0.113.9"];
    insta::assert_snapshot!("login", rules_explained(&[&login[..], &from].concat()));
    insta::assert_snapshot!("missing_address", rules_explained(&login));
    insta::assert_snapshot!(
        "report_of_a_pro_client",
        rules_explained(&[
            "--attribute=method=POST",
            "--attribute=path=/reports",
            "--attribute=ip=203.0.113.66",
            "--claim=api_key=k_123",
        ])
    );
    insta::assert_snapshot!(
        "unknown_key_from_a_blocked_address",
        rules_explained(&["--attribute=ip=203.0.113.66", "--claim=api_key=invented"])
    );
    insta::assert_snapshot!(
        "internal_tier",
        rules_explained(&["--attribute=tier=internal", "--attribute=ip=::1"])
    );
}

#[test]
fn explain_prints_the_same_as_json() {
    let text =
        rules_explained(&["--format=json", "--attribute=ip=203.0.113.66", "--claim=api_key=k_456"]);
    let rules: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(rules[0]["applies"], false);
    assert_eq!(rules[0]["why_not"], "there is no `method`");
    assert_eq!(rules[1]["key"], "api_key=k_456");
    assert_eq!(rules[1]["cost"], 1);
    let limit = &rules[1]["spends"]["limit"];
    assert_eq!((&limit["name"], &limit["bound"]["max"]), (&"enterprise".into(), &11_999.into()));
    assert_eq!(rules[2]["shadow"], true);
    let blocked = rules_explained(&["--format=json", "--attribute=ip=203.0.113.66"]);
    let rules: Value = serde_json::from_str(&blocked).unwrap();
    assert_eq!(rules[1]["spends"], "block");
}

#[test]
fn leased_rule_states_its_bound_and_the_most_that_is_held_unused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let text = "limits: { many: token-bucket capacity=6000 refill=1000/s }
rules:
  - { name: leased, domain: api, key: [ip], limit: many, mode: leased, lease: { max_share: 10% } }
  - { name: strict, domain: api, key: [ip], limit: many }
";
    std::fs::write(&path, text).unwrap();
    let explained = |format: &str| {
        let args = [path.to_str().unwrap(), "--attribute=ip=203.0.113.9", format];
        let output = explain(&args);
        let (code, text, errors) = printed(&output);
        assert_eq!((code, errors), (Some(0), ""));
        text.to_owned()
    };
    insta::assert_snapshot!("leased", explained("--format=human"));
    let rules: Value = serde_json::from_str(&explained("--format=json")).unwrap();
    let lease = serde_json::json!({
        "for_us": 1_000_000,
        "pace_us": 10_000,
        "max_unused": 600,
        "formula": "min(max_unused, remaining / (2 * holders))",
    });
    assert_eq!((&rules[0]["lease"], &rules[1]["lease"]), (&lease, &Value::Null));
    let bound = |at: usize| &rules[at]["spends"]["limit"]["bound"];
    assert_eq!(bound(0), bound(1));
}

#[test]
fn warnings_of_the_file_are_printed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let text = "limits: { free: fixed-window limit=60 window=1m }
rules: [{ name: each, domain: api, key: [api_key], limit: free }]
";
    std::fs::write(&path, text).unwrap();
    let output = explain(&[path.to_str().unwrap(), "--attribute=ip=203.0.113.9"]);
    let (code, text, errors) = printed(&output);
    let expected = "each: does not apply: there is no `api_key` to make a key of\n\
                    no rule of `api` applies: the request is allowed\n";
    assert_eq!((code, text), (Some(0), expected));
    let warning = "2:42: requests without a known `api_key` are not limited by this rule\n  \
                   use `{ first_of: [api_key, ip] }`";
    assert!(errors.contains(warning), "{errors}");
}

#[test]
fn explain_says_why_it_fails() {
    let file = "examples/rules.yaml";
    for (args, code, problem) in [
        (vec![file, "--domain=web"], 2, "no rules of a domain `web`; use one of api"),
        (vec![file, "--attribute=method"], 2, "write it as NAME=VALUE, such as method=POST"),
        (vec![file, "--attribute==x"], 2, "write it as NAME=VALUE"),
        (vec!["examples/none.yaml"], 1, "examples/none.yaml: cannot be read"),
        (vec![], 2, "<FILE>"),
    ] {
        let output = explain(&args);
        let (own, text, errors) = printed(&output);
        assert_eq!((own, text), (Some(code), ""), "{args:?}");
        assert!(errors.contains(problem), "{args:?}: {errors}");
    }
}

#[test]
fn domain_must_be_named_when_there_are_several() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let rule = |domain| format!("  - {{ name: it, domain: {domain}, key: [], limit: block }}\n");
    std::fs::write(&path, format!("limits: {{}}\nrules:\n{}{}", rule("web"), rule("api"))).unwrap();
    let path = path.to_str().unwrap();
    let output = explain(&[path]);
    let (code, _, errors) = printed(&output);
    assert_eq!(code, Some(2));
    assert!(errors.contains("several domains; choose one with --domain: api, web"), "{errors}");
    let output = explain(&[path, "--domain=web"]);
    let expected = "it: applies\n  key       the same for all requests\n  \
                    refused   always: the rule's only limit\nrefused by it, whatever the other rules decide\n1 of 1 rules of `web` apply\n";
    assert_eq!(printed(&output), (Some(0), expected, ""));
}

#[test]
fn explain_says_what_a_reservation_holds() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let text = "limits: { tokens: token-bucket capacity=10000 refill=10000/m, running: concurrency limit=5 for=2m }
rules:
  - { name: tokens, domain: llm, key: [team], limit: tokens, cost: { reserve: { attribute: estimated_tokens, default: 1000 } }, hold_for: 30s }
  - { name: running, domain: llm, key: [team], limit: running, on_store_failure: closed }
";
    std::fs::write(&path, text).unwrap();
    let args = [path.to_str().unwrap(), "--attribute=team=7", "--attribute=estimated_tokens=4000"];
    let output = explain(&args);
    let (code, text, errors) = printed(&output);
    assert_eq!((code, errors), (Some(0), ""));
    insta::assert_snapshot!("reservation", text);
    let output = explain(&[&["--format=json"], &args[..]].concat());
    let rules: Value = serde_json::from_str(printed(&output).1).unwrap();
    let held = |rule: &Value| {
        (rule["cost"].clone(), rule["cost_attribute"].clone(), rule["hold_for_us"].clone())
    };
    assert_eq!(held(&rules[0]), (4_000.into(), "estimated_tokens".into(), 30_000_000.into()));
    assert_eq!(held(&rules[1]), (1.into(), Value::Null, 120_000_000.into()));
}

#[test]
fn explain_names_the_network_of_an_address() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let text = "limits: { free: fixed-window limit=60 window=1m }
networks: { blocked: { file: blocked.txt } }
rules:
  - { name: blocked, domain: api, when: { ip: [192.0.2.0/24, { networks: blocked }] }, key: [], limit: block }
  - { name: others, domain: api, when: { ip: { none_of: [{ networks: blocked }] } }, key: [ip], limit: free }
  - { name: clients, domain: api, key: [ip], limit: free, overrides: [{ key: { ip: 2001:db8::/32 }, limit: allow }] }
";
    std::fs::write(&path, text).unwrap();
    std::fs::write(directory.path().join("blocked.txt"), "2001:db8::/48\n2001:db8:0:1::/64\n")
        .unwrap();
    let path = path.to_str().unwrap();
    let run = |args: &[&str]| {
        let output = explain(&[&[path], args].concat());
        let (code, text, errors) = printed(&output);
        assert_eq!((code, errors), (Some(0), ""));
        text.to_owned()
    };
    insta::assert_snapshot!("networks", run(&["--attribute=ip=2001:db8:0:1::7"]));
    let json = run(&["--attribute=ip=192.0.2.7", "--format=json"]);
    let rules: Value = serde_json::from_str(&json).unwrap();
    let network = serde_json::json!([{ "attribute": "ip", "network": "192.0.2.0/24" }]);
    assert_eq!(rules[0]["networks"], network);
    assert_eq!(rules[1].get("networks"), None);
}

#[test]
fn explain_names_exclusions_and_replacing_rules() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let text = "limits: { free: fixed-window limit=60 window=1m }
rules:
  - { name: others, domain: api, when: { plan: { none_of: [internal, trial-*] } }, key: [], limit: free }
  - { name: all, domain: api, key: [], limit: free }
  - { name: trials, domain: api, when: { plan: trial-* }, key: [], limit: free, replaces: [all] }
";
    std::fs::write(&path, text).unwrap();
    let path = path.to_str().unwrap();
    let output = explain(&[path, "--attribute=plan=trial-7"]);
    let (code, text, errors) = printed(&output);
    assert_eq!((code, errors), (Some(0), ""));
    insta::assert_snapshot!("excluded_and_replaced", text);
    let output = explain(&[path, "--attribute=plan=trial-7", "--format=json"]);
    let rules: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&rules[1]["applies"], &rules[1]["why_not"]),
        (&false.into(), &"`trials` replaces it".into())
    );
}
