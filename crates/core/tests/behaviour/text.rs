//! Limits as text, and the error messages of texts that are refused.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    AlgorithmName, Concurrency, Cost, FixedWindow, Limit, LimitError, Notation, Rate,
    SlidingWindowLog, TokenBucket, parse_duration,
};

use tollgate_conformance::any;

proptest! {
    #[test]
    fn printed_limit_parses_back(limit in prop_oneof![any::limit(), any::concurrency_limit()]) {
        prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit));
    }

    #[test]
    fn any_text_parses_or_is_refused_with_a_message(text in "\\PC{0,60}") {
        parses_or_says_why(&text)?;
    }

    #[test]
    fn misspelt_text_parses_or_is_refused_with_a_message(
        algorithm in "fixed-window|sliding-window-log|sliding-window-counter|token-bucket|leaky-bucket|leaky|concurrency",
        parameters in prop::collection::vec(
            ("limit|window|capacity|refill|leak|mode|for|x", "[=:]?", "[0-9]{0,21}", "[./]?", "[0-9]{0,21}", "(us|ms|s|m|h|d|µs|policing|/s)?")
                .prop_map(|(name, equals, a, sep, b, unit)| format!("{name}{equals}{a}{sep}{b}{unit}")),
            0..4,
        ),
    ) {
        parses_or_says_why(&format!("{algorithm} {}", parameters.join(" ")))?;
    }

    #[test]
    fn constructors_accept_or_say_why(units: u64, secs: u64, nanos in 0..1_000_000_000_u32, per: u64) {
        let duration = Duration::new(secs, nanos);
        let messages = [
            FixedWindow::new(units, duration).err(),
            SlidingWindowLog::new(units, duration).err(),
            Concurrency::new(units, duration).err(),
            Rate::new(units, duration).err(),
            Rate::per_second(units).and_then(|rate| TokenBucket::new(per, rate)).err(),
        ];
        for message in messages.into_iter().flatten() {
            prop_assert!(message.to_string().contains("; "));
        }
        if let Err(error) = Cost::new(units) {
            prop_assert!(error.to_string().contains("; "));
        }
    }
}

/// Asserts that a text parses, or that its error names the problem and, after a semicolon, the remedy, in one line of
/// bounded length.
fn parses_or_says_why(text: &str) -> Result<(), TestCaseError> {
    match text.parse::<Limit>() {
        Ok(limit) => prop_assert_eq!(limit.to_string().parse::<Limit>(), Ok(limit)),
        Err(error) => {
            let message = error.to_string();
            prop_assert!(message.contains("; "), "{message}");
            prop_assert!(message.len() < 1_000 && !message.contains('\n'), "{message}");
        }
    }
    Ok(())
}

#[test]
fn limits_parse_in_common_notations() {
    for (text, printed) in [
        ("token-bucket capacity=10 refill=1/s", "token-bucket capacity=10 refill=1/s"),
        ("  token-bucket\trefill=10/s   capacity=10 ", "token-bucket capacity=10 refill=10/s"),
        ("token-bucket capacity=10 refill=100/m", "token-bucket capacity=10 refill=100/m"),
        ("token-bucket capacity=10 refill=60/m", "token-bucket capacity=10 refill=1/s"),
        ("token-bucket capacity=10 refill=3/7ms", "token-bucket capacity=10 refill=3/7ms"),
        ("token-bucket capacity=10 refill=0.1/s", "token-bucket capacity=10 refill=6/m"),
        ("token-bucket capacity=10 refill=2.5/s", "token-bucket capacity=10 refill=150/m"),
        (
            "token-bucket capacity=1000000 refill=999983/d",
            "token-bucket capacity=1000000 refill=999983/d",
        ),
        ("leaky-bucket capacity=10 leak=1/s", "leaky-bucket capacity=10 leak=1/s mode=policing"),
        (
            "leaky-bucket mode=shaping capacity=10 leak=1/s",
            "leaky-bucket capacity=10 leak=1/s mode=shaping",
        ),
        ("fixed-window limit=10000000 window=24h", "fixed-window limit=10000000 window=1d"),
        (
            "sliding-window-log limit=65536 window=250ms",
            "sliding-window-log limit=65536 window=250ms",
        ),
        (
            "sliding-window-counter limit=9007199254740991 window=366d",
            "sliding-window-counter limit=9007199254740991 window=366d",
        ),
        (
            "sliding-window-counter limit=100 window=90s",
            "sliding-window-counter limit=100 window=90s",
        ),
    ] {
        assert_eq!(text.parse::<Limit>().unwrap().to_string(), printed);
    }
}

#[test]
fn parameters_parse_as_the_text_does() {
    for text in [
        "leaky-bucket leak=1/s capacity=10",
        "fixed-window limit=1 window=1s",
        "token-bucket limit=1",
    ] {
        let (name, parameters) = text.split_once(' ').unwrap();
        let pairs = parameters.split(' ').map(|pair| pair.split_once('=').unwrap());
        assert_eq!(Limit::from_parameters(name.parse().unwrap(), pairs), text.parse());
    }
    let long = "1".repeat(2_000);
    let pairs = [("limit", long.as_str()), ("window", "1s")];
    let error = Limit::from_parameters(AlgorithmName::FixedWindow, pairs).unwrap_err();
    assert_eq!(error, LimitError::ValueTooLong { parameter: "limit", bytes: 2_000 });
    assert!(parse_duration("deadline", &format!("{long}sec")).is_err());
}

#[test]
fn limit_error_is_worded_for_yaml() {
    for (text, parameter, yaml) in [
        (
            "fixed-window limit=x window=1s",
            Some("limit"),
            "`limit: x` is not a whole number; use digits alone",
        ),
        (
            "leaky-bucket capacity=1",
            Some("leak"),
            "`leak` is missing; write the limit like `{ algorithm: leaky-bucket, capacity: 10, leak: 1/s, mode: policing }`",
        ),
        (
            "leaky-bucket capacity=1 leak=1/s mode=x",
            Some("mode"),
            "`mode: x` is unknown; use `mode: policing` or `mode: shaping`",
        ),
        (
            "token-bucket capacity=1000000 refill=1/d",
            Some("refill"),
            "`capacity: 1000000` at `refill: 1/d` takes over 100 years to fill; raise `refill` or lower `capacity`",
        ),
        ("", None, "the limit is empty; write one like `token-bucket capacity=10 refill=1/s`"),
    ] {
        let error = text.parse::<Limit>().unwrap_err();
        assert_eq!(error.parameter(), parameter, "{text}");
        let (problem, remedy) = (error.problem(Notation::Yaml), error.remedy(Notation::Yaml));
        assert_eq!(format!("{problem}; {remedy}"), yaml);
    }
}

#[test]
fn largest_values_are_accepted_and_one_more_is_refused() {
    for (largest, too_large) in [
        ("token-bucket capacity=36525 refill=1/d", "token-bucket capacity=36526 refill=1/d"),
        ("token-bucket capacity=1 refill=1/36525d", "token-bucket capacity=1 refill=1/36526d"),
        ("fixed-window limit=1 window=366d", "fixed-window limit=1 window=31622400000001us"),
        ("sliding-window-log limit=65536 window=1s", "sliding-window-log limit=65537 window=1s"),
        (
            "sliding-window-counter limit=9007199254740991 window=1s",
            "sliding-window-counter limit=9007199254740992 window=1s",
        ),
    ] {
        assert!(largest.parse::<Limit>().is_ok(), "{largest}");
        assert!(too_large.parse::<Limit>().is_err(), "{too_large}");
    }
}

#[test]
fn rate_is_a_fraction_in_lowest_terms() {
    let rate = |units, per| Rate::new(units, per).unwrap();
    assert_eq!(rate(60, Duration::from_secs(60)), Rate::per_second(1).unwrap());
    let odd = rate(3, Duration::from_millis(7));
    assert_eq!((odd.units(), odd.per_us()), (3, 7_000));
    assert_eq!(Rate::per_day(24).unwrap(), Rate::per_hour(1).unwrap());
    assert_eq!(Rate::per_minute(60).unwrap(), Rate::per_second(1).unwrap());
    assert_eq!("0.1/s".parse(), Rate::per_minute(6));
    assert!("10".parse::<Rate>().is_err());
}

#[test]
fn every_limit_error_names_the_problem_and_the_remedy() {
    let refused = [
        "",
        "   ",
        "tokenbucket capacity=10 refill=1/s",
        "Fixed_Window limit=1 window=1s",
        "leaky capacity=10 leak=1/s",
        "gcra limit=1",
        "\u{1b}[31mred\u{7} limit=1",
        "token-bucket",
        "token-bucket capacity=10",
        "token-bucket capacity 10 refill=1/s",
        "token-bucket limit=10 window=1s",
        "token-bucket capacity=10 capacity=10 refill=1/s",
        "token-bucket capacity= refill=1/s",
        "token-bucket capacity=ten refill=1/s",
        "token-bucket capacity=+1 refill=1/s",
        "token-bucket capacity=-1 refill=1/s",
        "token-bucket capacity=1.5 refill=1/s",
        "token-bucket capacity=0 refill=1/s",
        "token-bucket capacity=9007199254740992 refill=1000000/s",
        "token-bucket capacity=99999999999999999999 refill=1/s",
        "token-bucket capacity=10 refill=10",
        "token-bucket capacity=10 refill=/s",
        "token-bucket capacity=10 refill=1./s",
        "token-bucket capacity=10 refill=.5/s",
        "token-bucket capacity=10 refill=10/sec",
        "token-bucket capacity=10 refill=10/Minutes",
        "token-bucket capacity=10 refill=10/fortnight",
        "token-bucket capacity=10 refill=0/s",
        "token-bucket capacity=10 refill=1/0s",
        "token-bucket capacity=10 refill=1/99999d",
        "token-bucket capacity=10 refill=0.0000000000000001/s",
        "token-bucket capacity=1000000 refill=1/d",
        "leaky-bucket capacity=10 leak=1/s mode=queue",
        "leaky-bucket capacity=4000 leak=1/10d mode=policing",
        "fixed-window limit=10 window=60",
        "fixed-window limit=10 window=s",
        "fixed-window limit=10 window=1.5s",
        "fixed-window limit=10 window=10sec",
        "fixed-window limit=10 window=5µs",
        "fixed-window limit=10 window=0s",
        "fixed-window limit=10 window=367d",
        "fixed-window limit=10 window=99999999999999999999d",
        "fixed-window limit=10 window=1h30m",
        "sliding-window-log limit=65537 window=1s",
        "concurrency",
        "concurrency limit=10",
        "concurrency limit=10 window=60s",
        "concurrency limit=0 for=60s",
        "concurrency limit=1025 for=60s",
        "concurrency limit=10 for=60",
        "concurrency limit=10 for=0s",
        "concurrency limit=10 for=367d",
        "concurrencylimit=10",
    ];
    let mut report = String::new();
    for text in refused {
        let error = text.parse::<Limit>().unwrap_err();
        report += &format!("{}\n    {error}\n", text.escape_debug());
    }
    let long = "x".repeat(2_000);
    report += &format!("2,000 times x\n    {}\n", long.parse::<Limit>().unwrap_err());
    let long = format!("fixed-window {}", "y".repeat(500));
    report +=
        &format!("fixed-window and 500 times y\n    {}\n", long.parse::<Limit>().unwrap_err());
    let uneven = FixedWindow::new(1, Duration::from_nanos(1_500)).unwrap_err();
    report += &format!("a window of 1,500 ns\n    {uneven}\n");
    let uneven = Concurrency::new(1, Duration::from_nanos(1_500)).unwrap_err();
    report += &format!("a hold time of 1,500 ns\n    {uneven}\n");
    insta::assert_snapshot!(report);
}
