//! Clients identified by tokens: the signature of a token, and its claims.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use arc_swap::Guard;
use smallvec::SmallVec;

mod bad;
mod cache;
mod claims;
mod jwks;
mod key;
mod key_set;
#[cfg(test)]
mod tests;
mod unverified;

use crate::invalid_token::InvalidToken;
use bad::BadTokens;
use cache::{TokenCache, TokenWeight};
pub use claims::Claims;
use jwks::PublishedKeys;
pub use jwks::{Jwks, JwksStatus};
// Only keys that are fetched need these.
#[cfg(feature = "jwks")]
pub(super) use jwks::{KeyRefresh, REFETCH_INTERVAL, SharedKeys};
pub use key::{JwtError, JwtKey};
pub use key_set::JwksError;
pub use key_set::KeySet;
use unverified::UnverifiedToken;

use crate::config::MAX_WITHOUT_ID;

/// The longest token that is read: many servers refuse longer headers.
const MAX_BYTES: usize = 8 * 1024;

/// The default weight of the tokens that are remembered.
const MAX_CACHED: usize = 10_000;

/// The default difference that the issuer's clock may have: synchronised machines differ by less, and a token that was just
/// made is valid at once.
const LEEWAY: Duration = Duration::from_secs(5);

/// A verifier of the tokens (JWT) that clients carry. It accepts the tokens that one of its keys signed.
///
/// A token counts from its `nbf`, if it has one, until its `exp`, which it must have. Its algorithm is
/// its key's own, whatever the token says. A verified token is remembered, so the signature of a token
/// that comes with 1,000 requests is computed once. Bad tokens whose signature was computed are remembered as well: at
/// least the last 4,096 and at most 8,192, except tokens that are not valid yet. Clones share this memory.
///
/// ```
/// use tollgate::http::{InvalidToken, Jwt, JwtKey};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let key = JwtKey::hs256(b"an example's secret of 34 bytes...")?;
/// let jwt = Jwt::new([key])?.issuer("https://id.example.com");
/// // {"iss":"https://id.example.com","sub":"ada","realm":{"plan":"pro"},"exp":4102444800}
/// let token = "eyJhbGciOiJIUzI1NiJ9.\
///     eyJpc3MiOiJodHRwczovL2lkLmV4YW1wbGUuY29tIiwic3ViIjoiYWRhIiwi\
///     cmVhbG0iOnsicGxhbiI6InBybyJ9LCJleHAiOjQxMDI0NDQ4MDB9.\
///     wD2QwRjuyiJfsJMsIICLjBgpv9x1a3mRpcKIVdnlw_A";
/// let claims = jwt.claims(token)?;
/// assert_eq!(claims.get("sub").as_deref(), Some("ada"));
/// assert_eq!(claims.get("realm.plan").as_deref(), Some("pro"));
/// assert_eq!(jwt.audience("shop").claims(token).err(), Some(InvalidToken::Audience));
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Jwt {
    shared: Arc<JwtState>,
}

/// A policy, and the tokens that it judged. A changed policy starts without remembered tokens.
struct JwtState {
    policy: JwtPolicy,
    cache: TokenCache,
    bad: BadTokens,
}

#[derive(Clone)]
struct JwtPolicy {
    keys: Arc<[JwtKey]>,
    /// The key sets. There are few: most issuers have one set.
    jwks: Vec<Jwks>,
    issuers: Vec<Box<str>>,
    audiences: Vec<Box<str>>,
    leeway_us: u64,
    max_cached: usize,
}

/// The result of the check of a token.
#[derive(Debug)]
pub(crate) enum TokenStatus {
    /// One of the keys signed the token, and it is valid now.
    Verified(Arc<Claims>),
    /// The token is rejected.
    Invalid(InvalidToken),
    /// The token is well-formed, but its signature was not computed.
    NotVerified,
    /// The token may be signed by a key that was not fetched yet.
    KeyPending,
}

impl Jwt {
    /// Accepts tokens that one of `keys` signed.
    ///
    /// A token that names its key (`kid`) is verified with the key of that id. Keys without an id are for all other tokens:
    /// tokens that name no key, or a key that is not in `keys`. One algorithm may have 8 keys without an id.
    pub fn new(keys: impl IntoIterator<Item = JwtKey>) -> Result<Jwt, JwtError> {
        let keys: Arc<[JwtKey]> = keys.into_iter().collect();
        check_keys(&keys)?;
        Ok(Jwt::of(JwtPolicy::new(keys, Vec::new())))
    }

    /// Accepts tokens that one of the keys of a set signed, with the keys that the set has at the time.
    ///
    /// A token that names a key that was not fetched yet is not verified: it does not identify its client, and is not
    /// refused either.
    pub fn from_jwks(jwks: Jwks) -> Jwt {
        Jwt::of(JwtPolicy::new(Arc::default(), vec![jwks]))
    }

    /// Also accepts tokens that one of the keys of this set signed.
    pub fn jwks(self, jwks: Jwks) -> Jwt {
        self.with(|policy| policy.jwks.push(jwks))
    }

    /// Returns the key sets.
    pub(crate) fn key_sets(&self) -> &[Jwks] {
        &self.shared.policy.jwks
    }

    /// Accepts only tokens of this issuer (`iss`). May be called again to accept further issuers.
    pub fn issuer(self, issuer: impl Into<String>) -> Jwt {
        self.with(|policy| policy.issuers.push(issuer.into().into()))
    }

    /// Accepts only tokens for this audience (`aud`). May be called again to accept further audiences.
    ///
    /// Call it if the issuer also makes tokens for other services: otherwise these tokens are accepted here too.
    pub fn audience(self, audience: impl Into<String>) -> Jwt {
        self.with(|policy| policy.audiences.push(audience.into().into()))
    }

    /// Sets how far the issuer's clock may be from this machine's: 5 seconds by default.
    ///
    /// With 5 seconds, a token whose `exp` is 1000 is valid until just before 1005, and a token whose `nbf` is 1000 is valid
    /// from 995.
    pub fn leeway(self, leeway: Duration) -> Jwt {
        self.with(|policy| policy.leeway_us = micros(leeway))
    }

    /// Sets how many verified tokens are remembered at most: 10,000 by default. With 0 or 1, no token is remembered.
    ///
    /// A token counts as one, and as one more for each KiB of its length: a token of 300 bytes counts as 1, of 8 KiB as 9. A
    /// remembered token takes a few times the bytes of its claims; the token itself is not kept.
    pub fn max_cached(self, tokens: usize) -> Jwt {
        self.with(|policy| policy.max_cached = tokens)
    }

    /// Returns the claims of a token, if it is valid now by the machine's clock.
    pub fn claims(&self, token: &str) -> Result<Arc<Claims>, InvalidToken> {
        let now_us = micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        match self.verify(token, now_us, || true) {
            TokenStatus::Verified(claims) => Ok(claims),
            TokenStatus::Invalid(invalid) => Err(invalid),
            // Does not happen here, because `may_verify` returns true.
            TokenStatus::NotVerified => Err(InvalidToken::Signature),
            TokenStatus::KeyPending => Err(InvalidToken::UnknownKey),
        }
    }

    /// Returns the status of a token at `now_us`. Calls `may_verify` before it computes a signature. It computes no signature
    /// for a token that was verified before, whether good or bad, and for a token that is bad whatever its signature is.
    pub(crate) fn verify(
        &self,
        token: &str,
        now_us: u64,
        may_verify: impl FnOnce() -> bool,
    ) -> TokenStatus {
        self.proven(token, now_us, may_verify).unwrap_or_else(TokenStatus::Invalid)
    }

    fn proven(
        &self,
        token: &str,
        now_us: u64,
        may_verify: impl FnOnce() -> bool,
    ) -> Result<TokenStatus, InvalidToken> {
        // Checked first, so that a longer text of a client is never hashed.
        if token.len() > MAX_BYTES {
            return Err(InvalidToken::TooLong);
        }
        let JwtState { policy, cache, bad } = &*self.shared;
        // The keys as they are now, for the whole verification.
        let sets: SmallVec<[_; 1]> = policy.jwks.iter().map(Jwks::current).collect();
        let fingerprint = cache.fingerprint(token).under(generations(&sets));
        if let Some(known) = cache.get(fingerprint, now_us) {
            return known.map(TokenStatus::Verified);
        }
        if let Some(reason) = bad.get(fingerprint, now_us) {
            return Err(reason);
        }
        let unverified = UnverifiedToken::read(token)?;
        let key_sets = || sets.iter().map(|published| published.set());
        let named = unverified.named(&policy.keys, key_sets());
        let is_pending = named.is_empty() && policy.may_be_fetched(&unverified, &sets);
        let candidates = match unverified.candidates(named, &policy.keys, key_sets()) {
            Ok(candidates) => candidates,
            Err(_) if is_pending => return Ok(TokenStatus::KeyPending),
            Err(invalid) => return Err(invalid),
        };
        if !may_verify() {
            return Ok(TokenStatus::NotVerified);
        }
        let claims = match candidates.iter().any(|key| unverified.is_signed_by(key)) {
            true => policy.accept(unverified.claims(), now_us),
            false if is_pending => return Ok(TokenStatus::KeyPending),
            false => Err(InvalidToken::Signature),
        };
        let claims = claims.inspect_err(|reason| bad.insert(fingerprint, *reason, now_us))?;
        let claims = Arc::new(claims);
        cache.insert(fingerprint, TokenWeight::of(token), Arc::clone(&claims));
        Ok(TokenStatus::Verified(claims))
    }

    fn of(policy: JwtPolicy) -> Jwt {
        let cache = TokenCache::new(policy.max_cached);
        Jwt { shared: Arc::new(JwtState { policy, cache, bad: BadTokens::default() }) }
    }

    /// Changes the policy. The result remembers no tokens: the old policy may have accepted tokens that the new one rejects.
    fn with(self, change: impl FnOnce(&mut JwtPolicy)) -> Jwt {
        let mut policy = self.shared.policy.clone();
        change(&mut policy);
        Jwt::of(policy)
    }
}

impl JwtPolicy {
    fn new(keys: Arc<[JwtKey]>, jwks: Vec<Jwks>) -> JwtPolicy {
        JwtPolicy {
            keys,
            jwks,
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_us: micros(LEEWAY),
            max_cached: MAX_CACHED,
        }
    }

    /// Whether the issuer may have published the key of a token since its set was fetched. If the token names the key, a
    /// fetch in the background is triggered.
    ///
    /// Called for tokens that name no known key.
    fn may_be_fetched(
        &self,
        unverified: &UnverifiedToken<'_>,
        sets: &[Guard<Arc<PublishedKeys>>],
    ) -> bool {
        let is_named = unverified.is_naming_a_key();
        if is_named {
            self.jwks.iter().for_each(Jwks::key_missing);
        }
        sets.iter().any(|set| set.may_lack(is_named))
    }

    /// Returns the claims of a token whose signature is valid, if the policy accepts them.
    fn accept(&self, claims: &str, now_us: u64) -> Result<Claims, InvalidToken> {
        let claims = Claims::read(claims, self.leeway_us)?;
        claims.counts_at(now_us)?;
        if !self.issuers.is_empty() && !claims.is_from(&self.issuers) {
            return Err(InvalidToken::Issuer);
        }
        if !self.audiences.is_empty() && !claims.is_for(&self.audiences) {
            return Err(InvalidToken::Audience);
        }
        Ok(claims.without_lists())
    }
}

/// Shows the keys, which omit their secrets.
impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JwtPolicy { keys, jwks, issuers, audiences, leeway_us, max_cached } =
            &self.shared.policy;
        f.debug_struct("Jwt")
            .field("keys", keys)
            .field("jwks", jwks)
            .field("issuers", issuers)
            .field("audiences", audiences)
            .field("leeway_us", leeway_us)
            .field("max_cached", max_cached)
            .finish()
    }
}

/// Returns a number that stands for the current keys of all sets.
fn generations(sets: &[Guard<Arc<PublishedKeys>>]) -> u128 {
    sets.iter().fold(0, |all: u128, set| all.rotate_left(32) ^ u128::from(set.generation()))
}

fn check_keys(keys: &[JwtKey]) -> Result<(), JwtError> {
    if keys.is_empty() {
        return Err(JwtError::NoKeys);
    }
    for (index, key) in keys.iter().enumerate() {
        let before = keys.iter().take(index);
        match key.name() {
            Some(id) if before.clone().any(|other| other.name() == Some(id)) => {
                return Err(JwtError::SameId { id: id.into() });
            }
            None if before.filter(|other| other.is_alike(key)).count() >= MAX_WITHOUT_ID => {
                return Err(JwtError::TooManyWithoutId { most: MAX_WITHOUT_ID });
            }
            _ => {}
        }
    }
    Ok(())
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
