//! The command `tollgate import`.

#![allow(clippy::expect_used, clippy::unwrap_used)]

mod migrating;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

const GOOD: &str = "domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: second
      requests_per_unit: 500
";

/// Returns a directory with these files, in which the command runs.
fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(directory.path().join(name), text).unwrap();
    }
    directory
}

fn command(directory: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).current_dir(directory).env_clear();
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn tollgate(directory: &Path, args: &[&str]) -> Output {
    command(directory, args).output().unwrap()
}

fn printed(output: &Output) -> (Option<i32>, &str, &str) {
    let text = |bytes| str::from_utf8(bytes).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// Returns the command's output: the rules, and then the messages about them. Asserts that the rules are valid without a
/// warning.
fn import_output(files: &[(&str, &str)]) -> String {
    let directory = directory(files);
    let names = files.iter().map(|(name, _)| *name);
    let args: Vec<&str> = ["import", "envoy-ratelimit"].into_iter().chain(names).collect();
    let output = tollgate(directory.path(), &args);
    let (code, stdout, stderr) = printed(&output);
    if code == Some(0) {
        fs::write(directory.path().join("rules.yaml"), stdout).unwrap();
        let output = tollgate(directory.path(), &["validate", "rules.yaml"]);
        let (code, _, problems) = printed(&output);
        assert_eq!((code, problems), (Some(0), ""), "{stdout}");
    }
    format!("{stdout}---\n{stderr}exit code {}\n", code.unwrap())
}

/// Tests the examples in the documentation of envoyproxy/ratelimit, by their numbers there.
#[test]
fn examples_of_envoyproxy_ratelimit_become_rules() {
    for (name, text) in [
        (
            "1_two_values",
            "domain: mongo_cps
descriptors:
  - key: database
    value: users
    rate_limit:
      unit: second
      requests_per_unit: 500

  - key: database
    value: default
    rate_limit:
      unit: second
      requests_per_unit: 500
",
        ),
        (
            "2_nested",
            "domain: messaging
descriptors:
  # Only allow 5 marketing messages a day
  - key: message_type
    value: marketing
    descriptors:
      - key: to_number
        rate_limit:
          unit: day
          requests_per_unit: 5

  # Only allow 100 messages a day to any unique phone number
  - key: to_number
    rate_limit:
      unit: day
      requests_per_unit: 100
",
        ),
        (
            "3_matching_order",
            "domain: edge_proxy_per_ip
descriptors:
  - key: remote_address
    rate_limit:
      unit: second
      requests_per_unit: 10

  # Black list IP
  - key: remote_address
    value: 50.0.0.5
    rate_limit:
      unit: second
      requests_per_unit: 0
",
        ),
        (
            "5_unlimited",
            "domain: internal
descriptors:
  - key: ldap
    rate_limit:
      unlimited: true

  - key: azure
    rate_limit:
      unit: minute
      requests_per_unit: 100
",
        ),
        (
            "6_shadow",
            "domain: example6
descriptors:
  - key: service
    descriptors:
      - key: user
        value: user-a
        rate_limit:
          requests_per_unit: 10
          unit: second
        shadow_mode: true
      - key: user
        value: user-b
        rate_limit:
          requests_per_unit: 20
          unit: second
",
        ),
        (
            "7_replaces",
            "domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          name: specific_limit
          requests_per_unit: 5
          unit: second
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit:
          replaces:
            - name: specific_limit
          requests_per_unit: 10
          unit: second
",
        ),
        (
            "8_detailed_metric",
            "domain: example8
descriptors:
  - key: key1
    detailed_metric: true
    rate_limit:
      unit: minute
      requests_per_unit: 10
  - key: key1
    value: value1
    rate_limit:
      unit: minute
      requests_per_unit: 20
",
        ),
        (
            "9_wildcard",
            "domain: example9
descriptors:
  - key: key1
    value: value*
    rate_limit:
      unit: minute
      requests_per_unit: 20
",
        ),
    ] {
        insta::assert_snapshot!(format!("example_{name}"), import_output(&[("config.yaml", text)]));
    }
}

#[test]
fn sibling_and_nested_descriptors_become_separate_rules() {
    let text = r#"domain: nasty
descriptors:
  - { key: user, rate_limit: { unit: week, requests_per_unit: 7 } }
  - key: user
    value: ""
    rate_limit: { unit: day, requests_per_unit: 1 }
"#;
    insta::assert_snapshot!("empty_value", import_output(&[("config.yaml", text)]));
    let text = r#"domain: nasty
descriptors:
  - { key: generic_key, value: outer, descriptors: [
      { key: generic_key, value: inner, rate_limit: { unit: Hour, requests_per_unit: 1000 } },
      { key: "a,b\\c", value: "yes: no", rate_limit: { unit: YEAR, requests_per_unit: 404 } } ] }
  - key: route
    rate_limit: { unit: month, requests_per_unit: 1 }
    shadow_mode: yes
    descriptors:
      - { key: verb, value: GET, rate_limit: { unlimited: true } }
      - { key: verb, shadow_mode: true, rate_limit: { unit: second, requests_per_unit: 0 } }
  - { key: route, value: /v1/users, descriptors: [] }
  - { key: route, value: /v1/internal/, rate_limit: { unit: minute, requests_per_unit: 3 } }
  - { key: route, value: /v1/internal/*, share_threshold: true, rate_limit: { unit: minute, unit_multiplier: 5, requests_per_unit: 4 } }
  - { key: route, value: /v1/*/items, quota_mode: true, rate_limit: { unit: minute, requests_per_unit: 6, name: all of v1 } }
  - { key: route, value: /v1/*, rate_limit: { unit: minute, requests_per_unit: 5, name: all of v1 } }
  - { key: route, value: /v1/old/*, rate_limit: { unit: minute, requests_per_unit: 6 } }
  - { key: api_key, value_to_metric: true, metadata: { a: b }, rate_limit: { unit: minute } }
  - { key: route_v2, value: x, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: route, value: v2_y, descriptors: ~ }
"#;
    insta::assert_snapshot!("nested_and_wildcard", import_output(&[("config.yaml", text)]));
}

#[test]
fn files_of_one_domain_are_merged_and_share_names() {
    let one = "domain: shared
descriptors:
  - { key: path, value: /a, rate_limit: { unit: day, requests_per_unit: 1, name: slow } }
";
    let two = "domain: shared
descriptors:
  - { key: path, rate_limit: { unit: day, requests_per_unit: 2, replaces: [{ name: slow }, { name: nobody }] } }
";
    let other = "domain: other
descriptors:
  - { key: path, rate_limit: { unit: day, requests_per_unit: 1, replaces: [{ name: slow }] } }
";
    insta::assert_snapshot!(
        "merged",
        import_output(&[("one.yaml", one), ("two.yaml", two), ("other.yaml", other)])
    );
    insta::assert_snapshot!(
        "merged_with_itself",
        import_output(&[("one.yaml", one), ("again.yaml", one)])
    );
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let text = r#"domain: "a b"
descriptor: []
descriptors:
  - value: users
    rate_limit: { unit: fortnight, requests_per_unit: -1, replaces: [{ nam: x }, {}, { name: "" }, { name: self }], name: self }
  - key: database
    ratelimit: { unit: second }
  - key: "with space"
    rate_limit: { unit: second, unlimited: true }
  - key: a
    share_threshold: true
    shadow_mode: maybe
    rate_limit: [1]
  - key: a
    rate_limit: { requests_per_unit: 4294967296, unit: 5 }
  - { key: b, value: [x], rate_limit: { unit: year, unit_multiplier: 2, requests_per_unit: 1 } }
  - { key: c, value: d_e, rate_limit: { unit: day, unit_multiplier: 0, requests_per_unit: 1 } }
  - { key: c_d, value: e, rate_limit: { requests_per_unit: 1 } }
  - { key: descriptor_keys, rate_limit: { unit: day, requests_per_unit: 1 } }
"#;
    let tree = "domain: d
descriptors:
  - { key: c, value: d_e, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: c_d, value: e, rate_limit: { unit: day, requests_per_unit: 1 } }
  - { key: descriptor_keys, rate_limit: { unit: day, requests_per_unit: 1 } }
  - key: user
    descriptors: [{ key: user, descriptors: [{ key: 'user#2', rate_limit: { unit: day, requests_per_unit: 1 } }] }]
";
    let files = [("config.yaml", text), ("empty.yaml", "# nothing\n"), ("tree.yaml", tree)];
    insta::assert_snapshot!("mistakes", import_output(&files));
    let directory = directory(&[]);
    let output = tollgate(directory.path(), &["import", "envoy-ratelimit", "none.yaml"]);
    let (code, stdout, stderr) = printed(&output);
    assert_eq!((code, stdout), (Some(1), ""));
    assert!(stderr.starts_with("error: none.yaml: cannot be read: No such file"), "{stderr}");
}

#[test]
fn aliases_and_merge_keys_are_not_also_reported_missing() {
    let text = "domain: d
descriptors:
  - &base
    key: user
    value: a
    rate_limit: &limit { unit: day, requests_per_unit: 1 }
  - <<: *base
    value: b
  - { <<: *base, key: team }
  - { key: team, share_threshold: true, value: *base }
  - { key: team, rate_limit: *limit }
  - { key: x, rate_limit: { <<: *limit } }
  - { key: y, rate_limit: { unit: *base, requests_per_unit: 010 } }
  - { key: z, rate_limit: { unit: fortnight, requests_per_unit: *base } }
";
    insta::assert_snapshot!("aliases_and_merge_keys", import_output(&[("config.yaml", text)]));
    let explode = "\nnote: `yq 'explode(.)' config.yaml`";
    for (text, can_be_written_out) in
        [("domain: &d d", true), ("{ <<: { domain: d } }", true), ("domain: !!str d", false)]
    {
        let seen = import_output(&[("config.yaml", text)]);
        assert_eq!(seen.contains(explode), can_be_written_out, "{seen}");
        assert!(seen.ends_with("exit code 1\n") && seen.contains("\n1 error\n"), "{seen}");
    }
}

#[test]
fn ip_becomes_a_client_and_remote_address_stays() {
    let limit = "rate_limit: { unit: day, requests_per_unit: 1 }";
    let text = format!(
        "domain: d
descriptors:
  - {{ key: remote_address, value: '2001:db8:12:34ff::1', {limit} }}
  - {{ key: remote_address, value: '2001:db8::1*', {limit} }}
  - {{ key: masked_remote_address, value: '2001:db8::/64', {limit} }}
  - {{ key: ip, {limit} }}
  - {{ key: ip, value: '2001:db8:12:34ff::1', {limit} }}
"
    );
    insta::assert_snapshot!("ip", import_output(&[("config.yaml", &text)]));
}

#[test]
fn existing_file_is_overwritten_only_with_force() {
    let directory = directory(&[("config.yaml", GOOD), ("rules.yaml", "mine")]);
    let args = ["import", "envoy-ratelimit", "config.yaml", "--output"];
    let written = |more: &[&str]| {
        let output = tollgate(directory.path(), &[&args[..], more].concat());
        let (code, stdout, stderr) = printed(&output);
        assert_eq!(stdout, "", "{more:?}");
        (code, stderr.to_owned())
    };
    let (code, stderr) = written(&["rules.yaml"]);
    assert_eq!(code, Some(2));
    assert!(
        stderr.starts_with("error: rules.yaml: --force writes over it: File exists"),
        "{stderr}"
    );
    assert_eq!(fs::read_to_string(directory.path().join("rules.yaml")).unwrap(), "mine");
    for more in [&["rules.yaml", "--force"][..], &["new.yaml"]] {
        assert_eq!(written(more).0, Some(0), "{more:?}");
        let rules = fs::read_to_string(directory.path().join(more[0])).unwrap();
        assert!(rules.contains("- name: database_users\n"), "{rules}");
    }
    let (code, stderr) = written(&["no/such/directory.yaml"]);
    assert_eq!(code, Some(2));
    assert!(stderr.starts_with("error: no/such/directory.yaml: No such file"), "{stderr}");
}

#[test]
fn strict_writes_nothing_when_there_is_a_warning() {
    let odd = GOOD.replace("value: users", "value: users\n    detailed_metric: true");
    let directory = directory(&[("odd.yaml", &odd), ("good.yaml", GOOD)]);
    for (file, strict, code) in
        [("good.yaml", "true", 0), ("odd.yaml", "true", 1), ("odd.yaml", "false", 0)]
    {
        let mut command = command(directory.path(), &["import", "envoy-ratelimit", file]);
        let output = command.env("TOLLGATE_STRICT", strict).output().unwrap();
        assert_eq!(output.status.code(), Some(code), "{file}");
        assert_eq!(output.stdout.is_empty(), code == 1, "{file}");
    }
}

#[test]
fn import_reads_standard_input() {
    let directory = directory(&[]);
    let mut command = command(directory.path(), &["import", "envoy-ratelimit", "-"]);
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(GOOD.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (code, stdout, stderr) = printed(&output);
    assert_eq!(code, Some(0));
    assert!(stdout.contains("  # standard input:3\n  - name: database_users\n"), "{stdout}");
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
}
