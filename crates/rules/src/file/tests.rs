//! When a file is read again.

#![allow(clippy::unwrap_used)]

use std::fs;

use super::*;

const TEXT: &str = "limits: {}
identity: { jwt: { keys: [{ algorithm: HS256, secret_file: jwt.secret }] } }
";

#[test]
fn file_is_reloaded_when_a_key_file_changes() {
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
fn file_is_refused_once_when_too_large() {
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

#[test]
fn hash_depends_on_the_contents_only() {
    let write = |text: &str, secret: &[u8]| {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("rules.yaml");
        fs::write(&path, text).unwrap();
        fs::write(directory.path().join("jwt.secret"), secret).unwrap();
        (RulesFile::open(&Limiter::memory(), &path).unwrap(), path, directory)
    };
    let hash = |file: &RulesFile| file.status().hash;
    let (one, path, directory) = write(TEXT, &[b'x'; 32]);
    let (same, ..) = write(TEXT, &[b'x'; 32]);
    assert_eq!(hash(&one), hash(&same));
    assert_eq!(hash(&one), 15_350_502_809_603_369_471, "in any version");
    let (other_secret, ..) = write(TEXT, &[b'y'; 32]);
    let (other_text, ..) = write(&format!("{TEXT}#"), &[b'x'; 32]);
    let different = [hash(&other_secret), hash(&other_text)];
    assert!(!different.contains(&hash(&one)) && different[0] != different[1], "{different:?}");

    // The hash is of the rules in use, not of a file that was refused.
    fs::write(&path, "nonsense").unwrap();
    assert!(one.reload().is_err());
    assert_eq!(hash(&one), hash(&same));
    fs::write(&path, TEXT).unwrap();
    fs::write(directory.path().join("jwt.secret"), [b'y'; 32]).unwrap();
    one.reload().unwrap();
    assert_eq!(hash(&one), hash(&other_secret));
}
