//! The documents show the output of the command.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::Command;

/// A command of a `console` block, and its output.
struct ConsoleExample {
    command: String,
    output: String,
}

/// Returns the commands and outputs of a document. A command follows `$ `, and continues on the next line after a pipe. Its
/// output is on the next lines.
fn examples(document: &str) -> Vec<ConsoleExample> {
    let mut examples: Vec<ConsoleExample> = Vec::new();
    let blocks = document.split("```console\n").skip(1);
    for line in blocks.flat_map(|block| block.split("```").next().unwrap().lines()) {
        match (line.strip_prefix("$ "), examples.last_mut()) {
            (Some(command), _) => {
                examples
                    .push(ConsoleExample { command: command.to_owned(), output: String::new() });
            }
            (None, Some(last)) if last.command.ends_with('|') => last.command += line,
            (None, Some(last)) => last.output += &format!("{line}\n"),
            (None, None) => unreachable!("a console block begins with a command, not {line}"),
        }
    }
    examples
}

/// Removes the time that a replay takes, which differs from run to run.
fn without_time(text: &str) -> String {
    text.lines().map(|line| format!("{}\n", line.split(", in ").next().unwrap())).collect()
}

#[test]
fn every_console_example_prints_what_it_shows() {
    let bin = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let directory = tempfile::tempdir().unwrap();
    let documents = [
        include_str!("../../../README.md"),
        include_str!("../../../docs/guide/algorithms.md"),
        include_str!("../../../docs/guide/migrating.md"),
        include_str!("../../../docs/guide/rules.md"),
    ];
    let examples: Vec<ConsoleExample> = documents.into_iter().flat_map(examples).collect();
    assert!(examples.len() > 10);
    for ConsoleExample { command, output } in examples {
        let command = command.replace("target/release/tollgate", "tollgate");
        let command = command.replace("/tmp/", &format!("{}/", directory.path().display()));
        let run = Command::new("bash")
            .args(["-c", &format!("{{ {command}\n}} 2>&1")])
            .env("PATH", &path)
            .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."))
            .output();
        let printed = String::from_utf8(run.unwrap().stdout).unwrap();
        assert_eq!(without_time(&printed), without_time(&output), "{command}");
    }
}
