//! How `tollgate serve` starts, and its message when it fails to start.

use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::process::Stdio;

use crate::command::{run_command, tollgate};
use crate::server::ServerProcess;

#[test]
fn failed_start_prints_the_problem_and_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let bad = "limits: { free: token-bucket capacity=60 refill=1/sec, pro: gcra }\nrule: []\n";
    std::fs::write(directory.path().join("bad.yaml"), bad).unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let mut report = String::new();
    for (name, args) in [
        ("a bad file", &["--config", "bad.yaml"][..]),
        ("no file", &["--config", "none.yaml"]),
        ("a directory", &["--config", "/"]),
        ("an address in use", &["--listen", &taken]),
        ("another's address", &["--listen", "127.0.0.1:0", "--grpc-listen", &taken]),
        ("no address", &["--listen", "localhost"]),
        ("no store", &["--store", "memroy"]),
        ("a store without its scheme", &["--store", "user:hunter2@localhost"]),
        ("another scheme", &["--store", "http://user:hunter2@localhost"]),
        ("a bad database number", &["--store", "redis://user:hunter2@localhost/one"]),
        ("a bad prefix", &["--store", "redis://localhost", "--store-prefix", "{a}"]),
        ("a time without a unit", &["--drain-delay", "5"]),
        ("a size without sense", &["--max-memory", "64MB"]),
        ("no connections", &["--max-connections", "0"]),
        ("a rate without a unit", &["--log-refusals", "10"]),
        ("no lines a second", &["--log-refusals", "0/s"]),
        ("too many lines a second", &["--log-refusals", "1001/s"]),
        ("a short token", &["--operator-token", "hunter2"]),
        ("a short secret", &["--receipt-secret", "hunter2"]),
        ("a required domain without rules", &["--require-domain", "api,web"]),
    ] {
        let mut serve = tollgate(&[&["serve"], args].concat());
        let (code, stdout, stderr) = run_command(serve.current_dir(&directory));
        assert_eq!((code, stdout.as_str()), (2, ""), "{name}: {stderr}");
        assert!(stderr.starts_with("error: "), "{name}: {stderr}");
        report += &format!("{name}\n  {}\n", stderr.replace(&taken, "<taken>"));
    }
    assert!(!report.contains("hunter2"));
    insta::assert_snapshot!(report);
}

/// The ports and the rules come from the environment. There is no flag.
#[test]
fn tollgate_without_arguments_uses_the_environment() {
    let directory = tempfile::tempdir().unwrap();
    let rules = "limits: { only: fixed-window limit=1 window=1h }\n";
    std::fs::write(directory.path().join("limits.yaml"), rules).unwrap();
    let mut child = tollgate(&[])
        .current_dir(&directory)
        .env("TOLLGATE_LISTEN", "127.0.0.1:0")
        .env("TOLLGATE_GRPC_LISTEN", "127.0.0.1:0")
        .env("TOLLGATE_CONFIG", "limits.yaml")
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    stderr.read_line(&mut first).unwrap();
    let url = first.split("http://").nth(1).and_then(|rest| rest.split(',').next());
    let url = format!("http://{}", url.unwrap_or_else(|| panic!("{first}")).trim());
    let check = || run_command(tollgate(&["check", "only", "k"]).env("TOLLGATE_SERVER", &url)).0;
    let decided = (check(), check());
    child.kill().unwrap();
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    child.wait().unwrap();
    assert_eq!(decided, (0, 1), "{rest}");
    assert!(rest.contains("limits.yaml"), "{rest}");
}

/// `docker run tollgate --config /etc/tollgate/rules.yaml` runs the command in this way.
#[test]
fn flags_without_a_command_are_flags_of_serve() {
    let (code, stdout, stderr) = run_command(&mut tollgate(&["--config", "none.yaml"]));
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.starts_with("error: none.yaml: cannot be read"), "{stderr}");
    let (_, _, stderr) = run_command(&mut tollgate(&["--cofnig", "none.yaml"]));
    assert!(stderr.contains("a similar argument exists: '--config'"), "{stderr}");
    let (code, stdout, _) = run_command(&mut tollgate(&["--version"]));
    assert_eq!((code, stdout.as_str()), (0, concat!("tollgate ", env!("CARGO_PKG_VERSION"), "\n")));
}

#[test]
fn flag_overrides_the_environment() {
    // `ServerProcess` starts the server with `--listen` for a free port of this machine.
    let server = ServerProcess::start_with(&[], &[("TOLLGATE_LISTEN", "192.0.2.1:1")]);
    assert!(server.url.starts_with("http://127.0.0.1:"), "{}", server.url);
}
