//! The Redis key of a scope and a client's id.
//!
//! `tollgate:{user:42}:api` is the prefix, the id and the scope's name. Redis Cluster places a key by
//! the text in braces, so all keys of one id are on one node. The limit that the state was reached under
//! is in the state. In this file, "key" is the key on Redis, and "id" is what a check calls its key: `user:42`.
//!
//! Two different ids never have the same key, whatever bytes they have. Neither a prefix nor an escaped id has a brace,
//! so the three parts of a key are unambiguous, and each escaped part comes from one original only. No key is longer
//! than 259 bytes.

use std::fmt;

use sha2::{Digest, Sha256};

/// The longest prefix.
const MAX_PREFIX_BYTES: usize = 64;

/// The longest form of an id or a name in a key.
const MAX_ESCAPED_BYTES: usize = 96;

/// The size of the digest that replaces a longer one: the first half of its SHA-256. 128 bits are enough: to find an id
/// that shares a given victim's state takes 2^128 tries. To find two ids that share one takes 2^64, and gains nothing:
/// the two have one quota instead of two.
const DIGEST_BYTES: usize = 16;

/// Returns an error if a prefix could not be distinguished from the text after it, or is hard to type.
///
/// The problem continues a sentence that names the prefix: "prefix `a b` has a space or …".
pub(crate) fn check_prefix(prefix: &str) -> Result<(), &'static str> {
    if prefix.len() > MAX_PREFIX_BYTES {
        return Err("is longer than 64 bytes; shorten it");
    }
    if prefix.contains(['{', '}']) {
        return Err("has a brace, and braces are for the key's hash tag; leave it out");
    }
    if prefix.contains(|c: char| c.is_whitespace() || c.is_control()) {
        return Err("has a space or a control character; leave it out");
    }
    Ok(())
}

/// Encodes the name of a limit as the end of its keys, the brace included.
pub(crate) fn encode_name(name: &str) -> Box<[u8]> {
    let mut suffix = b"}:".to_vec();
    NAME.escape(name.as_bytes(), &mut suffix);
    suffix.into()
}

/// Makes the keys of one prefix.
#[derive(Clone)]
pub(crate) struct Keys {
    /// The text before the id, with the brace.
    prefix: Box<[u8]>,
}

impl Keys {
    /// Makes keys that begin with `prefix`, which [`check_prefix`] must accept.
    pub(crate) fn new(prefix: &str) -> Keys {
        Keys { prefix: format!("{prefix}{{").into_bytes().into() }
    }

    /// Returns the key of `id` under an [encoded](encode_name) name: `user:42` under `api` is
    /// `tollgate:{user:42}:api`.
    pub(crate) fn key(&self, id: &[u8], encoded_name: &[u8]) -> Box<[u8]> {
        // One allocation of the right size: many keys wait at a time.
        let bytes = self.prefix.len() + ID.escaped_bytes(id) + encoded_name.len();
        let mut key = Vec::with_capacity(bytes);
        key.extend_from_slice(&self.prefix);
        ID.escape(id, &mut key);
        key.extend_from_slice(encoded_name);
        key.into()
    }
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({}…)", String::from_utf8_lossy(&self.prefix))
    }
}

/// A colon may stand in an id, but not in a name, because it separates the two.
static ID: Alphabet = Alphabet::without(b"{}%");
static NAME: Alphabet = Alphabet::without(b"{}%:");

/// The bytes that stand for themselves; any other byte becomes `%` and two hex digits.
struct Alphabet {
    /// The number of bytes that each byte takes: 1 or 3.
    widths: [u8; 256],
}

impl Alphabet {
    /// Returns printable ASCII without the space and the `escaped` bytes.
    const fn without(escaped: &[u8]) -> Alphabet {
        let mut widths = [3; 256];
        let mut byte = b'!';
        while byte <= b'~' {
            widths[byte as usize] = 1;
            byte += 1;
        }
        let mut at = 0;
        while at < escaped.len() {
            widths[escaped[at] as usize] = 3;
            at += 1;
        }
        Alphabet { widths }
    }

    /// Appends `text` in an escaped form that no other text has: 1 to 96 printable bytes.
    ///
    /// `a b` becomes `a%20b`. The empty text becomes `%`, because Redis Cluster ignores empty braces. A text that would
    /// be longer becomes `%%` and a digest. These two forms are distinct from all others, in which two hex digits
    /// follow every `%`.
    fn escape(&self, text: &[u8], into: &mut Vec<u8>) {
        match self.width(text) {
            0 => into.push(b'%'),
            width if width > MAX_ESCAPED_BYTES => escape_long(text, into),
            width if width == text.len() => into.extend_from_slice(text),
            _ => self.escape_each(text, into),
        }
    }

    /// Returns how many bytes [`escape`](Self::escape) appends.
    fn escaped_bytes(&self, text: &[u8]) -> usize {
        match self.width(text) {
            0 => 1,
            width if width > MAX_ESCAPED_BYTES => 2 + 2 * DIGEST_BYTES,
            width => width,
        }
    }

    /// Returns the length of the escaped text in bytes, or any number above 96.
    fn width(&self, text: &[u8]) -> usize {
        if text.len() > MAX_ESCAPED_BYTES {
            return text.len();
        }
        text.iter().map(|&byte| usize::from(self.widths[usize::from(byte)])).sum()
    }

    fn escape_each(&self, text: &[u8], into: &mut Vec<u8>) {
        for &byte in text {
            if self.widths[usize::from(byte)] == 1 {
                into.push(byte);
            } else {
                into.push(b'%');
                into.extend_from_slice(&hex(byte, b"0123456789ABCDEF"));
            }
        }
    }
}

#[cold]
fn escape_long(text: &[u8], into: &mut Vec<u8>) {
    into.extend_from_slice(b"%%");
    for &byte in Sha256::digest(text).iter().take(DIGEST_BYTES) {
        into.extend_from_slice(&hex(byte, b"0123456789abcdef"));
    }
}

fn hex(byte: u8, digits: &[u8; 16]) -> [u8; 2] {
    [digits[usize::from(byte >> 4)], digits[usize::from(byte & 15)]]
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// The keys of one name.
    struct NamedKeys(Keys, Box<[u8]>);

    impl NamedKeys {
        fn key(&self, id: &[u8]) -> Vec<u8> {
            self.0.key(id, &self.1).into()
        }
    }

    fn keys(prefix: &str, name: &str) -> NamedKeys {
        check_prefix(prefix).unwrap();
        NamedKeys(Keys::new(prefix), encode_name(name))
    }

    fn key(name: &str, id: impl AsRef<[u8]>) -> String {
        String::from_utf8(keys("tollgate:", name).key(id.as_ref())).unwrap()
    }

    /// Returns the tag as Redis Cluster does: from the first `{` to the first `}` after it, unless that is empty.
    fn hash_tag(key: &str) -> Option<&str> {
        let (_, rest) = key.split_once('{')?;
        let (tag, _) = rest.split_once('}')?;
        (!tag.is_empty()).then_some(tag)
    }

    /// Ids and names that try to look like others.
    fn awkward() -> Vec<Vec<u8>> {
        let words = "%|%%|%25|%7D|%7d|{|}|{}|{{|}}|:|::| |a |\0a|a\0|a:|:a|a:b|a%3Ab|a}:b|a}:b:c|\
            b:c|a\n|\r\n|é|%C3%A9|";
        let mut texts: Vec<_> = words.split('|').map(|word| word.as_bytes().to_vec()).collect();
        texts.extend((0..=255).map(|byte| vec![byte]));
        texts.extend([31, 32, 33, 34, 95, 96, 97, 98, 10_000].map(|length| vec![b'x'; length]));
        texts.extend([31, 32, 33, 34, 96, 97].map(|length| vec![b'}'; length]));
        // The digest of a long id, used as an id.
        let digest = hash_tag(&key("api", "x".repeat(97))).unwrap().to_owned();
        texts.push(digest.clone().into_bytes());
        texts.push(digest.replace('%', "").into_bytes());
        texts
    }

    fn any_text() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            vec(any::<u8>(), 0..120),
            vec(prop::sample::select(b"{}%:27BbDd a\0".to_vec()), 0..8),
        ]
    }

    #[test]
    fn ordinary_ids_are_readable() {
        assert_eq!(key("api", "user:42"), "tollgate:{user:42}:api");
        assert_eq!(key("api", "203.0.113.9"), "tollgate:{203.0.113.9}:api");
        assert_eq!(key("api", "2001:db8::1"), "tollgate:{2001:db8::1}:api");
        assert_eq!(key("login", "jo@example.org"), "tollgate:{jo@example.org}:login");
    }

    #[test]
    fn all_other_bytes_are_escaped() {
        assert_eq!(key("a b", "c d"), "tollgate:{c%20d}:a%20b");
        assert_eq!(key("!~{}%", "!~{}%"), "tollgate:{!~%7B%7D%25}:!~%7B%7D%25");
        assert_eq!(key("v1:api", "v1:a}:b"), "tollgate:{v1:a%7D:b}:v1%3Aapi");
        assert_eq!(key("é", b"\xff\0\n{%"), "tollgate:{%FF%00%0A%7B%25}:%C3%A9");
        assert_eq!(key("", ""), "tollgate:{%}:%");
    }

    #[test]
    fn id_longer_than_96_bytes_becomes_a_digest() {
        let x96 = "x".repeat(96);
        assert_eq!(key("api", &x96), format!("tollgate:{{{x96}}}:api"));
        let braces = "{".repeat(32);
        assert_eq!(hash_tag(&key("api", &braces)), Some(&*"%7B".repeat(32)));

        // As sha256sum computes them for 97 times x, for 33 opening braces, and for 100,000 times x.
        let of_long = |id: String| hash_tag(&key("api", id)).unwrap().to_owned();
        assert_eq!(of_long("x".repeat(97)), "%%19a8f07eeb7f3d0c0b7377e37d72eccd");
        assert_eq!(of_long("{".repeat(33)), "%%1b8abf7e28c736cc04ce432cce29e637");
        assert_eq!(of_long("x".repeat(100_000)), "%%d69e68988157833272305aaf21f453c8");
        assert_eq!(key(&"x".repeat(97), "a"), "tollgate:{a}:%%19a8f07eeb7f3d0c0b7377e37d72eccd");
    }

    #[test]
    fn awkward_ids_and_names_do_not_share_a_key() {
        let texts: HashSet<_> = awkward().into_iter().collect();
        let names: Vec<_> = texts.iter().filter_map(|name| str::from_utf8(name).ok()).collect();
        assert!(texts.len() * names.len() > 40_000);
        let mut owners = HashMap::new();
        for name in names {
            let keys = keys("tollgate:", name);
            for id in &texts {
                let other = owners.insert(keys.key(id), (name, id));
                assert_eq!(other, None, "and {:?}", (name, id));
            }
        }
    }

    #[test]
    fn no_two_prefixes_share_a_key() {
        let mut seen = HashSet::new();
        for prefix in ["", ":", "a", "a:", "a:a", "%7B", "a%"] {
            for name in ["", "a", ":", "a:", "f1s"] {
                for id in ["", "a", ":", "}:a"] {
                    let key = keys(prefix, name).key(id.as_bytes());
                    assert!(seen.insert(key), "{prefix} {name} {id}");
                }
            }
        }
    }

    #[test]
    fn the_longest_key_has_259_bytes() {
        let (prefix, name) = ("p".repeat(64), "n".repeat(96));
        let key = keys(&prefix, &name).key(&[b'i'; 96]);
        assert_eq!(key.len(), 259, "{}", String::from_utf8_lossy(&key));
    }

    #[test]
    fn a_prefix_leaves_the_braces_to_the_id() {
        for good in ["", "tollgate:", "prod/eu-1:", "a%b", "é:", &"x".repeat(64)] {
            assert_eq!(check_prefix(good), Ok(()), "{good}");
        }
        for bad in ["{", "a}", "a b", "a\n", "\0", "\u{85}", "\u{a0}", "\x7f", &"x".repeat(65)] {
            assert!(check_prefix(bad).is_err(), "{bad:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20))]

        #[test]
        fn random_ids_and_names_do_not_share_a_key(ids in vec(any_text(), 64), names in vec(any_text(), 64)) {
            let ids: HashSet<_> = ids.into_iter().collect();
            let names = names.iter().filter_map(|name| str::from_utf8(name).ok());
            let names: HashSet<_> = names.collect();
            let mut seen = HashSet::new();
            for name in names {
                let keys = keys("", name);
                for id in &ids {
                    prop_assert!(seen.insert(keys.key(id)), "{name:?} {id:?}");
                }
            }
        }
    }

    proptest! {
        #[test]
        fn the_hash_tag_is_the_ids_own(id in any_text(), names in [".{0,40}", ".{0,120}"]) {
            let [one, other] = names.map(|name| key(&name, &id));
            prop_assert_eq!(hash_tag(&one), hash_tag(&other));
            let tag = hash_tag(&one).unwrap();
            prop_assert!((1..=MAX_ESCAPED_BYTES).contains(&tag.len()));
            let start = format!("tollgate:{{{tag}}}:");
            prop_assert!(one.starts_with(&start));
            prop_assert!(one.bytes().all(|byte| byte.is_ascii_graphic()));
            prop_assert!(one.len() <= 259);
        }

        #[test]
        fn an_escaped_id_reads_back(id in any_text()) {
            let key = key("api", &id);
            let tag = hash_tag(&key).unwrap();
            if !tag.starts_with("%%") {
                prop_assert_eq!(unescape(tag), id);
            }
        }
    }

    fn unescape(tag: &str) -> Vec<u8> {
        let mut parts = tag.split('%');
        let mut text = parts.next().unwrap().as_bytes().to_vec();
        for part in parts.filter(|part| !part.is_empty()) {
            text.push(u8::from_str_radix(&part[..2], 16).unwrap());
            text.extend_from_slice(&part.as_bytes()[2..]);
        }
        text
    }
}
