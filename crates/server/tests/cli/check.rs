//! `tollgate check` and `tollgate healthy`.

use std::io::Write;
use std::net::TcpListener;

use serde_json::Value;
use tollgate_launcher::{Authority, Flavour, Launch};

use crate::command::{run, run_command, tollgate};
use crate::fake::FakeServer;
use crate::server::ServerProcess;

const ALLOWED: &str = r#"{"allowed":true,"limit":60,"remaining":59,"retry_after_us":null,"reset_after_us":1000000,"delay_us":0,"receipt":"r"}"#;
const TOKEN: &str = "an-operators-token-of-32-letters";

/// The URL of a closed port, for commands that must not connect to a server.
const NOWHERE: &str = "http://127.0.0.1:1";

#[test]
fn exit_code_is_the_decision() {
    let server = ServerProcess::start(&[]);
    let check =
        |cost: &str| run(&["check", "free", "user:42", "--cost", cost, "--server", &server.url]);
    let (code, stdout, stderr) = check("5");
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout, "allowed: 55 of 60 left, whole again in 5 s\n");
    let (code, stdout, stderr) = check("60");
    assert_eq!((code, stderr.as_str()), (1, ""));
    assert!(stdout.starts_with("denied: 55 of 60 left; try again in "), "{stdout}");
    let (code, stdout, _) = check("61");
    assert_eq!(code, 1);
    assert_eq!(stdout, "denied: costs more than the limit has; waiting does not help\n");
}

#[test]
fn unknown_limit_prints_the_servers_detail() {
    let server = ServerProcess::start(&[]);
    let (code, stdout, stderr) = run(&["check", "fre", "k", "--server", &server.url]);
    assert_eq!((code, stdout.as_str()), (2, ""));
    let words = "there is no limit `fre`; GET /v1/limits lists the limits (404 Not Found)";
    assert_eq!(stderr, format!("error: {}: {words}\n", server.url));
}

#[test]
fn json_is_the_servers_answer_on_one_line() {
    let json = |body: &str| {
        let server = FakeServer::answers("200 OK", body);
        run(&["check", "free", "k", "--format", "json", "--server", &server.url])
    };
    assert_eq!(json(ALLOWED), (0, format!("{ALLOWED}\n"), String::new()));
    let denied = ALLOWED.replace("true", "false");
    assert_eq!(json(&denied), (1, format!("{denied}\n"), String::new()));
    let (code, stdout, _) = json(&ALLOWED.replace(',', ",\r\n"));
    assert_eq!((code, stdout.lines().count()), (0, 1));
    assert_eq!(serde_json::from_str::<Value>(&stdout).unwrap()["receipt"], "r");
}

#[test]
fn check_sends_its_arguments_and_no_token() {
    let server = FakeServer::answers("200 OK", ALLOWED);
    let args = ["check", "--server", &server.url, "--cost", "7", "--", "free", "-k\"é\n"];
    let mut command = tollgate(&args);
    let (code, stdout, stderr) = run_command(command.env("TOLLGATE_OPERATOR_TOKEN", TOKEN));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout, "allowed: 59 of 60 left, whole again in 1 s\n");
    let request = server.received();
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("POST /v1/check HTTP/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/json"), "{head}");
    assert!(head.contains("user-agent: tollgate/"), "{head}");
    assert!(!head.to_lowercase().contains("authorization"), "{head}");
    let sent: Value = serde_json::from_str(body).unwrap();
    assert_eq!(sent, serde_json::json!({ "limit": "free", "key": "-k\"é\n", "cost": 7 }));
}

#[test]
fn peek_sends_the_operator_token() {
    let server = FakeServer::answers("200 OK", ALLOWED);
    let key = "a/b c%2f?#\t..é";
    let gateway = format!("{}/limits/?not=ours#nor-this", server.url);
    let args = ["check", "free", key, "--peek", "--cost", "3", "--server", &gateway];
    let (code, stdout, stderr) = run_command(tollgate(&args).env("TOLLGATE_OPERATOR_TOKEN", TOKEN));
    assert_eq!((code, stderr.as_str()), (0, ""));
    assert_eq!(stdout, "would be allowed: 59 of 60 left, whole again in 1 s\n");
    let request = server.received();
    let path = "/limits/v1/limits/free/keys/a%2Fb%20c%252f%3F%23%09..%C3%A9?cost=3";
    assert!(request.starts_with(&format!("GET {path} HTTP/1.1\r\n")), "{request}");
    assert!(request.contains(&format!("authorization: Bearer {TOKEN}\r\n")), "{request}");
}

#[test]
fn peek_shows_earlier_charges_and_charges_nothing() {
    let server = ServerProcess::start_with(&[], &[("TOLLGATE_OPERATOR_TOKEN", TOKEN)]);
    let key = "a/b c%2f?#\t..é";
    let check = |flags: &[&str]| {
        let args = [&["check", "login", key, "--server", &server.url], flags].concat();
        run_command(tollgate(&args).env("TOLLGATE_OPERATOR_TOKEN", TOKEN))
    };
    assert_eq!(check(&["--cost", "3"]).0, 0);
    for (cost, want) in [("2", 0), ("3", 1), ("2", 0)] {
        let (code, stdout, stderr) = check(&["--peek", "--cost", cost]);
        assert_eq!(code, want, "{stdout}{stderr}");
        assert!(stdout.contains(": 2 of 5 left"), "{stdout}");
    }
    let (code, _, stderr) = run(&["check", "login", key, "--peek", "--server", &server.url]);
    assert_eq!(code, 2);
    assert!(stderr.contains("give their token in TOLLGATE_OPERATOR_TOKEN"), "{stderr}");
}

#[test]
fn peek_at_a_key_of_a_rule_prints_each_limit_of_the_rule() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rules.yaml");
    let rules =
        "limits: { free: fixed-window limit=1 window=366d, pro: fixed-window limit=9 window=366d }
rules:
  - name: each
    domain: api
    key: [user]
    limit: { by: tier, tiers: { pro: pro, banned: block }, default: free }
    overrides: [{ key: { user: friend }, limit: allow }]
";
    std::fs::write(&path, rules).unwrap();
    let server = ServerProcess::start(&["--config", path.to_str().unwrap()]);
    let peek = |key: &str, cost: &str| {
        run(&["check", "api/each", key, "--peek", "--cost", cost, "--server", &server.url])
    };
    let (code, stdout, stderr) = peek("user=a", "2");
    assert_eq!((code, stderr.as_str()), (1, ""));
    let want = "would be denied: costs more than the limit has; waiting does not help (free)\n\
                or denied: the rule blocks the key (block)\n\
                or allowed: 9 of 9 left (pro)\n";
    assert_eq!(stdout, want);
    let (code, stdout, _) = peek("user=friend", "2");
    let want = "would be allowed: the rule does not limit the key (allow)\n";
    assert_eq!((code, stdout.as_str()), (0, want));
}

#[test]
fn peek_needs_no_token_on_the_servers_own_machine() {
    let server = FakeServer::answers("200 OK", ALLOWED);
    assert_eq!(run(&["check", "free", "k", "--peek", "--server", &server.url]).0, 0);
    assert!(!server.received().to_lowercase().contains("authorization"));
}

#[test]
fn refused_peek_says_that_it_needs_an_operator_token() {
    for status in ["401 Unauthorized", "403 Forbidden"] {
        let server = FakeServer::answers(status, r#"{"detail":"for operators"}"#);
        let (code, stdout, stderr) =
            run(&["check", "free", "k", "--peek", "--server", &server.url]);
        assert_eq!((code, stdout.as_str()), (2, ""));
        let expected = format!(
            "error: {}: for operators ({status})\n  to look is for operators: give their token in \
             TOLLGATE_OPERATOR_TOKEN, or ask a server that has none from its own machine\n",
            server.url
        );
        assert_eq!(stderr, expected);
    }
    // Any client may charge a key, so a token would not help.
    let server = FakeServer::answers("403 Forbidden", r#"{"detail":"a gateway says no"}"#);
    let (_, _, stderr) = run(&["check", "free", "k", "--server", &server.url]);
    assert!(!stderr.contains("TOKEN"), "{stderr}");
}

/// The name `tollgate.invalid` is reserved and does not resolve, so nothing is sent.
#[test]
fn check_warns_when_it_sends_a_token_unencrypted() {
    let peek = |server: &str| {
        let args = ["check", "free", "k", "--peek", "--server", server];
        run_command(tollgate(&args).env("TOLLGATE_OPERATOR_TOKEN", TOKEN)).2
    };
    let warning = "warning: the operators' token is sent unencrypted; use https\n";
    assert!(peek("http://tollgate.invalid").starts_with(warning));
    for server in [
        "https://tollgate.invalid",
        NOWHERE,
        "http://127.8.8.8:1",
        "http://[::1]:1",
        "http://localhost:1",
    ] {
        assert!(!peek(server).contains("warning"), "{server}");
    }
}

#[test]
fn proxy_is_not_used_for_this_machine() {
    let server = FakeServer::answers("200 OK", ALLOWED);
    let mut command = tollgate(&["check", "free", "k", "--server", &server.url]);
    assert_eq!(run_command(command.env("http_proxy", NOWHERE).env("all_proxy", NOWHERE)).0, 0);
    // A proxy is used for other machines.
    let proxy = FakeServer::answers("200 OK", ALLOWED);
    let mut command = tollgate(&["check", "free", "k", "--server", "http://tollgate.invalid"]);
    assert_eq!(run_command(command.env("http_proxy", &proxy.url)).0, 0);
    assert!(proxy.received().starts_with("POST http://tollgate.invalid/v1/check "));
}

/// Checks the message of every failure.
#[test]
fn failed_check_prints_the_problem_and_a_remedy() {
    let mut report = String::new();
    let mut tell = |name: &str, url: &str, args: &[&str]| {
        let (code, stdout, stderr) =
            run(&[&["check", "free", "k", "--server", url], args].concat());
        assert_eq!((code, stdout.as_str()), (2, ""), "{name}");
        let shown = if url.is_empty() { "no server" } else { url };
        report += &format!("{name}\n  {}\n", stderr.replace(shown, "<server>"));
    };
    tell("a closed port", NOWHERE, &[]);
    tell("no such host", "http://tollgate.invalid", &[]);
    tell("no URL", "localhost:8080", &[]);
    tell("nothing", "", &[]);
    tell("another scheme", "ftp://localhost", &[]);
    tell("https that is not", &start_plain_http(), &[]);
    tell("a password", "http://user:hunter2@localhost", &[]);
    tell("a cost of 0", NOWHERE, &["--cost", "0"]);
    tell("half a cost", NOWHERE, &["--cost", "0.5"]);
    tell("an enormous cost", NOWHERE, &["--cost", "99999999999999999999"]);
    tell("a token that is short", NOWHERE, &["--peek", "--operator-token", "hunter2"]);
    tell("a token of two lines", NOWHERE, &["--peek", "--operator-token", &format!("{TOKEN}\nx")]);

    let mut answered = |name: &str, server: FakeServer| tell(name, &server.url, &[]);
    answered("a page", FakeServer::answers("200 OK", "<html>"));
    answered("JSON of others", FakeServer::answers("200 OK", r#"{"allowed":"yes"}"#));
    answered("another 404", FakeServer::answers("404 Not Found", "not found"));
    answered(
        "a failed store",
        FakeServer::answers("503 Service Unavailable", r#"{"detail":"closed"}"#),
    );
    answered("a redirect", FakeServer::answers("302 Found\r\nlocation: http://elsewhere", ""));
    let escapes = "{\"detail\":\"a\\u001b[31mb\\u009bc\"}";
    answered("terminal escapes", FakeServer::answers("400 Bad Request", escapes));
    answered(
        "not UTF-8",
        FakeServer::sends(b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n\xff".into()),
    );
    let padded = format!("{ALLOWED}{}", " ".repeat(70_000));
    answered("too much", FakeServer::answers("200 OK", &padded));
    let endless = b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999\r\n\r\n".to_vec();
    answered("without an end", FakeServer::sends([endless, vec![b' '; 1 << 20]].concat()));
    answered(
        "half an answer",
        FakeServer::sends(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".into()),
    );
    answered("not HTTP", FakeServer::sends(b"SSH-2.0-OpenSSH_9.2\r\n".into()));
    answered("nothing at all", FakeServer::sends(Vec::new()));
    assert!(!report.contains("hunter2") && !report.contains(TOKEN));
    insta::assert_snapshot!(report);
}

#[test]
fn long_server_messages_are_cut() {
    let detail = format!(r#"{{"detail":"{}"}}"#, "x".repeat(10_000));
    let server = FakeServer::answers("400 Bad Request", &detail);
    let (code, _, stderr) = run(&["check", "free", "k", "--server", &server.url]);
    assert_eq!((code, stderr.matches('x').count()), (2, 500));
}

/// The server is a Redis with TLS. The command verifies its certificate, and then finds that it is not Tollgate.
#[test]
fn check_trusts_the_certificates_of_the_system() {
    let [ours, stranger] = ["trusted", "stranger"].map(|name| Authority::new(name).unwrap());
    let server = Launch::new(Flavour::Redis).tls(ours.certify("127.0.0.1").unwrap());
    let server = server.start().unwrap();
    let url = server.url().replace("rediss://", "https://");
    let directory = tempfile::tempdir().unwrap();
    let check = |authority: &Authority| {
        let trusted = directory.path().join("trusted.pem");
        std::fs::write(&trusted, authority.pem()).unwrap();
        let mut command = tollgate(&["check", "free", "k", "--server", &url]);
        run_command(command.env("SSL_CERT_FILE", &trusted))
    };
    let (code, _, stderr) = check(&stranger);
    assert_eq!(code, 2);
    let problem = "cannot be trusted: invalid peer certificate: UnknownIssuer";
    assert!(stderr.contains(problem) && stderr.contains("check that its certificate"), "{stderr}");
    let (code, _, stderr) = check(&ours);
    assert_eq!(code, 2);
    assert!(stderr.contains("did not answer"), "{stderr}");
}

/// HTTP clients interpret these keys as parts of the path, even if they are percent-encoded.
#[test]
fn peek_refuses_a_key_that_a_url_cannot_contain() {
    for key in [".", ".."] {
        let (code, _, stderr) = run(&["check", "free", key, "--peek", "--server", NOWHERE]);
        assert_eq!(code, 2);
        assert_eq!(
            stderr,
            format!(
                "error: `{key}` cannot be looked at: no URL can name it; check it without --peek\n"
            )
        );
    }
}

/// Starts a server that answers all bytes with plain HTTP, and keeps the connection open until the client closes it.
/// Returns its `https` URL.
fn start_plain_http() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut connection, _) = listener.accept().unwrap();
        connection.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = std::io::copy(&mut connection, &mut std::io::sink());
    });
    url
}

/// One server sends nothing, and another stops in the middle of its answer.
#[test]
fn check_waits_ten_seconds_for_the_whole_answer() {
    let begins = b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{";
    let waiters = [&[][..], begins].map(|begin| {
        std::thread::spawn(move || {
            let server = FakeServer::answers_with(move |connection| {
                connection.write_all(begin).unwrap();
                let _ = std::io::copy(connection, &mut std::io::sink());
            });
            let (code, _, stderr) = run(&["check", "free", "k", "--server", &server.url]);
            assert_eq!(code, 2);
            let remedy = "the request may be charged or not; see how the server does";
            let problem = format!("{}: did not answer within 10s", server.url);
            assert_eq!(stderr, format!("error: {problem}\n  {remedy}\n"));
        })
    });
    waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
}

#[test]
fn healthy_has_an_exit_code_for_container_engines() {
    let healthy = |server: &str| run(&["healthy", "--server", server]);
    let server = FakeServer::answers("200 OK", "ok");
    assert_eq!(healthy(&server.url), (0, String::new(), String::new()));
    assert!(server.received().starts_with("GET /healthz HTTP/1.1\r\n"));
    assert_eq!(healthy(&FakeServer::answers("503 Service Unavailable", "").url).0, 1);
    let (code, stdout, stderr) = healthy(NOWHERE);
    assert_eq!((code, stdout.as_str()), (1, ""));
    assert!(stderr.contains("cannot be reached"), "{stderr}");
}
