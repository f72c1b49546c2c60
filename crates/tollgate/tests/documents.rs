//! Tests of the documents: the tests that they name exist, and their code does not fail open.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

/// The tests that `docs/operate/faults.md` names, such as `faults::stall::frozen_server_…`.
fn named() -> Vec<String> {
    let text = include_str!("../../../docs/operate/faults.md");
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.matches("::").count() >= 2).map(str::to_owned).collect()
}

#[test]
fn every_test_named_in_faults_md_exists() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = [crate_root.join("tests"), crate_root.join("../server/tests")];
    let named = named();
    assert!(named.len() > 70, "{}", named.len());
    for name in named {
        let (module, test) = name.rsplit_once("::").unwrap();
        let exists = tests.iter().any(|tests| {
            let file = tests.join(module.replace("::", "/")).with_extension("rs");
            let source = fs::read_to_string(file).unwrap_or_default();
            !source.is_empty() && (test == "*" || source.contains(&format!("fn {test}(")))
        });
        assert!(exists, "{name} is not in {tests:?}");
    }
}

/// The root of the workspace.
fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every file below `directory` whose name ends with `.extension`.
fn files_below(directory: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files_below(&path, extension));
        } else if path.extension().is_some_and(|own| own == extension) {
            found.push(path);
        }
    }
    found
}

/// Every line of the documents, of the examples, and of the comments in the library's source, with its file.
fn shown_lines() -> Vec<(PathBuf, String)> {
    let root = workspace();
    let mut files = vec![root.join("README.md")];
    files.extend(files_below(&root.join("docs"), "md"));
    files.extend(files_below(&root.join("examples"), "rs"));
    let library = ["core", "limiter", "redis", "identity", "rules", "http", "tower", "tollgate"];
    let sources =
        library.map(|name| files_below(&root.join("crates").join(name).join("src"), "rs"));
    let sources: Vec<PathBuf> = sources.into_iter().flatten().collect();
    let mut shown = Vec::new();
    for (file, is_source) in files
        .into_iter()
        .map(|file| (file, false))
        .chain(sources.into_iter().map(|file| (file, true)))
    {
        for line in fs::read_to_string(&file).unwrap().lines() {
            if !is_source || line.trim_start().starts_with("//") {
                shown.push((file.clone(), line.to_owned()));
            }
        }
    }
    assert!(shown.len() > 5_000, "{}", shown.len());
    shown
}

/// Whether a line of code decides by `retry_after()`, which is `None` both for an allowed request and
/// for a request that can never be allowed.
fn branches_on_retry_after(line: &str) -> bool {
    let branches = ["match ", "if let ", "let Some", "while let ", "is_some", "is_none", ".map("];
    line.contains("retry_after()") && branches.iter().any(|branch| line.contains(branch))
}

#[test]
fn documents_and_examples_do_not_branch_on_retry_after() {
    for wrong in [
        "match decision.retry_after() {",
        "/// if let Some(wait) = decision.retry_after() {",
        "match limit.check(key).now().map(|decision| decision.retry_after()) {",
    ] {
        assert!(branches_on_retry_after(wrong), "{wrong}");
    }
    for (file, line) in shown_lines() {
        assert!(!branches_on_retry_after(&line), "{}: {line}", file.display());
    }
}

#[test]
fn documents_and_examples_handle_hangups_where_they_follow_a_file() {
    let followed: Vec<_> =
        shown_lines().into_iter().filter(|(_, line)| line.contains(".follow()?")).collect();
    assert!(followed.len() >= 4, "{followed:?}");
    for (file, line) in followed {
        assert!(line.contains(".and_on_hangup()?"), "{}: {line}", file.display());
    }
}
