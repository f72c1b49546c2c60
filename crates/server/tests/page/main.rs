//! The page in a real browser: node runs `*.test.mjs` with the help of `harness.mjs`.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's path of Chromium, which `harness.mjs` starts.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Runs one file after another, because tests and browsers share two cores, and some tests measure time.
#[test]
fn the_pages_browser_tests_pass() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/page");
    let packages = here.join("../../../../.tools/page/node_modules");
    let needed = ["playwright-core", "axe-core"].map(|name| packages.join(name));
    for path in needed.iter().map(PathBuf::as_path).chain([Path::new(CHROMIUM)]) {
        assert!(path.exists(), "{} is missing: run `make browser`", path.display());
    }
    for file in test_files(&here) {
        let run = Command::new("node")
            .args(["--test-reporter=spec", "--test"])
            .arg(&file)
            .env("TOLLGATE", env!("CARGO_BIN_EXE_tollgate"))
            .output()
            .unwrap_or_else(|error| panic!("node: {error}; run `make browser`"));
        let said = [run.stdout, run.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        assert!(run.status.success(), "{said}");
        // A file in which node finds no tests passes, too, so the number of tests must not be 0.
        assert!(said.contains("pass ") && !said.contains("pass 0"), "{said}");
        println!("{said}");
    }
}

fn test_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let is_test = |path: &PathBuf| path.to_string_lossy().ends_with(".test.mjs");
    let mut files: Vec<PathBuf> = entries.filter(is_test).collect();
    files.sort();
    assert!(!files.is_empty(), "no tests in {}", directory.display());
    files
}
