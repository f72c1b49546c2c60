//! The commands `tollgate validate` and `tollgate schema`.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

const GOOD: &str = "limits: { free: token-bucket capacity=60 refill=1/s }
rules:
  - { name: per-client, domain: api, key: [ip], limit: free }
";
const BAD: &str = "limits: { free: token-bucket capacity=60 refill=1/sec }\nrule: []\n";
/// Rules with a warning.
const WITH_WARNING: &str =
    "limits: { free: fixed-window limit=1 window=1s, pro: fixed-window limit=2 window=1s }
rules: [{ name: a, domain: d, key: [], limit: free }]
";

/// A public key that only these tests use.
const P256: &str = "\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h
6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==
-----END PUBLIC KEY-----
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
    command.args(args).current_dir(directory);
    command.env_remove("TOLLGATE_FORMAT").env_remove("TOLLGATE_STRICT");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn tollgate(directory: &Path, args: &[&str]) -> Output {
    command(directory, args).output().unwrap()
}

fn run_with_input(directory: &Path, args: &[&str], input: &[u8]) -> Output {
    let mut child = command(directory, args).spawn().unwrap();
    // OK to ignore an error: the command does not read the end of an input that is too large.
    child.stdin.take().unwrap().write_all(input).ok();
    child.wait_with_output().unwrap()
}

fn printed(output: &Output) -> (Option<i32>, &str, &str) {
    let text = |bytes| str::from_utf8(bytes).unwrap();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn valid_file_prints_its_number_of_limits_and_rules() {
    let files = directory(&[("limits.yaml", GOOD), ("more.yaml", "limits: {}")]);
    let output = tollgate(files.path(), &["validate", "limits.yaml", "more.yaml"]);
    let expected = "limits.yaml: 1 limit, 1 rule\nmore.yaml: 0 limits, 0 rules\n";
    assert_eq!(printed(&output), (Some(0), expected, ""));
}

#[test]
fn examples_are_valid_without_warnings() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = tollgate(
        &root,
        &[
            "validate",
            "--strict",
            "examples/rules.yaml",
            "examples/forward-auth.yaml",
            "examples/envoy/rules.yaml",
            "examples/compose/rules/rules.yaml",
        ],
    );
    let expected = "examples/rules.yaml: 6 limits, 3 rules, 5 tests passed
examples/forward-auth.yaml: 3 limits, 3 rules
examples/envoy/rules.yaml: 4 limits, 3 rules
examples/compose/rules/rules.yaml: 2 limits, 2 rules
";
    assert_eq!(printed(&output), (Some(0), expected, ""));
}

#[test]
fn all_problems_of_a_bad_file_are_printed_beside_a_good_file() {
    let files = directory(&[("good.yaml", GOOD), ("bad.yaml", BAD)]);
    let output = tollgate(files.path(), &["validate", "bad.yaml", "good.yaml", "none.yaml"]);
    let problems = "error: bad.yaml:1:17: `refill=1/sec` has an unknown unit `sec`
  use one of us, ms, s, m, h, d; did you mean `1/s`?
error: bad.yaml:2:1: the file has no field `rule`
  did you mean `rules`?
2 errors
error: none.yaml: cannot be read: No such file or directory (os error 2)
  check the path
1 error
";
    assert_eq!(printed(&output), (Some(1), "good.yaml: 1 limit, 1 rule\n", problems));
}

#[test]
fn warnings_leave_a_file_valid() {
    let files = directory(&[("limits.yaml", WITH_WARNING)]);
    let output = tollgate(files.path(), &["validate", "limits.yaml"]);
    let warning = "warning: limits.yaml:1:49: no rule spends limit `pro`
  name it in a rule, or ignore this if callers use the limit by its name
1 warning
";
    assert_eq!(printed(&output), (Some(0), "limits.yaml: 2 limits, 1 rule\n", warning));
}

#[test]
fn strict_fails_on_warnings() {
    let files = directory(&[("good.yaml", GOOD), ("odd.yaml", WITH_WARNING)]);
    for format in ["human", "json"] {
        let code = |args: &[&str]| {
            let args = [&["validate", "--format", format], args].concat();
            tollgate(files.path(), &args).status.code()
        };
        assert_eq!(code(&["good.yaml", "odd.yaml"]), Some(0), "{format}");
        assert_eq!(code(&["--strict", "good.yaml", "odd.yaml"]), Some(1), "{format}");
        assert_eq!(code(&["--strict", "good.yaml"]), Some(0), "{format}");
    }
    let mut command = command(files.path(), &["validate", "odd.yaml"]);
    let output = command.env("TOLLGATE_STRICT", "true").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
}

/// Whether Envoy or a proxy uses a domain is not in the file, so this is no mistake.
#[test]
fn notes_name_rules_whose_holds_some_callers_cannot_end() {
    let text = "limits: { running: concurrency limit=5 for=2m }
rules: [{ name: running, domain: llm, key: [team], limit: running }]
";
    let files = directory(&[("rules.yaml", text)]);
    let note = "note: rules.yaml:2:9: rule `running` holds units until the caller ends the hold: Envoy and forward authentication cannot
  if they use domain `llm`, each hold lasts 2m there
";
    let output = tollgate(files.path(), &["validate", "--strict", "rules.yaml"]);
    assert_eq!(printed(&output), (Some(0), "rules.yaml: 1 limit, 1 rule\n", note));
    let output = tollgate(files.path(), &["validate", "--strict", "--format=json", "rules.yaml"]);
    let (code, text, errors) = printed(&output);
    assert_eq!((code, errors), (Some(0), ""));
    let problems: serde_json::Value = serde_json::from_str(text).unwrap();
    let problem = &problems[0];
    assert_eq!((&problem["severity"], &problem["line"]), (&"note".into(), &2.into()));
}

/// Two tests, the second of which fails.
const TESTED: &str = "limits: { free: token-bucket capacity=60 refill=1/s }
rules:
  - { name: per-client, domain: api, key: [{ first_of: [api_key, ip] }], limit: free }
tests:
  - { name: by address, attributes: { ip: 192.0.2.1 }, expect: { per-client: { key: { ip: 192.0.2.1 } } } }
  - { name: a key of the table, attributes: { ip: 192.0.2.1 }, claims: { api_key: k_1 }, expect: { per-client: { key: { api_key: k_1 } } } }
";

#[test]
fn tests_of_a_file_are_run() {
    let message = "test `a key of the table`: rule `per-client` should have a key of `api_key`, and has one of `ip`";
    let remedy =
        "correct the rule or the test; `tollgate explain` shows what rules do with a request";
    let keys = format!("{TESTED}api_keys_file: keys.yaml\n");
    let passing = TESTED.replace("key: { api_key: k_1 }", "key: { ip: 192.0.2.1 }");
    let files = directory(&[
        ("failing.yaml", TESTED),
        ("passing.yaml", &passing),
        ("with_keys.yaml", &keys),
        ("keys.yaml", "k_1: pro\n"),
    ]);
    let output = tollgate(files.path(), &["validate", "failing.yaml", "passing.yaml"]);
    let problems = format!("error: failing.yaml:6:100: {message}\n  {remedy}\n1 error\n");
    let expected = "passing.yaml: 1 limit, 1 rule, 2 tests passed\n";
    assert_eq!(printed(&output), (Some(1), expected, &*problems));
    let output = tollgate(files.path(), &["validate", "--format=json", "failing.yaml"]);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let problem = json!({
        "file": "failing.yaml", "line": 6, "column": 100, "severity": "error",
        "message": message, "remedy": remedy,
    });
    assert_eq!((output.status.code(), found), (Some(1), json!([problem])));
    // The tests of a file also use the API keys of another file.
    let output = tollgate(files.path(), &["validate", "with_keys.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", printed(&output).2);
}

#[test]
fn json_is_one_array_for_all_files() {
    let files = directory(&[("good.yaml", GOOD), ("bad.yaml", BAD), ("odd.yaml", WITH_WARNING)]);
    let args = ["validate", "--format", "json", "bad.yaml", "good.yaml", "odd.yaml", "none.yaml"];
    let output = tollgate(files.path(), &args);
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    let expected = json!([
        {
            "file": "bad.yaml", "line": 1, "column": 17, "severity": "error",
            "message": "`refill=1/sec` has an unknown unit `sec`",
            "remedy": "use one of us, ms, s, m, h, d; did you mean `1/s`?",
        },
        {
            "file": "bad.yaml", "line": 2, "column": 1, "severity": "error",
            "message": "the file has no field `rule`", "remedy": "did you mean `rules`?",
        },
        {
            "file": "odd.yaml", "line": 1, "column": 49, "severity": "warning",
            "message": "no rule spends limit `pro`", "remedy": "name it in a rule, or ignore this if callers use the limit by its name",
        },
        {
            "file": "none.yaml", "line": null, "column": null, "severity": "error",
            "message": "cannot be read: No such file or directory (os error 2)",
            "remedy": "check the path",
        },
    ]);
    assert_eq!(found, expected);
    assert_eq!((output.status.code(), output.stderr.len()), (Some(1), 0));
    let output = tollgate(files.path(), &["validate", "--format=json", "good.yaml"]);
    assert_eq!(printed(&output), (Some(0), "[]\n", ""));
}

#[test]
fn format_can_be_set_in_the_environment() {
    let files = directory(&[("limits.yaml", GOOD)]);
    let mut command = command(files.path(), &["validate", "limits.yaml"]);
    let output = command.env("TOLLGATE_FORMAT", "json").output().unwrap();
    assert_eq!(printed(&output), (Some(0), "[]\n", ""));
}

#[test]
fn secret_of_tokens_comes_from_the_environment() {
    let keys = "identity: { jwt: { keys: [{ algorithm: HS256, secret_env: JWT_SECRET }] } }\n";
    let files = directory(&[("limits.yaml", &format!("{GOOD}{keys}"))]);
    let validated = |secret: &str| {
        let mut command = command(files.path(), &["validate", "limits.yaml"]);
        command.env("JWT_SECRET", secret).output().unwrap()
    };
    let output = validated("hush-hush-hush-hush-hush-hush-hu");
    assert_eq!(printed(&output), (Some(0), "limits.yaml: 1 limit, 1 rule\n", ""));
    let expected = "error: limits.yaml:4:59: `secret_env` has a secret of fewer than 32 bytes
  use at least 32 that are random, as from `openssl rand -hex 32`
1 error
";
    let output = validated("hush-hush-hush-hush-hush-hush-h");
    assert_eq!(printed(&output), (Some(1), "", expected));
}

#[test]
fn broken_public_key_is_an_error_where_its_file_is_named() {
    let keys = "identity: { jwt: { keys: [{ algorithm: ES256, public_key_file: ecdsa.pem }] } }\n";
    let validated = |pem: &str| {
        let files = [("limits.yaml", &*format!("{GOOD}{keys}")), ("ecdsa.pem", pem)];
        tollgate(directory(&files).path(), &["validate", "limits.yaml"])
    };
    assert_eq!(printed(&validated(P256)), (Some(0), "limits.yaml: 1 limit, 1 rule\n", ""));
    let expected =
        "error: limits.yaml:4:64: `public_key_file` has a PEM that is damaged, or more than one
  use the PEM of one key, whole: from `-----BEGIN PUBLIC KEY-----` to `-----END PUBLIC KEY-----`
1 error
";
    let broken = P256.replace("MFkw", "MFk");
    assert_eq!(printed(&validated(&broken)), (Some(1), "", expected));
}

#[test]
fn validate_reads_standard_input_and_the_file_that_it_names() {
    let files = directory(&[("keys.yaml", "secret: pro\n")]);
    let text = format!("{GOOD}api_keys_file: keys.yaml\n");
    let (code, stdout, stderr) = (Some(0), "standard input: 1 limit, 1 rule\n", "");
    let output = run_with_input(files.path(), &["validate", "-"], text.as_bytes());
    let found = printed(&output);
    assert_eq!((found.0, found.1), (code, stdout));
    assert!(found.2.starts_with("warning: keys.yaml:1:9: a tier that no rule names"), "{stderr}");
    for (input, problem) in [
        (&b"rules: {}"[..], "error: standard input:1:8: `rules` must be a list, not a mapping\n"),
        (b"limits: {}\n # \xff", "error: standard input:2:4: not UTF-8\n"),
        (&vec![b' '; 5 << 20], "error: standard input:1:1: larger than 4 MiB\n"),
        (b"", "error: standard input:1:1: neither limits nor rules\n"),
    ] {
        let output = run_with_input(files.path(), &["validate", "-"], input);
        let (code, stdout, stderr) = printed(&output);
        assert_eq!((code, stdout), (Some(1), ""));
        assert!(stderr.starts_with(problem), "{stderr}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn pipe_can_be_named_as_a_file() {
    let files = directory(&[]);
    let output = run_with_input(files.path(), &["validate", "/dev/stdin"], GOOD.as_bytes());
    assert_eq!(printed(&output), (Some(0), "/dev/stdin: 1 limit, 1 rule\n", ""));
}

#[cfg(target_os = "linux")]
#[test]
fn endless_file_of_keys_is_refused() {
    let files = directory(&[]);
    let text = format!("{GOOD}api_keys_file: /dev/zero\n");
    let output = run_with_input(files.path(), &["validate", "-"], text.as_bytes());
    let expected =
        "error: standard input:4:16: `/dev/zero` cannot be read: it is not a regular file
  name a file of keys and tiers, relative to this one
1 error
";
    assert_eq!(printed(&output), (Some(1), "", expected));
}

#[cfg(target_os = "linux")]
#[test]
fn input_that_cannot_be_read_does_not_hide_the_other_files() {
    let files = directory(&[("good.yaml", GOOD)]);
    let mut command = command(files.path(), &["validate", "good.yaml", "-"]);
    let output = command.stdin(fs::File::open(files.path()).unwrap()).output().unwrap();
    let problem = "error: standard input: cannot be read: Is a directory (os error 21)
  name a YAML file of limits and rules
1 error
";
    assert_eq!(printed(&output), (Some(1), "good.yaml: 1 limit, 1 rule\n", problem));
}

#[cfg(target_os = "linux")]
#[test]
fn full_standard_error_does_not_crash_the_command() {
    let files =
        directory(&[("bad.yaml", BAD), ("odd.yaml", WITH_WARNING), ("empty.yaml", "limits: {}")]);
    for (args, code) in [
        (&["validate", "bad.yaml"][..], 1),
        (&["validate", "odd.yaml"], 0),
        (&["explain", "bad.yaml"], 1),
        (&["explain", "empty.yaml"], 2),
    ] {
        let full = fs::File::options().write(true).open("/dev/full").unwrap();
        let status = command(files.path(), args).stderr(full).status().unwrap();
        assert_eq!(status.code(), Some(code), "{args:?}");
    }
}

#[test]
fn file_without_rules_for_a_required_domain_is_refused() {
    let files = directory(&[("good.yaml", GOOD), ("limits.yaml", "limits: {}")]);
    let validate =
        |file, domains| tollgate(files.path(), &["validate", "--require-domain", domains, file]);
    assert_eq!(validate("good.yaml", "api").status.code(), Some(0));
    let output = validate("good.yaml", "api,web");
    let expected = "error: good.yaml: no rules for domain `web`, which --require-domain names
  add rules for it, or leave the flag out
1 error
";
    assert_eq!(printed(&output), (Some(1), "", expected));
    assert_eq!(validate("limits.yaml", "api").status.code(), Some(1));
}

#[test]
fn bad_flags_and_bad_files_have_different_exit_codes() {
    let files = directory(&[]);
    for args in [&["validate"][..], &["validate", "--format", "xml", "a.yaml"], &["schema", "x"]] {
        assert_eq!(tollgate(files.path(), args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn whole_schema_is_printed() {
    let files = directory(&[]);
    let output = tollgate(files.path(), &["schema"]);
    assert_eq!(printed(&output), (Some(0), tollgate::rules::Config::schema(), ""));
    assert!(serde_json::from_slice::<Value>(&output.stdout).is_ok());
}

#[test]
fn help_matches_its_snapshot() {
    let files = directory(&[]);
    for name in ["validate", "schema"] {
        let output = tollgate(files.path(), &[name, "--help"]);
        insta::assert_snapshot!(format!("{name}_help"), printed(&output).1);
    }
}
