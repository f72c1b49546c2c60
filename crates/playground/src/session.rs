//! A session, which is identified by its cookie alone.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};

const COOKIE_NAME: &str = "tollgate_session";

/// How long a browser keeps the cookie: a day.
const MAX_AGE_S: u32 = 86_400;

/// The length of a session's id, in hexadecimal digits.
pub(super) const DIGITS: usize = 32;

/// A session, which has counters of its own.
#[derive(Debug)]
pub struct Session {
    id: Id,
    is_new: bool,
}

/// The id of a session: the cookie's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Id(pub(super) [u8; DIGITS]);

impl Id {
    /// Returns the key that limits have for the session.
    pub(super) fn key(&self) -> &[u8] {
        &self.0
    }
}

impl Session {
    /// Returns the session that a client names in its cookies, or else a new one.
    pub fn of(headers: &HeaderMap) -> Session {
        match named(headers) {
            Some(id) => Session { id, is_new: false },
            None => Session { id: fresh(), is_new: true },
        }
    }

    pub(super) fn id(&self) -> Id {
        self.id
    }

    pub(super) fn key(&self) -> &[u8] {
        self.id.key()
    }

    /// Returns the cookie of a new session, which a browser sends back with requests below `path`; `None` if the client
    /// has one.
    pub fn cookie(&self, path: &str) -> Option<HeaderValue> {
        if !self.is_new {
            return None;
        }
        let id = String::from_utf8_lossy(self.key());
        let cookie = format!(
            "{COOKIE_NAME}={id}; Path={path}; Max-Age={MAX_AGE_S}; HttpOnly; SameSite=Strict"
        );
        HeaderValue::try_from(cookie).ok()
    }
}

/// Returns the session that a client names, if the name has the form of an id.
fn named(headers: &HeaderMap) -> Option<Id> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';'));
    let mut ids = pairs.filter_map(|own| own.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='));
    let id = ids.next()?.as_bytes();
    let is_id = id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    Some(Id(id.try_into().ok().filter(|_| is_id)?))
}

/// Returns an id that cannot be guessed: std's keys come from the system's random numbers, and SipHash does not reveal them.
fn fresh() -> Id {
    let mut digits = String::with_capacity(DIGITS);
    for part in 0..2_u8 {
        // OK because writing to a `String` never fails.
        let _ = write!(digits, "{:016x}", RandomState::new().hash_one(part));
    }
    Id(digits.as_bytes().try_into().unwrap_or([b'0'; DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_what_looks_like_one() {
        let good = "0123456789abcdef0123456789abcdef";
        for (cookies, want) in [
            (format!("tollgate_session={good}"), true),
            (format!("a=b; tollgate_session={good}; c=d"), true),
            (format!("tollgate_session={good}0"), false),
            (format!("tollgate_session={}", &good[1..]), false),
            (format!("tollgate_session={}", good.to_uppercase()), false),
            (format!("tollgate_session2={good}"), false),
            (format!("tollgate_session=\"{good}\""), false),
            ("tollgate_session".to_owned(), false),
            (String::new(), false),
        ] {
            let headers =
                HeaderMap::from_iter([(COOKIE, HeaderValue::try_from(&cookies).unwrap())]);
            assert_eq!(named(&headers).is_some(), want, "{cookies}");
        }
    }

    #[test]
    fn no_two_are_alike() {
        assert_ne!(fresh(), fresh());
        assert_ne!(fresh().key()[..16], fresh().key()[16..]);
    }
}
