//! `--help` and invalid flags.

use crate::command::{run, run_command, tollgate};

#[test]
fn help_matches_its_snapshot() {
    for (name, args) in [
        ("help", &["--help"][..]),
        ("serve_short", &["serve", "-h"]),
        ("serve", &["serve", "--help"]),
        ("check_short", &["check", "-h"]),
        ("check", &["check", "--help"]),
        ("import", &["import", "--help"]),
        ("healthy", &["healthy", "--help"]),
        ("completions", &["completions", "--help"]),
        ("man", &["man", "--help"]),
    ] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stderr.as_str()), (0, ""), "{name}");
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{name}: {stdout}");
        insta::assert_snapshot!(name, stdout);
    }
}

/// Checks that no value of these variables is in the help or in an error.
#[test]
fn secrets_of_the_environment_are_never_printed() {
    for variable in [
        "TOLLGATE_STORE",
        "TOLLGATE_SERVER",
        "TOLLGATE_OPERATOR_TOKEN",
        "TOLLGATE_RECEIPT_SECRET",
        "TOLLGATE_OTLP_ENDPOINT",
    ] {
        let args =
            ["serve", "check", "replay", "healthy", "man"].map(|command| [command, "--help"]);
        // An error does not repeat the invalid value. Here the value comes only from the environment.
        let args = args.into_iter().chain([["check", "free"], ["serve", "--listen=x"]]);
        for args in args {
            for value in ["hunter2", "http://user:hunter2@host", "hunter2-hunter2-hunter2\n"] {
                let (_, stdout, stderr) = run_command(tollgate(&args).env(variable, value));
                assert!(!format!("{stdout}{stderr}").contains("hunter2"), "{variable} {args:?}");
            }
        }
    }
}

#[test]
fn bad_flags_end_with_exit_code_2() {
    for args in [
        &["check"][..],
        &["check", "free"],
        &["check", "free", "k", "--format", "xml"],
        &["check", "free", "-k"],
        &["check", "free", "k", "--cots", "1"],
        &["serv"],
        &["--cofnig", "limits.yaml"],
    ] {
        let (code, stdout, stderr) = run(args);
        assert_eq!((code, stdout.as_str()), (2, ""), "{args:?}");
        assert!(stderr.starts_with("error: "), "{stderr}");
    }
}
