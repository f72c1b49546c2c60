//! The values of environment variables, and empty ones.

use crate::command::{run_command, tollgate};
use crate::server::ServerProcess;

/// Returns the status of `/readyz` with an unreachable store.
fn readiness(variable: &str) -> u16 {
    let variables = [
        ("TOLLGATE_STORE", "redis+unix:///nowhere.sock"),
        ("TOLLGATE_READY_WITHOUT_STORE", variable),
    ];
    let server = ServerProcess::start_with(&[], &variables);
    server.get("/readyz").send().unwrap().status().as_u16()
}

#[test]
fn switch_accepts_several_words_for_on_and_off() {
    for (word, want) in [
        ("true", 200),
        ("1", 200),
        ("yes", 200),
        ("on", 200),
        ("ON", 200),
        ("false", 503),
        ("0", 503),
        ("no", 503),
        ("off", 503),
        ("", 503),
    ] {
        assert_eq!(readiness(word), want, "`{word}`");
    }
}

#[test]
fn switch_refuses_other_words() {
    for (args, variable) in [
        (&["serve"][..], "TOLLGATE_READY_WITHOUT_STORE"),
        (&["check", "free", "k"], "TOLLGATE_PEEK"),
    ] {
        let (code, _, stderr) = run_command(tollgate(args).env(variable, "maybe"));
        assert_eq!(code, 2);
        assert!(stderr.starts_with("error: invalid value 'maybe' for '--"), "{stderr}");
    }
}

/// A compose file sets an empty variable with `X: ${X:-}`.
#[test]
fn empty_variable_counts_as_unset() {
    let (_, help, _) = run_command(&mut tollgate(&["serve", "--help"]));
    let words = help.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
    let variables = words.filter(|word| word.starts_with("TOLLGATE_"));
    let never = ["TOLLGATE_STORE", "TOLLGATE_OPERATOR_TOKEN", "TOLLGATE_RECEIPT_SECRET"];
    let empty: Vec<_> = variables.filter(|it| !never.contains(it)).map(|it| (it, "")).collect();
    assert!(empty.len() > 12, "{empty:?}");
    let server = ServerProcess::start_with(&[], &empty);
    assert_eq!(server.check(r#"{"limit":"free","key":"user:42"}"#)["remaining"], 59);
    server.wait_for_log(|log| log.contains("memory, at most 64 MiB"));

    let variables = ["TOLLGATE_COST", "TOLLGATE_PEEK", "TOLLGATE_FORMAT"];
    let mut check = tollgate(&["check", "free", "user:42", "--server", &server.url]);
    let (code, stdout, stderr) = run_command(check.envs(variables.map(|it| (it, ""))));
    assert_eq!(code, 0, "{stderr}");
    assert!(stdout.starts_with("allowed: 58 of 60 left"), "{stdout}");
}

/// An empty secret or store is a mistake that would otherwise not be noticed.
#[test]
fn empty_secret_or_store_is_refused() {
    for (args, variable, flag) in [
        (&["serve"][..], "TOLLGATE_OPERATOR_TOKEN", "--operator-token <TOKEN>"),
        (&["serve"], "TOLLGATE_RECEIPT_SECRET", "--receipt-secret <SECRET>"),
        (&["serve"], "TOLLGATE_STORE", "--store <STORE>"),
        (&["check", "free", "k"], "TOLLGATE_OPERATOR_TOKEN", "--operator-token <TOKEN>"),
        (
            &["replay", "--limit", "fixed-window limit=1 window=1s", "/"],
            "TOLLGATE_STORE",
            "--store",
        ),
    ] {
        let (code, stdout, stderr) = run_command(tollgate(args).env(variable, ""));
        assert_eq!((code, stdout.as_str()), (2, ""), "{variable}");
        assert!(stderr.contains(flag) && stderr.contains(": empty; unset it"), "{stderr}");
    }
}
