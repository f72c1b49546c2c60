//! What documents say of tests is true.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

/// The tests that `docs/faults.md` names: `faults::stall::a_frozen_server_…`.
fn named() -> Vec<String> {
    let text = include_str!("../../../docs/faults.md");
    let quoted = text.split('`').skip(1).step_by(2);
    quoted.filter(|name| name.matches("::").count() >= 2).map(str::to_owned).collect()
}

#[test]
fn every_test_that_the_faults_name_is_there() {
    let crate_root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let tests = [crate_root.join("tests"), crate_root.join("../server/tests")];
    let named = named();
    assert!(named.len() > 70, "{}", named.len());
    for name in named {
        let (module, test) = name.rsplit_once("::").unwrap();
        let is_there = tests.iter().any(|tests| {
            let file = tests.join(module.replace("::", "/")).with_extension("rs");
            let source = fs::read_to_string(file).unwrap_or_default();
            !source.is_empty() && (test == "*" || source.contains(&format!("fn {test}(")))
        });
        assert!(is_there, "{name} is not in {tests:?}");
    }
}
