//! Positions in a text.

/// A line and a column, both from 1; columns are characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// From 1.
    pub line: u32,
    /// From 1.
    pub column: u32,
}

impl Position {
    /// The start of a file.
    pub const START: Position = Position { line: 1, column: 1 };
}

/// Returns the end of a text: one after its last character.
pub(super) fn end_of(text: &str) -> Position {
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
