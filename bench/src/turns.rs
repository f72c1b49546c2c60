//! The number and length of turns, and the durations that load generators print.

/// The number of turns of each contender that count, after one that warms up, and the length of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TurnLength {
    /// The number of turns.
    pub rounds: usize,
    /// The length of a turn.
    pub turn_s: u32,
}

impl TurnLength {
    /// For results that are published.
    pub const FULL: TurnLength = TurnLength { rounds: 5, turn_s: 5 };

    /// For a test of the benchmark itself.
    pub const SHORT: TurnLength = TurnLength { rounds: 1, turn_s: 1 };
}

/// Parses a duration: `635.91us`, `1.65ms` or `1.20s`.
pub(crate) fn time_us(text: &str) -> Option<f64> {
    let at = text.find(|letter: char| letter.is_ascii_alphabetic())?;
    let (number, unit) = text.split_at(at);
    let unit_us = match unit {
        "us" => 1.0,
        "ms" => 1e3,
        "s" => 1e6,
        _ => return None,
    };
    Some(number.parse::<f64>().ok()? * unit_us)
}
