//! `/v1/authorize` with the requests that proxies send. Tests with real proxies are in tests/gateways.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use reqwest::blocking::{RequestBuilder, Response};
use reqwest::{Method, header::HeaderMap};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::NamedTempFile;
use tollgate_launcher::{Flavour, Launch, Proxy};

use crate::check::{problem, rules};
use crate::eventually::eventually;
use crate::metrics::scrape;
use crate::openapi::assert_valid;
use crate::server::{ServerProcess, body_of};

/// Allows a client three requests per day for each path, and one login.
const RULES: &str = "
identity: { trusted_proxies: [127.0.0.1] }
limits:
  three: fixed-window limit=3 window=1d
  one: fixed-window limit=1 window=1d
rules:
  - { name: per-path, domain: web, key: [ip, path], limit: three }
  - { name: logins, domain: web, when: { method: POST, path: /login }, key: [ip], limit: one }
  - { name: closed-area, domain: web, when: { path: /closed }, key: [], limit: block }
";

fn server(text: &str) -> (ServerProcess, NamedTempFile) {
    let file = rules(text);
    (ServerProcess::start(&["--config", file.path().to_str().unwrap()]), file)
}

/// Returns a request to `/v1/authorize`, as Caddy and Traefik send it.
fn ask(server: &ServerProcess, path: &str, method: &str, uri: &str) -> RequestBuilder {
    let request = server.get(&format!("/v1/authorize{path}"));
    let request = request.header("x-forwarded-method", method).header("x-forwarded-uri", uri);
    request.header("x-forwarded-for", "203.0.113.9").header("x-forwarded-host", "shop.example")
}

fn status(request: RequestBuilder) -> u16 {
    request.send().unwrap().status().as_u16()
}

/// Returns a refusal's status, its `x-tollgate-reason` and its problem body.
fn refused(response: Response) -> (u16, String, Value) {
    let status = response.status().as_u16();
    let reason = response.headers()["x-tollgate-reason"].to_str().unwrap().to_owned();
    assert_eq!(response.headers()["content-type"], "application/problem+json");
    let problem = body_of(response);
    assert_eq!(problem["status"], status);
    assert_valid("RefusalProblem", &problem);
    (status, reason, problem)
}

fn text<'h>(headers: &'h HeaderMap, name: &str) -> &'h str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

#[test]
fn request_passes_until_its_quota_is_spent() {
    let (server, _file) = server(RULES);
    let response = ask(&server, "", "GET", "/a?b=1").send().unwrap();
    assert_eq!(response.status(), 200);
    let headers = response.headers();
    assert_eq!(text(headers, "ratelimit-policy"), "\"per-path\";q=3;w=86400");
    assert!(text(headers, "ratelimit").starts_with("\"per-path\";r=2;t="), "{headers:?}");
    assert_eq!(text(headers, "x-ratelimit-limit"), "3");
    assert_eq!(text(headers, "x-ratelimit-remaining"), "2");
    assert!(text(headers, "x-ratelimit-reset").parse::<u64>().unwrap() > 1_600_000_000);
    assert!(headers.get("retry-after").is_none() && headers.get("x-tollgate-reason").is_none());
    assert_eq!(response.text().unwrap(), "");

    // The path is compared without its query. Other paths have their own quota.
    assert_eq!(status(ask(&server, "", "GET", "/a?b=2")), 200);
    assert_eq!(status(ask(&server, "", "GET", "/a")), 200);
    let response = ask(&server, "", "GET", "/a?c").send().unwrap();
    let retry_after: u64 = text(response.headers(), "retry-after").parse().unwrap();
    assert!((1..=86_400).contains(&retry_after));
    assert!(text(response.headers(), "ratelimit").starts_with("\"per-path\";r=0;t="));
    let (status_code, reason, body) = refused(response);
    assert_eq!((status_code, &*reason), (429, "quota"));
    assert_eq!(body["violated-policies"], json!(["per-path"]));
    assert_eq!((&body["rule"], &body["limit_name"]), (&json!("per-path"), &json!("three")));
    assert_eq!(body["title"], "Too Many Requests");
    assert_eq!(status(ask(&server, "", "GET", "/b")), 200);
}

#[test]
fn original_requests_method_client_and_host_are_used() {
    let (server, _file) = server(
        "identity: { trusted_proxies: [127.0.0.1] }\n\
         limits: { one: fixed-window limit=1 window=1d }\n\
         rules:\n\
         - { name: shop, domain: web, when: { header.host: shop.example }, key: [ip, method], limit: one }",
    );
    assert_eq!(status(ask(&server, "", "GET", "/")), 200);
    assert_eq!(status(ask(&server, "", "GET", "/")), 429);
    assert_eq!(status(ask(&server, "", "POST", "/")), 200);
    let other = || ask(&server, "", "GET", "/").header("x-forwarded-for", "203.0.113.10");
    // The last address is the address that the proxy has added.
    assert_eq!(status(other()), 200);
    assert_eq!(status(other()), 429);
    let to_host = || {
        let request = server.get("/v1/authorize").header("x-forwarded-method", "GET");
        request.header("x-forwarded-uri", "/").header("x-forwarded-for", "203.0.113.9")
    };
    assert_eq!(status(to_host().header("x-forwarded-host", "else.example")), 200);
    assert_eq!(status(to_host().header("x-forwarded-host", "shop.example")), 429);
}

#[test]
fn authorize_refuses_untrusted_proxies() {
    for text in [RULES.replace("127.0.0.1", "10.0.0.1"), RULES.replace("identity:", "# ")] {
        let (server, _file) = server(&text);
        for _ in 0..3 {
            let response = ask(&server, "", "GET", "/").send().unwrap();
            assert_eq!(text_of(&response, "x-tollgate-reason"), "untrusted-proxy");
            let (status, detail) = problem(response);
            assert_eq!(status, 403);
            assert!(detail.contains("identity.trusted_proxies"), "{detail}");
        }
        let page = scrape(&server);
        assert_eq!(page.value("tollgate_authorize_untrusted_total", &[]), 3.0);
        let log = server.wait_for_log(|log| log.contains("identity.trusted_proxies"));
        assert!(log.contains("127.0.0.1"), "{log}");
        assert!(log.matches("identity.trusted_proxies").count() < 3, "{log}");
    }
}

fn text_of<'r>(response: &'r Response, name: &str) -> &'r str {
    text(response.headers(), name)
}

#[test]
fn headers_of_another_kind_of_proxy_are_ignored() {
    let (server, _file) = server(RULES);
    let spoofed = |path: &str| {
        let request = ask(&server, "", "GET", "/a").header("x-original-uri", path);
        request.header("x-original-method", "POST")
    };
    for path in ["/1", "/2", "/3"] {
        assert_eq!(status(spoofed(path)), 200);
    }
    assert_eq!(status(spoofed("/4")), 429);

    let nginx = |path: &str| {
        let request = ask(&server, "/web/proxy=nginx", "GET", path).header("x-original-uri", "/n");
        request.header("x-original-method", "GET")
    };
    for path in ["/1", "/2", "/3"] {
        assert_eq!(status(nginx(path)), 200);
    }
    assert_eq!(status(nginx("/4")), 429);
}

#[test]
fn authorize_treats_all_methods_alike() {
    let (server, _file) = server(RULES);
    for method in ["HEAD", "POST", "PURGE"] {
        let method = Method::from_bytes(method.as_bytes()).unwrap();
        let request = server.request(method, "/v1/authorize").header("x-forwarded-method", "GET");
        assert_eq!(status(request.header("x-forwarded-uri", "/a")), 200);
    }
    let request = server.request(Method::HEAD, "/v1/authorize").header("x-forwarded-method", "GET");
    let response = request.header("x-forwarded-uri", "/a").send().unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.text().unwrap(), "");
    // The server does not read the body of a request.
    let request = server.post("/v1/authorize", "x".repeat(3 << 20));
    let request = request.header("x-forwarded-method", "GET").header("x-forwarded-uri", "/a");
    let response = request.send().unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["connection"], "close");
    let page = scrape(&server);
    let labels = [("endpoint", "authorize"), ("status", "429")];
    assert_eq!(page.value("tollgate_requests_total", &labels), 2.0);
}

#[test]
fn refusal_has_the_status_of_deny_status() {
    let (server, _file) = server(RULES);
    let ask = |path: &str| ask(&server, "/web/deny_status=403", "GET", path).send().unwrap();
    for _ in 0..3 {
        assert_eq!(ask("/a").status(), 200);
    }
    let (status, reason, body) = refused(ask("/a"));
    assert_eq!((status, &*reason), (403, "quota"));
    assert_eq!(body["title"], "Too Many Requests");
    let (status, reason, body) = refused(ask("/closed"));
    assert_eq!((status, &*reason), (403, "blocked"));
    assert_eq!(body["retry_after_us"], Value::Null);
}

#[test]
fn blocked_request_is_a_403_without_a_wait() {
    let (server, _file) = server(RULES);
    let response = ask(&server, "", "GET", "/closed").send().unwrap();
    for invitation in ["retry-after", "ratelimit", "ratelimit-policy", "x-ratelimit-remaining"] {
        assert!(response.headers().get(invitation).is_none(), "{invitation}");
    }
    let (status, reason, body) = refused(response);
    assert_eq!((status, &*reason), (403, "blocked"));
    assert_eq!((&body["title"], &body["rule"]), (&json!("Forbidden"), &json!("closed-area")));
    assert_eq!(body["detail"], "`closed-area` blocks such requests");
    for nothing in ["limit_name", "violated-policies", "retry_after_us"] {
        assert_eq!(body[nothing], Value::Null, "{nothing}");
    }
    let (status, ..) =
        refused(ask(&server, "/web/deny_status=429", "GET", "/closed").send().unwrap());
    assert_eq!(status, 429, "deny_status also applies to blocked requests");
}

#[test]
fn bad_authorize_request_is_refused_with_a_reason() {
    let (server, _file) = server(RULES);
    for (path, want) in [
        ("/web/deny_status=302", "use one of 400 to 499"),
        ("/web/deny_status=503", "use one of 400 to 499"),
        ("/web/max_wait_us=60000001", "at most 60000000"),
        ("/web/proxy=squid", "use `forwarded` or `nginx`"),
        ("/web/dommain=web", "unknown setting `dommain`"),
        ("/%ff", "send percent-encoded UTF-8"),
        ("/web/%ff", "send percent-encoded UTF-8"),
    ] {
        let (status, detail) = problem(ask(&server, path, "GET", "/").send().unwrap());
        assert_eq!(status, 400, "{path}");
        assert!(detail.contains(want), "{path}: {detail}");
    }
    for path in ["/", "/web/", "/web/proxy=nginx/", "/web/a/b"] {
        let (status, detail) = problem(ask(&server, path, "GET", "/").send().unwrap());
        assert_eq!(status, 404, "{path}");
        assert!(detail.contains("there is no path `/v1/authorize/"), "{path}: {detail}");
    }
    let (status, detail) = problem(ask(&server, "/shop", "GET", "/").send().unwrap());
    assert_eq!(status, 404, "{detail}");
    for (method, uri, want) in [
        ("G T", "/", "x-forwarded-method is not a method"),
        ("", "/", "x-forwarded-method is not a method"),
        ("GET", "http://shop.example/", "x-forwarded-uri is not a path"),
        ("GET", "", "x-forwarded-uri is not a path"),
    ] {
        let (status, detail) = problem(ask(&server, "", method, uri).send().unwrap());
        assert_eq!(status, 400, "{method} {uri}");
        assert!(detail.contains(want), "{detail}");
    }
    let (_, detail) = problem(server.get("/v1/authorize").send().unwrap());
    assert!(
        detail.contains("x-forwarded-method is missing")
            && detail.contains("/v1/authorize/{domain}/proxy=nginx")
    );
    let (_, detail) = problem(server.get("/v1/authorize/web/proxy=nginx").send().unwrap());
    assert!(detail.contains("x-original-method is missing"), "{detail}");
    let twice = ask(&server, "", "GET", "/").header("x-forwarded-uri", "/b");
    let (_, detail) = problem(twice.send().unwrap());
    assert!(detail.contains("x-forwarded-uri occurs twice"), "{detail}");
    assert_eq!(status_of_paths(&server), 200, "nothing was charged");
}

fn status_of_paths(server: &ServerProcess) -> u16 {
    (0..3).map(|_| status(ask(server, "", "GET", "/"))).max().unwrap()
}

#[test]
fn domain_is_required_when_there_are_several() {
    let (server, _file) = server(
        "identity: { trusted_proxies: [127.0.0.1] }\n\
         limits: { one: fixed-window limit=1 window=1d }\n\
         rules:\n\
         - { name: a, domain: a, key: [], limit: one }\n\
         - { name: b, domain: b, key: [], limit: one }",
    );
    let (status_code, detail) = problem(ask(&server, "", "GET", "/").send().unwrap());
    assert_eq!(status_code, 400);
    assert!(detail.contains("/v1/authorize/{domain}"), "{detail}");
    assert_eq!(status(ask(&server, "/a", "GET", "/")), 200);
    assert_eq!(status(ask(&server, "/a", "GET", "/")), 429);
    assert_eq!(status(ask(&server, "/b", "GET", "/")), 200);
}

/// Some proxies forward the client's query to `/v1/authorize`.
#[test]
fn query_changes_nothing() {
    let (server, _file) = server(RULES);
    let queries = [
        "?domain=web",
        "?domain=shop",
        "?deny_status=200",
        "?proxy=nginx",
        "?max_wait_us=x",
        "?%64omain=",
        "?%ff&=&?",
    ];
    for (number, query) in queries.into_iter().enumerate() {
        for (path, refusal) in [("", 429), ("/web", 429), ("/web/deny_status=403", 403)] {
            let uri = format!("/{number}{path}{query}");
            let next_status = || status(ask(&server, &format!("{path}{query}"), "GET", &uri));
            let answers = [next_status(), next_status(), next_status(), next_status()];
            assert_eq!(answers, [200, 200, 200, refusal], "{path}{query}");
        }
    }
}

#[test]
fn domain_in_the_path_is_percent_decoded() {
    let (server, _file) = server(
        "identity: { trusted_proxies: [127.0.0.1] }\n\
         limits: { one: fixed-window limit=1 window=1d }\n\
         rules:\n\
         - { name: odd, domain: 'ä?b=%2f,..', key: [], limit: one }\n\
         - { name: settings, domain: 'proxy=nginx', key: [], limit: one }\n\
         - { name: dots, domain: '..', key: [], limit: one }",
    );
    for (path, refusal) in [
        ("/%C3%A4%3Fb=%252f,..", 429),
        ("/%c3%a4%3fb%3D%252f%2C%2e%2e/deny%5Fstatus=403", 403),
        ("/proxy=nginx", 429),
        ("/%2e%2E/deny_status=410", 410),
    ] {
        // Each path is sent as raw bytes, because a client library would normalize it.
        let next_status = || raw_status(&server, path);
        let first = next_status();
        assert!(first == 200 || path.contains("deny%5F"), "{path}: {first}");
        assert_eq!(next_status(), refusal, "{path}");
    }
    for path in ["/%C3%A4", "/a%2fb", "/%00", "/%25C3%25A4", "//proxy=forwarded"] {
        assert_eq!(raw_status(&server, path), 404, "{path}");
    }
}

/// Returns the status of a request whose path is sent exactly as written.
fn raw_status(server: &ServerProcess, path: &str) -> u16 {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let question = format!(
        "GET /v1/authorize{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\
         x-forwarded-method: GET\r\nx-forwarded-uri: /\r\n\r\n"
    );
    stream.write_all(question.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer[9..12].parse().unwrap()
}

#[test]
fn clients_are_identified_as_configured() {
    let file = rules(
        "identity:\n\
         \x20 trusted_proxies: [127.0.0.1]\n\
         \x20 jwt: { invalid: unauthorized, keys: [{ algorithm: HS256, secret_env: JWT_SECRET }] }\n\
         api_keys: { k_1: pro }\n\
         limits: { one: fixed-window limit=1 window=1d, two: fixed-window limit=2 window=1d }\n\
         rules:\n\
         - { name: each, domain: web, key: [{ first_of: [api_key, ip] }], limit: { by: tier, tiers: { pro: two }, default: one } }",
    );
    let secret = ("JWT_SECRET", "0123456789abcdef0123456789abcdef");
    let server = ServerProcess::start_with(&["--config", file.path().to_str().unwrap()], &[secret]);
    let with_key = |key: &str| status(ask(&server, "", "GET", "/").header("x-api-key", key));
    assert_eq!([with_key("k_1"), with_key("k_1"), with_key("k_1")], [200, 200, 429]);
    assert_eq!(with_key("invented"), 200, "an unknown key is limited by address");
    assert_eq!(with_key("invented-too"), 429);
    // A request with a token that cannot be verified is answered with 401, which every proxy understands.
    let response =
        ask(&server, "/web/deny_status=403", "GET", "/").bearer_auth("a.b.c").send().unwrap();
    assert_eq!(text_of(&response, "www-authenticate"), "Bearer error=\"invalid_token\"");
    let (status_code, reason, _) = refused(response);
    assert_eq!((status_code, &*reason), (401, "token"));
    // Preflight requests have their own quota.
    let preflight = || {
        let request = ask(&server, "", "OPTIONS", "/").header("origin", "https://a.example");
        status(request.header("access-control-request-method", "POST"))
    };
    assert_eq!([preflight(), preflight()], [200, 429]);
}

/// A gRPC refusal has HTTP status 200, which a proxy would let pass.
#[test]
fn refused_grpc_call_does_not_pass() {
    let (server, _file) = server(RULES);
    let call = || ask(&server, "", "POST", "/login").header("content-type", "application/grpc");
    assert_eq!(status(call()), 200);
    assert_eq!(status(call()), 429);
}

#[test]
fn failed_store_follows_the_rules_policy() {
    let redis = Launch::new(Flavour::Redis).start().unwrap();
    let proxy = Proxy::start(redis.addr()).unwrap();
    let file = rules(
        "identity: { trusted_proxies: [127.0.0.1] }\n\
         limits: { one: fixed-window limit=1 window=1d }\n\
         rules:\n\
         - { name: open, domain: open, key: [], limit: one, on_store_failure: open }\n\
         - { name: local, domain: local, key: [], limit: one, on_store_failure: local }\n\
         - { name: closed, domain: closed, key: [], limit: one, on_store_failure: closed }",
    );
    let path = file.path().to_str().unwrap();
    let server = ServerProcess::start(&["--config", path, "--store", &proxy.url()]);
    // The store stalls: it accepts requests but does not answer.
    proxy.drop_replies(u64::MAX);
    let ask = |path: &str| ask(&server, path, "GET", "/").send().unwrap();
    for _ in 0..3 {
        let response = ask("/open");
        assert_eq!(response.status(), 200);
        assert_eq!(text_of(&response, "ratelimit"), "", "the quota is unknown without the store");
    }
    let local: Vec<_> = (0..3).map(|_| ask("/local").status().as_u16()).collect();
    assert_eq!(local, [200, 429, 429]);
    let response = ask("/closed");
    assert!(!text_of(&response, "retry-after").is_empty());
    let (status, reason, _) = refused(response);
    assert_eq!((status, &*reason), (503, "store-failed"));
    let (status, reason, body) = refused(ask("/closed/deny_status=403"));
    assert_eq!((status, &*reason), (403, "store-failed"));
    assert_eq!(body["title"], "Service Unavailable");
}

/// A queue that lets one request pass per second, the first one at once.
const SHAPED: &str = "
identity: { trusted_proxies: [127.0.0.1] }
limits: { even: leaky-bucket capacity=5 leak=1/s mode=shaping }
rules: [{ name: even, domain: web, key: [ip], limit: even }]
";

#[test]
fn shaping_limit_delays_the_answer() {
    let (server, _file) = server(SHAPED);
    let began = Instant::now();
    assert_eq!(status(ask(&server, "", "GET", "/")), 200);
    assert_eq!(status(ask(&server, "", "GET", "/")), 200);
    assert!(began.elapsed() >= Duration::from_secs(1), "{:?}", began.elapsed());
    // A request with a maximum wait of 0 is refused at once.
    assert_eq!(status(ask(&server, "/web/max_wait_us=0", "GET", "/")), 429);
}

/// Sends requests of a client that can wait for a minute, on a new connection. The answers are not read.
fn send(server: &ServerProcess, client: &str, count: usize) -> TcpStream {
    let mut stream = TcpStream::connect(server.url.strip_prefix("http://").unwrap()).unwrap();
    let question = format!(
        "GET /v1/authorize/web/max_wait_us=60000000 HTTP/1.1\r\nhost: a\r\nx-forwarded-method: GET\r\n\
         x-forwarded-uri: /\r\nx-forwarded-for: {client}\r\n\r\n"
    );
    stream.write_all(question.repeat(count).as_bytes()).unwrap();
    stream
}

fn wait_until_delayed(server: &ServerProcess, count: u32) {
    eventually("the number of delayed requests is as expected", || {
        let delayed = scrape(server).value("tollgate_authorize_delayed", &[]);
        (delayed == f64::from(count)).then_some(())
    });
}

#[test]
fn waiting_request_frees_its_place_when_it_disconnects() {
    let (server, _file) = server(&SHAPED.replace("leak=1/s", "leak=1/m").replace("=5", "=2"));
    let began = Instant::now();
    for _ in 0..3 {
        // The first of the two requests is answered at once, and the second one has to wait.
        let waits = send(&server, "203.0.113.9", 2);
        wait_until_delayed(&server, 1);
        assert_eq!(
            status(ask(&server, "/web/max_wait_us=60000000", "GET", "/")),
            429,
            "the queue is full"
        );
        drop(waits);
        wait_until_delayed(&server, 0);
    }
    assert!(began.elapsed() < Duration::from_secs(50), "the delay ran out: {began:?}");
}

#[test]
fn stopping_server_answers_delayed_requests_at_once() {
    let file = rules(&SHAPED.replace("leak=1/s", "leak=2/m"));
    let flags = ["--config", file.path().to_str().unwrap(), "--drain-delay", "0s"];
    let server = ServerProcess::start(&flags);
    assert_eq!(status(ask(&server, "", "GET", "/")), 200);
    let answers = thread::scope(|scope| {
        let wait = |setting| {
            let path = format!("/web/max_wait_us=60000000{setting}");
            let request = ask(&server, &path, "GET", "/");
            scope.spawn(|| request.send().unwrap())
        };
        let first = wait("");
        wait_until_delayed(&server, 1);
        let second = wait(",deny_status=403");
        wait_until_delayed(&server, 2);
        server.signal(Signal::TERM);
        [first, second].map(|waits| waits.join().unwrap())
    });
    for (response, want) in answers.into_iter().zip([503, 403]) {
        assert!((1..=60).contains(&text_of(&response, "retry-after").parse().unwrap()));
        let (status, reason, body) = refused(response);
        assert_eq!((status, &*reason), (want, "stopping"));
        assert_eq!(body["title"], "Service Unavailable");
    }
    let (ended, log) = server.wait();
    assert!(ended.success() && log.contains("all requests in flight were answered"), "{log}");
}

#[test]
fn number_of_delayed_requests_is_bounded() {
    let file = rules(&SHAPED.replace("leak=1/s", "leak=1/m"));
    let flags = ["--config", file.path().to_str().unwrap(), "--max-connections", "4"];
    let server = ServerProcess::start(&flags);
    let one = send(&server, "203.0.113.1", 2);
    wait_until_delayed(&server, 1);
    let two = send(&server, "203.0.113.2", 2);
    wait_until_delayed(&server, 2);
    let ask = || ask(&server, "/web/max_wait_us=60000000", "GET", "/").send().unwrap();
    assert_eq!(ask().status(), 200);
    let (status, _, body) = refused(ask());
    assert_eq!(status, 429, "{body}");
    assert!(body["detail"].as_str().unwrap().contains("would be too long"), "{body}");
    drop((one, two));
    wait_until_delayed(&server, 0);
}
