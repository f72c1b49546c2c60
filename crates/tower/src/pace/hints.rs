//! How long a response asks the client to wait.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ::http::header::RETRY_AFTER;
use ::http::{HeaderMap, HeaderValue, StatusCode};
use sfv::{BareItem, Dictionary, List, ListEntry, Parameters, Parser};

/// The field of the newest drafts, `RateLimit: "default";r=0;t=5`, and of older ones, `limit=100, remaining=0, reset=5`.
const RATE_LIMIT: &str = "ratelimit";

/// Pairs of fields with the remaining quota and its reset: of early drafts, of most APIs, and of a few others.
const PAIRS: [(&str, &str); 3] = [
    ("ratelimit-remaining", "ratelimit-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("x-rate-limit-remaining", "x-rate-limit-reset"),
];

/// A larger number of seconds is a time and not a wait: as a wait it would be 31 years, as Unix seconds it is the
/// year 2001.
const MOST_SECONDS: Duration = Duration::from_secs(1_000_000_000);

/// A larger number is Unix milliseconds.
const MOST_UNIX_SECONDS: Duration = Duration::from_secs(1_000_000_000_000);

/// Returns how long to wait before the next request. Pure: `now` is the wall clock's time, from which the distance
/// of a date is computed.
///
/// The kinds of fields are tried in this order: `Retry-After`, which gives the wait until the next request;
/// `RateLimit`, the wait until more quota is available; the other fields, the wait until more or all of the quota is
/// available. The first kind that gives a wait is used; if it gives several, the longest.
///
/// A 429 with `Retry-After: 7` gives 7 s. A 200 with `RateLimit: "default";r=0;t=5` gives 5 s; with `r=1` it gives no
/// wait, because one more request is allowed. Fields that cannot be parsed are ignored.
pub(super) fn delay(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let pair = |(remaining, reset): &(&str, &str)| pair(headers, remaining, reset, now);
    retry_after(status, headers, now)
        .or_else(|| rate_limit(headers))
        .or_else(|| PAIRS.iter().filter_map(pair).max())
}

/// Reads `Retry-After`, on a status for which it is about the next request. GitHub sends 403 for too many concurrent
/// requests.
fn retry_after(status: StatusCode, headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    match status {
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::FORBIDDEN => {
        }
        _ => return None,
    }
    let wait = |text| seconds(text).or_else(|| until(httpdate::parse_http_date(text).ok()?, now));
    texts(headers, RETRY_AFTER.as_str()).filter_map(wait).max()
}

/// Reads a pair of fields, such as `X-RateLimit-Remaining: 0` and `X-RateLimit-Reset: 1700000000`.
fn pair(headers: &HeaderMap, remaining: &str, reset: &str, now: SystemTime) -> Option<Duration> {
    let is_spent = |text: &str| text.parse::<i64>().is_ok_and(|left| left <= 0);
    if !texts(headers, remaining).any(is_spent) {
        return None;
    }
    texts(headers, reset).filter_map(|text| wait_or_time(seconds(text)?, now)).max()
}

/// Reads seconds from now, or a time in Unix seconds or milliseconds; the size of the number decides which.
fn wait_or_time(value: Duration, now: SystemTime) -> Option<Duration> {
    if value <= MOST_SECONDS {
        return Some(value);
    }
    let since_epoch = match value <= MOST_UNIX_SECONDS {
        true => value,
        false => Duration::from_millis(value.as_secs()),
    };
    until(UNIX_EPOCH.checked_add(since_epoch)?, now)
}

fn rate_limit(headers: &HeaderMap) -> Option<Duration> {
    let lines = headers.get_all(RATE_LIMIT).iter().map(HeaderValue::as_bytes).collect::<Vec<_>>();
    let field = lines.join(&b", "[..]);
    if let Ok(list) = Parser::new(&field).parse::<List>() {
        return list.iter().filter_map(item).max();
    }
    let fields = Parser::new(&field).parse::<Dictionary>().ok()?;
    let value = |name: &str| match fields.get(name)? {
        ListEntry::Item(item) => integer(&item.bare_item),
        ListEntry::InnerList(_) => None,
    };
    wait_if_spent(value("remaining")?, value("reset")?)
}

/// Reads one quota: `"default";r=0;t=5`.
fn item(entry: &ListEntry) -> Option<Duration> {
    let parameters: &Parameters = match entry {
        ListEntry::Item(item) => &item.params,
        ListEntry::InnerList(list) => &list.params,
    };
    let value = |name: &str| integer(parameters.get(name)?);
    wait_if_spent(value("r")?, value("t")?)
}

fn wait_if_spent(remaining: i64, reset_s: i64) -> Option<Duration> {
    (remaining <= 0).then_some(Duration::from_secs(u64::try_from(reset_s).ok()?))
}

fn integer(item: &BareItem) -> Option<i64> {
    item.as_integer().map(i64::from)
}

/// Returns the value of each line of a field, except for values that are not text.
fn texts<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    headers.get_all(name).iter().filter_map(|value| value.to_str().ok()).map(str::trim)
}

/// Parses `7`, and `0.25`, which some servers send. A number above 64 bits becomes `u64::MAX`.
fn seconds(text: &str) -> Option<Duration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    if [whole, fraction].iter().any(|digits| !is_number(digits)) {
        return None;
    }
    // Nine digits: the nanoseconds.
    let nanos = format!("{fraction:0<9.9}").parse().ok()?;
    Some(Duration::new(whole.parse().unwrap_or(u64::MAX), nanos))
}

fn is_number(digits: &str) -> bool {
    !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit())
}

/// Returns the time from `now` until `time`; `None` if it has passed.
fn until(time: SystemTime, now: SystemTime) -> Option<Duration> {
    time.duration_since(now).ok()
}

#[cfg(test)]
mod tests {
    use ::http::HeaderName;
    use proptest::prelude::*;

    use super::*;

    /// Sunday, 6 November 1994, 08:49:30 GMT: seven seconds before the RFC's own example.
    const NOW_S: u64 = 784_111_770;

    /// The delay that a response asks for with this status and these header lines, in milliseconds.
    fn delay_ms(status: u16, lines: &str) -> Option<u128> {
        delay_ms_at(NOW_S, status, lines)
    }

    fn delay_ms_at(now_s: u64, status: u16, lines: &str) -> Option<u128> {
        let mut headers = HeaderMap::new();
        for line in lines.lines() {
            let (name, value) = line.split_once(": ").unwrap();
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        let now = UNIX_EPOCH + Duration::from_secs(now_s);
        let status = StatusCode::from_u16(status).unwrap();
        delay(status, &headers, now).map(|delay| delay.as_millis())
    }

    #[test]
    fn retry_after_is_seconds_or_a_date_in_any_of_the_three_forms() {
        let table = [
            ("7", Some(7_000)),
            ("0", Some(0)),
            ("007", Some(7_000)),
            ("0.25", Some(250)),
            ("1.5", Some(1_500)),
            ("Sun, 06 Nov 1994 08:49:37 GMT", Some(7_000)),
            ("Sunday, 06-Nov-94 08:49:37 GMT", Some(7_000)),
            ("Sun Nov  6 08:49:37 1994", Some(7_000)),
            ("Sun, 06 Nov 1994 08:49:30 GMT", Some(0)),
            ("Sun, 06 Nov 1994 08:49:29 GMT", None),
            ("Mon, 06 Nov 1994 08:49:37 GMT", None), // it was a Sunday
            ("Sun, 06 Nov 1994 08:49:37 CET", None),
            ("-7", None),
            ("+7", None),
            ("7s", None),
            ("NaN", None),
            ("inf", None),
            ("1e3", None),
            ("0x10", None),
            (".5", None),
            ("5.", None),
            ("1.2.3", None),
            ("1,5", None),
            ("٧", None),
            ("", None),
            ("soon", None),
        ];
        for (value, want) in table {
            assert_eq!(delay_ms(429, &format!("retry-after: {value}")), want, "{value}");
        }
    }

    #[test]
    fn retry_after_is_the_longest_wait_when_the_number_is_too_large() {
        let digits = "9".repeat(400);
        let longest = Some(u128::from(u64::MAX) * 1_000);
        assert_eq!(delay_ms(429, &format!("retry-after: {digits}")), longest);
    }

    #[test]
    fn retry_after_counts_only_with_status_429_503_and_403() {
        for status in [429, 503, 403] {
            assert_eq!(delay_ms(status, "retry-after: 7"), Some(7_000), "{status}");
        }
        for status in [200, 202, 301, 302, 307, 400, 404, 413, 500, 502] {
            assert_eq!(delay_ms(status, "retry-after: 7"), None, "{status}");
        }
    }

    #[test]
    fn ratelimit_gives_a_wait_only_when_the_quota_is_spent() {
        let table = [
            (r#""default";r=0;t=5"#, Some(5_000)),
            (r#""default";t=5;r=0"#, Some(5_000)),
            ("default;r=0;t=5", Some(5_000)),
            (r#""default";r=0;t=5;pk=:cGs=:;x=?1;y="z""#, Some(5_000)),
            (r#""default";r=-1;t=5"#, Some(5_000)),
            (r#""default";r=1;t=5"#, None),
            (r#""default";r=0"#, None),
            (r#""default";t=5"#, None),
            (r#""default""#, None),
            (r#""default";r=0;t=-5"#, None),
            (r#""default";r=0;t=5.5"#, None),
            (r#""default";r="0";t=5"#, None),
            (r#""default";r=0;t=5;t=6"#, Some(6_000)),
            (r#""burst";r=0;t=2, "day";r=0;t=9, "month";r=5;t=99"#, Some(9_000)),
            ("\"burst\";r=0;t=2\nratelimit: \"day\";r=0;t=9", Some(9_000)),
            (r#"("a" "b");r=0;t=5"#, Some(5_000)),
            (r#""default";r=0;t=999999999999999"#, Some(999_999_999_999_999_000)),
            (r#""default";r=0;t=9999999999999999"#, None), // more than the format has
            (r#""default;r=0;t=5"#, None),
            (r#""default";r=0;t=5,"#, None),
            ("limit=100, remaining=0, reset=5", Some(5_000)),
            ("limit=100\nratelimit: remaining=0\nratelimit: reset=5", Some(5_000)),
            ("limit=100, remaining=1, reset=5", None),
            ("limit=100, remaining=0", None),
            ("limit=100, remaining=0, reset=(5)", None),
            ("limit=100, remaining=NaN, reset=5", None),
            ("", None),
        ];
        for (value, want) in table {
            for status in [200, 429] {
                assert_eq!(delay_ms(status, &format!("ratelimit: {value}")), want, "{value}");
            }
        }
    }

    #[test]
    fn pair_of_fields_gives_a_wait_when_the_quota_is_spent() {
        const NOW_S: u64 = 1_700_000_000;
        let table = [
            ("0", "5", Some(5_000)),
            ("0", "5.25", Some(5_250)),
            ("-3", "5", Some(5_000)),
            ("1", "5", None),
            ("0", "-5", None),
            ("0", "NaN", None),
            ("0", "", None),
            ("", "5", None),
            ("NaN", "5", None),
            ("none", "5", None),
            ("0", "1000000000", Some(1_000_000_000_000)),
            ("0", "1000000001", None), // a time, long ago
            ("0", "1700000007", Some(7_000)),
            ("0", "1700000007.5", Some(7_500)),
            ("0", "1699999999", None),
            ("0", "1000000000000", Some(998_300_000_000_000)), // the last in seconds
            ("0", "1700000007125", Some(7_125)),
            ("0", "1699999999999", None),
        ];
        for family in ["ratelimit", "x-ratelimit", "x-rate-limit"] {
            for (remaining, reset, want) in table {
                let lines = format!("{family}-remaining: {remaining}\n{family}-reset: {reset}");
                assert_eq!(delay_ms_at(NOW_S, 200, &lines), want, "{lines}");
            }
            assert_eq!(delay_ms(429, &format!("{family}-remaining: 0")), None);
            assert_eq!(delay_ms(429, &format!("{family}-reset: 5")), None);
        }
        assert_eq!(delay_ms(429, "x-ratelimit-remaining: 0\nratelimit-reset: 5"), None);
    }

    #[test]
    fn most_exact_hint_is_used() {
        let classic = "x-ratelimit-remaining: 0\nx-ratelimit-reset: 9";
        let draft = format!("ratelimit: \"a\";r=0;t=2\n{classic}");
        let all = format!("retry-after: 3\nretry-after: 4\n{draft}");
        for (lines, refused, allowed) in
            [(&all, 4_000, 2_000), (&draft, 2_000, 2_000), (&classic.to_owned(), 9_000, 9_000)]
        {
            assert_eq!(delay_ms(429, lines), Some(refused), "{lines}");
            assert_eq!(delay_ms(200, lines), Some(allowed), "{lines}");
        }
        assert_eq!(delay_ms(429, "server: x"), None);
    }

    proptest! {
        #[test]
        fn any_header_value_is_read_or_ignored(
            status in 100_u16..1_000,
            now_s in 0_u64..1 << 40,
            lines in prop::collection::vec((0..8_usize, value()), 0..8),
        ) {
            let names = PAIRS.iter().flat_map(|&(remaining, reset)| [remaining, reset]);
            let names = names.chain([RATE_LIMIT, "retry-after"]).collect::<Vec<_>>();
            let mut headers = HeaderMap::new();
            for (name, value) in lines {
                if let Ok(value) = HeaderValue::from_bytes(&value) {
                    headers.append(names[name], value);
                }
            }
            let status = StatusCode::from_u16(status).unwrap();
            let _ = delay(status, &headers, UNIX_EPOCH + Duration::from_secs(now_s));
        }
    }

    /// Any bytes, and values that are nearly valid.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        let text = prop_oneof![
            "[-+]?[0-9]{1,30}(\\.[0-9]{0,12})?",
            "\"[a-z]{0,3}\";r=-?[0-9]{1,16};t=-?[0-9]{1,16}(, ?)?",
            "remaining=-?[0-9]{1,2}, reset=-?[0-9]{1,16}",
            "[A-Z][a-z]{2,8}, [0-9]{2}[- ][A-Z][a-z]{2}[- ][0-9]{2,4} [0-9:]{8} GMT",
            "\\PC{0,40}",
        ];
        prop_oneof![text.prop_map(String::into_bytes), prop::collection::vec(any::<u8>(), 0..40),]
    }
}
