//! `tollgate completions` and `tollgate man`.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::command::run;

fn script(shell: &str) -> String {
    let (code, script, stderr) = run(&["completions", shell]);
    assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
    script
}

/// Returns the completions that bash offers for the last word of a line.
fn bash_offers(words: &[&str]) -> Vec<String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("tollgate");
    std::fs::write(&path, script("bash")).unwrap();
    let ask = r#"source "$1" && shift
complete -p tollgate >&2
COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
previous=$((COMP_CWORD - 1))
_tollgate tollgate "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[previous]}"
printf '%s\n' "${COMPREPLY[@]}""#;
    let bash = Command::new("bash").args(["-c", ask, "bash"]).arg(&path).args(words).output();
    let output = bash.expect("the test needs bash");
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && stderr.contains("-F _tollgate"), "{stderr}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    assert_eq!(bash_offers(&["tollgate", "ser"]), ["serve"]);
    assert_eq!(bash_offers(&["tollgate", "serve", "--grpc"]), ["--grpc-listen"]);
    assert_eq!(bash_offers(&["tollgate", "check", "--format", "j"]), ["json"]);
    assert!(bash_offers(&["tollgate", "completions", ""]).contains(&"zsh".to_owned()));
}

#[test]
fn completion_script_of_every_shell_has_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = script(shell);
        for command in ["serve", "check", "replay", "validate", "explain", "schema", "man"] {
            assert!(script.contains(command), "{shell}: {command}");
        }
    }
    let (code, _, stderr) = run(&["completions", "cmd"]);
    assert_eq!(code, 2);
    assert!(stderr.contains("bash, elvish, fish, powershell, zsh"), "{stderr}");
}

/// Returns the commands that `tollgate --help` lists, without `help`.
fn commands() -> Vec<String> {
    let (_, help, _) = run(&["--help"]);
    let list = help.split("Commands:\n").nth(1).unwrap().split("\n\n").next().unwrap();
    // A continued line is indented further.
    let names = list.lines().filter(|line| !line.starts_with("    "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

#[test]
fn groff_formats_the_page_of_every_command_without_a_warning() {
    assert!(commands().len() >= 9);
    let pages = [vec!["man".to_owned()]].into_iter();
    let pages = pages.chain(commands().into_iter().map(|name| vec!["man".to_owned(), name]));
    for args in pages {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let (code, page, stderr) = run(&args);
        assert_eq!((code, stderr.as_str()), (0, ""), "{args:?}");
        let text = formatted(&page);
        let name =
            args[1..].iter().fold("tollgate".to_owned(), |name, arg| format!("{name}-{arg}"));
        assert!(text.contains(&format!("{name} - ")), "`apropos` reads the section NAME: {text}");
    }
    let (_, page, _) = run(&["man"]);
    assert!(
        formatted(&page).contains("[command]")
            && formatted(&page).contains("COMMANDS tollgate-serve(1)")
    );
    let (_, page, _) = run(&["man", "serve"]);
    let text = formatted(&page);
    for part in ["CONNECTIONS", "TOLLGATE_DRAIN_DELAY", "How long the server goes on", "SIGHUP"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// Returns a manual page as a terminal shows it.
fn formatted(page: &str) -> String {
    let mut groff = Command::new("groff")
        .args(["-Kutf8", "-man", "-ww", "-Tutf8", "-P-cbou"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the test needs groff, of the package groff-base");
    groff.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let output = groff.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "{page}");
    assert!(output.status.success());
    // Line breaks and padding do not matter, so the words are joined by single spaces.
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn man_of_an_unknown_command_lists_the_known_commands() {
    let (code, stdout, stderr) = run(&["man", "help"]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.starts_with("error: there is no command `help`; use one of serve, check, "));
}
