//! A server's decision as a line of text.

use std::fmt;

use super::{PeekAnswer, ServerDecision, UnderLimit};

impl fmt::Display for PeekAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PeekAnswer::Limit(decision) => decision.fmt(f),
            PeekAnswer::Rule { limits } => {
                let lines: Vec<String> = limits.iter().map(ToString::to_string).collect();
                f.write_str(&lines.join("\nor "))
            }
        }
    }
}

impl fmt::Display for UnderLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.decision, &*self.limit_name) {
            (Some(decision), limit) => write!(f, "{decision} ({limit})"),
            (None, "block") => f.write_str("denied: the rule blocks the key (block)"),
            (None, _) => f.write_str("allowed: the rule does not limit the key (allow)"),
        }
    }
}

impl fmt::Display for ServerDecision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let left = format_args!("{} of {} left", self.remaining, self.limit);
        match (self.allowed, self.retry_after_us) {
            (true, _) if self.reset_after_us == 0 => write!(f, "allowed: {left}")?,
            (true, _) => {
                write!(f, "allowed: {left}, full again in {}", ReadableWait(self.reset_after_us))?;
            }
            (false, Some(us)) => write!(f, "denied: {left}; try again in {}", ReadableWait(us))?,
            (false, None) => {
                f.write_str("denied: costs more than the limit has; waiting does not help")?;
            }
        }
        if self.delay_us > 0 {
            write!(f, "; proceed in {}", ReadableWait(self.delay_us))?;
        }
        if self.leased {
            f.write_str(" (estimated: decided with leased units)")?;
        }
        if self.degraded {
            f.write_str(" (without the store, which failed)")?;
        }
        Ok(())
    }
}

const MS: u64 = 1_000;
const SECOND: u64 = 1_000 * MS;
const MINUTE: u64 = 60 * SECOND;
const HOUR: u64 = 60 * MINUTE;
const DAY: u64 = 24 * HOUR;

/// A time in microseconds, printed with one or two units. It is rounded up, so that a client that waits for the printed
/// time is not too early.
///
/// 5,123,456 is `5.2 s`, and 3,723,000,000 is `1 h 3 m`.
struct ReadableWait(u64);

impl fmt::Display for ReadableWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = match self.0 {
            0..MS => 1,
            MS..SECOND => MS,
            SECOND..MINUTE => SECOND / 10,
            MINUTE..HOUR => SECOND,
            HOUR..DAY => MINUTE,
            DAY.. => HOUR,
        };
        let us = self.0.checked_next_multiple_of(step).unwrap_or(self.0);
        match us {
            0..MS => write!(f, "{us} us"),
            MS..SECOND => write!(f, "{} ms", us / MS),
            SECOND..MINUTE if us % SECOND == 0 => write!(f, "{} s", us / SECOND),
            SECOND..MINUTE => write!(f, "{}.{} s", us / SECOND, us % SECOND / (SECOND / 10)),
            MINUTE..HOUR => write_two_units(f, us, (MINUTE, "m"), (SECOND, "s")),
            HOUR..DAY => write_two_units(f, us, (HOUR, "h"), (MINUTE, "m")),
            DAY.. => write_two_units(f, us, (DAY, "d"), (HOUR, "h")),
        }
    }
}

/// Writes a time in a large and a small unit: `2 m 5 s`, or `2 m` if nothing is left for the small unit.
fn write_two_units(
    f: &mut fmt::Formatter<'_>,
    us: u64,
    (large_us, large): (u64, &str),
    (small_us, small): (u64, &str),
) -> fmt::Result {
    write!(f, "{} {large}", us / large_us)?;
    match us % large_us / small_us {
        0 => Ok(()),
        rest => write!(f, " {rest} {small}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_rounded_up_and_have_at_most_two_units() {
        for (us, want) in [
            (0, "0 us"),
            (999, "999 us"),
            (1_000, "1 ms"),
            (1_001, "2 ms"),
            (999_001, "1 s"),
            (1_000_000, "1 s"),
            (5_123_456, "5.2 s"),
            (59_900_001, "1 m"),
            (125_000_000, "2 m 5 s"),
            (3_599_000_001, "1 h"),
            (3_723_000_000, "1 h 3 m"),
            (86_399_000_000, "1 d"),
            (90_000_000_001, "1 d 2 h"),
            (u64::MAX, "213503982 d 8 h"),
        ] {
            assert_eq!(ReadableWait(us).to_string(), want, "{us}");
        }
    }

    #[test]
    fn a_decision_is_one_line_with_the_time_to_wait() {
        let allowed = || ServerDecision {
            allowed: true,
            limit: 60,
            remaining: 54,
            retry_after_us: None,
            reset_after_us: 5_200_000,
            delay_us: 0,
            leased: false,
            degraded: false,
        };
        let denied =
            |retry_after_us| ServerDecision { allowed: false, retry_after_us, ..allowed() };
        for (decision, want) in [
            (allowed(), "allowed: 54 of 60 left, full again in 5.2 s"),
            (
                ServerDecision { reset_after_us: 0, remaining: 60, ..allowed() },
                "allowed: 60 of 60 left",
            ),
            (
                ServerDecision { delay_us: 300_000, ..allowed() },
                "allowed: 54 of 60 left, full again in 5.2 s; proceed in 300 ms",
            ),
            (
                ServerDecision { leased: true, ..allowed() },
                "allowed: 54 of 60 left, full again in 5.2 s (estimated: decided with leased units)",
            ),
            (
                ServerDecision { degraded: true, ..allowed() },
                "allowed: 54 of 60 left, full again in 5.2 s (without the store, which failed)",
            ),
            (denied(Some(400_000)), "denied: 54 of 60 left; try again in 400 ms"),
            (denied(None), "denied: costs more than the limit has; waiting does not help"),
        ] {
            assert_eq!(decision.to_string(), want);
        }
    }
}
