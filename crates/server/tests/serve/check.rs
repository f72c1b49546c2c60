//! `POST /v1/check`.

use crate::server::Server;

#[test]
fn a_server_without_arguments_decides() {
    let server = Server::start(&[]);
    let decision = server.check(r#"{"limit":"free","key":"user:42","cost":5}"#);
    assert_eq!(decision["allowed"], true);
    assert_eq!(decision["remaining"], 55);
}
