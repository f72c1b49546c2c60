//! The documents' configurations are valid.

use std::io::{Error, ErrorKind};
use std::path::Path;

use tollgate::rules::{Config, Problem, Problems};

use crate::schema;

#[test]
fn every_yaml_block_of_the_documents_is_valid_without_warnings() {
    let documents = [
        include_str!("../../../../docs/guide/rules.md"),
        include_str!("../../../../docs/guide/middleware.md"),
    ];
    let blocks: Vec<&str> = documents
        .iter()
        .flat_map(|document| document.split("```yaml\n").skip(1))
        .map(|block| block.split("```").next().unwrap())
        .collect();
    assert!(blocks.len() > 5, "{}", blocks.len());
    for block in blocks {
        let text = complete(block);
        let found = problems(&text);
        // Blocks of single rules are completed with limits that they do not all use.
        let of_block = |problem: &&Problem| !problem.message().starts_with("no rule spends limit");
        assert_eq!(found.iter().find(of_block), None, "{found}\n{text}");
        assert!(schema::accepts(&text), "{text}");
    }
}

/// The problems of a text. The files that the documents name can be read.
fn problems(text: &str) -> Problems {
    let read = |path: &Path| match path.to_str() {
        Some("jwt.secret") => Ok(vec![b'x'; 32]),
        Some("blocked.txt") => Ok(networks().into()),
        Some("rsa.pem") => Ok(rsa!("\n").into()),
        _ => Err(Error::from(ErrorKind::NotFound)),
    };
    match Config::parse_with("rules.md", text, read) {
        Ok(config) => config.warnings().clone(),
        Err(problems) => problems,
    }
}

/// The file of networks that docs/guide/rules.md shows.
fn networks() -> &'static str {
    let document = include_str!("../../../../docs/guide/rules.md");
    let (_, block) = document.split_once("```text\n# blocked.txt\n").unwrap();
    block.split("```").next().unwrap()
}

/// Completes a block of rules to a whole file.
fn complete(block: &str) -> String {
    const LIMITS: &str = "limits:\n  free: token-bucket capacity=60 refill=1/s\n  pro: token-bucket capacity=600 refill=10/s\n  partner: token-bucket capacity=9000 refill=100/s\n  login: sliding-window-log limit=5 window=15m\n";
    if block.starts_with("- ") || block.starts_with("rules:") {
        let rules = block.strip_prefix("rules:\n").unwrap_or(block);
        return format!("{LIMITS}rules:\n{rules}");
    }
    block.to_owned()
}
