//! Reads the deployment files, and runs the tools that check them.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use serde_json::Value;

pub(crate) const COMPOSE: &str = "examples/compose/compose.yaml";
pub(crate) const KUBERNETES: &str = "examples/kubernetes/tollgate.yaml";

pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn text(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// Runs a command in the workspace's root, and returns its output.
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    let [stdout, stderr] = [output.stdout, output.stderr].map(|it| String::from_utf8(it).unwrap());
    assert!(output.status.success(), "{command:?}: {stdout}{stderr}");
    stdout
}

/// Returns a command for a tool that `make deployment` installs.
pub(crate) fn tool(name: &str) -> Command {
    let tools = root().join(".tools/deploy");
    let path = tools.join("bin").join(name);
    assert!(path.exists(), "{} is missing: run `make deployment`", path.display());
    let mut command = Command::new(path);
    command.env("PYTHONPATH", tools);
    command
}

/// Returns the only document of the compose file.
pub(crate) fn compose() -> &'static Value {
    static READ: LazyLock<Vec<Value>> = LazyLock::new(|| yaml(COMPOSE));
    &READ[0]
}

pub(crate) fn kubernetes() -> &'static [Value] {
    static READ: LazyLock<Vec<Value>> = LazyLock::new(|| yaml(KUBERNETES));
    &READ
}

/// Returns the documents of a file, with anchors and merge keys resolved.
pub(crate) fn yaml(path: &str) -> Vec<Value> {
    let tools = root().join(".tools/deploy");
    assert!(tools.join("yaml").exists(), "PyYAML is missing: run `make deployment`");
    let read =
        "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";
    let mut python = Command::new("python3");
    serde_json::from_str(&run(python.args(["-c", read, path]).env("PYTHONPATH", tools))).unwrap()
}

pub(crate) fn tollgate(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(args).env_clear();
    command
}

/// Returns the environment variables of Tollgate in a text.
pub(crate) fn variables(text: &str) -> BTreeSet<String> {
    let words = text.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    words.filter(|word| word.starts_with("TOLLGATE_")).map(str::to_owned).collect()
}

/// Asserts that `tollgate validate` accepts limits and rules without a warning.
pub(crate) fn assert_valid(rules: &str) {
    let mut validate = tollgate(&["validate", "-"]);
    validate.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = validate.spawn().unwrap();
    child.stdin.take().unwrap().write_all(rules.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    assert!(output.status.success());
}

/// Whether a rule is decided without the store. A server with such a rule should be ready without its store.
pub(crate) fn is_any_decided_without_store(rules: &str) -> bool {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, rules).unwrap();
    let rules = &yaml(file.path().to_str().unwrap())[0];
    let default = rules.pointer("/defaults/on_store_failure").cloned().unwrap_or("local".into());
    let all = rules["rules"].as_array().unwrap().iter();
    let mut policies = all.map(|rule| rule.get("on_store_failure").unwrap_or(&default));
    policies.any(|policy| policy != "closed")
}

#[test]
fn rules_are_decided_without_the_store_by_default() {
    for (rules, want) in [
        ("rules: [{}]", true),
        ("{ defaults: { on_store_failure: closed }, rules: [{}] }", false),
        ("{ defaults: { on_store_failure: open }, rules: [{ on_store_failure: closed }] }", false),
        ("rules: [{ on_store_failure: closed }, { on_store_failure: { local: 3 } }]", true),
    ] {
        assert_eq!(is_any_decided_without_store(rules), want, "{rules}");
    }
}

/// Parses times such as `15s`, as the deployment files write them.
pub(crate) fn seconds(time: &str) -> u64 {
    time.strip_suffix('s').unwrap().parse().unwrap()
}

#[test]
fn server_reads_every_variable_in_the_files() {
    let known = variables(&run(&mut tollgate(&["serve", "--help"])));
    let known: BTreeSet<_> = known.into_iter().chain(["TOLLGATE_SERVER".to_owned()]).collect();
    for path in ["Dockerfile", COMPOSE, KUBERNETES] {
        let used = variables(&text(path));
        assert!(used.len() > 1, "{path}");
        assert!(used.is_subset(&known), "{path}: {:?}", used.difference(&known));
    }
}
