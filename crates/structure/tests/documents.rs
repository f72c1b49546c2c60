//! The links of the documents work, and the source files and tests that they name exist.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns every Markdown file at the root of the workspace, in `docs`, and in the directory of a crate.
fn documents() -> Vec<PathBuf> {
    let root = workspace();
    let mut directories = vec![root.join("docs")];
    let mut files = markdown_in(&root);
    for parent in ["crates", "bench", "examples"] {
        files.extend(markdown_in(&root.join(parent)));
        for directory in directories_in(&root.join(parent)) {
            files.extend(markdown_in(&directory));
        }
    }
    while let Some(directory) = directories.pop() {
        files.extend(markdown_in(&directory));
        directories.extend(directories_in(&directory));
    }
    assert!(files.len() > 10, "{files:?}");
    files
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn markdown_in(directory: &Path) -> Vec<PathBuf> {
    let is_markdown = |path: &PathBuf| path.extension().is_some_and(|own| own == "md");
    entries(directory).into_iter().filter(is_markdown).collect()
}

fn directories_in(directory: &Path) -> Vec<PathBuf> {
    entries(directory).into_iter().filter(|path| path.is_dir()).collect()
}

/// Returns the text without its fenced blocks of code.
fn prose(text: &str) -> String {
    text.split("```").step_by(2).collect()
}

/// Returns the targets of `[text](target)`.
fn links(text: &str) -> Vec<&str> {
    text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link).collect()
}

/// Returns the anchors that GitHub makes for the headings of a document: lower case, without punctuation,
/// with hyphens for spaces, and with `-1` after the second of two equal headings.
fn anchors(text: &str) -> Vec<String> {
    let prose = prose(text);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let kept = heading.trim_start_matches('#').trim().chars();
        let kept = kept.filter(|it| it.is_alphanumeric() || matches!(it, ' ' | '-' | '_'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    let mut anchors: Vec<String> = Vec::new();
    for anchor in headings.map(anchor) {
        let is_second = anchors.contains(&anchor);
        anchors.push(if is_second { format!("{anchor}-1") } else { anchor });
    }
    anchors
}

/// Returns the problem of a link, if its file or heading does not exist.
fn problem(document: &Path, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = match path {
        "" => document.to_path_buf(),
        path => document.parent().unwrap().join(path),
    };
    if !target.exists() {
        return Some(format!("{}: no file for the link {link}", document.display()));
    }
    let exists = anchor.is_empty()
        || anchors(&fs::read_to_string(&target).unwrap()).iter().any(|own| own == anchor);
    (!exists).then(|| format!("{}: no heading for the link {link}", document.display()))
}

#[test]
fn files_and_headings_of_links_exist() {
    let mut problems = Vec::new();
    let mut count = 0;
    for document in documents() {
        let text = prose(&fs::read_to_string(&document).unwrap());
        let links = links(&text);
        count += links.len();
        problems.extend(links.into_iter().filter_map(|link| problem(&document, link)));
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(count > 100, "{count}");
}

/// Checks the quoted paths that begin with `crates/`, `bench/`, `docs/` or `examples/`. After `::` they name a test.
#[test]
fn quoted_source_files_and_tests_exist() {
    let root = workspace();
    let mut problems = Vec::new();
    for document in documents() {
        if document.ends_with("CHANGELOG.md") {
            continue; // It names files of the past.
        }
        let text = prose(&fs::read_to_string(&document).unwrap());
        for quoted in text.split('`').skip(1).step_by(2) {
            let (path, test) = quoted.split_once("::").unwrap_or((quoted, ""));
            let is_path = ["crates/", "bench/", "docs/", "examples/"]
                .iter()
                .any(|start| path.starts_with(start));
            if !is_path || path.contains([' ', '*', '<', '…', '$']) {
                continue;
            }
            let file = root.join(path);
            let has_test = || {
                fs::read_to_string(&file).is_ok_and(|source| source.contains(&format!("fn {test}")))
            };
            if !file.exists() || (!test.is_empty() && !has_test()) {
                problems.push(format!("{}: {quoted} does not exist", document.display()));
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}
