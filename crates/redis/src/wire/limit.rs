//! The form of a limit in the scripts, with the tag that its states begin with.

use std::time::Duration;

use tollgate_core::{
    Concurrency, FixedWindow, LeakyBucket, Limit, Mode, Rate, SlidingWindowCounter,
    SlidingWindowLog, TokenBucket,
};

use super::number::put_number;

/// The script's number for a sliding window log.
const LOG: u8 = 3;

/// The script's number for a concurrency limit.
const CONCURRENCY: u8 = 7;

/// The length of a log's tag: the same for all logs, so that the charges stay where they are when the limit changes.
const LOG_TAG_BYTES: usize = 11;

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    // OK because a tag has 25 bytes at most, and a format 12.
    bytes.push(text.len() as u8);
    bytes.extend_from_slice(text);
}

/// Appends a limit in the form that `check.lua` describes for `ARGV[1]`.
pub(super) fn put(bytes: &mut Vec<u8>, limit: &Limit) {
    let (algorithm, numbers) = numbers(limit);
    bytes.push(algorithm);
    numbers.iter().for_each(|&number| put_number(bytes, number));
    let tag = tag(limit);
    put_text(bytes, &tag);
    put_text(bytes, format(limit, tag.len()).as_bytes());
}

/// Returns the algorithm's number; and size and window, or capacity and rate.
fn numbers(limit: &Limit) -> (u8, [u64; 3]) {
    let (algorithm, a, b) = match limit {
        Limit::FixedWindow(limit) => (1, limit.window_us(), 0),
        Limit::SlidingWindowCounter(limit) => (2, limit.window_us(), 0),
        Limit::SlidingWindowLog(limit) => (LOG, limit.window_us(), 0),
        Limit::TokenBucket(limit) => (4, limit.refill().units(), limit.refill().per_us()),
        Limit::LeakyBucket(limit) => {
            let algorithm = if limit.mode() == Mode::Policing { 5 } else { 6 };
            (algorithm, limit.leak().units(), limit.leak().per_us())
        }
        Limit::Concurrency(limit) => (CONCURRENCY, limit.hold_for().as_us(), 0),
    };
    (algorithm, [limit.size(), a, b])
}

/// Returns the tag that a state begins with. It names the limit that the state was reached under: no two limits have the
/// same tag, and no tag is the beginning of another.
///
/// A tag is the algorithm and its numbers in seven bits a byte, the lowest first; all but the last byte of a
/// number are 128 and more. The tag of a token bucket of 100 at 1/s is 04 64 01 C0843D, in hexadecimal.
fn tag(limit: &Limit) -> Vec<u8> {
    let (algorithm, numbers) = numbers(limit);
    let mut tag = vec![algorithm];
    // The only number that can be 0 is the third one of a limit which has no third parameter.
    for mut number in numbers.into_iter().filter(|&number| number > 0) {
        while number >= 128 {
            tag.push(number as u8 | 128);
            number >>= 7;
        }
        tag.push(number as u8);
    }
    if algorithm == LOG {
        tag.resize(LOG_TAG_BYTES, 0);
    }
    tag
}

/// Returns the limit whose tag these bytes begin with, and the bytes after the tag.
pub(super) fn of_tag(bytes: &[u8]) -> Option<(Limit, &[u8])> {
    let (&algorithm, mut rest) = bytes.split_first()?;
    let mut number = || {
        let (number, after) = take_tag_number(rest)?;
        rest = after;
        Some(number)
    };
    let (size, a) = (number()?, number()?);
    let b = if matches!(algorithm, 4..=6) { number()? } else { 0 };
    if algorithm == LOG {
        rest = bytes.get(LOG_TAG_BYTES..)?;
    }
    let (window, rate) = (Duration::from_micros(a), || Rate::new(a, Duration::from_micros(b)));
    let limit = match algorithm {
        1 => FixedWindow::new(size, window).ok()?.into(),
        2 => SlidingWindowCounter::new(size, window).ok()?.into(),
        LOG => SlidingWindowLog::new(size, window).ok()?.into(),
        4 => TokenBucket::new(size, rate().ok()?).ok()?.into(),
        5 => LeakyBucket::new(size, rate().ok()?, Mode::Policing).ok()?.into(),
        6 => LeakyBucket::new(size, rate().ok()?, Mode::Shaping).ok()?.into(),
        CONCURRENCY => Concurrency::new(size, window).ok()?.into(),
        _ => return None,
    };
    Some((limit, rest))
}

/// Returns a number of a tag, and the bytes after it.
fn take_tag_number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut number = 0;
    for (at, &byte) in bytes.iter().enumerate().take(8) {
        number |= u64::from(byte & 127) << (7 * at);
        if byte < 128 {
            return Some((number, &bytes[at + 1..]));
        }
    }
    None
}

/// Returns the format with which `plain.lua` unpacks a state. Made here, because making it takes Redis 3% of a check.
fn format(limit: &Limit, tag_bytes: usize) -> String {
    let numbers = match limit {
        Limit::FixedWindow(_) => "I7I7",
        Limit::SlidingWindowCounter(_) => "I7I7I7",
        Limit::TokenBucket(_) | Limit::LeakyBucket(_) => "I7I7I7I7",
        // Never in `plain.lua`.
        Limit::SlidingWindowLog(_) | Limit::Concurrency(_) => "",
    };
    format!("<c{tag_bytes}{numbers}")
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    fn tag_of(text: &str) -> Vec<u8> {
        tag(&text.parse().unwrap())
    }

    #[test]
    fn a_tag_is_the_algorithm_and_its_numbers() {
        let bucket = tag_of("token-bucket capacity=100 refill=1/s");
        assert_eq!(bucket, [4, 0x64, 1, 0xC0, 0x84, 0x3D]);
        let window = tag_of("fixed-window limit=200 window=1m");
        assert_eq!(window, [1, 0xC8, 1, 0x80, 0x8E, 0xCE, 0x1C]);
        let log = tag_of("sliding-window-log limit=3 window=1us");
        assert_eq!(log, [3, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        let longest_log = tag_of("sliding-window-log limit=65536 window=366d");
        assert_eq!(longest_log.len(), LOG_TAG_BYTES);
    }

    #[test]
    fn tags_are_unique_and_no_tag_begins_another() {
        let sizes = [1, 2, 127, 128, 129, 16_383, 16_384, 65_536];
        let spans = ["1us", "127us", "128us", "1s", "1m", "366d"];
        let mut tags: HashMap<Vec<u8>, String> = HashMap::new();
        for size in sizes {
            for span in spans {
                for text in [
                    format!("fixed-window limit={size} window={span}"),
                    format!("sliding-window-counter limit={size} window={span}"),
                    format!("sliding-window-log limit={size} window={span}"),
                    format!("token-bucket capacity={size} refill=1/{span}"),
                    format!("token-bucket capacity={size} refill=131/{span}"),
                    format!("leaky-bucket capacity={size} leak=1/{span} mode=policing"),
                    format!("leaky-bucket capacity={size} leak=1/{span} mode=shaping"),
                    format!("concurrency limit={size} for={span}"),
                ] {
                    // Some would take longer than 100 years to fill, or hold too many units at once.
                    let Ok(limit) = text.parse() else { continue };
                    let mut state = tag(&limit);
                    state.extend_from_slice(b"rest");
                    assert_eq!(of_tag(&state), Some((limit, &b"rest"[..])), "{text}");
                    let other = tags.insert(tag(&limit), text.clone());
                    assert_eq!(other, None, "and {text}");
                }
            }
        }
        for (tag, text) in &tags {
            for end in 1..tag.len() {
                assert_eq!(tags.get(&tag[..end]), None, "begins {text}");
            }
        }
    }

    /// Redis stores a string of up to 44 bytes in one allocation with its object.
    #[test]
    fn common_state_has_44_bytes_at_most() {
        for text in [
            "token-bucket capacity=60 refill=1/s",
            "token-bucket capacity=1000000 refill=1/s",
            "token-bucket capacity=10000000 refill=10000000/d",
            "leaky-bucket capacity=100000 leak=999983/d mode=shaping",
        ] {
            assert!(tag_of(text).len() + 4 * 7 <= 44, "{text}");
        }
        let longest =
            "leaky-bucket capacity=9007199254740991 leak=9007199254740991/3155673599999999us";
        let longest = tag_of(&format!("{longest} mode=policing"));
        assert!(longest.len() <= 25, "{}", longest.len());
    }
}
