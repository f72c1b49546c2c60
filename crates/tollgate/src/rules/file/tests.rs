//! What is read again, and when.

#![allow(clippy::unwrap_used)]

use std::fs;

use super::*;

const TEXT: &str = "limits: {}
identity: { jwt: { keys: [{ algorithm: HS256, secret_file: jwt.secret }] } }
";

#[test]
fn the_file_of_a_key_is_followed_too() {
    let directory = tempfile::tempdir().unwrap();
    let (path, secret) = (directory.path().join("rules.yaml"), directory.path().join("jwt.secret"));
    fs::write(&path, TEXT).unwrap();
    fs::write(&secret, [b'x'; 32]).unwrap();
    let file = RulesFile::open(&Limiter::memory(), &path).unwrap();
    assert_eq!(file.files(), [secret.clone(), path]);
    assert!(file.reload_if_changed().is_none());
    fs::write(&secret, [b'y'; 32]).unwrap();
    assert_eq!(file.reload_if_changed().unwrap().unwrap(), 2);
    assert!(file.reload_if_changed().is_none());
}

#[test]
fn a_file_that_is_too_large_is_refused_once() {
    let directory = tempfile::tempdir().unwrap();
    let (path, secret) = (directory.path().join("rules.yaml"), directory.path().join("jwt.secret"));
    fs::write(&path, TEXT).unwrap();
    fs::write(&secret, [b'x'; 32]).unwrap();
    let file = RulesFile::open(&Limiter::memory(), &path).unwrap();
    fs::write(&secret, vec![b'x'; (64 << 10) + 1]).unwrap();
    assert!(file.reload_if_changed().unwrap().is_err());
    assert!(file.reload_if_changed().is_none());
    assert_eq!(file.status().failures, 1);
}
