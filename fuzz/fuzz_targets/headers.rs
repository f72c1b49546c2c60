//! Finds the client of a request with any headers. This must not panic or hang. The client must be the peer or an address
//! in the header that is read, and a text that is added before the header's first value must not change the client.

#![no_main]

use std::net::{IpAddr, Ipv4Addr};

use http::{HeaderMap, HeaderName, HeaderValue};
use libfuzzer_sys::fuzz_target;
use tollgate::http::{Forwarding, TrustedProxies};

const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));

/// Each forwarding header, and its name.
const FORWARDINGS: [(Forwarding, HeaderName); 3] = [
    (Forwarding::XForwardedFor, HeaderName::from_static("x-forwarded-for")),
    (Forwarding::Forwarded, HeaderName::from_static("forwarded")),
    (Forwarding::XRealIp, HeaderName::from_static("x-real-ip")),
];

fuzz_target!(|input: &[u8]| {
    let proxies = TrustedProxies::new(["10.0.0.0/8", "2001:db8::/32"]).expect("valid networks");
    let headers = headers(input);
    for (forwarding, name) in FORWARDINGS {
        let proxies = proxies.clone().reading(forwarding);
        let client = proxies.client(PEER, &headers);
        let mut lines = headers.get_all(&name).iter();
        assert!(client == PEER || lines.any(|line| appears(client, line.as_bytes())), "{client}");
        if forwarding != Forwarding::XRealIp && !proxies.contains(client) {
            let forged = forged(&headers, &name, input);
            assert_eq!(proxies.client(PEER, &forged), client, "{forged:?}");
        }
    }
});

/// Returns headers in which each line of the input is a value of each header, because a value has no line break.
fn headers(input: &[u8]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for line in input.split(|&byte| byte == b'\n') {
        let Ok(value) = HeaderValue::from_bytes(line) else { continue };
        for (_, name) in FORWARDINGS {
            headers.append(name, value.clone());
        }
    }
    headers
}

/// Returns the header with a forged value before its first value, as if the client had sent the forged value and a proxy had
/// added to it.
fn forged(headers: &HeaderMap, name: &HeaderName, input: &[u8]) -> HeaderMap {
    let last = input.rsplit(|&byte| byte == b'\n').next().unwrap_or_default();
    let last = HeaderValue::from_bytes(last).unwrap_or(HeaderValue::from_static("for=\""));
    let mut lines: Vec<Vec<u8>> =
        headers.get_all(name).iter().map(|line| line.as_bytes().to_vec()).collect();
    if let Some(first) = lines.first_mut() {
        *first = [last.as_bytes(), b",", first].concat();
    }
    let values = lines.iter().filter_map(|line| HeaderValue::from_bytes(line).ok());
    values.map(|value| (name.clone(), value)).collect()
}

/// Whether an address appears in a line, at the start of a run of address characters. Escapes are removed first.
fn appears(wanted: IpAddr, line: &[u8]) -> bool {
    let line: Vec<u8> = line.iter().copied().filter(|&byte| byte != b'\\').collect();
    let is_part = |byte: &u8| byte.is_ascii_hexdigit() || b".:".contains(byte);
    line.split(|byte| !is_part(byte)).any(|run| {
        // The longest address has 45 characters.
        let beginnings = (1..=run.len().min(45)).map(|length| &run[..length]);
        let mut texts = beginnings.filter_map(|text| str::from_utf8(text).ok());
        texts.any(|text| text.parse().is_ok_and(|ip: IpAddr| ip.to_canonical() == wanted))
    })
}
