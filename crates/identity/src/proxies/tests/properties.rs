//! Against a walk over hops that need no parsing, and with bytes that mean nothing.

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

const NETS: [&str; 6] = [
    "10.0.0.0/8",
    "10.1.0.0/16",
    "192.0.2.7/32",
    "2001:db8::/32",
    "2001:db8:1::/48",
    "fd00::1/128",
];

#[derive(Clone, Debug)]
enum Hop {
    Address(IpAddr),
    Other(&'static str),
}

/// Mostly of the nets above, so that walks are long.
fn address() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        6 => (0..3u8, 0..3u8).prop_map(|(b, d)| IpAddr::from([10, b, 0, d])),
        3 => (0..3u16).prop_map(|n| IpAddr::from([0x2001, 0xdb8, n, 0, 0, 0, 0, n])),
        1 => select(&["192.0.2.7", "192.0.2.8", "fd00::1", "fd00::2"][..]).prop_map(ip),
        1 => any::<[u8; 4]>().prop_map(IpAddr::from),
        1 => any::<[u16; 8]>().prop_map(|parts| IpAddr::from(parts).to_canonical()),
    ]
}

fn hop() -> impl Strategy<Value = Hop> {
    let other = select(&["unknown", "_hidden", "", "10.0.0", "fe80::1%1", "example.org"][..]);
    prop_oneof![20 => address().prop_map(Hop::Address), 1 => other.prop_map(Hop::Other)]
}

/// Hops, each with what decides how it is written.
fn hops() -> impl Strategy<Value = Vec<(Hop, u32)>> {
    prop::collection::vec((hop(), any::<u32>()), 0..80)
}

fn nets() -> impl Strategy<Value = Vec<&'static str>> {
    subsequence(&NETS[..], 1..=NETS.len())
}

fn is_trusted(nets: &[&str], ip: IpAddr) -> bool {
    nets.iter().any(|net| net.parse::<IpNet>().unwrap().contains(&ip))
}

fn naive(nets: &[&str], peer: IpAddr, hops: &[(Hop, u32)]) -> IpAddr {
    let mut client = peer;
    for (hop, _) in hops.iter().rev().take(64) {
        match hop {
            Hop::Address(ip) if is_trusted(nets, client) => client = *ip,
            _ => break,
        }
    }
    client
}

/// One of several, by some bits of `style`.
fn pick<'a>(style: u32, shift: u32, among: &[&'a str]) -> &'a str {
    among[(style >> shift) as usize % among.len()]
}

/// Writes the address with or without a port, brackets, and the IPv6 form.
fn node(hop: &Hop, style: u32) -> String {
    let port = pick(style, 0, &["", "", ":80", ":65535", ":_p"]);
    match hop {
        Hop::Other(text) => (*text).to_owned(),
        Hop::Address(IpAddr::V4(ip)) if style & 0x300 == 0x300 => {
            format!("[{}]{port}", ip.to_ipv6_mapped())
        }
        Hop::Address(IpAddr::V4(ip)) => format!("{ip}{port}"),
        Hop::Address(IpAddr::V6(ip)) if style & 0x100 == 0 => ip.to_string(),
        Hop::Address(IpAddr::V6(ip)) => format!("[{ip}]{port}"),
    }
}

fn element(hop: &Hop, style: u32) -> String {
    let before = pick(style, 10, &["", "", "proto=https;", "by=\"a;b,c\";", ";", "x=\"\\\\\"; "]);
    let after = pick(style, 13, &["", "", ";host=\"a, for=8.8.8.8\"", ";h=\"\\\",\\\\\"", " ;a=b"]);
    let name = pick(style, 16, &["for", "For", "FOR"]);
    let node = node(hop, style);
    let value = match style >> 18 & 3 {
        0 => node,
        1 => format!("\"{}\"", node.replace('.', "\\.")),
        _ => format!("\"{node}\""),
    };
    format!("{before}{name}={value}{after}")
}

/// Hops as lines, broken and spaced anyhow.
fn lines(hops: &[(Hop, u32)], write: impl Fn(&Hop, u32) -> String) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (hop, style) in hops {
        let space = pick(*style, 20, &["", " ", "\t ", "  "]);
        let text = format!("{space}{}{}", write(hop, *style), pick(*style, 22, &["", "", " "]));
        match lines.last_mut() {
            Some(line) if style >> 24 & 3 != 0 => *line = format!("{line},{text}"),
            _ => lines.push(text),
        }
    }
    lines
}

fn headers_of(name: &'static str, lines: &[impl AsRef<[u8]>]) -> HeaderMap {
    let name = HeaderName::from_static(name);
    let values = lines.iter().filter_map(|line| HeaderValue::from_bytes(line.as_ref()).ok());
    values.map(|value| (name.clone(), value)).collect()
}

/// Any bytes, and much that nearly is a header.
fn line() -> impl Strategy<Value = Vec<u8>> {
    let known = select(
        &[
            "for=",
            "For=\"",
            "\"",
            "\\",
            ",",
            ";",
            " ",
            "[",
            "]",
            ":80",
            "unknown",
            "host=",
            "10.0.0.1",
            "10.1.0.1",
            "8.8.8.8",
            "::ffff:10.0.0.1",
            "2001:db8::1",
            "2001:db9::1",
            "for=10.0.0.2,",
            ", for=\"10.0.0.3\"",
            ", for=203.0.113.9",
        ][..],
    );
    let part = prop_oneof![
        12 => known.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 1..4),
    ];
    prop::collection::vec(part, 0..14).prop_map(|parts| parts.concat())
}

/// Whether some run of the characters of an address begins with this one, once quotes are gone.
fn appears(wanted: IpAddr, line: &[u8]) -> bool {
    let line: Vec<u8> = line.iter().copied().filter(|&byte| byte != b'\\').collect();
    let is_part = |byte: &u8| byte.is_ascii_hexdigit() || b".:".contains(byte);
    line.split(|byte| !is_part(byte)).any(|run| {
        let run = str::from_utf8(run).unwrap();
        let mut beginnings = (1..=run.len()).map(|length| &run[..length]);
        beginnings.any(|text| text.parse().is_ok_and(|ip: IpAddr| ip.to_canonical() == wanted))
    })
}

proptest! {
    #[test]
    fn any_hops_are_walked_as_they_are_naively(nets in nets(), peer in address(), hops in hops()) {
        let wanted = naive(&nets, peer, &hops);
        let proxies = TrustedProxies::new(&nets).unwrap();
        let headers = headers_of("x-forwarded-for", &lines(&hops, node));
        prop_assert_eq!(proxies.client(peer, &headers), wanted);
        let headers = headers_of("forwarded", &lines(&hops, element));
        let proxies = proxies.reading(Forwarding::Forwarded);
        prop_assert_eq!(proxies.client(peer, &headers), wanted, "{:?}", headers);
    }

    #[test]
    fn network_lookup_equals_a_linear_search(nets in nets(), ip in address()) {
        let proxies = TrustedProxies::new(&nets).unwrap();
        prop_assert_eq!(proxies.contains(ip), is_trusted(&nets, ip));
        prop_assert_eq!(proxies.contains(as_v6(ip).into()), is_trusted(&nets, ip));
    }

    #[test]
    fn client_is_the_peer_or_in_the_header_for_any_bytes(
        lines in prop::collection::vec(line(), 0..4), peer in address(),
    ) {
        for (forwarding, name) in EACH {
            let headers = headers_of(name, &lines);
            let proxies = trusting(&["10.0.0.0/8", "2001:db8::/32"]).reading(forwarding);
            let client = proxies.client(peer, &headers);
            let is_said = headers.values().any(|line| appears(client, line.as_bytes()));
            prop_assert!(client == peer || is_said, "{} {:?}", client, headers);
        }
    }

    /// The proxies' hops are at the right. A client may write anything before them.
    #[test]
    fn forged_hops_do_not_change_the_client(
        forged in prop::collection::vec(line(), 0..4), hops in hops(), is_appended: bool,
    ) {
        // The last proxies tell the truth, so the client's own address is among the hops.
        let mut hops = hops;
        hops.truncate(60);
        hops.insert(0, (Hop::Address(ip("203.0.113.9")), 0));
        let proxies = trusting(&["10.0.0.0/8", "2001:db8::/32"]);
        for (forwarding, name, own) in [
            (Forwarding::XForwardedFor, "x-forwarded-for", lines(&hops, node)),
            (Forwarding::Forwarded, "forwarded", lines(&hops, element)),
        ] {
            let proxies = proxies.clone().reading(forwarding);
            let honest = proxies.client(ip("10.0.0.1"), &headers_of(name, &own));
            let mut all = forged.clone();
            match (all.last_mut(), is_appended) {
                (Some(last), true) if HeaderValue::from_bytes(last).is_ok() => {
                    last.push(b',');
                    last.extend(own[0].bytes());
                    all.extend(own[1..].iter().map(|line| line.clone().into_bytes()));
                }
                _ => all.extend(own.iter().map(|line| line.clone().into_bytes())),
            }
            let headers = headers_of(name, &all);
            prop_assert_eq!(proxies.client(ip("10.0.0.1"), &headers), honest, "{:?}", headers);
        }
    }
}
