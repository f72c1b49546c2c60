//! The keys on the server.

use std::collections::HashSet;

use tollgate_launcher::Flavour;

use crate::setup::{LIMITS, admin, at, builder, keys, named, open, scope, start};

/// The longest key. `key.rs` gives the reason.
const MAX_KEY_BYTES: usize = 259;

/// Ids that a client may choose to look like another client's.
fn hostile_ids() -> Vec<Vec<u8>> {
    let mut ids: Vec<Vec<u8>> = [
        &b""[..],
        b"{",
        b"}",
        b"{}",
        b"{a}",
        b"a",
        b"a}",
        b"{a",
        b"}:api:f60000000",
        b"a}:b",
        b"a:b",
        b":",
        b"::",
        b"a:",
        b":a",
        b"%",
        b"%%",
        b"%00",
        b"%25",
        b"\0",
        b"\0\0",
        b"a\0",
        b"\0a",
        b"\n",
        b"\r\n",
        b"a\nb",
        b" ",
        b"a b",
        b"\t",
        b"*",
        b"?",
        b"[a]",
        b"\\",
        b"\"",
        b"'",
        b"\x7f",
        b"\x80",
        b"\xff",
        b"\xff\xfe",
        b"\xc3\x28",
        "ä".as_bytes(),
        "a\u{308}".as_bytes(),
        b"tollgate:{a}:api",
    ]
    .map(<[u8]>::to_vec)
    .into();
    for bytes in [95, 96, 97, 100_000] {
        ids.extend([vec![b'x'; bytes], vec![b'{'; bytes], vec![0; bytes], vec![0xff; bytes]]);
    }
    ids.push([vec![b'x'; 99_999], vec![b'y']].concat());
    ids
}

#[tokio::test]
async fn every_id_has_its_own_short_printable_key() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let (limiter, mut admin) = (open(&server), admin(&server));
        let api = scope(&limiter, "fixed-window limit=10 window=366d");
        let ids = hostile_ids();
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), ids.len());
        for (count, id) in ids.iter().enumerate() {
            let name = || String::from_utf8_lossy(&id[..id.len().min(40)]);
            assert_eq!(api.check(id).cost(3).await.unwrap().remaining(), 7, "{:?}", name());
            assert_eq!(keys(&mut admin).len(), count + 1, "{:?}", name());
        }
        for key in keys(&mut admin) {
            let text = String::from_utf8_lossy(&key);
            assert!(key.len() <= MAX_KEY_BYTES, "{text}");
            assert!(key.iter().all(u8::is_ascii_graphic), "{text}");
            assert!(key.starts_with(b"tollgate:{"), "{text}");
            let braces = |brace| key.iter().filter(|&&byte| byte == brace).count();
            assert_eq!((braces(b'{'), braces(b'}')), (1, 1), "{text}");
        }
        for id in &ids {
            assert_eq!(api.peek(id).await.unwrap().remaining(), 7);
        }
    }
}

#[tokio::test]
async fn longest_names_and_ids_stay_within_the_longest_key() {
    let server = start(Flavour::Redis);
    let mut admin = admin(&server);
    let builder = builder(&server.url());
    let limiter = builder.prefix(&"p".repeat(64)).unwrap().deadline(crate::setup::PATIENCE).build();
    let limiter = limiter.unwrap();
    let largest =
        "leaky-bucket capacity=9007199254740991 leak=9007199254740881/36524d mode=shaping";
    for name in ["n".repeat(96), "\0".repeat(32), "ü".repeat(1_000)] {
        for text in LIMITS.into_iter().chain([largest]) {
            let Ok(limit) = text.parse::<tollgate::Limit>() else { continue };
            let scope = limiter.scope(&format!("{name}{text}"), limit).unwrap();
            for id in ["i".repeat(96), "\0".repeat(32), "i".repeat(100_000)] {
                assert!(scope.check(&id).await.unwrap().is_allowed());
            }
        }
    }
    let lengths: Vec<usize> = keys(&mut admin).iter().map(Vec::len).collect();
    assert!(lengths.iter().all(|&length| length <= MAX_KEY_BYTES), "{lengths:?}");
}

#[tokio::test]
async fn names_that_look_like_other_keys_have_separate_states() {
    let server = start(Flavour::Redis);
    let (limiter, mut admin) = (open(&server), admin(&server));
    let names = ["", "a", "a:b", "a}:b", "}", "{", "%", "b", "a%3Ab", "a\0b", "ä"];
    let mut count = 0;
    for name in names {
        let api = named(&limiter, name, "token-bucket capacity=10 refill=10/366d");
        for id in ["a", "a}:b", "a:b", "b", ""] {
            assert_eq!(api.check(id).cost(4).await.unwrap().remaining(), 6, "{name:?} {id:?}");
            count += 1;
            assert_eq!(keys(&mut admin).len(), count);
        }
    }
}

#[tokio::test]
async fn keys_are_in_the_database_of_the_url() {
    for flavour in Flavour::ALL {
        let server = start(flavour);
        let mut admin = admin(&server);
        let limiter = at(&format!("{}/3", server.url()));
        let api = scope(&limiter, LIMITS[0]);
        api.check("a").await.unwrap();
        assert_eq!(keys(&mut admin).len(), 0);
        redis::cmd("SELECT").arg(3).exec(&mut admin).unwrap();
        assert_eq!(keys(&mut admin).len(), 1);
        assert_eq!(api.peek("a").await.unwrap().remaining(), 99);
        let other_database = scope(&at(&format!("{}/4", server.url())), LIMITS[0]);
        assert_eq!(other_database.peek("a").await.unwrap().remaining(), 100);
    }
}
