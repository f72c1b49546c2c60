//! Tests of the page in a real browser. Node runs `*.test.mjs`, which use `harness.mjs`.

#![allow(clippy::panic, clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The path of Chromium on Debian. `harness.mjs` starts it.
const CHROMIUM: &str = "/usr/bin/chromium";

/// Runs one file after another, because the tests and the browser share two cores, and some tests measure time.
#[test]
fn page_passes_its_tests_in_a_browser() {
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
        let bytes = [run.stdout, run.stderr].concat();
        let output = String::from_utf8_lossy(&bytes);
        assert!(run.status.success(), "{output}");
        // Node also succeeds for a file without tests, so the number of passed tests must not be 0.
        assert!(output.contains("pass ") && !output.contains("pass 0"), "{output}");
        println!("{output}");
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
