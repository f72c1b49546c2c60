use std::collections::HashSet;

use ::http::{HeaderName, HeaderValue};

use super::*;

mod properties;

const EACH: [(Forwarding, &str); 3] = [
    (Forwarding::XForwardedFor, "x-forwarded-for"),
    (Forwarding::Forwarded, "forwarded"),
    (Forwarding::XRealIp, "x-real-ip"),
];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn trusting(nets: &[&str]) -> TrustedProxies {
    TrustedProxies::new(nets).unwrap()
}

fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
    let parse = |text: &str| HeaderValue::from_bytes(text.as_bytes()).unwrap();
    lines.iter().map(|&(name, text)| (HeaderName::from_static(name), parse(text))).collect()
}

/// The client, when the proxies 10.0.0.0/8 and 2001:db8:a::/48 write `X-Forwarded-For`.
fn client(peer: &str, lines: &[&str]) -> String {
    let lines: Vec<_> = lines.iter().map(|&line| ("x-forwarded-for", line)).collect();
    trusting(&["10.0.0.0/8", "2001:db8:a::/48"]).client(ip(peer), &headers(&lines)).to_string()
}

#[test]
fn a_stranger_is_the_client_whatever_its_headers_say() {
    let forged = headers(&[
        ("x-forwarded-for", "8.8.8.8"),
        ("x-forwarded-for", "10.0.0.7"),
        ("forwarded", "for=8.8.8.8"),
        ("x-real-ip", "8.8.8.8"),
    ]);
    for (forwarding, _) in EACH {
        let proxies = trusting(&["10.0.0.0/8"]).reading(forwarding);
        assert_eq!(proxies.client(ip("203.0.113.9"), &forged), ip("203.0.113.9"));
        assert_eq!(proxies.client(ip("::ffff:203.0.113.9"), &forged), ip("203.0.113.9"));
    }
}

#[test]
fn the_client_is_the_first_from_the_right_that_is_no_proxy() {
    for (peer, lines, wanted) in [
        // One proxy.
        ("10.0.0.1", &["203.0.113.9"][..], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["10.0.0.7, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["garbage, 203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["garbage", "", "203.0.113.9"], "203.0.113.9"),
        ("10.0.0.1", &["203.0.113.9:5678"], "203.0.113.9"),
        ("10.0.0.1", &["[2001:db8::9]:5678"], "2001:db8::9"),
        // Two, of which the first appends or writes a line.
        ("10.0.0.1", &["203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8, 203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8", "203.0.113.9, 10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8, 203.0.113.9", "10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["8.8.8.8", "203.0.113.9", "10.0.0.2:80"], "203.0.113.9"),
        ("2001:db8:a::1", &["8.8.8.8, 203.0.113.9, 2001:db8:a::2"], "203.0.113.9"),
        // IPv4 addresses in their IPv6 form.
        ("::ffff:10.0.0.1", &["203.0.113.9, ::ffff:10.0.0.2"], "203.0.113.9"),
        ("10.0.0.1", &["::ffff:203.0.113.9"], "203.0.113.9"),
        // All hops are proxies, or the header is missing.
        ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", &[], "10.0.0.1"),
        ("::ffff:10.0.0.1", &[], "10.0.0.1"),
    ] {
        assert_eq!(client(peer, lines), wanted, "{peer} {lines:?}");
    }
}

#[test]
fn hop_that_is_not_an_address_counts_as_the_proxy_that_wrote_it() {
    for hop in ["unknown", "_hidden", "", "???", "fe80::1%eth0", "8.8.8.8.8", "\u{e9}"] {
        assert_eq!(client("10.0.0.1", &[hop]), "10.0.0.1", "{hop}");
        assert_eq!(client("10.0.0.1", &["8.8.8.8", hop]), "10.0.0.1", "{hop}");
        assert_eq!(
            client("10.0.0.1", &[&format!("8.8.8.8, {hop}, 10.0.0.2")]),
            "10.0.0.2",
            "{hop}"
        );
    }
}

#[test]
fn inventing_hops_makes_no_new_client() {
    let clients = |line: &dyn Fn(usize) -> Vec<String>, forwarding, name| {
        let proxies = trusting(&["10.0.0.0/8"]).reading(forwarding);
        let of = |n| {
            let lines = line(n);
            let lines: Vec<_> = lines.iter().map(|line| (name, line.as_str())).collect();
            proxies.client(ip("10.0.0.1"), &headers(&lines))
        };
        (0..1_000).map(of).collect::<HashSet<_>>()
    };
    let only = HashSet::from([ip("203.0.113.9")]);
    let forged = |n: usize| match n % 5 {
        0 => format!("8.8.{}.{}", n / 256, n % 256),
        1 => format!("10.0.{}.{}", n / 256, n % 256),
        2 => format!("2001:db8::{n:x}"),
        3 => ["\"", "\"\\", "for=\"", "for=8.8.8.8;host=\"", ",,,"][n / 5 % 5].to_owned(),
        _ => format!("8.8.8.8, 10.0.0.{}", n % 256),
    };
    let appended = |n| vec![format!("{}, 203.0.113.9, 10.0.0.2", forged(n))];
    let on_lines = |n| vec![forged(n), "203.0.113.9".to_owned(), "10.0.0.2".to_owned()];
    for line in [&appended as &dyn Fn(usize) -> Vec<String>, &on_lines] {
        assert_eq!(clients(line, Forwarding::XForwardedFor, "x-forwarded-for"), only);
    }
    let appended =
        |n| vec![format!("for={}, for=\"203.0.113.9:1\";host=\"a,b\", for=10.0.0.2", forged(n))];
    let on_lines = |n| vec![forged(n), "for=203.0.113.9".to_owned(), "for=10.0.0.2".to_owned()];
    for line in [&appended as &dyn Fn(usize) -> Vec<String>, &on_lines] {
        assert_eq!(clients(line, Forwarding::Forwarded, "forwarded"), only);
    }
    let overwritten = |n| vec![forged(n), "203.0.113.9".to_owned()];
    assert_eq!(clients(&overwritten, Forwarding::XRealIp, "x-real-ip"), only);
}

#[test]
fn only_the_header_that_proxies_write_is_read() {
    let of = |name| if name == "forwarded" { "for=203.0.113.9" } else { "203.0.113.9" };
    for (forwarding, own) in EACH {
        let proxies = trusting(&["10.0.0.0/8"]).reading(forwarding);
        for (_, name) in EACH {
            let wanted = if name == own { "203.0.113.9" } else { "10.0.0.1" };
            assert_eq!(proxies.client(ip("10.0.0.1"), &headers(&[(name, of(name))])), ip(wanted));
        }
    }
    assert_eq!(Forwarding::default(), Forwarding::XForwardedFor);
}

#[test]
fn x_real_ip_is_the_client_even_if_trusted() {
    let proxies = trusting(&["10.0.0.0/8"]).reading(Forwarding::XRealIp);
    let of = |text| proxies.client(ip("10.0.0.1"), &headers(&[("x-real-ip", text)]));
    assert_eq!(of("10.0.0.9"), ip("10.0.0.9"));
    assert_eq!(of("::ffff:203.0.113.9"), ip("203.0.113.9"));
    assert_eq!(of("unknown"), ip("10.0.0.1"));
}

#[test]
fn at_most_64_hops_are_looked_at() {
    let hops = |trusted: usize| format!("203.0.113.9{}", ", 10.0.0.2".repeat(trusted));
    assert_eq!(client("10.0.0.1", &[&hops(63)]), "203.0.113.9");
    assert_eq!(client("10.0.0.1", &[&hops(64)]), "10.0.0.2");
    assert_eq!(client("10.0.0.1", &[&hops(100_000)]), "10.0.0.2");
    assert_eq!(client("10.0.0.1", &vec!["10.0.0.2"; 10_000]), "10.0.0.2");
}

#[test]
fn everyone_may_be_trusted_by_name_alone() {
    let everyone = TrustedProxies::everyone_so_clients_choose_their_own_address();
    let config = headers(&[("x-forwarded-for", "8.8.8.8, 203.0.113.9, 2001:db8::1")]);
    for peer in ["198.51.100.1", "2001:db8::2", "::ffff:198.51.100.1"] {
        assert!(everyone.contains(ip(peer)));
        assert_eq!(everyone.client(ip(peer), &config), ip("8.8.8.8"));
    }
}

#[test]
fn nets_hold_their_addresses_and_no_others() {
    let proxies = trusting(&[
        "10.0.0.0/8",
        "10.1.0.0/16",
        "192.0.2.7",
        "::ffff:172.16.0.0/108",
        "::ffff:198.51.100.1",
        "2001:db8::/32",
        "2001:db9::1",
        "255.255.255.255",
        "::",
    ]);
    for (address, wanted) in [
        ("9.255.255.255", false),
        ("10.0.0.0", true),
        ("10.1.2.3", true),
        ("10.200.0.0", true),
        ("10.255.255.255", true),
        ("11.0.0.0", false),
        ("::ffff:10.1.2.3", true),
        ("::10.1.2.3", false),
        ("192.0.2.6", false),
        ("192.0.2.7", true),
        ("192.0.2.8", false),
        ("172.15.255.255", false),
        ("172.16.0.0", true),
        ("172.31.255.255", true),
        ("172.32.0.0", false),
        ("198.51.100.1", true),
        ("2001:db7:ffff:ffff:ffff:ffff:ffff:ffff", false),
        ("2001:db8::", true),
        ("2001:db8:ffff:ffff:ffff:ffff:ffff:ffff", true),
        ("2001:db9::", false),
        ("2001:db9::1", true),
        ("2001:db9::2", false),
        ("255.255.255.255", true),
        ("255.255.255.254", false),
        ("0.0.0.0", false),
        ("::", true),
        ("::1", false),
    ] {
        assert_eq!(proxies.contains(ip(address)), wanted, "{address}");
    }
}

#[test]
fn thousands_of_nets_are_as_good_as_one() {
    let nets = (0..4_000u32).map(|n| format!("10.{}.{}.0/25", n / 256, n % 256));
    let proxies = TrustedProxies::new(nets).unwrap();
    for n in 0..4_000u32 {
        assert!(proxies.contains(ip(&format!("10.{}.{}.127", n / 256, n % 256))));
        assert!(!proxies.contains(ip(&format!("10.{}.{}.128", n / 256, n % 256))));
    }
}

#[test]
fn debug_shows_the_networks() {
    let proxies = trusting(&["2001:db8::/32", "192.0.2.7", "::ffff:10.0.0.0/104"]);
    assert_eq!(
        format!("{:?}", proxies.reading(Forwarding::Forwarded)),
        "TrustedProxies { nets: [10.0.0.0/8, 192.0.2.7/32, 2001:db8::/32], forwarding: Forwarded }"
    );
}

fn problem(nets: &[&str]) -> String {
    TrustedProxies::new(nets).unwrap_err().to_string()
}

#[test]
fn text_that_is_not_a_net_is_refused() {
    for given in [
        "",
        " ",
        "localhost",
        "10.0.0.0/",
        "/8",
        "10.0.0.0/33",
        "10.0.0.0/-1",
        "10.0.0.0/+8",
        "10.0.0.0/8/8",
        "10.0.0.0/255.0.0.0",
        "10.0.0/8",
        "2001:db8::/129",
        "2001:db8::/300",
        "*",
        "fe80::1%eth0",
        "010.0.0.0/8",
    ] {
        assert_eq!(
            problem(&["192.0.2.7", given]),
            format!(
                "trusted proxies: `{given}` is neither an address nor a network; write `10.0.0.7`, `10.0.0.0/8` or `2001:db8::/32`"
            )
        );
    }
}

#[test]
fn address_in_place_of_its_net_is_refused_with_a_remedy() {
    assert_eq!(
        problem(&["10.1.2.3/8"]),
        "trusted proxies: `10.1.2.3/8` is not where its network begins; write `10.0.0.0/8` for the network, or `10.1.2.3` for that address alone"
    );
    assert_eq!(
        problem(&["2001:db8::1/32"]),
        "trusted proxies: `2001:db8::1/32` is not where its network begins; write `2001:db8::/32` for the network, or `2001:db8::1` for that address alone"
    );
    assert!(problem(&["::ffff:10.1.2.3/104"]).contains("write `::ffff:10.0.0.0/104`"));
}

#[test]
fn an_empty_list_is_refused() {
    assert_eq!(problem(&[]), "trusted proxies: the list is empty; leave it out to trust none");
}

#[test]
fn more_than_a_quarter_is_refused_however_it_is_spelled() {
    for (nets, family) in [
        (&["0.0.0.0/0"][..], "IPv4"),
        (&["0.0.0.0/1", "128.0.0.0/1"], "IPv4"),
        (&["128.0.0.0/1", "192.0.2.7", "64.0.0.0/2", "2001:db8::/32", "0.0.0.0/2"], "IPv4"),
        (&["::ffff:0:0/96"], "IPv4"),
        (&["::ffff:0.0.0.0/97", "128.0.0.0/1"], "IPv4"),
        (&["::/1"], "IPv4"),
        (&["::/0"], "IPv4"),
        (&["2000::/3"], "IPv6"),
        (&["3000::/4", "10.0.0.0/8", "2000::/4"], "IPv6"),
        (&["0.0.0.0/1"], "IPv4"),
        (&["0.0.0.0/1", "128.0.0.0/2", "192.0.0.0/3"], "IPv4"),
        (&["64.0.0.0/2", "203.0.113.9"], "IPv4"),
        (&["::ffff:64.0.0.0/98", "203.0.113.9"], "IPv4"),
        (&["2000::/4"], "IPv6"),
        (&["2000::/4", "3000::/5"], "IPv6"),
        (&["2000::/5", "2800::1"], "IPv6"),
    ] {
        assert_eq!(
            TrustedProxies::new(nets).unwrap_err(),
            TrustError::TooMany { family },
            "{nets:?}"
        );
    }
    // A quarter of each is not more, however often it is said; nor are addresses that no client has.
    let quarters = ["64.0.0.0/2", "64.0.0.0/3", "2000::/5", "2000::/8", "fc00::/7", "8000::/1"];
    assert!(TrustedProxies::new(quarters).is_ok());
    assert_eq!(
        problem(&["0.0.0.0/0"]),
        "trusted proxies: more than a quarter of all IPv4 addresses are in these networks, and clients there could choose their own address; name only the networks of your proxies, or, if clients may choose, use `TrustedProxies::everyone_so_clients_choose_their_own_address()`"
    );
}
