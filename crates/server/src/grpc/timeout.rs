//! How long a caller waits: `grpc-timeout: 20m` is 20 ms.

use std::time::Duration;

use hyper::HeaderMap;

/// Returns the timeout of a caller; `None` if the header is absent or invalid.
pub(super) fn of_caller(headers: &HeaderMap) -> Option<Duration> {
    let [digits @ .., unit] = headers.get("grpc-timeout")?.as_bytes() else { return None };
    // The protocol allows 8 digits, with which no unit overflows.
    if !(1..=8).contains(&digits.len()) || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number = digits.iter().fold(0, |number: u64, digit| 10 * number + u64::from(digit - b'0'));
    Some(match unit {
        b'H' => Duration::from_secs(3_600 * number),
        b'M' => Duration::from_secs(60 * number),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    fn parsed(text: &[u8]) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", HeaderValue::from_bytes(text).unwrap());
        of_caller(&headers)
    }

    #[test]
    fn every_unit_is_parsed() {
        for (text, want_ns) in [
            ("1H", 3_600_000_000_000),
            ("2M", 120_000_000_000),
            ("3S", 3_000_000_000),
            ("20m", 20_000_000),
            ("5u", 5_000),
            ("0n", 0),
            ("99999999n", 99_999_999),
            ("00000001m", 1_000_000),
        ] {
            assert_eq!(parsed(text.as_bytes()), Some(Duration::from_nanos(want_ns)), "{text}");
        }
        assert_eq!(parsed(b"99999999H"), Some(Duration::from_secs(99_999_999 * 3_600)));
    }

    #[test]
    fn invalid_timeout_is_ignored() {
        assert_eq!(of_caller(&HeaderMap::new()), None);
        for text in [
            &b""[..],
            b"m",
            b"20",
            b"20s",
            b"-1m",
            b"+1m",
            b"1.5S",
            b" 1m",
            b"1 m",
            b"1m ",
            b"0x1m",
            b"999999999n",
            b"99999999999999999999H",
            b"\xff\xffm",
            b"1\xff",
        ] {
            assert_eq!(parsed(text), None, "{text:?}");
        }
    }
}
