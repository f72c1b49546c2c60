//! Access to keys: only operators may read and reset them.

use std::io::Write;
use std::net::IpAddr;

use reqwest::blocking::{Client, RequestBuilder};

use crate::check::problem;
use crate::eventually::eventually;
use crate::server::{ServerProcess, body_of};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn only_clients_that_send_the_token_are_operators() {
    let server = ServerProcess::start_with(&[], &[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
    server.check(r#"{"limit":"login","key":"a","cost":5}"#);
    let ways = |authorization: &str| {
        let paths = ["/v1/limits/login/keys/a", "/v1/limits/login/keys/"];
        let each = paths.into_iter().flat_map(|path| [server.get(path), server.delete(path)]);
        let with = |request: RequestBuilder| match authorization {
            "" => request,
            _ => request.header("authorization", authorization),
        };
        each.map(with).map(|request| request.send().unwrap()).collect::<Vec<_>>()
    };
    let longer = format!("Bearer {TOKEN}0");
    let shorter = format!("Bearer {}", &TOKEN[1..]);
    let basic = format!("Basic {TOKEN}");
    for wrong in ["", "Bearer", "Bearer ", "Bearer 0", &longer, &shorter, &basic, TOKEN] {
        for response in ways(wrong) {
            assert_eq!(response.headers()["www-authenticate"], "Bearer");
            let (status, detail) = problem(response);
            assert_eq!(status, 401, "{wrong}");
            assert!(!detail.contains(TOKEN), "{detail}");
        }
    }
    let peek = server.get("/v1/limits/login/keys/a").bearer_auth(TOKEN).send().unwrap();
    assert_eq!(body_of(peek)["remaining"], 0, "the refused clients did not reset it");
    let statuses: Vec<_> =
        ways(&format!("bearer {TOKEN}")).iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [200, 204, 200, 204]);
    assert!(!server.log().contains(TOKEN));
    server.wait_for_log(|log| log.contains("an operator reset a key limit=\"login\" key=\"a\""));
}

#[test]
fn operator_with_a_token_can_use_any_address() {
    let server = ServerProcess::start(&["--operator-token", TOKEN]);
    let request = server.get("/v1/limits/login/keys/a").bearer_auth(TOKEN);
    let request = request.header("host", "tollgate.example").header("x-forwarded-for", "10.0.0.1");
    assert_eq!(request.send().unwrap().status(), 200);
}

#[test]
fn only_direct_requests_of_this_machine_are_operators_without_a_token() {
    let server = ServerProcess::start(&[]);
    let peek = || server.get("/v1/limits/login/keys/a");
    assert_eq!(peek().send().unwrap().status(), 200);
    assert_eq!(peek().header("host", "localhost:1").send().unwrap().status(), 200);
    for (name, value) in [
        ("x-forwarded-for", "203.0.113.9"),
        ("x-real-ip", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("via", "1.1 proxy"),
        ("x-original-forwarded-for", "203.0.113.9"),
        ("fastly-client-ip", "203.0.113.9"),
        ("x-cluster-client-ip", "203.0.113.9"),
        ("x-proxyuser-ip", "203.0.113.9"),
        ("traceparent", "00-0123456789abcdef0123456789abcdef-0123456789abcdef-01"),
        ("x-made-up-by-a-proxy", "1"),
        ("host", "rebound.example"),
    ] {
        for request in [peek(), server.delete("/v1/limits/login/keys/a")] {
            let (status, detail) = problem(request.header(name, value).send().unwrap());
            assert_eq!(status, 403, "{name}");
            assert!(detail.contains("TOLLGATE_OPERATOR_TOKEN"), "{detail}");
            let named = if name == "host" { "Host" } else { name };
            assert!(detail.contains(named), "{name}: {detail}");
        }
    }
}

/// Returns a client whose connections come from this address.
fn client_at(address: [u8; 4]) -> Client {
    Client::builder().local_address(IpAddr::from(address)).build().unwrap()
}

/// Reads a key with a token; returns the status.
fn peek_with(client: &Client, server: &ServerProcess, token: &str, from: Option<&str>) -> u16 {
    let request = client.get(format!("{}/v1/limits/login/keys/a", server.url)).bearer_auth(token);
    let request = match from {
        Some(from) => request.header("x-forwarded-for", from),
        None => request,
    };
    let response = request.send().unwrap();
    let status = response.status().as_u16();
    if status == 429 {
        let retry_after = response.headers()["retry-after"].to_str().unwrap().to_owned();
        assert!((1..=5).contains(&retry_after.parse().unwrap()), "{retry_after}");
        let (_, detail) = problem(response);
        assert!(detail.contains("too many wrong operator tokens"), "{detail}");
    }
    status
}

#[test]
fn wrong_operator_tokens_are_slowed_counted_and_logged() {
    let server = ServerProcess::start_with(&[], &[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
    let guesser = client_at([127, 0, 0, 1]);
    let guess = |number| peek_with(&guesser, &server, &format!("a guess {number}"), None);
    let statuses: Vec<_> = (0..200).map(guess).collect();
    // 20 guesses are compared at once, and then one every 5 s.
    let compared = statuses.iter().filter(|status| **status == 401).count();
    assert!((20..100).contains(&compared), "{compared}");
    assert!(statuses.iter().all(|status| [401, 429].contains(status)), "{statuses:?}");
    assert_eq!(statuses[..20], [401; 20]);

    assert_eq!(peek_with(&client_at([127, 0, 0, 2]), &server, TOKEN, None), 200);
    let page = crate::metrics::scrape(&server);
    let count =
        |reason| page.value("tollgate_operator_token_failures_total", &[("reason", reason)]);
    assert_eq!(count("wrong"), compared as f64);
    assert_eq!(count("not_compared"), (200 - compared) as f64);
    eventually("the right token works again at the guesser's address", || {
        (peek_with(&guesser, &server, TOKEN, None) == 200).then_some(())
    });
    let log = server.wait_for_log(|log| log.contains("wrong operator tokens"));
    let lines: Vec<_> = log.lines().filter(|line| line.contains("wrong operator tokens")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("WARN") && lines[0].contains("127.0.0.1"), "{log}");
    assert!(!log.contains("a guess") && !log.contains(TOKEN), "{log}");
}

#[test]
fn guesser_behind_a_trusted_proxy_does_not_lock_out_other_clients_of_the_proxy() {
    let mut rules = tempfile::Builder::new().suffix(".yaml").tempfile().unwrap();
    let text = "limits: { login: fixed-window limit=5 window=1d }\n\
                identity: { trusted_proxies: [127.0.0.1] }\n";
    rules.write_all(text.as_bytes()).unwrap();
    let flags = ["--config", rules.path().to_str().unwrap()];
    let server = ServerProcess::start_with(&flags, &[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
    let proxy = client_at([127, 0, 0, 1]);
    let guess = |_| peek_with(&proxy, &server, "a guess", Some("198.51.100.1"));
    assert!((0..100).map(guess).any(|status| status == 429));
    assert_eq!(peek_with(&proxy, &server, TOKEN, Some("198.51.100.2")), 200);
    assert_eq!(peek_with(&proxy, &server, TOKEN, None), 200);
}

#[test]
fn checks_and_limits_need_no_operator() {
    let server = ServerProcess::start(&["--operator-token", TOKEN]);
    let check = server.post("/v1/check", r#"{"limit":"free","key":"a"}"#);
    assert_eq!(check.header("host", "tollgate.example").send().unwrap().status(), 200);
    for path in ["/v1/limits", "/v1/limits/free", "/openapi.json"] {
        assert_eq!(server.get(path).send().unwrap().status(), 200, "{path}");
    }
}
