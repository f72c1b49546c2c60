//! Who may look at keys, and reset them.

use reqwest::blocking::RequestBuilder;

use crate::check::problem;
use crate::server::{Server, body_of};

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

#[test]
fn with_a_token_only_those_who_show_it_are_operators() {
    let server = Server::start_with(&[], &[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
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
    assert_eq!(body_of(peek)["remaining"], 0, "nobody has reset it");
    let statuses: Vec<_> =
        ways(&format!("bearer {TOKEN}")).iter().map(|answer| answer.status().as_u16()).collect();
    assert_eq!(statuses, [200, 204, 200, 204]);
    assert!(!server.log().contains(TOKEN));
    server.wait_for_log(|log| log.contains("an operator reset a key limit="));
}

#[test]
fn an_operator_with_a_token_may_be_anywhere() {
    let server = Server::start(&["--operator-token", TOKEN]);
    let request = server.get("/v1/limits/login/keys/a").bearer_auth(TOKEN);
    let request = request.header("host", "tollgate.example").header("x-forwarded-for", "10.0.0.1");
    assert_eq!(request.send().unwrap().status(), 200);
}

#[test]
fn without_a_token_only_this_machine_is_an_operator_and_only_for_itself() {
    let server = Server::start(&[]);
    let peek = || server.get("/v1/limits/login/keys/a");
    assert_eq!(peek().send().unwrap().status(), 200);
    assert_eq!(peek().header("host", "localhost:1").send().unwrap().status(), 200);
    for (name, value) in [
        ("x-forwarded-for", "203.0.113.9"),
        ("x-real-ip", "203.0.113.9"),
        ("forwarded", "for=203.0.113.9"),
        ("via", "1.1 proxy"),
        ("host", "rebound.example"),
    ] {
        for request in [peek(), server.delete("/v1/limits/login/keys/a")] {
            let (status, detail) = problem(request.header(name, value).send().unwrap());
            assert_eq!(status, 403, "{name}");
            assert!(detail.contains("--operator-token"), "{detail}");
        }
    }
}

#[test]
fn checks_and_limits_are_for_everybody() {
    let server = Server::start(&["--operator-token", TOKEN]);
    let check = server.post("/v1/check", r#"{"limit":"free","key":"a"}"#);
    assert_eq!(check.header("host", "tollgate.example").send().unwrap().status(), 200);
    for path in ["/v1/limits", "/v1/limits/free", "/openapi.json"] {
        assert_eq!(server.get(path).send().unwrap().status(), 200, "{path}");
    }
}
