//! How rules see descriptors.

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;

use super::{RlsServer, codes, descriptor, remaining};

/// Returns the names of all rules that apply to a descriptor, from the metadata of the response.
fn applies(rules: &str, entries: &[(&str, &str)]) -> Vec<String> {
    let config = format!("limits: {{ ten: fixed-window limit=10 window=365d }}\nrules:\n{rules}");
    let limits = RlsServer::start(&config);
    let answer = limits.ask_all(vec![descriptor(entries)]);
    let listed = super::metadata(&answer)["rules"].as_array().cloned().unwrap_or_default();
    listed.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn repeated_keys_are_numbered() {
    let rules = "
  - { name: first, domain: api, when: { generic_key: a }, key: [], limit: ten }
  - { name: second, domain: api, when: { 'generic_key#2': b }, key: [], limit: ten }
  - { name: third, domain: api, when: { 'generic_key#3': c }, key: [], limit: ten }
  - { name: fourth, domain: api, when: { 'generic_key#4': { present: true } }, key: [], limit: ten }
";
    let entries =
        [("generic_key", "a"), ("generic_key", "b"), ("other", "x"), ("generic_key", "c")];
    assert_eq!(applies(rules, &entries), ["first", "second", "third"]);
}

#[test]
fn keys_of_a_descriptor_are_the_attribute_descriptor_keys() {
    let rules = r"
  - { name: exactly, domain: api, when: { descriptor_keys: 'database,user' }, key: [], limit: ten }
  - { name: comma, domain: api, when: { descriptor_keys: 'a\,b,c\\' }, key: [], limit: ten }
  - { name: twice, domain: api, when: { descriptor_keys: 'a,a' }, key: [], limit: ten }
";
    assert_eq!(applies(rules, &[("database", "x"), ("user", "y")]), ["exactly"]);
    assert_eq!(applies(rules, &[("user", "y"), ("database", "x")]), [""; 0]);
    assert_eq!(applies(rules, &[("database", "x")]), [""; 0]);
    assert_eq!(applies(rules, &[("a,b", "x"), ("c\\", "y")]), ["comma"]);
    assert_eq!(applies(rules, &[("a", "x"), ("a", "y")]), ["twice"]);
}

#[test]
fn address_from_envoy_is_the_ip_attribute() {
    let rules = "
identity: { ipv6_prefix: 48 }
limits: { two: fixed-window limit=2 window=365d }
rules:
  - { name: per-ip, domain: api, key: [ip], limit: two }
";
    let limits = RlsServer::start(rules);
    let ask = |key, value| {
        let answer = limits.ask_all(vec![descriptor(&[(key, value)])]);
        (codes(&answer)[0], remaining(&answer)[0], answer.statuses[0].current_limit.is_some())
    };
    assert_eq!(ask("remote_address", "203.0.113.9"), (Code::Ok, 1, true));
    assert_eq!(ask("ip", "203.0.113.9"), (Code::Ok, 0, true), "both entries name the same client");
    assert_eq!(ask("ip", "::ffff:203.0.113.9").0, Code::OverLimit);
    assert_eq!(ask("masked_remote_address", "203.0.113.9/32").0, Code::OverLimit);
    assert_eq!(ask("remote_address", "2001:db8:12:34::1"), (Code::Ok, 1, true));
    assert_eq!(ask("remote_address", "2001:db8:12:ff::2"), (Code::Ok, 0, true));
    assert_eq!(ask("masked_remote_address", "2001:db8:12::/64").0, Code::OverLimit);
    // A text that is not an address does not get a new quota.
    assert_eq!(ask("remote_address", "unix:/tmp/socket"), (Code::Ok, 0, false));
    assert_eq!(ask("ip", "invented-1"), (Code::Ok, 1, true));
    assert_eq!(ask("ip", "invented-2"), (Code::Ok, 0, true));
}

#[test]
fn remote_address_takes_precedence_over_the_masked_address() {
    let rules = "
limits: { two: fixed-window limit=2 window=365d }
rules:
  - { name: per-ip, domain: api, key: [ip], limit: two }
  - { name: as-sent, domain: api, when: { remote_address: '2001:db8::1' }, key: [], limit: two }
";
    let limits = RlsServer::start(rules);
    let both = [("remote_address", "2001:db8::1"), ("masked_remote_address", "192.0.2.0/24")];
    let answer = limits.ask_all(vec![descriptor(&both)]);
    let names: Vec<_> = super::metadata(&answer)["rules"].as_array().unwrap().clone();
    assert_eq!(names.len(), 2, "{names:?}");
    // The masked address was not charged.
    let masked = limits.ask_all(vec![descriptor(&both[1..])]);
    assert_eq!(remaining(&masked), [1]);
}

#[test]
fn path_attribute_has_no_query() {
    let rules = "  - { name: login, domain: api, when: { path: /login }, key: [], limit: ten }\n";
    assert_eq!(applies(rules, &[("path", "/login?next=/a?b")]), ["login"]);
    assert_eq!(applies(rules, &[("path", "/login")]), ["login"]);
    assert_eq!(applies(rules, &[("path", "/logins")]), [""; 0]);
}

/// If each invented key had its own quota, a client could avoid every limit when Envoy sends no address.
#[test]
fn invented_keys_without_an_address_share_one_quota() {
    let rules = "
api_keys: { k_known: pro }
limits: { ten: fixed-window limit=10 window=365d }
rules: [{ name: per-client, domain: api, key: [{ first_of: [api_key, ip] }], limit: ten }]
";
    let limits = RlsServer::start(rules);
    let left = |entries: &[(&str, &str)]| remaining(&limits.ask_all(vec![descriptor(entries)]))[0];
    assert_eq!(left(&[("api_key", "k_known")]), 9);
    assert_eq!((left(&[("api_key", "one")]), left(&[("api_key", "another")])), (9, 8));
    assert_eq!(left(&[("jwt.sub", "root")]), 7);
    assert_eq!(left(&[("api_key", "one"), ("remote_address", "203.0.113.9")]), 9);
    assert_eq!(left(&[("api_key", "one"), ("ip", "203.0.113.9")]), 8);
    assert_eq!(left(&[("api_key", "one"), ("ip", "nowhere")]), 6);
}

#[test]
fn unverified_client_values_do_not_make_keys() {
    let rules = "
api_keys: { k_known: pro }
limits: { ten: fixed-window limit=10 window=365d }
rules:
  - { name: by-key, domain: api, key: [api_key], limit: ten }
  - { name: by-claim, domain: api, key: [jwt.sub], limit: ten }
  - { name: by-header, domain: api, key: [header.x-user], limit: ten }
  - { name: by-method, domain: api, key: [method], limit: ten }
";
    let limits = RlsServer::start(rules);
    let names = |entries: &[(&str, &str)]| {
        let answer = limits.ask_all(vec![descriptor(entries)]);
        let listed = super::metadata(&answer)["rules"].as_array().cloned().unwrap_or_default();
        listed.iter().map(|rule| rule["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&[("api_key", "k_invented")]), [""; 0]);
    assert_eq!(names(&[("api_key", "k_known")]), ["by-key"]);
    assert_eq!(names(&[("jwt.sub", "root")]), [""; 0]);
    assert_eq!(names(&[("header.x-user", "root")]), [""; 0]);
    assert_eq!(names(&[("method", "GET")]), ["by-method"]);
    let method = |method| remaining(&limits.ask_all(vec![descriptor(&[("method", method)])]))[0];
    assert_eq!((method("STEAL"), method("TAKE")), (9, 8), "all invented methods share a quota");
}
