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
use crate::jwt::{Claims, Jwks, Jwt, JwtKey, TokenStatus};
use crate::token_refusal::TokenRefusal;

/// The default limit on the tokens of an address that are verified and turn out bad.
const VERIFICATIONS: &str = "token-bucket capacity=20 refill=5/s";

/// The memory for the counts of bad tokens by address: enough for some 80,000 addresses. Further addresses share a state.
const MAX_BYTES: usize = 4 << 20;

/// The settings and the counts of tokens: which ones are accepted, and how the others are handled.
#[derive(Clone, Debug, Default)]
pub(crate) struct TokenVerifier {
    /// `None` if no token is verified.
    jwt: Option<Jwt>,
    pub(crate) on_invalid: OnInvalid,
    /// The limit on tokens that turn out bad, by address. Without it no token is verified.
    verifications: Option<Scope>,
    /// The verifications that each address has earned with good tokens, in addition to `verifications`. `None` if `jwt`
    /// is `None`.
    credit: Option<Arc<Credit>>,
    rejected: Arc<RejectedTokens>,
    pub(crate) clock: Clock,
}

impl TokenVerifier {
    /// Returns the verifier that a file configures. Key sets that `before` fetches from the same place are kept.
    pub(crate) fn configured(
        config: &JwtConfig,
        before: Option<&TokenVerifier>,
    ) -> Result<TokenVerifier, Error> {
        let keys = config.keys.iter().map(JwtKey::configured).collect::<Result<Vec<_>, _>>();
        let keys = keys.map_err(problem)?;
        let running = before.and_then(|before| before.key_sets().first().cloned());
        let jwks = match (running, &config.jwks) {
            (running, Some(config)) => Some(running.map_or_else(|| jwks(config), Ok)?),
            (_, None) => None,
        };
        let mut jwt = match (keys.is_empty(), jwks) {
            (true, Some(jwks)) => Jwt::from_jwks(jwks),
            (_, None) => Jwt::new(keys).map_err(problem)?,
            (false, Some(jwks)) => Jwt::new(keys).map_err(problem)?.jwks(jwks),
        };
        if let Some(issuer) = &config.issuer {
            jwt = jwt.issuer(&**issuer);
        }
        if let Some(audience) = &config.audience {
            jwt = jwt.audience(&**audience);
        }
        if let Some(leeway) = config.leeway {
            jwt = jwt.leeway(leeway);
        }
        let mut tokens = TokenVerifier::default().with_jwt(jwt);
        if let Some(limit) = config.verifications {
            tokens = tokens.with_verifications(limit)?;
        }
        Ok(TokenVerifier { on_invalid: config.on_invalid, ..tokens })
    }

    /// Verifies tokens at this clock's time.
    pub(crate) fn on_clock(self, clock: &Clock) -> TokenVerifier {
        TokenVerifier { clock: clock.clone(), ..self }
    }

    /// Begins to fetch keys, if there are keys to fetch.
    pub(crate) fn start(&self) {
        self.key_sets().iter().for_each(Jwks::start);
    }

    /// Returns the problem with the fetched keys, if there is one.
    pub(crate) fn problem(&self) -> Option<String> {
        self.key_sets().iter().find_map(|keys| keys.status().problem)
    }

    pub(crate) fn with_jwt(self, jwt: Jwt) -> TokenVerifier {
        // Never `None`, because the default limit is valid.
        let verifications = self.verifications.or_else(default_verifications);
        TokenVerifier { jwt: Some(jwt), verifications, credit: Some(Arc::default()), ..self }
    }

    pub(crate) fn with_verifications(self, limit: Limit) -> Result<TokenVerifier, Error> {
        Ok(TokenVerifier { verifications: Some(verifications(limit)?), ..self })
    }

    /// Continues the counts of rejected tokens of `before`.
    pub(crate) fn with_counts_of(self, before: &TokenVerifier) -> TokenVerifier {
        TokenVerifier { rejected: Arc::clone(&before.rejected), ..self }
    }

    pub(crate) fn key_sets(&self) -> &[Jwks] {
        self.jwt.as_ref().map_or(&[], Jwt::key_sets)
    }

    /// Returns every reason for which tokens are rejected, and how many were. Empty if no token is verified at all.
    pub(crate) fn rejected(&self) -> Vec<(&'static str, u64)> {
        self.jwt.iter().flat_map(|_| self.rejected.counts()).collect()
    }

    /// Judges the token of a request; `None` if the request has no token, or tokens are not configured.
    fn judge(&self, token: AuthorizationToken<'_>, address: &str) -> Option<TokenVerdict> {
        let jwt = self.jwt.as_ref()?;
        let now_us = self.clock.wall_us();
        let verdict = match token {
            AuthorizationToken::Missing => return None,
            AuthorizationToken::Token(token) => self.verify(jwt, token, address, now_us),
            AuthorizationToken::Unreadable => {
                self.uncharged(InvalidToken::Malformed, address, now_us)
            }
        };
        match &verdict {
            TokenVerdict::Verified(_) => {}
            TokenVerdict::KeyPending => self.rejected.count_invalid(InvalidToken::UnknownKey),
            TokenVerdict::Invalid(reason) => self.rejected.count_invalid(*reason),
            TokenVerdict::NotVerified(_) => self.rejected.count_not_verified(),
        }
        Some(verdict)
    }

    /// Verifies a new token if its address has allowance (`verifications`) or credit left. A good token costs neither, and
    /// every request with a good token earns its address credit for one more verification.
    fn verify(&self, jwt: &Jwt, token: &str, address: &str, now_us: u64) -> TokenVerdict {
        let credit = self.credit.as_deref();
        let mut charged = None;
        let verdict = jwt.verify(token, now_us, || {
            charged = self.charge(address, now_us);
            let is_allowed = charged.as_ref().is_some_and(Decision::is_allowed);
            is_allowed || credit.is_some_and(|credit| credit.spend(address))
        });
        match (verdict, charged) {
            (TokenStatus::Verified(claims), charged) => {
                let is_from_credit = charged.as_ref().is_some_and(|own| !own.is_allowed());
                self.give_back(charged, address, now_us);
                if let Some(credit) = credit {
                    // One for this request, and the one back that its verification took from the credit, if it did.
                    (0..=u8::from(is_from_credit)).for_each(|_| credit.earn(address));
                }
                TokenVerdict::Verified(claims)
            }
            (TokenStatus::Invalid(invalid), None) => self.uncharged(invalid, address, now_us),
            (TokenStatus::Invalid(invalid), Some(_)) => TokenVerdict::Invalid(invalid),
            (TokenStatus::KeyPending, _) => TokenVerdict::KeyPending,
            (TokenStatus::NotVerified, refused) => {
                TokenVerdict::NotVerified(refused.map(|own| *own.decided()))
            }
        }
    }

    /// Handles a bad token that needed no verification. If bad tokens are refused, it is charged like a verification:
    /// otherwise the refusals would have no limit. If not, it is free, because it may be a token of another system.
    fn uncharged(&self, invalid: InvalidToken, address: &str, now_us: u64) -> TokenVerdict {
        let charged = match self.on_invalid {
            OnInvalid::ByIp => None,
            OnInvalid::Unauthorized => self.charge(address, now_us),
        };
        match charged {
            Some(refused) if !refused.is_allowed() => {
                TokenVerdict::NotVerified(Some(*refused.decided()))
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
    /// The token may be good once its key is fetched. Such a request is not refused, because the issuer may be out of reach.
    KeyPending,
    /// The token was not verified, because its address has sent too many bad tokens.
    NotVerified(Option<tollgate_core::LimitDecision>),
}

/// Returns the keys of a set. A set under a URL is not fetched yet.
fn jwks(config: &JwksConfig) -> Result<Jwks, Error> {
    match config {
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

fn default_verifications() -> Option<Scope> {
    verifications(VERIFICATIONS.parse().ok()?).ok()
}

fn verifications(limit: Limit) -> Result<Scope, Error> {
    Limiter::builder().max_bytes(MAX_BYTES).build().scope("token-verifications", limit)
}

/// The headers of a request, its address, and the result for its token.
#[derive(Clone, Copy)]
pub(crate) struct TokenContext<'b> {
    pub(crate) token: &'b RequestToken,
    pub(crate) headers: &'b HeaderMap,
    pub(crate) address: &'b str,
}

/// The result for a request's token, once it was judged.
#[derive(Debug, Default)]
pub(crate) struct RequestToken {
    /// The inner `None` means that the request has no token.
    verdict: OnceLock<Option<TokenVerdict>>,
}

impl TokenVerifier {
    /// Returns the result for a request's token; `None` if the request has no token. Judges the token the first time.
    fn verdict<'b>(&self, context: TokenContext<'b>) -> Option<&'b TokenVerdict> {
        let TokenContext { token, headers, address } = context;
        token.verdict.get_or_init(|| self.judge(authorization_token(headers), address)).as_ref()
    }

    /// Returns the claims of a request's token, if the token is genuine.
    pub(crate) fn claims<'b>(&self, context: TokenContext<'b>) -> Option<&'b Arc<Claims>> {
        match self.verdict(context)? {
            TokenVerdict::Verified(claims) => Some(claims),
            TokenVerdict::Invalid(_) | TokenVerdict::KeyPending | TokenVerdict::NotVerified(_) => {
                None
            }
        }
    }

    /// Returns the claim at a path in a request's token, if the token is genuine.
    pub(crate) fn claim<'b>(&self, context: TokenContext<'b>, path: &str) -> Option<Cow<'b, str>> {
        self.claims(context)?.get(path)
    }

    /// Returns why a request is refused because of its token; `None` if it is not refused.
    pub(crate) fn refusal(&self, context: TokenContext<'_>) -> Option<TokenRefusal> {
        if self.on_invalid == OnInvalid::ByIp {
            return None;
        }
        match *self.verdict(context)? {
            TokenVerdict::Verified(_)
            | TokenVerdict::KeyPending
            | TokenVerdict::NotVerified(None) => None,
            TokenVerdict::Invalid(invalid) => Some(TokenRefusal::invalid_token(invalid)),
            TokenVerdict::NotVerified(Some(decision)) => {
                let decision = Decision::uncharged(decision, DecisionSource::Store);
                Some(TokenRefusal::not_verified(self.verifications.clone()?, decision))
            }
        }
    }
}

/// The token in a request's `Authorization` header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AuthorizationToken<'h> {
    /// No header, or one of another scheme, such as `Basic …`.
    Missing,
    /// `Bearer …`.
    Token(&'h str),
    /// `Bearer` without a token, or with text that cannot be a token; or several lines, of which any may be meant.
    Unreadable,
}

fn authorization_token(headers: &HeaderMap) -> AuthorizationToken<'_> {
    let mut lines = headers.get_all(AUTHORIZATION).iter().map(HeaderValue::as_bytes);
    let Some(first) = lines.next() else { return AuthorizationToken::Missing };
    lines.fold(token_in_line(first), |token, line| match (token, token_in_line(line)) {
        (AuthorizationToken::Missing, AuthorizationToken::Missing) => AuthorizationToken::Missing,
        _ => AuthorizationToken::Unreadable,
    })
}

/// Reads a line: the scheme, spaces, then the token.
fn token_in_line(line: &[u8]) -> AuthorizationToken<'_> {
    let line = line.trim_ascii_start();
    let is_name = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    let (scheme, rest) = line.split_at(line.iter().take_while(|byte| is_name(byte)).count());
    if !scheme.eq_ignore_ascii_case(b"bearer") {
        return AuthorizationToken::Missing;
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
    fn unreadable_bearer_line_does_not_count_as_missing() {
        use AuthorizationToken::{Missing, Token, Unreadable};
        let table: [(&[&[u8]], AuthorizationToken<'_>); 26] = [
            (&[], Missing),
            (&[b""], Missing),
            (&[b"Basic YTpi"], Missing),
            (&[b"Basic YTpi", b"Digest x"], Missing),
            (&[b"Bearerx"], Missing),
            (&[b"Bearer-x y"], Missing),
            (&[b"\xffBearer x"], Missing),
            (&[b"x Bearer y"], Missing),
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
            assert_eq!(authorization_token(&headers), want, "{lines:?}");
        }
    }

    #[test]
    fn the_usual_limit_can_be_made() {
        assert!(default_verifications().is_some());
    }
}
