//! Networks in `when` and in overrides.

use std::fs;
use std::path::Path;

use tollgate::Limiter;
use tollgate::rules::{Attributes, Config, Rules, RulesFile};

use crate::setup::{Fixture, attributes};

/// Rules that block the clients for which `when` holds.
fn block_when(when: &str) -> Fixture {
    Fixture::new(&format!(
        "limits: {{ all: fixed-window limit=1000000 window=1d }}
networks:
  offices: [198.51.100.0/24, 2001:db8:40::/44]
  partners: [203.0.113.0/24, 203.0.113.64/26, 192.0.2.7]
rules: 
  - {{ name: offices, domain: other, when: {{ ip: {{ networks: offices }} }}, key: [], limit: all }}
  - {{ name: partners, domain: other, when: {{ ip: {{ networks: partners }} }}, key: [], limit: all }}
  - {{ name: it, domain: api, when: {when}, key: [], limit: block }}\n"
    ))
}

fn is_blocked(rules: &Rules, ip: &str) -> bool {
    let address = rules.client_address(ip.parse().unwrap());
    !rules.check("api", &Attributes::new().with_address(address)).now().unwrap().is_allowed()
}

#[test]
fn when_compares_addresses_with_networks() {
    for (when, inside, outside) in [
        (
            "{ ip: 198.51.100.0/24 }",
            &["198.51.100.0", "198.51.100.7", "198.51.100.255", "::ffff:198.51.100.7"][..],
            &["198.51.99.255", "198.51.101.0", "2001:db8::1"][..],
        ),
        ("{ ip: 192.0.2.7 }", &["192.0.2.7"], &["192.0.2.6", "192.0.2.8"]),
        ("{ ip: 192.0.2.7/32 }", &["192.0.2.7"], &["192.0.2.6"]),
        ("{ ip: 0.0.0.0/0 }", &["192.0.2.7", "255.255.255.255"], &["2001:db8::1"]),
        ("{ ip: \"::/0\" }", &["2001:db8::1", "ffff::1"], &["192.0.2.7"]),
        ("{ ip: 2001:db8::/32 }", &["2001:db8::1", "2001:db8:ffff::1"], &["2001:db9::1"]),
        // Longer than the prefix of a client's group.
        ("{ ip: 2001:db8:0:1::/64 }", &["2001:db8:0:1::9"], &["2001:db8::9", "2001:db8:0:2::9"]),
        ("{ ip: 2001:db8::1 }", &["2001:db8::1"], &["2001:db8::2", "2001:db8:0:1::1"]),
        ("{ ip: \"::ffff:192.0.2.0/120\" }", &["192.0.2.7"], &["192.0.3.7"]),
        (
            "{ ip: [10.0.0.0/8, 192.0.2.7, 2001:db8::/48] }",
            &["10.255.0.1", "192.0.2.7", "2001:db8::1"],
            &["11.0.0.1", "192.0.2.8", "2001:db8:1::1"],
        ),
        (
            "{ ip: { any_of: [10.0.0.0/8, { networks: partners }] } }",
            &["10.1.1.1", "203.0.113.1"],
            &["198.51.100.7"],
        ),
        ("{ ip: { network: 10.0.0.0/8 } }", &["10.1.1.1"], &["11.1.1.1"]),
        (
            "{ ip: { networks: offices } }",
            &["198.51.100.7", "2001:db8:4f::1"],
            &["203.0.113.1", "2001:db8:50::1"],
        ),
        (
            "{ ip: { none_of: [198.51.100.0/24, { networks: partners }] } }",
            &["198.51.99.1", "2001:db8::1"],
            &["198.51.100.7", "203.0.113.200"],
        ),
        (
            "{ ip: { networks: partners, none_of: [203.0.113.64/26] } }",
            &["203.0.113.1", "192.0.2.7"],
            &["203.0.113.65", "198.51.100.7"],
        ),
        (
            "{ ip: { network: 203.0.113.0/24, none_of: [203.0.113.66] } }",
            &["203.0.113.65"],
            &["203.0.113.66", "192.0.2.7"],
        ),
    ] {
        let fixture = block_when(when);
        for ip in inside {
            assert!(is_blocked(&fixture.rules, ip), "{when} {ip}");
        }
        for ip in outside {
            assert!(!is_blocked(&fixture.rules, ip), "{when} {ip}");
        }
    }
}

#[test]
fn unknown_address_is_in_no_network() {
    let unknown = [("ip", "unknown")];
    assert!(block_when("{ ip: [\"::/0\", 0.0.0.0/0] }").check(&unknown).is_allowed());
    assert!(!block_when("{ ip: [\"::/0\", unknown] }").check(&unknown).is_allowed());
    assert!(!block_when("{ ip: { none_of: [\"::/0\"] } }").check(&unknown).is_allowed());
}

/// A caller may give the text of an address, or of the IPv6 group that keys contain.
#[test]
fn group_text_matches_networks_that_contain_the_whole_group() {
    let fixture = block_when("{ ip: [198.51.100.0/24, 2001:db8::/32, 2001:db9:0:1::/64] }");
    for (ip, is_allowed) in [
        ("198.51.100.7", false),
        ("2001:db8::1", false),
        ("2001:db8::/56", false),
        ("2001:db9:0:1::7", false),
        // Only a part of the group is in the network.
        ("2001:db9::/56", true),
        ("198.51.0.0/16", true),
        ("198.51.100.7:80", true),
    ] {
        assert_eq!(fixture.check(&[("ip", ip)]).is_allowed(), is_allowed, "{ip}");
    }
}

#[test]
fn whole_address_counts_only_with_its_own_attribute() {
    let fixture = block_when("{ ip: 198.51.100.0/24 }");
    let blocked = fixture.rules.client_address("198.51.100.7".parse().unwrap());
    let check = |request: Attributes<'_>| fixture.rules.check("api", &request).now().unwrap();
    let other = Attributes::new().with_address(blocked).with("ip", "192.0.2.1");
    assert!(check(other).is_allowed());
    let with_said_ip = Attributes::new().said("ip", "192.0.2.1").with_address(blocked);
    assert!(!check(with_said_ip).is_allowed());
    let masked = |bits| Attributes::new().with_masked_address(blocked, bits);
    assert!(!check(masked(24)).is_allowed());
    assert!(check(masked(23)).is_allowed());
}

#[test]
fn network_condition_works_on_any_attribute() {
    let fixture = block_when("{ remote_address: { network: 10.0.0.0/8 } }");
    assert!(!fixture.check(&[("remote_address", "10.1.2.3")]).is_allowed());
    for request in [("remote_address", "11.1.2.3"), ("remote_address", "no"), ("ip", "10.1.2.3")] {
        assert!(fixture.check(&[request]).is_allowed(), "{request:?}");
    }
}

#[test]
fn index_finds_the_rules_of_an_address_among_thousands() {
    let rule = |nth: usize| {
        let network = format!("10.{}.{}.0/24", nth / 256, nth % 256);
        let when = format!("{{ ip: {network} }}");
        format!("  - {{ name: r{nth}, domain: api, when: {when}, key: [], limit: all }}\n")
    };
    let rules: String = (0..3_000).map(rule).collect();
    let wide = "  - { name: wide, domain: api, when: { ip: 10.11.0.0/16 }, key: [], limit: all }\n";
    let limits = "limits: { all: fixed-window limit=1000000 window=1d }";
    let fixture = Fixture::new(&format!("{limits}\nrules:\n{rules}{wide}"));
    assert_eq!(fixture.applied(&[("ip", "10.11.183.9")]), ["r2999", "wide"]);
    assert_eq!(fixture.applied(&[("ip", "10.0.7.9")]), ["r7"]);
    assert!(fixture.applied(&[("ip", "10.200.7.9")]).is_empty());
}

fn overriding(overrides: &str) -> Fixture {
    Fixture::new(&format!(
        "limits:
  small: fixed-window limit=3 window=1d
  large: fixed-window limit=10 window=1d
networks:
  partners: [203.0.113.0/24, 192.0.2.7]
rules:
  - name: it
    domain: api
    key: [{{ first_of: [api_key, ip] }}, tenant]
    limit: small
    overrides:
{overrides}
  - {{ name: used, domain: other, when: {{ ip: {{ networks: partners }} }}, key: [], limit: large }}
"
    ))
}

#[test]
fn override_of_the_longest_network_wins() {
    let fixture = overriding(
        "      - { key: { ip: 203.0.0.0/16, tenant: t }, limit: allow }
      - { key: { ip: { networks: partners }, tenant: t }, limit: large }
      - { key: { ip: 203.0.113.64/26, tenant: t }, limit: block }
      - { key: { ip: 203.0.113.66, tenant: t }, limit: allow }
      - { key: { ip: 203.0.113.0/24, tenant: t }, limit: block }
      - { key: { ip: 2001:db8::1, tenant: t }, limit: block }
      - { key: { ip: unknown, tenant: t }, limit: block }
      - { key: { api_key: k, tenant: t }, limit: allow }",
    );
    let admitted = |ip: &str| fixture.admitted(20, &[("ip", ip), ("tenant", "t")]);
    assert_eq!(admitted("203.0.7.1"), 20);
    assert_eq!(admitted("203.0.113.1"), 10, "the first override of the same network counts");
    assert_eq!(admitted("192.0.2.7"), 10);
    assert_eq!(admitted("203.0.113.65"), 0);
    assert_eq!(admitted("203.0.113.66"), 20);
    assert_eq!(admitted("198.51.100.1"), 3);
    assert_eq!(admitted("2001:db8::1"), 0);
    assert_eq!(admitted("2001:db8::2"), 3);
    assert_eq!(admitted("unknown"), 0);
    let other = [("ip", "203.0.113.65"), ("tenant", "other")];
    assert_eq!(fixture.admitted(20, &other), 3);
    let by_key = [("ip", "203.0.113.65"), ("tenant", "t"), ("api_key", "k2")];
    assert_eq!(fixture.admitted(20, &by_key), 3, "the key has no address");
}

#[test]
fn override_of_a_network_keeps_a_key_per_address() {
    let fixture = overriding("      - { key: { ip: 203.0.113.0/24, tenant: t }, limit: large }");
    for ip in ["203.0.113.1", "203.0.113.2"] {
        assert_eq!(fixture.admitted(20, &[("ip", ip), ("tenant", "t")]), 10, "{ip}");
    }
}

#[test]
fn override_of_an_ipv6_address_keeps_the_key_of_the_group() {
    let fixture = overriding("      - { key: { ip: 2001:db8::1, tenant: t }, limit: large }");
    let admitted = |ip: &str| {
        let address = fixture.rules.client_address(ip.parse().unwrap());
        let request = Attributes::new().with_address(address).with("tenant", "t");
        let check = || fixture.rules.check("api", &request).now().unwrap();
        (0..20).filter(|_| check().is_allowed()).count()
    };
    assert_eq!(admitted("2001:db8::2"), 3);
    assert_eq!(admitted("2001:db8::1"), 7, "3 of 10 are spent");
}

#[test]
fn explanation_distinguishes_wanted_and_excluded_networks() {
    let fixture = Fixture::new(
        "limits: { all: fixed-window limit=9 window=1d }
networks: { blocked: [198.51.0.0/16], offices: [198.51.100.0/24, 203.0.113.0/24] }
rules:
  - name: blocked
    domain: api
    when: { ip: { networks: blocked, none_of: [{ networks: offices }] }, path: { prefix: /a, none_of: [/ab] } }
    key: []
    limit: block
",
    );
    for (ip, path, want) in [
        ("203.0.113.9", "/a", "`ip` is `203.0.113.9`, not `networks: blocked`"),
        (
            "198.51.100.7",
            "/a",
            "`ip` is `198.51.100.7`, which the rule excludes: it is in `198.51.100.0/24` of networks `offices`",
        ),
        ("198.51.1.7", "/b", "`path` is `/b`, not `/a…`"),
        ("198.51.1.7", "/ab", "`path` is `/ab`, which the rule excludes"),
    ] {
        let request = attributes(&[("ip", ip), ("path", path)]);
        let explained = fixture.rules.explain("api", &request);
        let why = explained[0].outcome.as_ref().unwrap_err();
        assert_eq!(why.to_string(), want);
    }
}

#[test]
fn explanation_names_the_network() {
    let fixture = Fixture::new(
        "limits: { all: fixed-window limit=9 window=1d }
networks: { offices: [198.51.100.0/24, 198.51.0.0/16] }
rules:
  - { name: offices, domain: api, when: { ip: [192.0.2.0/24, { networks: offices }] }, key: [], limit: all }
  - { name: others, domain: api, when: { ip: { none_of: [192.0.2.0/24, { networks: offices }] } }, key: [], limit: all }
  - name: clients
    domain: api
    key: [ip]
    limit: all
    overrides:
      - { key: { ip: 192.0.2.0/24 }, limit: allow }
      - { key: { ip: { networks: offices } }, limit: block }
",
    );
    let explained = |ip: &str| -> Vec<String> {
        let outcome = |rule: tollgate::rules::Explanation| match rule.outcome {
            Ok(applied) => {
                let networks: Vec<String> =
                    applied.networks.iter().map(|it| format!("{}: {it}", it.attribute)).collect();
                format!("{networks:?}, {}", applied.because)
            }
            Err(why) => why.to_string(),
        };
        fixture.rules.explain("api", &attributes(&[("ip", ip)])).into_iter().map(outcome).collect()
    };
    assert_eq!(
        explained("198.51.100.7"),
        [
            r#"["ip: `198.51.100.0/24` of networks `offices`"], the rule's only limit"#,
            "`ip` is `198.51.100.7`, which the rule excludes: it is in `198.51.100.0/24` of networks `offices`",
            "[], an override for `198.51.100.0/24` of networks `offices`",
        ]
    );
    assert_eq!(
        explained("192.0.2.1"),
        [
            r#"["ip: `192.0.2.0/24`"], the rule's only limit"#,
            "`ip` is `192.0.2.1`, which the rule excludes: it is in `192.0.2.0/24`",
            "[], an override for `192.0.2.0/24`",
        ]
    );
    assert_eq!(
        explained("203.0.113.1"),
        [
            "`ip` is `203.0.113.1`, not `192.0.2.0/24` or `networks: offices`",
            "[], the rule's only limit",
            "[], the rule's only limit",
        ]
    );
}

const BLOCKING: &str = "networks: { blocked: { file: blocked.txt } }
rules: [{ name: it, domain: api, when: { ip: { networks: blocked } }, key: [], limit: block }]
";

fn write_rules(directory: &Path, networks: &str) {
    fs::write(directory.join("rules.yaml"), BLOCKING).unwrap();
    fs::write(directory.join("blocked.txt"), networks).unwrap();
}

#[test]
fn reload_reads_the_file_of_networks() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    write_rules(path, "198.51.100.0/24 # an office\n\n# all:\r\n  2001:db8::/32 ; more\r\n");
    let file = RulesFile::open(&Limiter::memory(), path.join("rules.yaml")).unwrap();
    let blocked = |ip| is_blocked(file.rules(), ip);
    assert!(blocked("198.51.100.7") && blocked("2001:db8::1") && !blocked("192.0.2.7"));
    fs::write(path.join("blocked.txt"), "192.0.2.0/24\n").unwrap();
    file.reload().unwrap();
    assert!(!blocked("198.51.100.7") && blocked("192.0.2.7"));
    fs::write(path.join("blocked.txt"), "192.0.2.0/24\n300.1.1.1\n").unwrap();
    let error = file.reload().unwrap_err().to_string();
    assert!(error.contains("blocked.txt:2:1: `300.1.1.1` is neither"), "{error}");
    assert!(blocked("192.0.2.7"), "the rules are unchanged");
}

#[test]
fn set_of_100_000_networks_finds_each() {
    let directory = tempfile::tempdir().unwrap();
    let network =
        |nth: u32| format!("{}.{}.{}.0/26\n", 1 + nth / 65_536, nth / 256 % 256, nth % 256);
    write_rules(directory.path(), &(0..100_000).map(network).collect::<String>());
    let config = Config::load(directory.path().join("rules.yaml")).unwrap();
    let rules = Rules::new(&Limiter::memory(), &config).unwrap();
    for nth in (0..100_000_u32).step_by(997).chain([99_999]) {
        let beginning = format!("{}.{}.{}", 1 + nth / 65_536, nth / 256 % 256, nth % 256);
        assert!(is_blocked(&rules, &format!("{beginning}.63")), "{beginning}");
        assert!(!is_blocked(&rules, &format!("{beginning}.64")), "{beginning}");
    }
    assert!(!is_blocked(&rules, "0.255.255.255") && !is_blocked(&rules, "2.200.0.0"));
}

#[test]
fn limits_of_a_key_include_the_override_of_its_network() {
    let fixture = Fixture::new(
        "limits: { free: fixed-window limit=1 window=1d, more: fixed-window limit=9 window=1d }
rules:
  - name: it
    domain: api
    key: [tenant, { first_of: [user, ip] }]
    limit: free
    overrides:
      - { key: { tenant: a, ip: 198.51.100.0/24 }, limit: more }
      - { key: { tenant: a, ip: 198.51.100.7 }, limit: block }
",
    );
    let rule = fixture.rules.rule("api/it").unwrap();
    for (key, want) in [
        ("tenant=a,ip=198.51.100.9", "more"),
        ("tenant=a,ip=198.51.100.7", "block"),
        ("tenant=a,ip=198.51.101.9", "free"),
        ("tenant=b,ip=198.51.100.9", "free"),
        ("tenant=a,user=198.51.100.9", "free"),
    ] {
        let limits = rule.limits_of(key.as_bytes());
        let names: Vec<_> = limits.iter().map(|limit| limit.spends.name()).collect();
        assert_eq!(
            (names, rule.has_override(key.as_bytes())),
            (vec![want], want != "free"),
            "{key}"
        );
    }
    let all: Vec<_> = rule.limits().iter().map(|limit| limit.spends.name().to_owned()).collect();
    assert_eq!(all, ["free", "more", "block"]);
}
