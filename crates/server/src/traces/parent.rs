//! Reads the caller's trace from the header `traceparent` (W3C Trace Context).

use hyper::HeaderMap;
use opentelemetry::trace::{SpanContext, SpanId, TraceFlags, TraceId, TraceState};

/// Returns the caller's span, if there is exactly one valid header. The header `tracestate` is ignored: the server
/// calls no further service that would need it.
pub(super) fn parent(headers: &HeaderMap) -> Option<SpanContext> {
    let mut values = headers.get_all("traceparent").iter();
    match (values.next(), values.next()) {
        (Some(value), None) => parse(value.as_bytes()),
        _ => None,
    }
}

/// Parses `00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01`: version, trace, span, and whether it is sampled.
/// Later versions may have further fields at the end.
fn parse(text: &[u8]) -> Option<SpanContext> {
    let (head, rest) = text.split_at_checked(55)?;
    let [v0, v1, b'-', trace @ .., b'-', f0, f1] = head else { return None };
    let (trace, span) = trace.split_at_checked(32)?;
    let span = span.strip_prefix(b"-")?;
    let version = hex(&[*v0, *v1])?;
    let is_whole = match version {
        0 => rest.is_empty(),
        0xff => false,
        _ => rest.is_empty() || rest.starts_with(b"-"),
    };
    let trace = TraceId::from(hex(trace)?);
    // OK because 16 digits are at most 64 bits.
    let span = SpanId::from(u64::try_from(hex(span)?).ok()?);
    let flags = match hex(&[*f0, *f1])? & 1 {
        1 => TraceFlags::SAMPLED,
        _ => TraceFlags::NOT_SAMPLED,
    };
    let parent = SpanContext::new(trace, span, flags, true, TraceState::NONE);
    Some(parent).filter(|parent| is_whole && parent.is_valid())
}

/// Parses a number of at most 32 lower-case hexadecimal digits.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0, |number: u128, digit| {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(number << 4 | u128::from(value))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_valid_header_gives_the_callers_span() {
        for (version, flags, rest, is_sampled) in [
            ("00", "01", "", true),
            ("00", "00", "", false),
            ("00", "03", "", true),
            ("cc", "01", "-x", true),
        ] {
            let text = format!("{version}-{TRACE}-{SPAN}-{flags}{rest}");
            let parent = parse(text.as_bytes()).unwrap();
            assert_eq!(parent.trace_id().to_string(), TRACE);
            assert_eq!(parent.span_id().to_string(), SPAN);
            assert_eq!((parent.is_sampled(), parent.is_remote()), (is_sampled, true));
        }
    }

    #[test]
    fn invalid_headers_are_ignored() {
        let zeros = "0".repeat(32);
        let bad = [
            String::new(),
            "00-1-1-01".to_owned(),
            format!("ff-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01-x"),
            format!("cc-{TRACE}-{SPAN}-01x"),
            format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            format!("00-{zeros}-{SPAN}-01"),
            format!("00-{TRACE}-{}-01", &zeros[..16]),
            format!("00-{TRACE}-{SPAN}-0g"),
            format!("00-{TRACE}-{SPAN}-"),
            format!("00_{TRACE}_{SPAN}_01"),
            format!("+0-{TRACE}-{SPAN}-01"),
            format!("00-{TRACE}-{SPAN}-01 "),
        ];
        for text in bad {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn two_headers_are_ignored() {
        let value: hyper::header::HeaderValue = format!("00-{TRACE}-{SPAN}-01").parse().unwrap();
        let mut headers = HeaderMap::new();
        headers.append("traceparent", value.clone());
        assert!(parent(&headers).is_some());
        headers.append("traceparent", value);
        assert_eq!(parent(&headers), None);
    }
}
