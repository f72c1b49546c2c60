//! A session, which is identified only by its cookie.

use std::fmt::Write;
use std::hash::{BuildHasher, RandomState};

use http::HeaderMap;
use http::header::{COOKIE, HeaderValue};

const COOKIE_NAME: &str = "tollgate_session";

/// How long a browser keeps the cookie: a day.
const MAX_AGE_S: u32 = 86_400;

/// The length of a session's id, in hexadecimal digits.
pub(super) const DIGITS: usize = 32;

/// A session, with its own counters.
#[derive(Debug)]
pub struct Session {
    id: SessionId,
    is_new: bool,
}

/// The id of a session: the cookie's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SessionId(pub(super) [u8; DIGITS]);

impl SessionId {
    /// Returns the session's key under every limit.
    pub(super) fn key(&self) -> &[u8] {
        &self.0
    }
}

impl Session {
    /// Returns the session that the cookies of a request name, or a new session.
    pub fn of(headers: &HeaderMap) -> Session {
        match id_in_cookies(headers) {
            Some(id) => Session { id, is_new: false },
            None => Session { id: new_id(), is_new: true },
        }
    }

    pub(super) fn id(&self) -> SessionId {
        self.id
    }

    pub(super) fn key(&self) -> &[u8] {
        self.id.key()
    }

    /// Returns the cookie of a new session, which a browser then sends with requests below `path`; `None` if the client
    /// already has the cookie.
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

/// Returns the id that the cookies of a request have, if it has the format of an id.
fn id_in_cookies(headers: &HeaderMap) -> Option<SessionId> {
    let cookies = headers.get_all(COOKIE).iter().filter_map(|value| value.to_str().ok());
    let pairs = cookies.flat_map(|cookies| cookies.split(';'));
    let mut ids = pairs.filter_map(|pair| pair.trim().strip_prefix(COOKIE_NAME)?.strip_prefix('='));
    let id = ids.next()?.as_bytes();
    let is_id = id.iter().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    Some(SessionId(id.try_into().ok().filter(|_| is_id)?))
}

/// Returns an id that cannot be guessed, because the keys of `RandomState` come from the system's random numbers and
/// SipHash does not reveal them.
fn new_id() -> SessionId {
    let mut digits = String::with_capacity(DIGITS);
    for part in 0..2_u8 {
        // OK because writing to a `String` never fails.
        let _ = write!(digits, "{:016x}", RandomState::new().hash_one(part));
    }
    SessionId(digits.as_bytes().try_into().unwrap_or([b'0'; DIGITS]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_id_is_32_lower_case_hexadecimal_digits() {
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
            assert_eq!(id_in_cookies(&headers).is_some(), want, "{cookies}");
        }
    }

    #[test]
    fn new_ids_differ() {
        assert_ne!(new_id(), new_id());
        assert_ne!(new_id().key()[..16], new_id().key()[16..]);
    }
}
