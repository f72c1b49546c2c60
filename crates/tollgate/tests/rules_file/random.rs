//! Random texts: parsing ends, and every problem has a place in the text.

use proptest::prelude::*;
use tollgate::rules::Config;

use crate::mistakes::MISTAKES;
use crate::{problems, tree};

/// Asserts that every problem is on a line of the text, at most one column after its last character.
fn lies_within(text: &str) -> Result<(), TestCaseError> {
    let found = problems(text);
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let lines: Vec<&str> = text.split('\n').collect();
    for problem in found.iter() {
        let (line, column) = (problem.line().unwrap() as usize, problem.column().unwrap() as usize);
        let length = lines.get(line - 1).map(|line| line.chars().count());
        prop_assert!(length.is_some_and(|length| column <= length + 1), "{problem}\n{text:?}");
        prop_assert!(column >= 1 && problem.to_string().len() < 2_000, "{problem}");
    }
    Ok(())
}

/// Asserts that a valid text has as many limits and rules as the parser returns.
fn is_whole(text: &str) -> Result<(), TestCaseError> {
    let Ok(config) = Config::parse("limits.yaml", text) else { return Ok(()) };
    let tree = tree::json(text.strip_prefix('\u{feff}').unwrap_or(text));
    let limits = tree["limits"].as_object().map_or(0, |limits| limits.len());
    let rules = tree["rules"].as_array().map_or(0, Vec::len);
    prop_assert_eq!((config.limits(), config.rules()), (limits, rules));
    Ok(())
}

/// Pieces of YAML and of rules.
fn piece() -> impl Strategy<Value = String> {
    let words = prop::sample::select(vec![
        "limits",
        "rules",
        "name",
        "domain",
        "when",
        "key",
        "limit",
        "cost",
        "overrides",
        "tiers",
        "by",
        "default",
        "shadow",
        "deadline",
        "mode",
        "leased",
        "{ for: 1s, max_share: 25% }",
        "api_keys",
        "first_of",
        "any_of",
        "none_of",
        "replaces",
        "present",
        "prefix",
        "identity",
        "trusted_proxies",
        "trusted_headers",
        "10.0.0.0/8",
        "::/0",
        "jwt",
        "keys",
        "algorithm",
        "HS256",
        "public_key",
        "-----BEGIN PUBLIC KEY-----",
        "secret_env",
        "token-bucket capacity=1 refill=1/s",
        "{ algorithm: fixed-window, limit: 1, window: 1s }",
        "free",
        "block",
        "10ms",
        "null",
        "~",
        "<<",
        "&a",
        "*a",
        "!t",
        "---",
        "...",
        "\u{feff}",
        "é",
    ]);
    let marks = prop::sample::select(vec![
        ": ", ":", "- ", "\n", "\n  ", "\n    ", "\r\n", "\r", "[", "]", "{", "}", ", ", "? ",
        "\"", "'", "#", "|", ">", "%", "@", "\t", " ", "\0", "\\",
    ]);
    prop_oneof![words.prop_map(str::to_owned), marks.prop_map(str::to_owned)]
}

/// A mistake with a piece inserted, and some characters left out.
fn changed() -> impl Strategy<Value = String> {
    let texts: Vec<&str> =
        MISTAKES.iter().flat_map(|(_, mistakes)| mistakes.iter().map(|it| it.text)).collect();
    (prop::sample::select(texts), any::<prop::sample::Index>(), 0..9_usize, piece()).prop_map(
        |(text, at, left_out, piece)| {
            let at = at.index(text.chars().count() + 1);
            let before: String = text.chars().take(at).collect();
            let after: String = text.chars().skip(at + left_out).collect();
            before + &piece + &after
        },
    )
}

proptest! {
    #[test]
    fn problems_of_any_text_are_within_it(text in "\\PC{0,200}|[ -~\n\r\t]{0,200}|\\PC*") {
        lies_within(&text)?;
    }

    #[test]
    fn problems_of_text_from_usual_pieces_are_within_it(
        pieces in prop::collection::vec(piece(), 0..60)
    ) {
        lies_within(&pieces.concat())?;
    }

    #[test]
    fn problems_of_changed_mistakes_are_within_the_text(text in changed()) {
        lies_within(&text)?;
        is_whole(&text)?;
    }

    #[test]
    fn problems_of_any_bytes_are_within_them(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = Config::parse("limits.yaml", &bytes);
        lies_within(&String::from_utf8_lossy(&bytes))?;
    }
}

#[test]
fn texts_that_hang_other_parsers_are_parsed() {
    for text in
        ["{---", "[", "{", "? ", "- ", "[{", "&a ", "*a ", "!a ", "---\n", "\"", "'", "|\n", "]"]
    {
        lies_within(text).unwrap();
        lies_within(&text.repeat(100_000)).unwrap();
    }
}
