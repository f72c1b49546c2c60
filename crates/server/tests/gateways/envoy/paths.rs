//! Different spellings of one path, behind Envoy.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;

use crate::envoy::config::examples;
use crate::envoy::front::EnvoyFront;

/// Returns the status of a request whose path is sent exactly as written.
fn post(front: &EnvoyFront, path: &str) -> String {
    let address = front.envoy.url.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    String::from_utf8_lossy(&answer[9..12]).into_owned()
}

#[test]
fn login_of_the_example_is_limited_for_every_spelling_of_its_path() {
    let rules = fs::read_to_string(examples().join("rules.yaml")).unwrap();
    let front = EnvoyFront::start(&rules);
    let statuses = |paths: &[&str]| paths.iter().map(|path| post(&front, path)).collect::<Vec<_>>();
    assert_eq!(statuses(&["/%6cogin", "/./login", "//login?a=/./b"]), ["200"; 3]);
    let spellings =
        ["/login", "/%6Cogin", "/a/../login", "/%2e/lo%67in", "/\\login", "/x/..//login"];
    assert_eq!(statuses(&spellings), ["429"; 6]);
    // An encoded slash or backslash is refused, because the service could decode it.
    assert_eq!(statuses(&["/%2flogin", "/x%5c..%5clogin"]), ["400"; 2]);
    // A path in upper case or with a final slash is a different path. A service that treats it as a login needs a rule for it.
    assert_eq!(statuses(&["/LOGIN", "/login/"]), ["200"; 2]);
}
