//! Replays over TLS. The command's environment sets the certificates that the system trusts.

use std::process::Output;

use tollgate_launcher::{Authority, Flavour, Launch, Server};

use crate::command::{BUCKET, feed, replay, stderr, stdout, tollgate};

const TRACE: &[u8] = b"at_us,key,cost\n0,a,1\n0,a,10\n500000,a,9\n";

/// Starts Debian's Redis with TLS. The Valkey of `make servers` is built without TLS.
fn server(authority: &Authority, name: &str) -> Server {
    Launch::new(Flavour::Redis).tls(authority.certify(name).unwrap()).start().unwrap()
}

fn replay_trusting(authority: &Authority, url: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let trusted = directory.path().join("trusted.pem");
    std::fs::write(&trusted, authority.pem()).unwrap();
    let mut command = tollgate(&["replay", "--limit", BUCKET, "--store", url, "-"]);
    command.env("SSL_CERT_FILE", &trusted).env_remove("SSL_CERT_DIR");
    feed(command.spawn().unwrap(), TRACE)
}

#[test]
fn server_whose_certificate_is_trusted_decides_as_memory_does() {
    let authority = Authority::new("trusted").unwrap();
    let server = server(&authority, "127.0.0.1");
    assert!(server.url().starts_with("rediss://"));
    let output = replay_trusting(&authority, &server.url());
    assert_eq!(stdout(&output), stdout(&replay(BUCKET, TRACE)), "{}", stderr(&output));
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn no_password_is_sent_to_an_untrusted_server() {
    let (authority, stranger) =
        (Authority::new("trusted").unwrap(), Authority::new("stranger").unwrap());
    for (server, problem) in [
        (server(&stranger, "127.0.0.1"), "invalid peer certificate: UnknownIssuer"),
        (server(&authority, "elsewhere.test"), "certificate not valid for name \"127.0.0.1\""),
    ] {
        let url = server.url().replace("://", "://user:secret@");
        let output = replay_trusting(&authority, &url);
        let message = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""), "{message}");
        let place = format!("error: --store: no connection to {}: ", server.addr());
        assert!(message.starts_with(&place) && message.contains(problem), "{message}");
        assert!(message.contains("that its certificate is trusted"), "{message}");
        assert!(!message.contains("secret"), "{message}");
    }
}

#[test]
fn plain_connection_to_a_tls_server_is_an_error() {
    let authority = Authority::new("trusted").unwrap();
    let server = server(&authority, "127.0.0.1");
    let output = replay_trusting(&authority, &server.url().replace("rediss", "redis"));
    assert_eq!((output.status.code(), stdout(&output)), (Some(2), ""));
    assert!(stderr(&output).contains("use rediss if it speaks TLS"), "{}", stderr(&output));
}
