//! Reading a file gives the configuration that it describes.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tollgate_core::Cost;
use tollgate_limiter::{LeaseOptions, OnFailure};

use super::*;
use crate::config::{
    Condition, CostRoute, Costs, DecisionMode, KeyPart, KeyValue, LeaseSettings, LimitChoice,
    Override, Replacement, Requirement, RuleConfig, Spend, TierConfig,
};
use crate::networks::Networks;
use crate::pattern::Pattern;
use tollgate_identity::config::{
    ForwardingHeader, IdentityConfig, JwksConfig, JwtAlgorithm, JwtConfig, JwtKeyConfig, OnInvalid,
};

const TEXT: &str = r#"
defaults: { domain: api, on_store_failure: closed, deadline: 10ms, lease: { for: 2s } }
limits:
  free: { algorithm: token-bucket, capacity: 60, refill: 1/s, mode: strict, lease: { max_share: 10% } }
  pro: token-bucket capacity=600 refill=10/s
api_keys: { k_1: pro, 2: gold }
rules:
  - name: plain
    key: []
    limit: pro
    mode: leased
  - name: all
    domain: web
    when:
      method: [GET, { exact: "*" }, { prefix: P }]
      path: /v1/**
      version: 1.0
      flag: true
      here: { present: true }
      gone: { present: false }
      any: { any_of: [x, { glob: y }] }
      none: { none_of: [x, y*] }
    key: [tenant, { first_of: [api_key, ip] }]
    limit: { by: tier, tiers: { pro: pro, banned: block, gold: allow }, default: free }
    cost: { reserve: { attribute: tokens, "POST /reports": 10, "**/export": 5, default: 2 } }
    hold_for: 30s
    shadow: true
    on_store_failure: { local: { processes: 4 } }
    deadline: 5ms
    overrides:
      - { key: { ip: 203.0.113.9, tenant: 7 }, limit: block }
    replaces: [other, 1]
  - { name: other, domain: web, key: [], limit: pro }
  - { name: 1, domain: web, key: [], limit: pro }
"#;

fn plain() -> RuleConfig {
    RuleConfig {
        name: "plain".into(),
        domain: "api".into(),
        when: vec![],
        key: vec![],
        limit: LimitChoice { tiers: None, default: Spend::Limit(1) },
        cost: Costs { attribute: None, routes: vec![], default: Cost::ONE, is_reserved: false },
        hold_for: None,
        is_shadow: false,
        on_store_failure: Some(OnFailure::Closed),
        deadline: Some(Duration::from_millis(10)),
        lease: LeaseSettings { mode: Some(DecisionMode::Leased), options: None },
        overrides: vec![],
        replaces: Replacement::Named(vec![]),
    }
}

fn all() -> RuleConfig {
    let cost = |units| Cost::new(units).unwrap();
    let exact = |text: &str| Pattern::Exact(text.into());
    let condition = |attribute: &str, wanted| Condition { attribute: attribute.into(), wanted };
    let any_of = |attribute, patterns| condition(attribute, Requirement::AnyOf(patterns));
    let part =
        |names: &[&str]| KeyPart { first_of: names.iter().map(|&name| name.into()).collect() };
    RuleConfig {
        name: "all".into(),
        domain: "web".into(),
        when: vec![
            any_of("method", vec![exact("GET"), exact("*"), Pattern::Prefix("P".into())]),
            any_of("path", vec![Pattern::of("/v1/**")]),
            any_of("version", vec![exact("1.0")]),
            any_of("flag", vec![exact("true")]),
            condition("here", Requirement::Present),
            condition("gone", Requirement::Absent),
            any_of("any", vec![exact("x"), exact("y")]),
            condition("none", Requirement::NoneOf(vec![exact("x"), Pattern::of("y*")])),
        ],
        key: vec![part(&["tenant"]), part(&["api_key", "ip"])],
        limit: LimitChoice {
            tiers: Some(TierConfig {
                by: "tier".into(),
                of: vec![
                    ("pro".into(), Spend::Limit(1)),
                    ("banned".into(), Spend::Block),
                    ("gold".into(), Spend::Allow),
                ],
            }),
            default: Spend::Limit(0),
        },
        cost: Costs {
            attribute: Some("tokens".into()),
            routes: vec![
                (CostRoute { method: Some("POST".into()), path: exact("/reports") }, cost(10)),
                (CostRoute { method: None, path: Pattern::of("**/export") }, cost(5)),
            ],
            default: cost(2),
            is_reserved: true,
        },
        hold_for: Some(Duration::from_secs(30)),
        is_shadow: true,
        on_store_failure: Some(OnFailure::Local { processes: Some(4) }),
        deadline: Some(Duration::from_millis(5)),
        lease: LeaseSettings::default(),
        // In the order of the rule's key, not in the order of the file.
        overrides: vec![Override {
            key: vec![
                ("tenant".into(), KeyValue::Text("7".into())),
                ("ip".into(), KeyValue::In(Networks::One("203.0.113.9/32".parse().unwrap()))),
            ],
            spend: Spend::Block,
        }],
        replaces: Replacement::Named(vec!["other".into(), "1".into()]),
    }
}

#[test]
fn config_has_everything_in_the_file() {
    let config = Config::parse("limits.yaml", TEXT).unwrap();
    let limits: Vec<_> = config.limits.iter().map(|it| (&*it.name, it.limit.to_string())).collect();
    let expected = [
        ("free", "token-bucket capacity=60 refill=1/s".to_owned()),
        ("pro", "token-bucket capacity=600 refill=10/s".to_owned()),
    ];
    assert_eq!(limits, expected);
    let tenth = LeaseOptions { max_share_percent: 10, ..LeaseOptions::default() };
    let two_seconds = LeaseOptions { lease_for: Duration::from_secs(2), ..LeaseOptions::default() };
    let strict = LeaseSettings { mode: Some(DecisionMode::Strict), options: Some(tenth) };
    assert_eq!(
        [config.limits[0].lease, config.limits[1].lease],
        [strict, LeaseSettings::default()]
    );
    assert_eq!(config.lease, LeaseSettings { mode: None, options: Some(two_seconds) });
    assert_eq!(config.rules[..2], [plain(), all()]);
    let keys = [("k_1", "pro"), ("2", "gold")].map(|(key, tier)| (key.into(), tier.into()));
    assert_eq!(config.api_keys, keys.into());
    assert!(config.warnings.is_empty());
    let notes: Vec<_> = config.notes().map(ToString::to_string).collect();
    let expected = "note: limits.yaml:25:11: rule `all` holds units until the caller ends the hold: Envoy and forward \
                    authentication cannot\n  if they use domain `web`, the units are charged at once there, or held for 30s if a concurrency limit applies \
                    too";
    assert_eq!(notes, [expected]);
}

#[test]
fn config_leaves_failure_policy_and_deadline_to_the_limiter_by_default() {
    let text = "rules: [{ name: a, domain: d, key: [], limit: allow }]";
    let config = Config::parse("limits.yaml", text).unwrap();
    let rule = &config.rules[0];
    assert_eq!((rule.on_store_failure, rule.deadline), (None, None));
}

#[test]
fn api_keys_file_without_permission_is_reported_with_a_remedy() {
    let problems = Config::load_with(Path::new("limits.yaml"), |path, _| match path.to_str() {
        Some("limits.yaml") => Ok(b"limits: {}\napi_keys_file: keys.yaml\n".to_vec()),
        _ => Err(ErrorKind::PermissionDenied.into()),
    });
    let expected = "error: limits.yaml:2:16: `keys.yaml` cannot be read: permission denied\n  \
                    let this user read it\n1 error";
    assert_eq!(problems.unwrap_err().to_string(), expected);
}

const IDENTITY: &str = r#"
limits: {}
identity:
  trusted_proxies: [10.0.0.0/8, 192.0.2.7, "2001:db8::/32", "::ffff:198.51.100.0/120", ::ffff:0.0.0.1]
  forwarding_header: x-real-ip
  trusted_headers: [X-Tenant, x-plan]
  ipv6_prefix: 64
  api_key_header: X-Key
  jwt:
    keys:
      - { algorithm: HS256, secret_file: keys/jwt.secret }
      - { algorithm: HS256, id: 2, secret_env: JWT_SECRET }
      - { algorithm: RS256, id: rsa, public_key_file: rsa.pem }
      - { algorithm: ES256, public_key: "-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h\n6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==\n-----END PUBLIC KEY-----\n" }
    issuer: https://issuer.example
    audience: api
    leeway: 30s
    invalid: unauthorized
    verifications: token-bucket capacity=7 refill=1/s
"#;
const SECRET: &[u8] = b"secret-secret-secret-secret-secret\n";
const RSA: &[u8] = include_bytes!("../../../tollgate/tests/keys/rsa.pem");
const P256: &[u8] = b"\
-----BEGIN PUBLIC KEY-----
MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAESm9x/UBCIVhyICC9zvZEkS6zyX5h
6Jt8ESi/0ILGZyBTM/F6CxHZF0pGkiU+HW8NIVtiEMXJHIDKtPLFi12rzQ==
-----END PUBLIC KEY-----
";

/// Reads a text that may name a key file of either kind, and an environment variable that is set.
fn around(text: &str, secret: &[u8]) -> Result<Config, Problems> {
    let mut read = |path: &Path, max_bytes| {
        assert_eq!(max_bytes, 64 << 10);
        match path.to_str() {
            Some("keys/jwt.secret") => Ok(secret.to_vec()),
            Some("rsa.pem") => Ok(RSA.to_vec()),
            _ => Err(ErrorKind::PermissionDenied.into()),
        }
    };
    // Not the same as in the file: a variable has no line end to remove.
    let variable = |name: &str| (name == "JWT_SECRET").then(|| format!("{:\n<32}", "x").into());
    Config::parse_around("limits.yaml", text.as_bytes(), FileContext { read: &mut read, variable })
}

#[test]
fn identity_has_everything_in_the_file() {
    let config = around(IDENTITY, SECRET).unwrap();
    let key = |algorithm, id: Option<&str>, material: &[u8]| JwtKeyConfig {
        algorithm,
        id: id.map(Into::into),
        material: material.to_vec(),
    };
    let jwt = JwtConfig {
        jwks: None,
        keys: vec![
            key(JwtAlgorithm::Hs256, None, b"secret-secret-secret-secret-secret"),
            key(JwtAlgorithm::Hs256, Some("2"), format!("{:\n<32}", "x").as_bytes()),
            key(JwtAlgorithm::Rs256, Some("rsa"), RSA),
            key(JwtAlgorithm::Es256, None, P256),
        ],
        issuer: Some("https://issuer.example".into()),
        audience: Some("api".into()),
        leeway: Some(Duration::from_secs(30)),
        on_invalid: OnInvalid::Unauthorized,
        verifications: Some("token-bucket capacity=7 refill=1/s".parse().unwrap()),
    };
    let nets = ["10.0.0.0/8", "192.0.2.7/32", "2001:db8::/32", "198.51.100.0/24", "0.0.0.1/32"];
    let expected = IdentityConfig {
        trusted_proxies: nets.map(|net| net.parse().unwrap()).to_vec(),
        forwarding_header: ForwardingHeader::XRealIp,
        trusted_headers: vec!["x-tenant".into(), "x-plan".into()],
        ipv6_prefix: Some(64),
        api_key_header: Some("x-key".into()),
        jwt: Some(jwt),
    };
    assert_eq!(config.identity, Some(expected));
    let shown = format!("{:?}", config.identity);
    assert!(!shown.contains("secret") && !shown.contains("115, 101, 99"), "{shown}");
    assert!(shown.contains("JwtKeyConfig { algorithm: Rs256, id: Some(\"rsa\"), .. }"), "{shown}");
}

#[test]
fn identity_fields_have_defaults_when_missing() {
    assert_eq!(around("limits: {}", b"").unwrap().identity, None);
    let empty = around("limits: {}\nidentity: {}", b"").unwrap().identity;
    assert_eq!(empty, Some(IdentityConfig::default()));
    let text = "limits: {}\nidentity: { jwt: { keys: [{ algorithm: HS256, secret_env: JWT_SECRET }] }, trusted_proxies: [::1], forwarding_header: x-forwarded-for }";
    let identity = around(text, b"").unwrap().identity.unwrap();
    assert_eq!(identity.forwarding_header, ForwardingHeader::XForwardedFor);
    let JwtConfig { leeway, on_invalid, verifications, .. } = identity.jwt.unwrap();
    assert_eq!((leeway, on_invalid, verifications), (None, OnInvalid::ByIp, None));
    let said = text.replace("x-forwarded-for", "forwarded").replace("] },", "], invalid: by_ip },");
    let identity = around(&said, b"").unwrap().identity.unwrap();
    assert_eq!(identity.forwarding_header, ForwardingHeader::Forwarded);
}

#[test]
fn secret_file_loses_one_line_end() {
    let material = |secret: &[u8]| {
        let text = "limits: {}\nidentity: { jwt: { keys: [{ algorithm: HS256, secret_file: keys/jwt.secret }] } }";
        let identity = around(text, secret).unwrap().identity;
        identity.unwrap().jwt.unwrap().keys.remove(0).material
    };
    let secret = [b'x'; 32];
    for (end, kept) in
        [("", ""), ("\n", ""), ("\r\n", ""), ("\n\n", "\n"), ("\r", "\r"), (" \n", " ")]
    {
        let (file, expected) =
            ([&secret, end.as_bytes()].concat(), [&secret, kept.as_bytes()].concat());
        assert_eq!(material(&file), expected, "{end:?}");
    }
}

#[test]
fn key_file_without_permission_is_reported_with_a_remedy() {
    let text =
        "limits: {}\nidentity: { jwt: { keys: [{ algorithm: HS256, secret_file: other }] } }";
    let expected = "error: limits.yaml:2:60: `secret_file` cannot be read: permission denied\n  \
                    let this user read it\n1 error";
    assert_eq!(around(text, b"").unwrap_err().to_string(), expected);
}

// Keys are parsed only with the feature `jwt`.
#[cfg(feature = "jwt")]
const ED25519_SET: &str =
    r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}"#;

fn jwks_of(config: Config) -> Option<JwksConfig> {
    config.identity.unwrap().jwt.unwrap().jwks
}

#[test]
fn jwks_url_is_read_with_its_ages() {
    let read = |jwks: &str| {
        let text = format!("limits: {{}}\nidentity: {{ jwt: {{ jwks: {jwks} }} }}");
        jwks_of(Config::parse("limits.yaml", text).unwrap())
    };
    let url = |max_age, max_stale| {
        let url = "https://issuer.example/keys?v=2".into();
        Some(JwksConfig::Url { url, max_age, max_stale })
    };
    let (minute, day) = (Duration::from_secs(60), Duration::from_secs(86_400));
    assert_eq!(read("{ url: 'https://issuer.example/keys?v=2' }"), url(None, None));
    let aged = read("{ url: 'https://issuer.example/keys?v=2', max_age: 1m, max_stale: 1d }");
    assert_eq!(aged, url(Some(minute), Some(day)));
}

#[cfg(feature = "jwt")]
#[test]
fn jwks_file_is_read_with_bounds() {
    let text = "limits: {}\nidentity: { jwt: { jwks: { file: keys/jwks.json } } }";
    let read = |json: &str| {
        Config::parse_with("limits.yaml", text, |path| {
            assert_eq!(path, Path::new("keys/jwks.json"));
            Ok(json.into())
        })
    };
    assert_eq!(jwks_of(read(ED25519_SET).unwrap()), Some(JwksConfig::File(ED25519_SET.into())));
    let padded = format!("{ED25519_SET}{}", " ".repeat((256 << 10) - ED25519_SET.len()));
    assert!(read(&padded).is_ok());
    for (json, want) in [
        (format!("{padded} "), "`file` cannot be read: it is larger than 256 KiB"),
        ("hush".into(), "`file` has no key set"),
        (r#"{"keys":[]}"#.into(), "`file` has no key that can be used"),
        (r#"{"keys":[{"kty":"oct","k":"hush"}]}"#.into(), "`file` has a symmetric key (`oct`)"),
        (r#"{"keys":[{"kty":"EC","d":"hush"}]}"#.into(), "`file` has a private key"),
    ] {
        let said = read(&json).unwrap_err().to_string();
        assert!(said.contains(want) && !said.contains("hush"), "{said}");
    }
    let with_another = ED25519_SET.replace("]}", r#",{"kty":"hush"}]}"#);
    let warnings = read(&with_another).unwrap().warnings().to_string();
    assert!(warnings.contains("a key of `file` is not used"), "{warnings}");
}
