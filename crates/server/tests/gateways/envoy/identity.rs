//! How clients are identified behind Envoy.

use reqwest::StatusCode;
use reqwest::header::HeaderValue;

use crate::envoy::config::EnvoyConfig;
use crate::envoy::front::EnvoyFront;

const OK: StatusCode = StatusCode::OK;
const REFUSED: StatusCode = StatusCode::TOO_MANY_REQUESTS;

const TWO: &str = "
limits: { two: fixed-window limit=2 window=366d }
rules: [{ name: per-address, domain: envoy, key: [ip], limit: two }]
";

/// Returns a configuration of Envoy behind one more trusted proxy, so that a test can choose the client's address.
fn behind_another_proxy() -> EnvoyConfig {
    let own = "use_remote_address: true";
    EnvoyConfig::new().with(own, &format!("{own}\n                xff_num_trusted_hops: 1"))
}

#[test]
fn addresses_of_one_ipv6_network_are_one_client() {
    let front = EnvoyFront::with(TWO, behind_another_proxy(), &[]);
    let from = |address| front.get_as("/", &[("x-forwarded-for", address)]).status();
    let of_one = ["2001:db8:0:100::1", "2001:db8:0:1ff::2", "2001:db8:0:123::3"];
    assert_eq!(of_one.map(from), [OK, OK, REFUSED]);
    assert_eq!(["2001:db8:0:200::1", "203.0.113.9"].map(from), [OK; 2]);
    assert_eq!(["203.0.113.9", "203.0.113.9", "203.0.113.10"].map(from), [OK, REFUSED, OK]);
    // The same address as an IPv4-mapped IPv6 address.
    assert_eq!(from("::ffff:203.0.113.9"), REFUSED);
}

#[test]
fn masked_address_is_one_client() {
    let masked = "- actions: [{ masked_remote_address: { v4_prefix_mask_len: 24 } }]";
    let front = EnvoyFront::with(TWO, behind_another_proxy().route("/masked", masked), &[]);
    let from = |address| front.get_as("/masked", &[("x-forwarded-for", address)]).status();
    assert_eq!(["203.0.113.9", "203.0.113.10", "203.0.113.11"].map(from), [OK, OK, REFUSED]);
    assert_eq!(from("203.0.114.9"), OK);
}

#[test]
fn entries_are_attributes_by_their_keys_and_in_their_order() {
    let rules = "
limits: { one: fixed-window limit=1 window=366d }
rules:
  - { name: second, domain: envoy, when: { generic_key: a, generic_key#2: b }, key: [], limit: one }
  - { name: shape, domain: envoy, when: { descriptor_keys: 'remote_address,plan' }, key: [ip], limit: one }
";
    let twice = "- actions: [{ generic_key: { descriptor_value: a } }, { generic_key: { descriptor_value: b } }]";
    let shaped = "- actions: [{ remote_address: {} }, { generic_key: { descriptor_key: plan, descriptor_value: x } }]";
    let front = EnvoyFront::with(
        rules,
        EnvoyConfig::new().route("/twice", twice).route("/shaped", shaped),
        &[],
    );
    for path in ["/twice", "/shaped"] {
        assert_eq!(front.statuses(path, 2), [OK, REFUSED], "{path}");
    }
    assert_eq!(front.statuses("/", 2), [OK; 2]);
}

#[test]
fn client_cannot_choose_its_address() {
    let front = EnvoyFront::start(TWO);
    let from = |address| front.get_as("/", &[("x-forwarded-for", address)]).status();
    assert_eq!(["203.0.113.1", "203.0.113.2", "203.0.113.3"].map(from), [OK, OK, REFUSED]);
}

#[test]
fn known_api_key_has_its_own_quota() {
    let front = EnvoyFront::start(
        "
limits: { two: fixed-window limit=2 window=366d, four: fixed-window limit=4 window=366d }
api_keys: { k_1: pro }
rules:
  - name: per-client
    domain: envoy
    key: [{ first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: four }, default: two }
",
    );
    let with = |key| front.get_as("/", &[("x-api-key", key)]).status();
    assert_eq!(["k_1"; 5].map(with), [OK, OK, OK, OK, REFUSED]);
    // A client with an unknown key is limited by address.
    assert_eq!(["made", "up", "often"].map(with), [OK, OK, REFUSED]);
    assert_eq!(front.get("/").status(), REFUSED);
}

#[test]
fn path_attribute_has_no_query() {
    let front = EnvoyFront::start(
        "
limits: { one: fixed-window limit=1 window=366d }
rules: [{ name: login, domain: envoy, when: { method: GET, path: /login }, key: [ip], limit: one }]
",
    );
    assert_eq!(
        ["/login?a=1", "/login?b", "/other"].map(|path| front.get(path).status()),
        [OK, REFUSED, OK]
    );
}

/// Envoy forwards a header's bytes unchanged. If the server answered with an error, Envoy would let the request pass.
#[test]
fn header_bytes_that_are_not_text_are_limited() {
    let front = EnvoyFront::start(TWO);
    let with = |key: &[u8]| {
        let key = HeaderValue::from_bytes(key).unwrap();
        front.client.get(&front.envoy.url).header("x-api-key", key).send().unwrap().status()
    };
    let keys: [&[u8]; 4] = [b"\xff\xfe", b"\xc3(", b"k\x80", &[0xff; 55_000]];
    assert_eq!(keys.map(with), [OK, OK, REFUSED, REFUSED]);
    assert_eq!(front.counted("error"), 0);
}

#[test]
fn longest_header_of_envoy_is_limited() {
    let front = EnvoyFront::start(TWO);
    let long = "k".repeat(55_000);
    let paths = ["/", &format!("/{long}"), &format!("/?{long}")];
    let statuses = paths.map(|path| front.get_as(path, &[]).status());
    assert_eq!(statuses, [OK, OK, REFUSED]);
    assert_eq!(front.get_as("/", &[("x-api-key", &long)]).status(), REFUSED);
    assert_eq!(front.counted("error"), 0);
}
