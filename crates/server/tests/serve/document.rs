//! docs/guide/server.md and docs/guide/holds.md show the real answers of the server.

use std::path::Path;
use std::process::Command;

use crate::server::ServerProcess;

/// Separates the outputs of two commands.
const SEPARATOR: char = '\u{1e}';

/// Whether a text matches the output in a document, in which `…` stands for any text.
fn is_like(text: &str, shown: &str) -> bool {
    let mut parts = shown.split('…');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

#[test]
fn ellipsis_stands_for_anything() {
    for (text, shown, want) in [
        ("abc", "abc", true),
        ("abcd", "abc", false),
        ("abcd", "a…d", true),
        ("abcd", "…", true),
        ("abcd", "a…c", false),
        ("a1b2c", "a…b…c", true),
        ("a1c", "a…b…c", false),
    ] {
        assert_eq!(is_like(text, shown), want, "{text} {shown}");
    }
}

#[test]
fn every_command_of_the_server_guide_prints_what_it_shows() {
    let guide = include_str!("../../../../docs/guide/server.md");
    assert_prints_what_it_shows(&ServerProcess::start(&[]), guide);
}

/// The server has the limits that the guide shows.
#[test]
fn every_command_of_the_guide_to_holds_prints_what_it_shows() {
    let guide = include_str!("../../../../docs/guide/holds.md");
    let limits = guide.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("limits.yaml");
    std::fs::write(&path, limits).unwrap();
    let server = ServerProcess::start(&["--config", path.to_str().unwrap()]);
    assert_prints_what_it_shows(&server, guide);
}

/// Runs the commands of a guide. A command follows `$ `. Its output is on the next lines.
fn assert_prints_what_it_shows(server: &ServerProcess, guide: &str) {
    let bin = Path::new(env!("CARGO_BIN_EXE_tollgate")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let blocks: Vec<_> = guide.split("```console\n").skip(1).collect();
    assert!(blocks.len() > 4);
    for block in blocks {
        let block = block.split("```").next().unwrap();
        let (mut script, mut shown) = (String::new(), String::new());
        for line in block.lines() {
            match line.strip_prefix("$ ") {
                Some(command) => {
                    script += &format!("printf '\\x1e'\n{command}\n");
                    shown.push(SEPARATOR);
                }
                None => shown += line.trim_end(),
            }
        }
        let script =
            script.replace("http://127.0.0.1:8080", &server.url).replace("curl ", "curl -s ");
        let run = Command::new("bash")
            .args(["-c", &script])
            .env("PATH", &path)
            .env("TOLLGATE_SERVER", &server.url)
            .output()
            .unwrap();
        let printed = String::from_utf8(run.stdout).unwrap().replace('\n', "");
        let errors = String::from_utf8_lossy(&run.stderr);
        let pairs = printed.split(SEPARATOR).zip(shown.split(SEPARATOR));
        for (printed, shown) in pairs {
            assert!(
                is_like(printed, shown),
                "{script}\nprinted {printed}\nshown   {shown}\n{errors}"
            );
        }
        assert_eq!(printed.matches(SEPARATOR).count(), shown.matches(SEPARATOR).count());
    }
}
