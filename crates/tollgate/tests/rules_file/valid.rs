//! Valid files are read, and their warnings are kept.

use tollgate::rules::{Config, Severity};

use crate::problems;
use crate::schema;

/// The file in the issue that proposed rules.
const ISSUE: &str = r#"
limits:
  free:       { algorithm: token-bucket, capacity: 60,   refill: 1/s }
  pro:        { algorithm: token-bucket, capacity: 600,  refill: 10/s }
  enterprise: { algorithm: token-bucket, capacity: 6000, refill: 100/s }
  login:      { algorithm: sliding-window-log, limit: 5, window: 15m }
  everyone:   { algorithm: sliding-window-counter, limit: 1000, window: 1s }
rules:
  - name: login-attempts
    domain: api
    when: { method: POST, path: /login }
    key: [ip]
    limit: login
    on_store_failure: closed
  - name: per-client
    domain: api
    key: [{ first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: pro, enterprise: enterprise }, default: free }
    cost: { "POST /reports": 10, default: 1 }
  - name: whole-service
    domain: api
    key: []
    limit: everyone
    shadow: true
"#;

const VALID: &[&str] = &[
    ISSUE,
    include_str!("../../../../examples/rules.yaml"),
    "limits: { free: token-bucket capacity=60 refill=1/s }",
    "{\"limits\": {\"free\": {\"algorithm\": \"leaky-bucket\", \"capacity\": 60, \"leak\": \"1/s\"}}, \"rules\": []}",
    "limits: { jobs: concurrency limit=10 for=60s, uploads: { algorithm: concurrency, limit: 1024, for: 1us } }",
    "limits:\r\n  free: fixed-window limit=1 window=1s\r\nrules: []\r\n",
    "---\nlimits:\n  free:\n    algorithm: leaky-bucket\n    capacity: \"60\"\n    leak: 0.1/s\n    mode: shaping\n...\n",
    "{\n  \"limits\": {\n    \"free\": \"fixed-window limit=1 window=1s\"\n  },\n  \"rules\": [\n    {\n      \"name\": \"a\",\n      \"domain\": \"d\",\n      \"key\": [],\n      \"limit\": \"free\",\n      \"shadow\": true\n    }\n  ]\n}\n",
    r#"
defaults: { domain: api, mode: leased, lease: { for: 2s, max_share: 5%, pace: 200ms } }
limits:
  a: { algorithm: fixed-window, limit: 1000, window: 1m, mode: strict }
  b: { algorithm: sliding-window-log, limit: 1000, window: 1m, lease: { max_share: "100%" } }
  c: { algorithm: sliding-window-counter, limit: 1000, window: 1m, mode: "leased", lease: {} }
  d: { algorithm: token-bucket, capacity: 1000, refill: 10/s, mode: leased, lease: { pace: 100us } }
  e: { algorithm: leaky-bucket, capacity: 1000, leak: 10/s, mode: leased }
  f: { algorithm: leaky-bucket, capacity: 1000, leak: 10/s, mode: policing, lease: { for: 100ms } }
rules:
  - { name: a, key: [], limit: a, mode: leased, lease: { for: 1h, max_share: 1% } }
  - { name: b, key: [], limit: b, mode: strict }
  - name: c
    key: []
    limit: { by: tier, tiers: { c: c, d: d, e: e }, default: f }
"#,
    "limits: {}",
    "rules: []",
    r#"
defaults: { domain: api, on_store_failure: { local: { processes: 4 } }, deadline: 1h }
limits: { free: fixed-window limit=10 window=1s }
networks: { offices: [198.51.100.0/24, 2001:db8:40::/44] }
rules:
  - { name: 1, key: [], limit: free, shadow: True }
  - { name: a, domain: 2, key: [ip], limit: free, deadline: 1ms, on_store_failure: local }
  - { name: b, key: [ip], limit: block, when: { path: { prefix: /v1/ }, method: [GET, { exact: "A*" }] } }
  - { name: c, key: [ip], limit: allow, when: { version: 2, flag: true, level: 1.0, quoted: "null" } }
  - name: d
    key: [tenant, { first_of: [api_key, ip] }]
    limit: free
    when: { a: { any_of: [x, { glob: y* }] }, b: { present: true }, c: { present: false }, d: '**', e: {exact: ''}, f: { none_of: [x, y*, { prefix: z }] } }
    replaces: [1, b, e]
    cost: { GET /: 2, "**": 3 }
    overrides:
      - { key: { ip: 192.0.2.1, tenant: true }, limit: block }
      - { key: { tenant: x, api_key: y }, limit: free }
      - { key: { tenant: y, ip: { networks: offices } }, limit: free }
      - { key: { tenant: y, ip: unknown }, limit: free }
      - { key: { tenant: { network: 10.0.0.0/8 }, ip: unknown }, limit: free }
  - { name: e, key: [], limit: free, replaces: [b] }
  - name: g
    key: []
    limit: block
    when: { ip: [10.0.0.0/8, 192.0.2.7, 2001:db8::/32, "::1", unknown, { networks: offices }], peer: { network: 10.0.0.0/8, none_of: [{ networks: offices }] } }
  - { name: f, key: [], limit: free, replaces: [] }
  - { name: everybody, key: [], limit: allow, replaces: all }
  - { name: h, key: [], limit: block, replaces: all }
  - { name: all, domain: 2, key: [], limit: free }
  - { name: i, domain: 2, key: [], limit: free, replaces: [all] }
"#,
    // No warning about a missing key: `when` requires the key, another rule limits the other requests, or callers send it.
    r#"
limits: { free: fixed-window limit=10 window=1s }
rules:
  - { name: a, domain: a, when: { api_key: { present: true } }, key: [api_key], limit: free }
  - { name: a, domain: b, when: { api_key: { none_of: [x] } }, key: [api_key], limit: free }
  - { name: a, domain: c, when: { path: /v1/** }, key: [api_key], limit: free }
  - { name: b, domain: c, when: { path: /v1/**, api_key: { present: false } }, key: [], limit: free }
  - { name: a, domain: d, when: { method: GET, path: /a }, key: [api_key], limit: free }
  - { name: b, domain: d, when: { path: /a }, key: [ip], limit: free }
  - { name: a, domain: e, key: [api_key], limit: free }
  - { name: b, domain: e, when: { api_key: { present: false } }, key: [], limit: allow }
  - { name: a, domain: f, key: [api_key], limit: allow, overrides: [{ key: { api_key: x }, limit: block }] }
  - { name: a, domain: g, when: { descriptor_keys: api_key }, key: [api_key], limit: free }
  - { name: a, domain: h, key: [api_key], limit: free, shadow: true }
  - { name: b, domain: h, key: [ip], limit: free, shadow: true }
  - { name: a, domain: i, key: [tenant, user], limit: free }
"#,
    r#"
caller_attributes: [client_ip, jwt.sub, header.x-plan, api_key, path]
limits: { free: fixed-window limit=10 window=1s }
rules:
  - { name: a, domain: d, key: [client_ip, jwt.sub], limit: { by: header.x-plan, tiers: { pro: free }, default: free } }
  - { name: b, domain: d, when: { path: "/a?b" }, key: [api_key], limit: free, cost: { "/a?b": 2 } }
"#,
    r#"
defaults: { domain: api }
limits: { free: fixed-window limit=60 window=1m, pro: fixed-window limit=600 window=1m, all: fixed-window limit=9 window=1s }
api_keys: { k_1: pro, k_2: banned }
rules:
  - { name: per-client, key: [tenant, { first_of: [api_key, ip] }], limit: { by: tier, tiers: { pro: pro, banned: block }, default: free }, cost: { POST /reports: 10 } }
  - { name: debug, when: { header.x-debug: 1 }, key: [], limit: allow }
  - { name: all, key: [], limit: all, shadow: true }
  - { name: internal, when: { ip: 10.0.0.1 }, key: [ip], limit: allow, replaces: [all] }
tests:
  - name: a report of a client with a key
    attributes: { method: POST, path: /reports, tenant: t, ip: 192.0.2.1 }
    claims: { api_key: k_1 }
    expect: { per-client: { limit: pro, key: { api_key: k_1, tenant: t }, cost: 10 }, all: all }
  - name: a client that is banned
    domain: api
    attributes: { tenant: t }
    claims: { api_key: k_2 }
    expect: { per-client: block, all: { key: {}, limit: all } }
  - name: an unknown key
    attributes: { tenant: t, ip: 192.0.2.1 }
    claims: { api_key: k_3 }
    said: { header.x-debug: 1 }
    expect: { per-client: { key: { tenant: t, ip: 192.0.2.1 } }, debug: allow, all: {} }
  - name: a rule that is replaced
    attributes: { ip: 10.0.0.1 }
    expect: { internal: allow }
"#,
    r#"
limits:
  tokens: token-bucket capacity=10000 refill=10000/m
  running: concurrency limit=5 for=2m
  month: fixed-window limit=5000000 window=30d
caller_attributes: [header.x-tokens]
rules:
  - name: tokens
    domain: llm
    key: [team]
    limit: tokens
    cost: { reserve: { attribute: estimated_tokens, "POST /embeddings": 200, default: 1000 } }
    hold_for: 30s
  - { name: month, domain: llm, key: [team], limit: month, cost: { reserve: 1000 } }
  - { name: header, domain: llm, key: [team], limit: month, shadow: true, cost: { reserve: { attribute: header.x-tokens, default: 1 } } }
  - { name: running, domain: llm, key: [team], limit: running, cost: 2, hold_for: 5m }
  - { name: bytes, domain: uploads, key: [], limit: month, cost: { attribute: bytes, default: 1 } }
tests:
  - name: a call with an estimate
    domain: llm
    attributes: { team: 7, estimated_tokens: 4000 }
    expect: { tokens: { reserve: 4000 }, month: { limit: month, reserve: 1000 }, header: {}, running: { reserve: 2 } }
  - name: an embedding without one
    domain: llm
    attributes: { team: 7, method: POST, path: /embeddings }
    expect: { tokens: { reserve: 200, cost: 200 }, month: {}, header: {}, running: { cost: 2 } }
  - { name: an upload, domain: uploads, attributes: { bytes: 70 }, expect: { bytes: { cost: 70 } } }
"#,
    "limits: {}\nidentity: {}",
    concat!(
        "limits: {}\nidentity: { ipv6_prefix: 1, jwt: { keys: [{ algorithm: ES256, public_key: ",
        p256!(),
        " }], leeway: 1h } }"
    ),
    "limits: {}\nidentity: { jwt: { jwks: { url: 'https://issuer.example/.well-known/jwks.json' }, issuer: a } }",
    concat!(
        "limits: {}\nidentity: { jwt: { jwks: { url: 'http://127.0.0.1:8080/keys?v=2', max_age: 10s, max_stale: 30d }, ",
        "keys: [{ algorithm: ES256, public_key: ",
        p256!(),
        " }] } }"
    ),
    "limits: {}\nidentity: { trusted_proxies: [::1, 2001:db8::/32, 10.0.0.0/8, \"::ffff:192.0.2.0/120\"], trusted_headers: [] }",
    concat!(
        r#"
limits: { free: fixed-window limit=10 window=1s }
rules:
  - { name: a, domain: d, key: [{ first_of: [header.x-tenant, ip] }], limit: free }
  - { name: b, domain: d, key: [jwt.sub], limit: free }
identity:
  trusted_proxies: [10.0.0.0/8, 192.0.2.7]
  forwarding_header: forwarded
  trusted_headers: [X-Tenant, x_y]
  ipv6_prefix: "128"
  api_key_header: X-Key
  jwt:
    keys:
      - algorithm: ES256
        id: 1
        public_key: |
          -----BEGIN PUBLIC KEY-----
          MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h
          6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==
          -----END PUBLIC KEY-----
      - { algorithm: RS256, public_key: "#,
        rsa_pkcs1!(),
        r#" }
      - algorithm: EdDSA
        public_key: |
          -----BEGIN PUBLIC KEY-----
          MCowBQYDK2VwAyEAmxZKbJULO5UVBWZS0wVXnDKCmks5ymXd9K9e8uzXrGk=
          -----END PUBLIC KEY-----
      - algorithm: ES384
        public_key: |
          -----BEGIN PUBLIC KEY-----
          MHYwEAYHKoZIzj0CAQYFK4EEACIDYgAEYBdoRIe39mMdhZPkhQUdUFE5HmdiDI0W
          jXkPQ2km5pLBifxq9NDD4AwVLnfemoWNu7JbtF7UJEumt9yA6tJr0Ak2uFBfo6ZY
          mEVCTcpo0dXQdje/j2kkhCbscGgX4uZ4
          -----END PUBLIC KEY-----
      - { algorithm: ES256, id: "01", public_key: "#,
        p256!(),
        r#" }
      - { algorithm: ES256, public_key: "#,
        p256!(),
        r#" }
    issuer: https://issuer.example
    audience: 7
    leeway: 0s
    invalid: unauthorized
    verifications: { algorithm: fixed-window, limit: 5, window: 1m }
"#
    ),
];

#[test]
fn valid_files_are_read_and_fit_the_schema() {
    for text in VALID {
        let found = problems(text);
        assert!(found.is_empty(), "{found}\n{text}");
        assert!(schema::accepts(text), "{text}");
    }
    let config = Config::parse("limits.yaml", ISSUE).unwrap();
    assert_eq!((config.limits(), config.rules()), (5, 3));
}

#[test]
fn byte_order_mark_is_ignored() {
    assert!(problems("\u{feff}limits: { free: fixed-window limit=1 window=1s }").is_empty());
    let shifted = problems("\u{feff}limit: 1");
    assert_eq!(shifted.iter().next().unwrap().column(), Some(1));
}

#[test]
fn text_and_mapping_are_the_same_limit() {
    let text = Config::parse("a", "limits: { x: leaky-bucket capacity=5 leak=1/s }").unwrap();
    let mapping = "limits: { x: { leak: 1/s, algorithm: leaky-bucket, capacity: 5 } }";
    assert_eq!(text, Config::parse("a", mapping).unwrap());
    let text = Config::parse("a", "limits: { x: concurrency limit=5 for=1m }").unwrap();
    let mapping = "limits: { x: { for: 60s, algorithm: concurrency, limit: 5 } }";
    assert_eq!(text, Config::parse("a", mapping).unwrap());
}

#[test]
fn valid_file_keeps_its_warnings() {
    let text = "limits: { a: fixed-window limit=1 window=1s, b: fixed-window limit=1 window=1s }
rules: [{ name: r, domain: d, key: [], limit: a }]";
    let config = Config::parse("limits.yaml", text).unwrap();
    let warning = config.warnings().iter().next().unwrap();
    assert_eq!(warning.severity(), Severity::Warning);
    assert_eq!(
        (warning.file(), warning.line(), warning.column()),
        ("limits.yaml", Some(1), Some(46))
    );
    assert_eq!(warning.message(), "no rule spends limit `b`");
    assert_eq!(config.warnings().errors().count(), 0);
}

#[test]
fn columns_count_characters() {
    let found = problems("limits: { \"é\": fixed-window limit=1 window=1s, ü: x }");
    let places: Vec<_> = found.iter().map(|problem| problem.column().unwrap()).collect();
    assert_eq!(places, [11, 48]);
}
