use ::http::HeaderValue;

use super::*;

/// The hops as texts, the last first; `-` for what is no address.
fn texts(hops: impl Iterator<Item = Option<IpAddr>>) -> String {
    let texts: Vec<String> =
        hops.map(|hop| hop.map_or("-".to_owned(), |ip| ip.to_string())).collect();
    texts.join(" ")
}

fn headers(name: &'static str, lines: &[&str]) -> HeaderMap {
    lines.iter().map(|line| (HeaderName::from_static(name), line.parse().unwrap())).collect()
}

fn hops_of_forwarded(line: &str) -> String {
    texts(forwarded(&headers("forwarded", &[line])))
}

#[test]
fn an_address_may_have_a_port_brackets_and_quotes() {
    for (value, wanted) in [
        ("203.0.113.9", Some("203.0.113.9")),
        (" \t203.0.113.9 ", Some("203.0.113.9")),
        ("203.0.113.9:5678", Some("203.0.113.9")),
        ("203.0.113.9:_hidden-1.x", Some("203.0.113.9")),
        ("2001:db8::7", Some("2001:db8::7")),
        ("[2001:db8::7]", Some("2001:db8::7")),
        ("[2001:db8::7]:443", Some("2001:db8::7")),
        ("\"[2001:db8::7]:443\"", Some("2001:db8::7")),
        ("\"203.0.113.9\"", Some("203.0.113.9")),
        ("\"\\203.0.\\113.9\"", Some("203.0.113.9")),
        ("::ffff:203.0.113.9", Some("203.0.113.9")),
        ("[::ffff:203.0.113.9]:443", Some("203.0.113.9")),
        ("[::ffff:cb00:7109]", Some("203.0.113.9")),
        ("2001:db8::203.0.113.9", Some("2001:db8::cb00:7109")),
    ] {
        assert_eq!(
            address(value.as_bytes()).map(|ip| ip.to_string()).as_deref(),
            wanted,
            "{value}"
        );
    }
}

#[test]
fn other_text_is_not_an_address() {
    for value in [
        "",
        " ",
        "unknown",
        "_hidden",
        "example.org",
        "203.0.113",
        "203.0.113.9.1",
        "203.0.113.256",
        "0203.0.113.9",
        "0xcb.0.113.9",
        "3405803785",
        "203.0.113.9:",
        "203.0.113.9:x",
        "203.0.113.9:123456",
        "203.0.113.9:+443",
        "203.0.113.9:_a b",
        "203.0.113.9 x",
        "203.0.113.9 203.0.113.8",
        "203.0.113.9/32",
        "[203.0.113.9]",
        "[203.0.113.9]:80",
        "2001:db8::7:x",
        "[2001:db8::7",
        "2001:db8::7]",
        "[2001:db8::7]443",
        "[2001:db8::7]:",
        "[2001:db8::7]x",
        "[[2001:db8::7]]",
        "fe80::1%eth0",
        "[fe80::1%eth0]:443",
        "fe80::1%1",
        "\"203.0.113.9",
        "203.0.113.9\"",
        "\"",
        "\"\"",
        "\"203.0.113.9\\\"",
        "\"203.0\".113.9\"",
        "\"\\\"203.0.113.9\\\"\"",
        "\u{661}.0.113.9",
        "for=203.0.113.9",
    ] {
        assert_eq!(address(value.as_bytes()), None, "{value}");
    }
    assert_eq!(address(b"\xff203.0.113.9"), None);
    assert_eq!(address(b"203.0.113.9:\xff"), None);
}

#[test]
fn the_longest_address_fits_between_quotes() {
    let longest = "\"[2001:0db8:1111:2222:3333:4444:255.255.255.255]:65535\"";
    assert!(address(longest.as_bytes()).is_some());
    let padded = format!("\"203.0.113.9:_{}\"", "x".repeat(MAX_VALUE_BYTES - 13));
    assert!(address(padded.as_bytes()).is_some());
    let too_long = format!("\"203.0.113.9:_{}\"", "x".repeat(MAX_VALUE_BYTES - 12));
    assert_eq!(address(too_long.as_bytes()), None);
}

#[test]
fn hops_come_from_the_right_of_the_last_line_first() {
    let lines = ["203.0.113.1,203.0.113.2", "203.0.113.3 ,\t203.0.113.4"];
    let wanted = "203.0.113.4 203.0.113.3 203.0.113.2 203.0.113.1";
    assert_eq!(texts(x_forwarded_for(&headers("x-forwarded-for", &lines))), wanted);
    let lines = ["for=203.0.113.1,for=203.0.113.2", "for=203.0.113.3 ,\tfor=203.0.113.4"];
    assert_eq!(texts(forwarded(&headers("forwarded", &lines))), wanted);
}

#[test]
fn an_empty_hop_is_a_hop() {
    let hops = |lines: &[&str]| texts(x_forwarded_for(&headers("x-forwarded-for", lines)));
    assert_eq!(hops(&[]), "");
    assert_eq!(hops(&[""]), "-");
    assert_eq!(hops(&["203.0.113.9,,"]), "- - 203.0.113.9");
    assert_eq!(hops(&["203.0.113.9", ""]), "- 203.0.113.9");
    assert_eq!(hops_of_forwarded(""), "-");
    assert_eq!(hops_of_forwarded("for=203.0.113.9,,"), "- - 203.0.113.9");
}

#[test]
fn elements_have_pairs_in_any_order_and_case() {
    for (line, wanted) in [
        ("for=203.0.113.9", "203.0.113.9"),
        ("FOR=203.0.113.9;Proto=https", "203.0.113.9"),
        ("proto=https;by=10.0.0.1;fOr=\"203.0.113.9:80\"", "203.0.113.9"),
        ("proto=https ; for=203.0.113.9 ; by=_x", "203.0.113.9"),
        (";for=203.0.113.9;;", "203.0.113.9"),
        ("for=203.0.113.9:80", "203.0.113.9"),
        ("for=[2001:db8::7]:443;proto=http", "2001:db8::7"),
        ("for=\"[2001:db8::7]:443\"", "2001:db8::7"),
        ("for=\"\\[2001:db8\\::7]\"", "2001:db8::7"),
        ("for=203.0.113.9;path=a=b", "203.0.113.9"),
        ("for=203.0.113.9;host=\"\"", "203.0.113.9"),
        ("for=203.0.113.9;host=", "203.0.113.9"),
        ("x=\\;for=203.0.113.9", "203.0.113.9"),
    ] {
        assert_eq!(hops_of_forwarded(line), wanted, "{line}");
    }
}

#[test]
fn commas_and_semicolons_within_quotes_separate_nothing() {
    for (line, wanted) in [
        ("for=203.0.113.9;host=\"a, for=8.8.8.8\"", "203.0.113.9"),
        ("for=203.0.113.9;host=\"a;for=8.8.8.8\"", "203.0.113.9"),
        (r#"for=203.0.113.9;host="\", for=8.8.8.8""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="\\\", for=8.8.8.8""#, "203.0.113.9"),
        (r#"for=203.0.113.9;host="a\";for=8.8.8.8""#, "203.0.113.9"),
        (r#"for=8.8.8.8;host="\\", for=203.0.113.9"#, "203.0.113.9 8.8.8.8"),
        (r#"for=8.8.8.8;host="\\\\",for="203.0.113.9""#, "203.0.113.9 8.8.8.8"),
        (r#"host="\\";for=203.0.113.9"#, "203.0.113.9"),
    ] {
        assert_eq!(hops_of_forwarded(line), wanted, "{line}");
    }
}

#[test]
fn malformed_element_gives_no_address() {
    for line in [
        "proto=https",
        "by=203.0.113.9",
        "203.0.113.9",
        "for",
        "for=",
        "=203.0.113.9",
        "for=unknown",
        "for=\"_hidden\"",
        "for =203.0.113.9",
        "for= 203.0.113.9",
        "xfor=203.0.113.9",
        "for=203.0.113.9;for=203.0.113.9",
        "for=203.0.113.9;For=8.8.8.8",
        "for=203.0.113.9;x",
        "for=203.0.113.9 x",
        "for=203.0.113.9;=x",
        "for=203.0.113.9;a b=x",
        "for=203.0.113.9;host=a b",
        "for=203.0.113.9;host=\"a\"b",
        "for=203.0.113.9;host=a\"b\"",
        "for=203.0.113.9;\"host\"=a",
        "for=203.0.113.9;host=\"a\"\"b\"",
        "for=\"203.0.113.9",
        "for=203.0.113.9;host=\"",
        "for=203.0.113.9;host=\"\\\"",
        "for=203.0.113.9;host=\"a;b",
    ] {
        assert_eq!(hops_of_forwarded(line), "-", "{line}");
    }
    let odd = HeaderValue::from_bytes(b"for=203.0.113.9;host=\xff").unwrap();
    let odd: HeaderMap = [(FORWARDED, odd)].into_iter().collect();
    assert_eq!(texts(forwarded(&odd)), "-");
}

#[test]
fn elements_after_a_malformed_one_are_still_read() {
    for (line, first) in [
        ("for=\", for=203.0.113.9", "203.0.113.9"),
        ("for=\"\\, for=203.0.113.9", "203.0.113.9"),
        ("for=8.8.8.8;host=\", for=\"[2001:db8::7]:443\"", "2001:db8::7"),
        ("for=8.8.8.8;host=\"\\, for=\"203.0.113.9\";host=\"a,b\"", "203.0.113.9"),
        ("\"\"\", for=203.0.113.9;proto=https", "203.0.113.9"),
        ("\\\", for=\"203.0.113.9\"", "203.0.113.9"),
    ] {
        assert_eq!(hops_of_forwarded(line).split(' ').next(), Some(first), "{line}");
    }
}

#[test]
fn the_last_line_of_x_real_ip_counts() {
    let of = |lines: &[&str]| x_real_ip(&headers("x-real-ip", lines)).map(|ip| ip.to_string());
    assert_eq!(of(&[]), None);
    assert_eq!(of(&["203.0.113.9"]).as_deref(), Some("203.0.113.9"));
    assert_eq!(of(&["8.8.8.8", "203.0.113.9:80"]).as_deref(), Some("203.0.113.9"));
    assert_eq!(of(&["8.8.8.8", "unknown"]), None);
    assert_eq!(of(&["8.8.8.8, 203.0.113.9"]), None);
}

/// Were time quadratic in a line's length, this would not end.
#[test]
fn lines_of_256_kib_are_read() {
    for part in ["\\", "\"", "\\\"", "\\\\\"", ",", ";", ";a=\"", ",\"", "for=\"1\";", "9", " "] {
        let line = part.repeat((1 << 18) / part.len());
        for line in [line.clone(), format!("{line}\""), format!("for=\"{line}\"")] {
            let lines = [&*line];
            assert!(forwarded(&headers("forwarded", &lines)).all(|hop| hop.is_none()));
            assert!(x_forwarded_for(&headers("x-forwarded-for", &lines)).all(|hop| hop.is_none()));
            assert_eq!(x_real_ip(&headers("x-real-ip", &lines)), None);
        }
    }
}
