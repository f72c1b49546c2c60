//! The tokens that requests carry: which ones are accepted, and how the others are handled.

mod credit;
mod rejected;

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use ::http::header::{AUTHORIZATION, HeaderMap, HeaderValue};
use tollgate_core::Limit;

use tollgate_limiter::store::DecisionSource;
use tollgate_limiter::{Clock, Decision, Error, Limiter, Scope};

use self::credit::Credit;
use self::rejected::RejectedTokens;
use crate::config::{JwksConfig, JwtConfig, OnInvalid};
use crate::invalid_token::InvalidToken;
use crate::jwt::{Claims, Jwks, Jwt, JwtKey, Token};
use crate::unwelcome::Unwelcome;

/// How often an address may have tokens verified that turn out bad, by default.
const VERIFICATIONS: &str = "token-bucket capacity=20 refill=5/s";

/// Enough for some 80,000 addresses; further addresses share what is left.
const MAX_BYTES: usize = 4 << 20;

/// The settings and the counts of tokens: which ones are accepted, and how the others are handled.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tokens {
    /// `None` if no token is verified.
    jwt: Option<Jwt>,
    pub(crate) on_invalid: OnInvalid,
    /// By address, how many tokens may turn out bad. Without it no token is verified.
    verifications: Option<Scope>,
    /// By address, how many more tokens may turn out bad, because good ones came from there. `None` as long as `jwt` is.
    credit: Option<Arc<Credit>>,
    rejected: Arc<RejectedTokens>,
    pub(crate) clock: Clock,
}

impl Tokens {
    /// Returns the tokens that a file configures. Key sets that were fetched `before` go on.
    pub(crate) fn configured(said: &JwtConfig, before: Option<&Tokens>) -> Result<Tokens, Error> {
        let keys = said.keys.iter().map(JwtKey::configured).collect::<Result<Vec<_>, _>>();
        let keys = keys.map_err(problem)?;
        let running = before.and_then(|before| before.key_sets().first().cloned());
        let jwks = match (running, &said.jwks) {
            (running, Some(said)) => Some(running.map_or_else(|| jwks(said), Ok)?),
            (_, None) => None,
        };
        let mut jwt = match (keys.is_empty(), jwks) {
            (true, Some(jwks)) => Jwt::from_jwks(jwks),
            (_, None) => Jwt::new(keys).map_err(problem)?,
            (false, Some(jwks)) => Jwt::new(keys).map_err(problem)?.jwks(jwks),
        };
        if let Some(issuer) = &said.issuer {
            jwt = jwt.issuer(&**issuer);
        }
        if let Some(audience) = &said.audience {
            jwt = jwt.audience(&**audience);
        }
        if let Some(leeway) = said.leeway {
            jwt = jwt.leeway(leeway);
        }
        let mut tokens = Tokens::default().with_jwt(jwt);
        if let Some(limit) = said.verifications {
            tokens = tokens.with_verifications(limit)?;
        }
        Ok(Tokens { on_invalid: said.on_invalid, ..tokens })
    }

    /// Judges tokens at this clock's time.
    pub(crate) fn on_clock(self, clock: &Clock) -> Tokens {
        Tokens { clock: clock.clone(), ..self }
    }

    /// Begins to fetch keys, if there are keys to fetch.
    pub(crate) fn start(&self) {
        self.key_sets().iter().for_each(Jwks::start);
    }

    /// Returns what is wrong with the keys that are fetched, if anything is.
    pub(crate) fn problem(&self) -> Option<String> {
        self.key_sets().iter().find_map(|keys| keys.status().problem)
    }

    pub(crate) fn with_jwt(self, jwt: Jwt) -> Tokens {
        // Never `None`, because the default limit is valid.
        let verifications = self.verifications.or_else(usual_verifications);
        Tokens { jwt: Some(jwt), verifications, credit: Some(Arc::default()), ..self }
    }

    pub(crate) fn with_verifications(self, limit: Limit) -> Result<Tokens, Error> {
        Ok(Tokens { verifications: Some(verifications(limit)?), ..self })
    }

    /// Continues the counts of rejected tokens of `before`.
    pub(crate) fn counting_with(self, before: &Tokens) -> Tokens {
        Tokens { rejected: Arc::clone(&before.rejected), ..self }
    }

    pub(crate) fn key_sets(&self) -> &[Jwks] {
        self.jwt.as_ref().map_or(&[], Jwt::key_sets)
    }

    /// Returns every reason for which tokens are rejected, and how many were. Empty if no token is verified at all.
    pub(crate) fn rejected(&self) -> Vec<(&'static str, u64)> {
        self.jwt.iter().flat_map(|_| self.rejected.counts()).collect()
    }

    /// Verifies the token of a request: `None` if it has no token, or tokens are not configured.
    fn look(&self, carried: AuthorizationToken<'_>, address: &str) -> Option<TokenVerdict> {
        let jwt = self.jwt.as_ref()?;
        let now_us = self.clock.wall_us();
        let looked = match carried {
            AuthorizationToken::Nothing => return None,
            AuthorizationToken::Token(token) => self.verify(jwt, token, address, now_us),
            AuthorizationToken::Unreadable => {
                self.uncharged(InvalidToken::Malformed, address, now_us)
            }
        };
        match &looked {
            TokenVerdict::Verified(_) => {}
            TokenVerdict::KeyPending => self.rejected.count_invalid(InvalidToken::UnknownKey),
            TokenVerdict::Invalid(reason) => self.rejected.count_invalid(*reason),
            TokenVerdict::Untried(_) => self.rejected.count_not_verified(),
        }
        Some(looked)
    }

    /// Verifies a new token if its address has allowance or credit left. A good token costs neither, and every request
    /// with a good token earns its address one more verification.
    fn verify(&self, jwt: &Jwt, token: &str, address: &str, now_us: u64) -> TokenVerdict {
        let credit = self.credit.as_deref();
        let mut charged = None;
        let looked = jwt.verify(token, now_us, || {
            charged = self.charge(address, now_us);
            let is_allowed = charged.as_ref().is_some_and(Decision::is_allowed);
            is_allowed || credit.is_some_and(|credit| credit.spend(address))
        });
        match (looked, charged) {
            (Token::Verified(claims), charged) => {
                let is_from_credit = charged.as_ref().is_some_and(|own| !own.is_allowed());
                self.give_back(charged, address, now_us);
                if let Some(credit) = credit {
                    // One for this request, and one more if its verification was paid with credit.
                    (0..=u8::from(is_from_credit)).for_each(|_| credit.earn(address));
                }
                TokenVerdict::Verified(claims)
            }
            (Token::Invalid(invalid), None) => self.uncharged(invalid, address, now_us),
            (Token::Invalid(invalid), Some(_)) => TokenVerdict::Invalid(invalid),
            (Token::KeyPending, _) => TokenVerdict::KeyPending,
            (Token::NotVerified, refused) => {
                TokenVerdict::Untried(refused.map(|own| *own.decided()))
            }
        }
    }

    /// Handles a bad token that needed no verification. It is charged like one if the request is refused: otherwise
    /// the refusals would have no limit. If not, it is free, because it may be a token of another system.
    fn uncharged(&self, invalid: InvalidToken, address: &str, now_us: u64) -> TokenVerdict {
        let charged = match self.on_invalid {
            OnInvalid::ByIp => None,
            OnInvalid::Unauthorized => self.charge(address, now_us),
        };
        match charged {
            Some(refused) if !refused.is_allowed() => {
                TokenVerdict::Untried(Some(*refused.decided()))
            }
            _ => TokenVerdict::Invalid(invalid),
        }
    }

    /// Charges a verification to an address. Cannot fail, because the limiter is in memory.
    fn charge(&self, address: &str, now_us: u64) -> Option<Decision> {
        self.verifications.as_ref()?.check(address).at_us(now_us).now().ok()
    }

    /// Refunds the charge for a good token, which is free.
    fn give_back(&self, charged: Option<Decision>, address: &str, now_us: u64) {
        let receipt = charged.and_then(Decision::into_receipt);
        if let Some((verifications, receipt)) = self.verifications.as_ref().zip(receipt) {
            // Cannot fail, because the limiter is in memory.
            let _ = verifications.refund_at_us(address, now_us, receipt);
        }
    }
}

/// The result for a request's token.
#[derive(Debug)]
enum TokenVerdict {
    Verified(Arc<Claims>),
    Invalid(InvalidToken),
    /// It may be good once its key is fetched. Such a request is not refused, because the issuer may be out of reach.
    KeyPending,
    /// Not verified: its address has sent too many bad tokens.
    Untried(Option<tollgate_core::LimitDecision>),
}

/// Returns the keys of a set. A set under a URL is not fetched yet.
fn jwks(said: &JwksConfig) -> Result<Jwks, Error> {
    match said {
        JwksConfig::File(json) => Jwks::parse(json).map_err(problem),
        // Fetching keys needs the feature `jwks`, which brings an HTTP client.
        #[cfg(feature = "jwks")]
        JwksConfig::Url { url, max_age, max_stale } => {
            let mut source = Jwks::url(url).map_err(problem)?;
            if let Some(max_age) = max_age {
                source = source.max_age(*max_age);
            }
            if let Some(max_stale) = max_stale {
                source = source.max_stale(*max_stale);
            }
            Ok(source.not_started())
        }
        #[cfg(not(feature = "jwks"))]
        JwksConfig::Url { .. } => Err(problem(
            "a key set under a URL needs the library's feature `jwks`; build with it, or use a file",
        )),
    }
}

fn problem(problem: impl ToString) -> Error {
    Error::Setting { setting: "identity", problem: problem.to_string() }
}

fn usual_verifications() -> Option<Scope> {
    verifications(VERIFICATIONS.parse().ok()?).ok()
}

fn verifications(limit: Limit) -> Result<Scope, Error> {
    Limiter::builder().max_bytes(MAX_BYTES).build().scope("token-verifications", limit)
}

/// The headers of a request and its address, with the token that was read from them.
#[derive(Clone, Copy)]
pub(crate) struct TokenSource<'b> {
    pub(crate) bearer: &'b Bearer,
    pub(crate) headers: &'b HeaderMap,
    pub(crate) address: &'b str,
}

/// A request's token, once it was looked at.
#[derive(Debug, Default)]
pub(crate) struct Bearer {
    /// `None` if it has none.
    looked: OnceLock<Option<TokenVerdict>>,
}

impl Tokens {
    /// Returns what a request's token comes to; `None` if it has none. Verifies it the first time.
    fn looked<'b>(&self, carries: TokenSource<'b>) -> Option<&'b TokenVerdict> {
        let TokenSource { bearer, headers, address } = carries;
        bearer.looked.get_or_init(|| self.look(carried(headers), address)).as_ref()
    }

    /// Returns what a request's token says, if it has one that is genuine.
    pub(crate) fn claims<'b>(&self, carries: TokenSource<'b>) -> Option<&'b Arc<Claims>> {
        match self.looked(carries)? {
            TokenVerdict::Verified(claims) => Some(claims),
            TokenVerdict::Invalid(_) | TokenVerdict::KeyPending | TokenVerdict::Untried(_) => None,
        }
    }

    /// Returns what a request's token says under this name.
    pub(crate) fn claim<'b>(&self, carries: TokenSource<'b>, path: &str) -> Option<Cow<'b, str>> {
        self.claims(carries)?.get(path)
    }

    /// Returns what is wrong with a request's token, if such requests are not wanted.
    pub(crate) fn unwelcome(&self, carries: TokenSource<'_>) -> Option<Unwelcome> {
        if self.on_invalid == OnInvalid::ByIp {
            return None;
        }
        match *self.looked(carries)? {
            TokenVerdict::Verified(_) | TokenVerdict::KeyPending | TokenVerdict::Untried(None) => {
                None
            }
            TokenVerdict::Invalid(invalid) => Some(Unwelcome::invalid_token(invalid)),
            TokenVerdict::Untried(Some(decision)) => {
                let decision = Decision::uncharged(decision, DecisionSource::Store);
                Some(Unwelcome::not_verified(self.verifications.clone()?, decision))
            }
        }
    }
}

/// The token in a request's `Authorization` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthorizationToken<'h> {
    /// No header, or one of another scheme, such as `Basic …`.
    Nothing,
    /// `Bearer …`.
    Token(&'h str),
    /// A bearer without a token, or with text that cannot be a token; or several lines, each of which may be meant.
    Unreadable,
}

fn carried(headers: &HeaderMap) -> AuthorizationToken<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let Some(first) = lines.next() else { return AuthorizationToken::Nothing };
    let carried = carried_by(first);
    lines.fold(carried, |carried, line| match (carried, carried_by(line)) {
        (AuthorizationToken::Nothing, AuthorizationToken::Nothing) => AuthorizationToken::Nothing,
        _ => AuthorizationToken::Unreadable,
    })
}

/// Reads a line: the scheme, spaces, then the token.
fn carried_by(line: &[u8]) -> AuthorizationToken<'_> {
    let line = line.trim_ascii_start();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let (scheme, rest) = line.split_at(line.iter().take_while(|byte| is_name(byte)).count());
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return AuthorizationToken::Nothing;
    }
    let token = rest.strip_prefix(b" ").and_then(|token| str::from_utf8(token).ok());
    match token.map(|token| token.trim_start_matches(' ')) {
        Some(token) if !token.is_empty() => AuthorizationToken::Token(token),
        _ => AuthorizationToken::Unreadable,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_that_cannot_be_read_is_not_nothing() {
        use AuthorizationToken::{Nothing, Token, Unreadable};
        let table: [(&[&[u8]], AuthorizationToken<'_>); 26] = [
            (&[], Nothing),
            (&[b""], Nothing),
            (&[b"Basic YTpi"], Nothing),
            (&[b"Basic YTpi", b"Digest x"], Nothing),
            (&[b"Bearerx"], Nothing),
            (&[b"Bearer-x y"], Nothing),
            (&[b"\xffBearer x"], Nothing),
            (&[b"x Bearer y"], Nothing),
            (&[b"Bearer a.b.c"], Token("a.b.c")),
            (&[b"bEARER x"], Token("x")),
            (&[b"Bearer   x"], Token("x")),
            (&[b" Bearer x"], Token("x")),
            (&[b"Bearer x y"], Token("x y")),
            (&[b"Bearer"], Unreadable),
            (&[b"Bearer "], Unreadable),
            (&[b"Bearer   "], Unreadable),
            (&[b"Bearer\tx"], Unreadable),
            (&[b"Bearer=x"], Unreadable),
            (&[b"Bearer,x"], Unreadable),
            (&[b"Bearer\xa0x"], Unreadable),
            (&[b"Bearer x\xff"], Unreadable),
            (&[b"Bearer \xc3\xa4"], Token("ä")),
            (&[b"Bearer x", b"Bearer x"], Unreadable),
            (&[b"Bearer x", b"Basic y"], Unreadable),
            (&[b"Basic y", b"Bearer x"], Unreadable),
            (&[b"Basic y", b"Digest x", b"Bearer"], Unreadable),
        ];
        for (lines, want) in table {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(AUTHORIZATION, HeaderValue::from_bytes(line).unwrap());
            }
            assert_eq!(carried(&headers), want, "{lines:?}");
        }
    }

    #[test]
    fn the_usual_limit_can_be_made() {
        assert!(usual_verifications().is_some());
    }
}
