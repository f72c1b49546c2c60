use proptest::prelude::*;
use redis::{IntoConnectionInfo, ProtocolVersion};

use super::*;

fn of(url: &str) -> Deployment {
    Deployment::of(url).unwrap_or_else(|error| panic!("{url}: {error}"))
}

fn one(url: &str) -> ServerSettings {
    match of(url) {
        Deployment::One(server) => server,
        other => panic!("{url}: {other:?}"),
    }
}

/// Returns the problem of a URL; panics unless the error names the setting `redis`.
fn problem(url: &str) -> String {
    match Deployment::of(url) {
        Err(Error::Setting { setting: "redis", problem }) => problem,
        other => panic!("{url}: {other:?}"),
    }
}

fn names(servers: &[ServerSettings]) -> Vec<&str> {
    servers.iter().map(ServerSettings::name).collect()
}

/// Returns name, database, user and password.
fn parts(server: &ServerSettings) -> (&str, i64, Option<&str>, Option<&str>) {
    let settings = server.connection.redis_settings();
    (server.name(), settings.db(), settings.username(), server.password())
}

fn speaks_tls(server: &ServerSettings) -> bool {
    let client = server.client().unwrap();
    matches!(client.get_connection_info().addr(), ConnectionAddr::TcpTls { insecure: false, .. })
}

#[test]
fn one_server() {
    for (url, want) in [
        ("redis://h", ("h:6379", 0, None, None)),
        ("valkey://h", ("h:6379", 0, None, None)),
        ("REDIS://h:", ("h:6379", 0, None, None)),
        (" redis://h/\n", ("h:6379", 0, None, None)),
        ("redis://H.Example:7000/3", ("h.example:7000", 3, None, None)),
        ("redis://h/3/", ("h:6379", 3, None, None)),
        ("redis://u@h", ("h:6379", 0, Some("u"), None)),
        ("redis://:p@h", ("h:6379", 0, None, Some("p"))),
        ("redis://u:p%40%2F%3a%23%25+,@h:1/0", ("h:1", 0, Some("u"), Some("p@/:#%+,"))),
        ("redis://u:p@q@h", ("h:6379", 0, Some("u"), Some("p@q"))),
        ("redis://[::1]", ("[::1]:6379", 0, None, None)),
        ("redis://u:p@[0:0::1]:7/2", ("[::1]:7", 2, Some("u"), Some("p"))),
        ("redis://127.0.0.1:65535", ("127.0.0.1:65535", 0, None, None)),
        ("unix:///run/r.sock", ("/run/r.sock", 0, None, None)),
        ("unix:/run/r.sock", ("/run/r.sock", 0, None, None)),
        ("valkey+unix:///run/r.sock?db=2", ("/run/r.sock", 2, None, None)),
        ("redis+unix:///R%20r@?user=u&pass=p%26q@", ("/R r@", 0, Some("u"), Some("p&q@"))),
    ] {
        assert_eq!(parts(&one(url)), want, "{url}");
        assert!(!speaks_tls(&one(url)), "{url}");
    }
}

#[test]
fn the_protocol_is_resp3_unless_the_url_says_otherwise() {
    for (url, want) in [
        ("redis://h", ProtocolVersion::RESP3),
        ("redis+unix:///s", ProtocolVersion::RESP3),
        ("redis+unix:///s?protocol=resp2", ProtocolVersion::RESP2),
        ("redis://h?protocol=2", ProtocolVersion::RESP2),
        ("redis://h/?protocol=resp3", ProtocolVersion::RESP3),
        ("redis+unix:///s?protocol=3", ProtocolVersion::RESP3),
    ] {
        assert_eq!(one(url).connection.redis_settings().protocol(), want, "{url}");
    }
}

#[test]
fn a_cluster() {
    for url in [
        "redis+cluster://u:p@a,[::1]:7001,b:7002",
        "valkey+cluster://u:p@a:6379,[::1]:7001,B:7002/0",
    ] {
        let Deployment::Cluster { seeds } = of(url) else { panic!("{url}") };
        assert_eq!(names(&seeds), ["a:6379", "[::1]:7001", "b:7002"], "{url}");
        assert!(seeds.iter().all(|seed| seed.password() == Some("p")), "{url}");
    }
}

#[test]
fn shards() {
    let Deployment::Shards(servers) = of("redis+shards://:p@b,a:7001/4") else { panic!() };
    assert_eq!(names(&servers), ["b:6379", "a:7001"]);
    assert_eq!(parts(&servers[1]), ("a:7001", 4, None, Some("p")));
}

#[test]
fn sentinels_and_their_primary() {
    let url = "redis+sentinel://u:p@a,b:5000/my.primary-1_x/7\
               ?sentinel_user=w%20x&sentinel_password=y+%26z&protocol=resp3";
    let Deployment::Sentinel { sentinels, name, primary } = of(url) else { panic!() };
    assert_eq!(name, "my.primary-1_x");
    assert_eq!(parts(&sentinels[0]), ("a:26379", 0, Some("w x"), Some("y+&z")));
    assert_eq!(parts(&sentinels[1]), ("b:5000", 0, Some("w x"), Some("y+&z")));
    let primary = primary.at("10.0.0.1", 6380);
    assert_eq!(parts(&primary), ("10.0.0.1:6380", 7, Some("u"), Some("p")));

    let Deployment::Sentinel { sentinels, primary, .. } = of("redis+sentinel://:p@a/0.0.0.0")
    else {
        panic!()
    };
    assert_eq!(parts(&sentinels[0]), ("a:26379", 0, None, None));
    assert_eq!(parts(&primary.at("::1", 1)), ("[::1]:1", 0, None, Some("p")));
}

#[test]
fn server_at_another_address_keeps_its_settings() {
    let elsewhere = one("redis://u:p@h/2").at("Node-2", 7002);
    assert_eq!(parts(&elsewhere), ("node-2:7002", 2, Some("u"), Some("p")));
    assert_eq!(elsewhere.host_and_port(), Some(("Node-2", 7002)));
    let client = elsewhere.client().unwrap();
    assert_eq!(client.get_connection_info().addr().to_string(), "Node-2:7002");
    assert_eq!(one("unix:///s").host_and_port(), None);
}

#[test]
fn url_names_1024_servers_at_most() {
    let hosts = |count| (0..count).map(|n| format!("h{n}")).collect::<Vec<_>>().join(",");
    let Deployment::Shards(most) = of(&format!("redis+shards://{}", hosts(1024))) else { panic!() };
    assert_eq!(most.len(), 1024);
    assert_eq!(
        problem(&format!("redis+cluster://{}", hosts(1025))),
        "the URL names 1025 servers; use at most 1024"
    );
}

#[test]
fn malformed_url_is_refused_with_a_remedy() {
    let no_url = "this is not a Redis URL; use redis://[user[:password]@]host[:port][/database], \
        redis+unix:///path, redis+cluster://host,…, redis+sentinel://host,…/name or \
        redis+shards://host,…, and rediss for TLS";
    let no_host = "the server has no host; name one, or remove the extra comma";
    let no_port = "the server has an invalid port; use a number from 1 to 65535";
    let no_number = "the URL has a database that is not a number; use one from 0, or leave it out";
    let at_sign = "the URL has an `@` after a `/` or `?`; in a user or password write / as %2F and \
        ? as %3F, in a parameter write @ as %40";
    let no_name = "the URL does not name the primary that the Sentinels watch, with letters, digits and \
        `.-_`; use redis+sentinel://host,…/name[/database]";
    let not_a_host = "the server has an invalid host; use a name or an address, IPv6 in brackets";
    let no_path = "the URL has no path, or a database that is not a number; use \
        redis+unix:///path/of/a.sock[?db=…&user=…&pass=…]";
    let not_utf8 = "the URL has a user or a password that is not UTF-8 when its %… are decoded; write it as UTF-8";
    for (url, want) in [
        ("", no_url),
        ("h", no_url),
        ("h:6379", no_url),
        ("http://h", no_url),
        ("redis:h", no_url),
        ("redis+ring://h", no_url),
        ("rediss+unix:///s", no_url),
        ("redis://", no_host),
        ("redis://u:p@", no_host),
        ("redis://:6379", no_host),
        ("redis://h:x", no_port),
        ("redis://h:0", no_port),
        ("redis://h:+1", no_port),
        ("redis://h:65536", no_port),
        ("redis://h/x", no_number),
        ("redis://h/-1", no_number),
        ("redis://h/1/2", no_number),
        ("redis+shards://h/x", no_number),
        ("redis+sentinel://h/name/x", no_number),
        ("redis://::1", "the server has more than one colon; put an IPv6 address in brackets"),
        ("redis://[::1", not_a_host),
        ("redis://[::1]6379", not_a_host),
        ("redis://a b", not_a_host),
        ("redis://0.0.0.0", "the server is the unspecified address; use the address of one server"),
        ("redis://[0::0]", "the server is the unspecified address; use the address of one server"),
        ("redis://u:%FF@h", not_utf8),
        ("redis://%FF:p@h", not_utf8),
        ("redis://:p/q@h", at_sign),
        ("redis://:p?q@h", at_sign),
        (
            "redis://:p#q@h",
            "the URL has a `#`, and nothing after a `#` is used; write it as %23 if it is part of a \
             password, or leave it out",
        ),
        (
            "rediss://h/#insecure",
            "`#insecure` is not supported, a certificate is always verified; name the one to trust \
             with `?ca=/path/to/ca.pem`",
        ),
        (
            "redis://a,b",
            "the URL names several servers; say what they are with redis+cluster://, \
             redis+sentinel:// or redis+shards://",
        ),
        (
            "redis+cluster://u:p@a,u:p@b",
            "the URL has more than one `@`; say user and password once, before the first server, and \
             write @ in them as %40",
        ),
        (
            "redis+cluster://a,b/1",
            "the URL has a database, and a Cluster has only database 0; leave it out",
        ),
        ("redis+cluster://a,,b", "server 2 of 3 has no host; name one, or remove the extra comma"),
        ("redis+shards://a,", "server 2 of 2 has no host; name one, or remove the extra comma"),
        ("redis+shards://a,b:x", "server 2 of 2 has an invalid port; use a number from 1 to 65535"),
        ("redis+shards://a,b,A:6379", "the URL names `a:6379` twice; leave one out"),
        ("redis+sentinel://a:26379,a/n", "the URL names `a:26379` twice; leave one out"),
        ("redis+sentinel://a,b", no_name),
        ("redis+sentinel://a,b/", no_name),
        ("redis+sentinel://a,b/a%20b", no_name),
        (
            "redis+sentinel://a/n?sentinel_user=u",
            "`sentinel_user` needs a `sentinel_password`; give both, or neither",
        ),
        (
            "redis+sentinel://a/n?sentinel_password=%FF",
            "`sentinel_password` is not UTF-8 when its %… are decoded; write it as UTF-8",
        ),
        ("redis+unix://", no_path),
        ("redis+unix:///s?db=x", no_path),
        ("redis://h?protocol=4", "`protocol` is neither resp2 nor resp3; use one of them"),
        ("redis+unix:///s?protocol=4", "`protocol` is neither resp2 nor resp3; use one of them"),
        ("redis://h?protocol=2&protocol=3", "`protocol` is given twice; leave one out"),
        ("redis://h?timeout=5", "`timeout` is not known; use only protocol"),
        ("redis+unix:///s?port=5", "`port` is not known; use only protocol, db, user, pass"),
        ("redis://h?ca=/c.pem", "`ca` is for TLS; use rediss, or leave it out"),
        (
            "redis://h?secret",
            "parameter 1 after the `?` is not known; use only protocol, and write & in a value as %26",
        ),
        (
            "redis+sentinel://a/n?sentinel_password=x&y=z",
            "parameter 2 after the `?` is not known; use only protocol, sentinel_user, \
             sentinel_password, and write & in a value as %26",
        ),
    ] {
        assert_eq!(problem(url), want, "{url}");
    }
}

// The result for an address with TLS depends on the feature.
#[cfg(not(feature = "tls"))]
#[test]
fn tls_is_refused_by_a_build_without_it() {
    for url in ["rediss://h", "valkeys://h", " REDISS://h", "rediss+cluster://h"] {
        assert_eq!(
            problem(url),
            "rediss:// needs TLS, which is not built in; enable the feature `tls` of the crate \
             `tollgate`, or use redis:// where the network is safe"
        );
    }
    for url in ["redis://rediss:rediss@h", "redis+unix:///rediss"] {
        one(url);
    }
}

#[cfg(feature = "tls")]
#[test]
fn tls_applies_to_all_servers_of_a_url() {
    for url in ["rediss://h", "valkeys://h", " REDISS://h"] {
        assert!(speaks_tls(&one(url)), "{url}");
        assert!(speaks_tls(&one(url).at("other", 1)), "{url}");
    }
    let Deployment::Cluster { seeds } = of("rediss+cluster://a,b") else { panic!() };
    assert!(seeds.iter().all(speaks_tls));
    let Deployment::Shards(servers) = of("valkeys+shards://a,b") else { panic!() };
    assert!(servers.iter().all(speaks_tls));
    let Deployment::Sentinel { sentinels, primary, .. } = of("rediss+sentinel://a,b/n") else {
        panic!()
    };
    assert!(sentinels.iter().all(speaks_tls));
    assert!(speaks_tls(&primary.at("p", 1)));
}

#[test]
fn debug_shows_no_secret() {
    for url in [
        "redis://hunter2@h",
        "redis://hunter2:hunter2@h",
        "redis+unix:///s?user=hunter2&pass=hunter2",
        "redis+sentinel://:hunter2@a/n?sentinel_user=hunter2&sentinel_password=hunter2",
        "redis+cluster://u:hunter2@a,b",
        "redis+shards://u:hunter2@a,b",
    ] {
        let text = format!("{:?} {:#?}", of(url), of(url));
        assert!(!text.contains("hunter2") && text.contains("Server"), "{text}");
    }
    assert_eq!(
        format!("{:?}", one("redis://u:p@h/3")),
        r#"Server { name: "h:6379", database: 3, tls: false, .. }"#
    );
}

fn schemes() -> impl Strategy<Value = String> {
    let protocol = prop::sample::select(vec!["redis", "rediss", "valkey", "valkeys", "http", ""]);
    let form =
        prop::sample::select(vec!["", "", "+cluster", "+sentinel", "+shards", "+unix", "+hunter2"]);
    (protocol, form).prop_map(|(protocol, form)| format!("{protocol}{form}"))
}

proptest! {
    #[test]
    fn any_text_is_a_url_or_an_error(
        scheme in schemes(),
        rest in prop_oneof![".{0,40}", "[a-z0-9:/@?#&=%,.\\[\\] é]{0,40}"],
    ) {
        for url in [format!("{scheme}://{rest}"), format!("{scheme}:{rest}"), rest] {
            if let Ok(deployment) = Deployment::of(&url) {
                let shown = format!("{deployment:?}");
                prop_assert!(shown.contains("Server"), "{}", shown);
            }
        }
    }

    /// Holds even if the password, or the text around it, is malformed.
    #[test]
    fn errors_and_debug_output_never_contain_the_password(
        scheme in schemes(),
        noise in prop::collection::vec("[a-z0-9:/@?#&=%,.\\[\\]\\\\ ]{0,3}", 4),
        host in "[ab:,\\[\\]0-9]{0,6}",
        tail in prop::sample::select(vec!["", "/", "/0", "/name", "/name/x", "/?x=1", "#x", "?ca=/x"]),
    ) {
        let [a, b, c, d] = &noise[..] else { unreachable!() };
        for url in [
            format!("{scheme}://u:{a}QQSECRETQQ{b}@{host}{tail}"),
            format!("{scheme}://{a}:{b}QQSECRETQQ{c}QQSECRETQQ{d}@{host}{tail}"),
            format!("{scheme}://{host}:QQSECRETQQ{a}{tail}"),
            format!("{scheme}://{host}/name?sentinel_password={a}QQSECRETQQ{b}QQSECRETQQ{c}"),
            format!("{scheme}:///{a}?pass={b}QQSECRETQQ{c}QQSECRETQQ{d}"),
            format!("{scheme}:{a}:QQSECRETQQ"),
            format!("QQSECRETQQ{a}://{host}"),
        ] {
            let text = match Deployment::of(&url) {
                Ok(deployment) => format!("{deployment:?}"),
                Err(error) => format!("{error} {error:?}"),
            };
            // A path that contains the password's text is shown.
            let is_path = text.contains("name: \"/");
            let is_shown = text.to_ascii_lowercase().contains("qqsecretqq");
            prop_assert!(is_path || !is_shown, "{url}: {text}");
        }
    }

    /// URLs that redis-rs accepts are still accepted, and mean the same.
    #[test]
    fn redis_rs_agrees(
        scheme in prop::sample::select(vec!["redis", "valkey", "Redis"]),
        login in prop_oneof!["", "[a-z%:@+!$é\\\\ ]{0,8}@", "u:[ -~&&[^/?#]]{0,8}@"],
        host in prop_oneof!["[a-zA-Z0-9._%-]{1,8}", "\\[[0-9a-f:]{2,6}\\]", "[ -~&&[^/?#,@]]{1,8}"],
        port in prop_oneof!["", ":", ":[1-9][0-9]{0,5}"],
        path in prop_oneof!["", "/", "/[0-9]{1,3}/?"],
    ) {
        let url = format!("{scheme}://{login}{host}{port}{path}");
        let theirs = url.as_str().into_connection_info();
        let ours = Deployment::of(&url);
        match (theirs, ours) {
            (Ok(theirs), Ok(Deployment::One(ours))) => {
                prop_assert_eq!(theirs.addr(), ours.connection.addr());
                let (theirs, ours) = (theirs.redis_settings(), ours.connection.redis_settings());
                prop_assert_eq!(theirs.db(), ours.db());
                prop_assert_eq!(theirs.username(), ours.username());
                prop_assert_eq!(theirs.password(), ours.password());
            }
            (Ok(theirs), ours) => {
                let is_port_0 = matches!(theirs.addr(), ConnectionAddr::Tcp(_, 0));
                prop_assert!(is_port_0, "{url}: {ours:?}");
            }
            (Err(_), ours) => prop_assert!(ours.is_err(), "{url}: {ours:?}"),
        }
    }
}
