//! Clients known by the tokens that they carry: who signed a token, and what it says.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

mod bad;
mod cache;
mod claims;
mod invalid;
mod key;
#[cfg(test)]
mod tests;
mod unproven;

use bad::BadTokens;
use cache::{Cache, Weight};
pub use claims::Claims;
pub use invalid::InvalidToken;
pub use key::{JwtError, JwtKey};
use unproven::Unproven;

use crate::rules::config::MAX_WITHOUT_ID;

/// The longest token that is looked at: many servers take no longer header.
const MAX_BYTES: usize = 8 * 1024;

/// How many tokens are remembered, unless said otherwise.
const MAX_CACHED: usize = 10_000;

/// How far clocks may be apart, unless said otherwise: machines that keep time differ by less, and a
/// token that is just made need not wait.
const LEEWAY: Duration = Duration::from_secs(5);

/// Reads the tokens (JWT) that clients carry, and believes those that one of its keys signed.
///
/// A token counts from its `nbf`, if it has one, until its `exp`, which it must have. Its algorithm is
/// its key's own, whatever the token says. A token that was verified is remembered, so the signature of
/// one that comes with 1,000 requests is computed once. So is that of the last 4,096 bad tokens. Clones remember
/// together.
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
    shared: Arc<Shared>,
}

/// Tokens are remembered as the policy judged them, so a changed policy begins without any.
struct Shared {
    policy: Policy,
    cache: Cache,
    bad: BadTokens,
}

#[derive(Clone)]
struct Policy {
    keys: Arc<[JwtKey]>,
    issuers: Vec<Box<str>>,
    audiences: Vec<Box<str>>,
    leeway_us: u64,
    max_cached: usize,
}

/// What is known of a token.
#[derive(Debug)]
pub(crate) enum Token {
    /// One of the keys signed it, and it counts now.
    Verified(Arc<Claims>),
    /// It counts for nothing.
    Invalid(InvalidToken),
    /// It looks like one, but its signature was not computed.
    NotVerified,
}

impl Jwt {
    /// Believes tokens that one of `keys` signed.
    ///
    /// A token that names its key (`kid`) is for the key with that id. Keys without an id are for all
    /// others: tokens that name no key, or one that is not here. There may be 8 of an algorithm.
    pub fn new(keys: impl IntoIterator<Item = JwtKey>) -> Result<Jwt, JwtError> {
        let keys: Arc<[JwtKey]> = keys.into_iter().collect();
        check_keys(&keys)?;
        let policy = Policy {
            keys,
            issuers: Vec::new(),
            audiences: Vec::new(),
            leeway_us: micros(LEEWAY),
            max_cached: MAX_CACHED,
        };
        Ok(Jwt::of(policy))
    }

    /// Only tokens of this issuer (`iss`) count. Said again: of any of them.
    pub fn issuer(self, issuer: impl Into<String>) -> Jwt {
        self.with(|policy| policy.issuers.push(issuer.into().into()))
    }

    /// Only tokens for this audience (`aud`) count. Said again: for any of them.
    ///
    /// Say it if the issuer makes tokens for others too: theirs would count here.
    pub fn audience(self, audience: impl Into<String>) -> Jwt {
        self.with(|policy| policy.audiences.push(audience.into().into()))
    }

    /// How far the issuer's clock may be from this machine's: 5 seconds unless said otherwise.
    ///
    /// With 5 seconds, a token whose `exp` is 1000 counts until just before 1005, and one whose `nbf`
    /// is 1000 from 995.
    pub fn leeway(self, leeway: Duration) -> Jwt {
        self.with(|policy| policy.leeway_us = micros(leeway))
    }

    /// How many verified tokens are remembered at most: 10,000 unless said otherwise. 0 and 1 remember none.
    ///
    /// A token counts as one, and as one more for each KiB of its length: of 300 bytes as 1, of 8 KiB as 9. It
    /// takes a few times the bytes of its claims; the token itself is not kept.
    pub fn max_cached(self, tokens: usize) -> Jwt {
        self.with(|policy| policy.max_cached = tokens)
    }

    /// What a token says, if it is to be believed now, by the machine's clock.
    pub fn claims(&self, token: &str) -> Result<Arc<Claims>, InvalidToken> {
        let now_us = micros(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        match self.verify(token, now_us, || true) {
            Token::Verified(claims) => Ok(claims),
            Token::Invalid(invalid) => Err(invalid),
            // Not here: it may.
            Token::NotVerified => Err(InvalidToken::Signature),
        }
    }

    /// Returns what is known of a token at `now_us`. Calls `may_verify` before it computes a signature, which it does
    /// not for a token that was verified before, good or bad, nor for one that is bad whatever its signature.
    pub(crate) fn verify(
        &self,
        token: &str,
        now_us: u64,
        may_verify: impl FnOnce() -> bool,
    ) -> Token {
        match self.proven(token, now_us, may_verify) {
            Ok(Some(claims)) => Token::Verified(claims),
            Ok(None) => Token::NotVerified,
            Err(invalid) => Token::Invalid(invalid),
        }
    }

    fn proven(
        &self,
        token: &str,
        now_us: u64,
        may_verify: impl FnOnce() -> bool,
    ) -> Result<Option<Arc<Claims>>, InvalidToken> {
        // First, so that nobody can have more than this hashed.
        if token.len() > MAX_BYTES {
            return Err(InvalidToken::TooLong);
        }
        let Shared { policy, cache, bad } = &*self.shared;
        let fingerprint = cache.fingerprint(token);
        if let Some(known) = cache.get(fingerprint, now_us) {
            return known.map(Some);
        }
        if let Some(reason) = bad.get(fingerprint, now_us) {
            return Err(reason);
        }
        let unproven = Unproven::read(token)?;
        let candidates = unproven.candidates(&policy.keys)?;
        if !may_verify() {
            return Ok(None);
        }
        let claims = match candidates.iter().any(|key| unproven.is_signed_by(key)) {
            true => policy.accept(unproven.claims(), now_us),
            false => Err(InvalidToken::Signature),
        };
        let claims = claims.inspect_err(|reason| bad.insert(fingerprint, *reason, now_us))?;
        let claims = Arc::new(claims);
        cache.insert(fingerprint, Weight::of(token), Arc::clone(&claims));
        Ok(Some(claims))
    }

    fn of(policy: Policy) -> Jwt {
        let cache = Cache::new(policy.max_cached);
        Jwt { shared: Arc::new(Shared { policy, cache, bad: BadTokens::default() }) }
    }

    /// Remembers no tokens yet: the policy before may have accepted more of them.
    fn with(self, change: impl FnOnce(&mut Policy)) -> Jwt {
        let mut policy = self.shared.policy.clone();
        change(&mut policy);
        Jwt::of(policy)
    }
}

impl Policy {
    /// The claims of a token whose signature holds.
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

/// Its keys hide what is secret of them.
impl fmt::Debug for Jwt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Policy { keys, issuers, audiences, leeway_us, max_cached } = &self.shared.policy;
        f.debug_struct("Jwt")
            .field("keys", keys)
            .field("issuers", issuers)
            .field("audiences", audiences)
            .field("leeway_us", leeway_us)
            .field("max_cached", max_cached)
            .finish()
    }
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
