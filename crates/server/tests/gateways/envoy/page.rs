//! docs/guide/gateways.md agrees with the tests and the example.

use std::fs;

use crate::envoy::config::examples;

const PAGE: &str = include_str!("../../../../../docs/guide/gateways.md");

/// Returns the list under `rate_limits:` in the block of the page that contains a text.
pub(crate) fn rate_limits(with: &str) -> String {
    let blocks = PAGE.split("```yaml\n").skip(1).map(|block| block.split("```").next().unwrap());
    let mut lists = blocks.filter_map(|block| block.strip_prefix("rate_limits:\n"));
    let list = lists.find(|list| list.contains(with)).unwrap_or_else(|| panic!("no {with}"));
    list.lines().map(|line| format!("{}\n", line.strip_prefix("  ").unwrap())).collect()
}

#[test]
fn guide_shows_the_examples_descriptor() {
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    let example = lines(&fs::read_to_string(examples().join("envoy.yaml")).unwrap());
    let shown = lines(&rate_limits(":method"));
    assert_eq!(shown.len(), 5);
    assert!(example.windows(5).any(|own| own == shown), "{shown:#?}");
}
