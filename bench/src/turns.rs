//! The number and length of turns, and times as load generators write them.

/// How often each contender has a turn, after one that warms up; and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Length {
    /// How many turns.
    pub rounds: usize,
    /// How long each is.
    pub turn_s: u32,
}

impl Length {
    /// For numbers to publish.
    pub const FULL: Length = Length { rounds: 5, turn_s: 5 };

    /// To see whether the benchmark works.
    pub const SHORT: Length = Length { rounds: 1, turn_s: 1 };
}

/// `635.91us`, `1.65ms` or `1.20s`.
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
