//! Explains errors of the YAML parser, with remedies.

use crate::position::{Position, end_of};

/// Returns the first control character and its position. The parser would take a NUL for the end.
pub(super) fn control_character(text: &str) -> Option<(u8, Position)> {
    let is_control =
        |byte: u8| byte == 0x7f || (byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r'));
    let index = text.bytes().position(is_control)?;
    // OK because the byte exists, and begins a character.
    Some((text.as_bytes()[index], end_of(&text[..index])))
}

const QUOTE: &str = "put the text in quotes";
const CLOSE: &str = "close it, and indent its lines more than its field";
const FLOW: &str = "check that each `[` and `{` has its `]` and `}`, with commas between the items";
const INDENT: &str = "indent the lines of one mapping or list alike";

const DIRECTIVE: &str = "a directive, which begins with `%`";
const NO_DIRECTIVE: &str = "remove it; put a text that begins with % in quotes";

/// The beginning of a parser's message, the problem to report instead, and the remedy. The first match counts.
const KNOWN: &[(&str, &str, &str)] = &[
    ("':' must be followed by", "a tab after `:`", "use a space"),
    ("'-' must be followed by", "a tab after `-`", "use a space"),
    ("':' may not precede", "a `:` without a space after it", "put a space after the `:`"),
    (
        "mapping values are not allowed",
        "a `:` where no value may be",
        "begin a mapping on a line of its own, and put a text with `: ` in it in quotes",
    ),
    ("while scanning an anchor or alias", "a text that begins with `*` or `&`", QUOTE),
    ("while parsing node, found unknown anchor", "a text that begins with `*`", QUOTE),
    ("while parsing anchor", "anchors are not supported", "write out what they stand for"),
    ("while scanning a tag", "a text that begins with `!`", QUOTE),
    ("while scanning a verbatim tag", "a text that begins with `!`", QUOTE),
    ("the handle wasn't declared", "a text that begins with `!`", QUOTE),
    ("while parsing a tag directive", DIRECTIVE, NO_DIRECTIVE),
    ("while parsing a tag", "a text that begins with `!`", QUOTE),
    ("while scanning a quoted scalar", "a quote that is not closed", CLOSE),
    ("invalid indentation in quoted scalar", "a quote that is not closed", CLOSE),
    (
        "invalid trailing content after double-quoted scalar",
        "text after a quoted text",
        "put all of it in quotes; in single quotes a quote is written twice, as in `'it''s'`",
    ),
    (
        "while parsing a quoted scalar, found invalid Unicode",
        "an escape of a character that does not exist",
        "write the character itself",
    ),
    (
        "while parsing a quoted scalar, did not find expected hex",
        "an escape without all its digits",
        "write `\\x` with two hex digits and `\\u` with four; `\\\\` is a backslash",
    ),
    (
        "while parsing a quoted scalar",
        "a quoted text with an unknown escape",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    ("unexpected character", "a text that begins with a character that YAML reserves", QUOTE),
    (
        "block sequence entries are not allowed",
        "a list where none may be",
        "begin a list on a line of its own, or write it as `[a, b]`",
    ),
    ("while parsing a block mapping", "neither a field nor the end of the mapping", INDENT),
    ("while parsing a block collection", "neither an item nor the end of the list", INDENT),
    ("did not find expected <document start>", "text after the end of the document", INDENT),
    (
        "invalid content after document end",
        "text after the end of the document",
        "remove the `...`",
    ),
    ("while scanning a block scalar", "a `|` or `>` with text after it", QUOTE),
    (
        "wrongly indented line in block scalar",
        "a line of a text that is not indented enough",
        QUOTE,
    ),
    ("comment intercepting", "a comment in the middle of a text", "move it after the text"),
    ("plain scalar cannot start with '-'", "a `-` where no list may be", QUOTE),
    ("mapping keys are not allowed", "a `?` where no field may be", QUOTE),
    ("a byte order mark", "a byte order mark in the middle of the file", "remove it"),
    ("found unprintable character", "a character that does not print", "remove it"),
    ("unexpected e", "the file ends too early", FLOW),
    ("while scanning a directive", DIRECTIVE, NO_DIRECTIVE),
    ("while scanning a YAML directive", DIRECTIVE, NO_DIRECTIVE),
    ("while scanning TAG", DIRECTIVE, NO_DIRECTIVE),
    ("invalid global tag", DIRECTIVE, NO_DIRECTIVE),
    ("duplicate version directive", DIRECTIVE, NO_DIRECTIVE),
    ("found incompatible YAML document", DIRECTIVE, NO_DIRECTIVE),
    ("the TAG directive", DIRECTIVE, NO_DIRECTIVE),
    ("missing explicit document end", DIRECTIVE, NO_DIRECTIVE),
    ("simple key", "a field without `:`", "write it as `name: value`"),
    ("while parsing a flow", "a list or a mapping that does not end", FLOW),
    ("while parsing a node", "nothing where a value should be", FLOW),
    ("illegal placement of ':'", "a list or a mapping that does not end", FLOW),
    ("misplaced bracket", "a bracket that closes nothing", FLOW),
    (
        "invalid indentation",
        "a line that is not indented enough",
        "indent it more than the field that it belongs to",
    ),
];

/// Returns the problem that the parser found, in plain words, with its position and a remedy.
pub(super) fn explained(
    info: &str,
    at: Position,
    text: &str,
    max_depth: usize,
) -> (Position, String, &'static str) {
    if info.contains("tab") && !info.starts_with("'") {
        let at = indenting_tab(text, at.line).unwrap_or(at);
        return (at, "a tab where only spaces may be".into(), "indent with spaces");
    }
    let (message, remedy) = match KNOWN.iter().find(|(beginning, ..)| info.starts_with(beginning)) {
        Some((_, message, remedy)) => ((*message).into(), *remedy),
        None if info.starts_with("recursion limit") => super::too_deep(max_depth),
        None => (format!("not YAML: {info}"), "check the quotes, brackets and indentation"),
    };
    (at, message, remedy)
}

/// Returns the first tab in the indentation of a line, from `line` on: the parser may report the position of the text
/// before it.
fn indenting_tab(text: &str, line: u32) -> Option<Position> {
    let text = text.replace("\r\n", "\n");
    let lines = (1..).zip(text.split(['\n', '\r'])).skip_while(|(number, _)| *number < line);
    lines.into_iter().find_map(|(line, text)| {
        let spaces = text.len() - text.trim_start_matches(' ').len();
        // OK because no line is 2^32 bytes long.
        text[spaces..].starts_with('\t').then_some(Position { line, column: spaces as u32 + 1 })
    })
}
