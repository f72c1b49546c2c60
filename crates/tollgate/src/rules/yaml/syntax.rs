//! What is wrong with a text that is no YAML, in words that help.

use super::Position;

/// The first character that no text has, and where. The parser would take a NUL for the end.
pub(super) fn control_character(text: &str) -> Option<(u8, Position)> {
    let is_control =
        |byte: u8| byte == 0x7f || (byte < b' ' && !matches!(byte, b'\t' | b'\n' | b'\r'));
    let index = text.bytes().position(is_control)?;
    // OK because the byte is there, and begins a character.
    Some((text.as_bytes()[index], end_of(&text[..index])))
}

/// Where a text ends: one after its last character.
pub(crate) fn end_of(text: &str) -> Position {
    let mut at = Position::START;
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let is_break = letter == '\n' || (letter == '\r' && letters.peek() != Some(&'\n'));
        if is_break {
            at = Position { line: at.line + 1, column: 1 };
        } else if letter != '\r' {
            at.column += 1;
        }
    }
    at
}

const QUOTE: &str = "put the text in quotes";
const CLOSE: &str = "close it, and indent its lines more than its field";
const FLOW: &str = "see that each `[` and `{` has its `]` and `}`, with commas between the items";
const INDENT: &str = "see that what belongs together is indented alike";

/// How the parser's message begins, what to say instead, and what to do. The first that fits counts.
const KNOWN: [(&str, &str, &str); 22] = [
    ("tab", "a tab where only spaces may be", "indent with spaces"),
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
    ("while parsing a tag", "a text that begins with `!`", QUOTE),
    ("while scanning a quoted scalar", "a quote that is not closed", CLOSE),
    ("invalid indentation in quoted scalar", "a quote that is not closed", CLOSE),
    (
        "while parsing a quoted scalar",
        "a quoted text with an escape that there is not",
        "write `\\\\` for a backslash, or use single quotes",
    ),
    (
        "unexpected character",
        "a text that begins with a character that YAML keeps for itself",
        QUOTE,
    ),
    (
        "block sequence entries are not allowed",
        "a list where none may be",
        "begin a list on a line of its own, or write it as `[a, b]`",
    ),
    ("while parsing a block mapping", "neither a field nor the end of the mapping", INDENT),
    ("while parsing a block collection", "neither an item nor the end of the list", INDENT),
    ("did not find expected <document start>", "text after the end of the document", INDENT),
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

/// What the parser says, in words that help.
pub(super) fn explained(info: &str) -> (String, &'static str) {
    match KNOWN.into_iter().find(|(beginning, ..)| info.starts_with(beginning)) {
        Some((_, message, remedy)) => (message.into(), remedy),
        None if info.starts_with("recursion limit") => super::too_deep(),
        None => {
            (format!("not YAML: {info}"), "see that quotes, brackets and indentation are right")
        }
    }
}
