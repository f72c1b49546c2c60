//! The claims of a token.

use std::borrow::Cow;
use std::fmt;

use serde_json::{Map, Value};

use super::InvalidToken;
use super::unverified::object;

/// The claims of a verified token.
pub struct Claims {
    members: Map<String, Value>,
    /// When the token begins to be valid, the leeway included.
    from_us: u64,
    /// When the token is no longer valid, the leeway included.
    until_us: u64,
}

impl Claims {
    /// Returns one claim: a text as it is, a number or a boolean as JSON writes it. `None` for a missing claim,
    /// and for lists, objects and null.
    ///
    /// Dots lead into objects: in `{"realm":{"plan":"pro"}}`, `realm.plan` is `pro`. A claim that has
    /// dots in its own name comes first, such as `https://example.com/plan`.
    pub fn get(&self, path: &str) -> Option<Cow<'_, str>> {
        text(find(&self.members, path)?)
    }

    /// Reads the claims, in base64url, of a token whose signature is valid.
    pub(super) fn read(part: &str, leeway_us: u64) -> Result<Claims, InvalidToken> {
        let members = object(part)?;
        let expiry_us = members.get("exp").ok_or(InvalidToken::NoExpiry).and_then(time_us)?;
        let start_us = members.get("nbf").map_or(Ok(0), time_us)?;
        let until_us = since_epoch(expiry_us.saturating_add(i128::from(leeway_us)));
        let from_us = since_epoch(start_us.saturating_sub(i128::from(leeway_us)));
        Ok(Claims { members, from_us, until_us })
    }

    pub(super) fn counts_at(&self, now_us: u64) -> Result<(), InvalidToken> {
        if now_us >= self.until_us {
            return Err(InvalidToken::Expired);
        }
        if now_us < self.from_us {
            return Err(InvalidToken::NotYetValid);
        }
        Ok(())
    }

    pub(super) fn is_from(&self, issuers: &[Box<str>]) -> bool {
        self.members.get("iss").is_some_and(|issuer| is_among(issuer, issuers))
    }

    /// Whether the token's audience, or one of its audiences, is among these.
    pub(super) fn is_for(&self, audiences: &[Box<str>]) -> bool {
        match self.members.get("aud") {
            Some(Value::Array(several)) => several.iter().any(|one| is_among(one, audiences)),
            Some(one) => is_among(one, audiences),
            None => false,
        }
    }

    /// Drops lists, which [`Claims::get`] never returns, so that a list of 200 roles is not kept in memory.
    pub(super) fn without_lists(mut self) -> Claims {
        self.members.values_mut().for_each(empty_lists);
        self
    }

    #[cfg(test)]
    pub(super) fn members(&self) -> &Map<String, Value> {
        &self.members
    }
}

/// Shows only names, because the values are the bearer's own.
impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Claims ")?;
        f.debug_set().entries(self.members.keys()).finish()
    }
}

/// Returns the value at a path, trying the longest names first.
///
/// Visits no object twice, because each is reached by one path.
fn find<'a>(members: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    members.get(path).or_else(|| {
        path.rmatch_indices('.').find_map(|(dot, _)| {
            let (name, rest) = path.split_at(dot);
            find(members.get(name)?.as_object()?, rest.strip_prefix('.')?)
        })
    })
}

fn text(value: &Value) -> Option<Cow<'_, str>> {
    match value {
        Value::String(text) => Some(Cow::Borrowed(text)),
        Value::Number(number) => Some(Cow::Owned(number.to_string())),
        Value::Bool(true) => Some(Cow::Borrowed("true")),
        Value::Bool(false) => Some(Cow::Borrowed("false")),
        Value::Null | Value::Array(_) | Value::Object(_) => None,
    }
}

fn is_among(value: &Value, texts: &[Box<str>]) -> bool {
    value.as_str().is_some_and(|value| texts.iter().any(|text| **text == *value))
}

fn empty_lists(value: &mut Value) {
    match value {
        Value::Array(list) => *list = Vec::new(),
        Value::Object(members) => members.values_mut().for_each(empty_lists),
        _ => {}
    }
}

/// Returns a time in microseconds, rounded down, from JSON's seconds since the epoch.
fn time_us(seconds: &Value) -> Result<i128, InvalidToken> {
    let Value::Number(seconds) = seconds else { return Err(InvalidToken::Malformed) };
    if let Some(whole) = seconds.as_i128() {
        return Ok(whole.saturating_mul(1_000_000));
    }
    let seconds = seconds.as_f64().ok_or(InvalidToken::Malformed)?;
    // OK because the cast saturates at the largest number.
    Ok((seconds * 1e6).floor() as i128)
}

/// Returns the nearest time that a clock can show.
fn since_epoch(us: i128) -> u64 {
    u64::try_from(us.max(0)).unwrap_or(u64::MAX)
}
