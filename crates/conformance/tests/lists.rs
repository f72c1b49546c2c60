//! The suite runs every behaviour of this crate.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::Path;

#[test]
fn suite_lists_every_behaviour() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let suite = fs::read_to_string(sources.join("suite.rs")).unwrap();
    let listed: Vec<&str> =
        suite.split(|letter: char| !letter.is_alphanumeric() && letter != '_').collect();
    let mut found = 0;
    let entries = fs::read_dir(&sources).unwrap().map(|entry| entry.unwrap().path());
    for file in entries.filter(|path| path.is_file()) {
        let text = fs::read_to_string(file).unwrap();
        for function in text.split("\npub ").skip(1) {
            let function = function.trim_start_matches("async ");
            let Some((name, rest)) =
                function.strip_prefix("fn ").and_then(|function| function.split_once('('))
            else {
                continue;
            };
            // A function that opens a limiter and returns it is not a behaviour.
            let parameters = rest.split('{').next().unwrap_or_default();
            if parameters.contains("make: Make") && !parameters.contains("->") {
                found += 1;
                assert!(listed.contains(&name), "{name} is not in the lists of suite.rs");
            }
        }
    }
    assert!(found > 90, "{found}");
}
