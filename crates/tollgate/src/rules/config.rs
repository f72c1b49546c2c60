//! What a rules file says: limits, and which requests spend them. Every name in it stands for something.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::{IpNet, Ipv6Net};
use tollgate_core::{Cost, Limit};

use super::networks::Networks;
use super::pattern::Pattern;
use super::problem::Problems;
use crate::failure::OnFailure;

/// Limits and rules, as a file has them, checked.
#[derive(Clone, Default, PartialEq)]
pub struct Config {
    pub(crate) limits: Vec<NamedLimit>,
    pub(crate) rules: Vec<Rule>,
    /// Domains that had rules once, and whose requests are not limited on purpose.
    pub(crate) retired_domains: HashSet<Box<str>>,
    /// For limits that are called by their names; rules have it in them.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// The tier of every API key that is known.
    pub(crate) api_keys: HashMap<Box<str>, Box<str>>,
    /// Who clients are; whoever asks knows, if `None`.
    pub(crate) identity: Option<Identity>,
    /// How many tests the file carries, all of which its rules pass.
    pub(crate) tests: usize,
    /// What was probably not meant.
    pub(crate) warnings: Problems,
}

/// A limit and what the file calls it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct NamedLimit {
    pub(crate) name: Box<str>,
    pub(crate) limit: Limit,
}

/// Which requests spend which limit, and for whom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Rule {
    pub(crate) name: Box<str>,
    pub(crate) domain: Box<str>,
    /// All of them must hold; of one attribute there is one.
    pub(crate) when: Vec<Condition>,
    /// Each must be found in the request. None: all requests have one key.
    pub(crate) key: Vec<KeyPart>,
    pub(crate) limit: Choice,
    pub(crate) cost: Costs,
    /// Says what it would have done, and refuses nothing.
    pub(crate) is_shadow: bool,
    /// As the limiter has it, if `None`; so is the deadline.
    pub(crate) on_store_failure: Option<OnFailure>,
    pub(crate) deadline: Option<Duration>,
    /// What is different for single keys.
    pub(crate) overrides: Vec<Override>,
    /// The rules of the domain that do not decide a request to which this rule applies.
    pub(crate) replaces: Replaces,
}

/// The other rules of its domain that a rule replaces.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Replaces {
    /// The rules with these names.
    Named(Vec<Box<str>>),
    /// All rules that do not say the same.
    All,
}

/// What an attribute of the request must be.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Condition {
    pub(crate) attribute: Box<str>,
    pub(crate) wanted: Wanted,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Wanted {
    /// There, and like one of these.
    AnyOf(Vec<Pattern>),
    /// There, and like none of these.
    NoneOf(Vec<Pattern>),
    /// There, whatever it is.
    Present,
    Absent,
}

impl Wanted {
    /// What the value is compared with, if it is.
    pub(crate) fn patterns(&self) -> &[Pattern] {
        match self {
            Wanted::AnyOf(patterns) | Wanted::NoneOf(patterns) => patterns,
            Wanted::Present | Wanted::Absent => &[],
        }
    }
}

/// The first of these attributes that the request has is a part of the key. At least one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct KeyPart {
    pub(crate) first_of: Vec<Box<str>>,
}

/// What a rule spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Spend {
    /// Of the limit at this place in [`Config::limits`].
    Limit(usize),
    /// Nothing: such requests are not limited by this rule.
    Allow,
    /// Such requests are refused, for as long as the file says so.
    Block,
}

/// What a rule spends for whom.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Choice {
    /// The attribute that chooses, and what each of its values does.
    pub(crate) tiers: Option<Tiers>,
    /// What those spend that no tier is for.
    pub(crate) default: Spend,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tiers {
    pub(crate) by: Box<str>,
    pub(crate) of: Vec<(Box<str>, Spend)>,
}

/// What a request costs: as the first route says that it is on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Costs {
    pub(crate) routes: Vec<(Route, Cost)>,
    pub(crate) default: Cost,
}

/// `POST /reports`, or a path with any method.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Route {
    pub(crate) method: Option<Box<str>>,
    pub(crate) path: Pattern,
}

/// What is different for a single key.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Override {
    /// The attributes that make the key, in the order of [`Rule::key`], and what they are. At most one
    /// of them is of networks.
    pub(crate) key: Vec<(Box<str>, KeyValue)>,
    pub(crate) spend: Spend,
}

/// The value of an attribute in an override's key.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum KeyValue {
    Text(Box<str>),
    /// Any address in one of these networks.
    In(Networks),
}

/// Who clients are, and whose word counts for it. What is `None` is as it is without a file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Identity {
    /// Who may say where a request came from. None: nobody.
    pub(crate) trusted_proxies: Vec<IpNet>,
    /// The one that they write.
    pub(crate) forwarding_header: ForwardingHeader,
    /// What is known if a trusted proxy sent it, in lower case.
    pub(crate) trusted_headers: Vec<Box<str>>,
    /// 1 to 128.
    pub(crate) ipv6_prefix: Option<u8>,
    /// In lower case.
    pub(crate) api_key_header: Option<Box<str>>,
    pub(crate) jwt: Option<Jwt>,
}

/// All of IPv4, as IPv6 has it.
const IPV4: Ipv6Net = Ipv6Net::new_assert(Ipv4Addr::UNSPECIFIED.to_ipv6_mapped(), 96);

/// All that public IPv6 addresses are of.
const PUBLIC_IPV6: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x2000, 0, 0, 0, 0, 0, 0, 0), 3);

/// `IPv4` and `IPv6`, if the nets hold more than a quarter of it: those are not all proxies. None of the nets lies
/// within another, and IPv4 is there as IPv6 has it.
pub(crate) fn mostly_covered(nets: &[Ipv6Net]) -> impl Iterator<Item = &'static str> {
    let families = [("IPv4", IPV4), ("IPv6", PUBLIC_IPV6)].into_iter();
    families.filter(|(_, all)| covered(nets, *all) > addresses(*all) / 4).map(|(family, _)| family)
}

fn covered(nets: &[Ipv6Net], all: Ipv6Net) -> u128 {
    let within = |net: &Ipv6Net| match (net.contains(&all), all.contains(net)) {
        (true, _) => addresses(all),
        (false, true) => addresses(*net),
        (false, false) => 0,
    };
    nets.iter().map(within).sum()
}

/// OK because a net that is asked about has at least 3 bits of its own.
fn addresses(net: Ipv6Net) -> u128 {
    1 << (128 - u32::from(net.prefix_len()))
}

/// Where proxies say who asked them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ForwardingHeader {
    #[default]
    XForwardedFor,
    Forwarded,
    XRealIp,
}

/// How tokens are verified.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Jwt {
    /// At least one, unless there is a set. No two have the same id.
    pub(crate) keys: Vec<JwtKey>,
    pub(crate) jwks: Option<Jwks>,
    pub(crate) issuer: Option<Box<str>>,
    pub(crate) audience: Option<Box<str>>,
    pub(crate) leeway: Option<Duration>,
    pub(crate) on_invalid: OnInvalid,
    /// How often an address may have tokens verified that turn out bad.
    pub(crate) verifications: Option<Limit>,
}

/// HMAC needs a secret as long as its hash (RFC 7518, 3.2).
pub(crate) const MIN_SECRET_BYTES: usize = 32;

/// How many keys without an id one algorithm may have: a token that names no key is tried on each.
pub(crate) const MAX_WITHOUT_ID: usize = 8;

/// The largest key set that is read. Sets of large issuers have a few KiB.
pub(crate) const MAX_JWKS_BYTES: usize = 256 << 10;

/// How old the keys of a set may get while the issuer answers, unless said otherwise.
pub(crate) const JWKS_MAX_AGE: Duration = Duration::from_secs(10 * 60);

/// Where a key set is.
#[derive(Clone, PartialEq)]
pub(crate) enum Jwks {
    /// What the file had in it.
    File(Vec<u8>),
    /// Fetched from here.
    Url { url: Box<str>, max_age: Option<Duration>, max_stale: Option<Duration> },
}

/// A key that tokens are verified with.
#[derive(Clone, PartialEq)]
pub(crate) struct JwtKey {
    pub(crate) algorithm: JwtAlgorithm,
    pub(crate) id: Option<Box<str>>,
    /// The secret's bytes, 32 at least; or the public key as a PEM.
    pub(crate) material: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JwtAlgorithm {
    Hs256,
    Rs256,
    Es256,
    Es384,
    EdDsa,
}

/// What a bad token comes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OnInvalid {
    /// As none: the client is known by its address.
    #[default]
    ByIp,
    /// 401.
    Unauthorized,
}

impl fmt::Debug for Jwks {
    /// Without the keys, of which there may be many, and without the URL, which may have a secret in its query.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Jwks::File(_) => "Jwks::File",
            Jwks::Url { .. } => "Jwks::Url",
        })
    }
}

impl fmt::Debug for JwtKey {
    /// Without the key itself.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JwtKey")
            .field("algorithm", &self.algorithm)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for Config {
    /// How many there are of everything: API keys are secrets, also in rules.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("limits", &self.limits.len())
            .field("rules", &self.rules.len())
            .field("api_keys", &self.api_keys.len())
            .field("warnings", &self.warnings.iter().count())
            .finish_non_exhaustive()
    }
}

impl Config {
    /// How many limits there are.
    pub fn limits(&self) -> usize {
        self.limits.len()
    }

    /// How many rules there are.
    pub fn rules(&self) -> usize {
        self.rules.len()
    }

    /// The domains that have rules, in alphabetical order.
    pub fn domains(&self) -> Vec<&str> {
        let domains: BTreeSet<&str> = self.rules.iter().map(|rule| &*rule.domain).collect();
        domains.into_iter().collect()
    }

    /// The number of tests that the file carries. The rules pass all of them: otherwise the file is refused.
    pub fn tests(&self) -> usize {
        self.tests
    }
}
