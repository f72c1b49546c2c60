//! Rules compiled from a configuration: every name is a number, every limit is a scope, and an index finds the rules.
//!
//! - `make`: compiles a configuration; `limits`: the limits of one rule
//! - `values`: conditions on many values, or on networks
//! - `overrides`: limits for single keys, and for the networks that an address is in

mod index;
mod limited;
mod limits;
mod make;
mod overrides;
mod values;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use tollgate_limiter::{Error, Limiter, OnFailure, Scope};

use super::config::{self, Costs, Wanted};
use super::domains::{UnknownDomains, UseMark};
use super::key::push_part;
use super::names::WantedAttributes;
use super::names::{AttributeId, Names};
use super::networks::FoundNetwork;
use super::pattern::Pattern;
use super::request::Request;
use super::tally::Tally;
use index::Index;
use limited::Limited;
use overrides::Overrides;
use tollgate_identity::Identity;
use tollgate_identity::config::IdentityConfig;
use values::Values;

/// The number of rules that no longer fit a CPU cache, at about 1 kB each.
const TOO_MANY_FOR_A_CACHE: usize = 2_000;

pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// All rules of a file, compiled. A plan never changes: a new file makes a new plan.
pub(super) struct Plan {
    pub(super) generation: u64,
    pub(super) names: Names,
    /// Shared, like `spends`: a ruling that the caller keeps holds only its own rules, and not all the limits of a
    /// plan that is no longer in use.
    pub(super) rules: Vec<Arc<Rule>>,
    /// The distinct limits and actions that rules spend.
    pub(super) spends: Vec<Arc<Spent>>,
    /// The first limit that each rule spends, by the name of its scope.
    pub(super) scopes: Map<Box<str>, SpentId>,
    /// The rules of each domain, as indices into `rules`, and the index that finds them.
    pub(super) domains: Map<Box<str>, Domain>,
    /// Domains whose requests are deliberately not limited.
    pub(super) retired_domains: HashSet<Box<str>>,
    pub(super) unknown_domains: UnknownDomains,
    pub(super) limits: Map<Box<str>, Scope>,
    limited: Limited,
    pub(super) asked: WantedAttributes,
    /// Whether one of the limits delays requests.
    pub(super) is_shaping: bool,
    pub(super) identity: Option<Configured>,
}

impl Plan {
    /// Returns whether requests of a domain are not limited, without the file saying that this is intended.
    pub(super) fn is_missing_domain(&self, domain: &str) -> bool {
        !self.domains.contains_key(domain) && !self.retired_domains.contains(domain)
    }

    /// Records that a check has named a domain without rules.
    #[cold]
    pub(super) fn note_unknown_domain(&self, domain: &str) {
        if self.is_missing_domain(domain) {
            self.unknown_domains.add(domain);
        }
    }
}

impl Plan {
    /// Starts the background work of the rules: fetching the keys that tokens are verified with.
    pub(super) fn start(&self) {
        if let Some(identity) = &self.identity {
            identity.made.start();
        }
    }
}

// Only the status of a file that is followed reports it.
#[cfg(feature = "watch")]
impl Plan {
    /// Returns what is wrong with the fetched keys of tokens, if anything is.
    pub(super) fn keys_problem(&self) -> Option<String> {
        self.identity.as_ref()?.made.problem()
    }
}

/// How clients are identified, and the configuration that says so.
#[derive(Clone)]
pub(super) struct Configured {
    said: IdentityConfig,
    pub(super) made: Arc<Identity>,
}

impl Configured {
    /// Keeps the previous identity if the configuration is the same, with the tokens that are already verified.
    fn new(
        said: &IdentityConfig,
        limiter: &Limiter,
        before: Option<&Configured>,
    ) -> Result<Configured, Error> {
        if let Some(same) = before.filter(|before| before.said == *said) {
            return Ok(same.clone());
        }
        let running = before.map(|before| (&before.said, &*before.made));
        let mut made = Identity::configured(said, running)?.on_clock(limiter.clock());
        if let Some(before) = before {
            made = made.counting_with(&before.made);
        }
        Ok(Configured { said: said.clone(), made: Arc::new(made) })
    }
}

/// The rules of one domain.
#[derive(Debug, Default)]
pub(super) struct Domain {
    /// Indices into [`Plan::rules`], in the order of the file.
    pub(super) rules: Vec<usize>,
    pub(super) index: Index,
    pub(super) use_mark: UseMark,
}

/// A compiled rule.
pub(super) struct Rule {
    pub(super) name: RuleName,
    pub(super) when: Vec<(AttributeId, Wanted)>,
    /// For each part of the key, its alternatives: the first attribute that is known is used.
    pub(super) key: Vec<Vec<(AttributeId, Box<str>)>>,
    default: SpentId,
    /// Boxed, so that `Rule` stays small and more rules fit in a CPU cache.
    seldom: Option<Box<Seldom>>,
    pub(super) cost: Costs,
    pub(super) is_shadow: bool,
    pub(super) on_store_failure: Option<OnFailure>,
    pub(super) deadline: Option<Duration>,
    pub(super) tally: Arc<Tally>,
    /// The rule's index in [`Plan::rules`].
    at: usize,
    replaces: ReplacedRules,
}

/// The rules that a rule replaces.
enum ReplacedRules {
    /// Their indices in [`Plan::rules`], in ascending order.
    At(Vec<usize>),
    /// All rules of the domain that do not replace all rules too.
    All,
}

/// The parts that few rules have.
struct Seldom {
    /// The conditions on many values or on networks, by their indices in [`Rule::when`].
    values: Map<usize, Values>,
    tiers: Option<Tiers>,
    overrides: Overrides,
}

impl Seldom {
    fn is_empty(&self) -> bool {
        self.values.is_empty() && self.tiers.is_none() && self.overrides.is_empty()
    }
}

/// The limits of tiers, and the attribute that names the tier.
#[derive(Debug)]
struct Tiers {
    by: AttributeId,
    of: Map<Box<str>, SpentId>,
}

/// The name of a rule, and its domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    domain: Arc<str>,
    name: Arc<str>,
}

/// An index into [`Plan::spends`].
pub(super) type SpentId = usize;

/// The limit that a rule spends, or what the rule does instead.
#[derive(Debug)]
pub(super) enum Spent {
    Limit {
        name: Arc<str>,
        scope: Scope,
    },
    Nothing,
    /// Every request is refused.
    Blocked,
}

/// Why a rule spends what it spends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Because<'r> {
    /// There is an override for this key, or for the addresses of this network.
    Override(Option<FoundNetwork<'r>>),
    /// The request has this tier.
    Tier(&'r str),
    Default,
}

/// Why a rule does not apply to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mismatch<'r> {
    /// The attribute is missing.
    Missing(AttributeId),
    /// The attribute is present, and must not be.
    Unwanted(AttributeId),
    /// The value matches no pattern of the condition at this index.
    Unlike(usize, &'r str),
    /// The value matches a pattern that the condition at this index leaves out.
    Like(usize, &'r str),
    /// None of these attributes of the key is present and known.
    NoKey(&'r [(AttributeId, Box<str>)]),
}

/// Sets the failure policy and the store's deadline on a scope, where they are given.
fn on_terms(scope: Scope, on_failure: Option<OnFailure>, deadline: Option<Duration>) -> Scope {
    let scope = match on_failure {
        Some(on_failure) => scope.on_failure(on_failure),
        None => scope,
    };
    match deadline {
        Some(deadline) => scope.deadline(deadline),
        None => scope,
    }
}

impl Plan {
    /// Touches these rules, which are about to be tried, if there are more rules than a CPU cache holds: the cache
    /// misses of all of them then overlap, instead of happening one after the other.
    pub(super) fn fetch(&self, rules: &[usize]) {
        if self.rules.len() < TOO_MANY_FOR_A_CACHE || rules.len() < 2 {
            return;
        }
        let rules = || rules.iter().map(|&at| &*self.rules[at]);
        let own = |rule: &Rule| rule.default + rule.when.len() + rule.key.len();
        black_box(rules().map(own).sum::<usize>());
        let lists = |rule: &Rule| {
            let conditions = rule.when.iter().map(|(_, wanted)| wanted.patterns().len());
            let parts = rule.key.iter().map(Vec::len);
            let spent = usize::from(self.spends[rule.default].scope().is_some());
            conditions.chain(parts).sum::<usize>() + spent + rule.tally.fetch()
        };
        black_box(rules().map(lists).sum::<usize>());
        let texts = |rule: &Rule| {
            let patterns = rule.when.iter().flat_map(|(_, wanted)| wanted.patterns().first());
            let patterns = patterns.map(Pattern::literal_prefix);
            let names = rule.key.iter().flatten().map(|(_, name)| &**name);
            let scope = self.spends[rule.default].scope();
            let firsts = patterns.chain(names).filter_map(|text| text.bytes().next());
            firsts.map(usize::from).sum::<usize>()
                + usize::from(scope.is_some_and(Scope::is_shaping))
        };
        black_box(rules().map(texts).sum::<usize>());
    }
}

impl Spent {
    pub(super) fn scope(&self) -> Option<&Scope> {
        match self {
            Spent::Limit { scope, .. } => Some(scope),
            Spent::Nothing | Spent::Blocked => None,
        }
    }

    fn is_shaping(&self) -> bool {
        self.scope().is_some_and(Scope::is_shaping)
    }
}

impl RuleName {
    /// Returns the domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Returns the name, which is unique in the domain.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// Prints the name only: keys of overrides may be secrets.
impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rule({})", self.name)
    }
}

/// Prints the number of rules only: keys of overrides may be secrets.
impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (generation, rules) = (&self.generation, self.rules.len());
        f.debug_struct("Plan").field("generation", generation).field("rules", &rules).finish()
    }
}

/// Prints `api/per-client`.
impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.domain, self.name)
    }
}

impl Rule {
    /// Appends the rule's key if the rule applies to a request; returns why not if it does not.
    pub(super) fn apply<'r>(
        &'r self,
        request: &Request<'r>,
        key: &mut Vec<u8>,
    ) -> Result<(), Mismatch<'r>> {
        for (at, (attribute, wanted)) in self.when.iter().enumerate() {
            let value = request.value(*attribute);
            match (wanted, value) {
                (Wanted::AnyOf(patterns), Some(value)) => {
                    if !self.is_like_one_of(at, patterns, value, request) {
                        return Err(Mismatch::Unlike(at, value));
                    }
                }
                (Wanted::NoneOf(patterns), Some(value)) => {
                    if self.is_like_one_of(at, patterns, value, request) {
                        return Err(Mismatch::Like(at, value));
                    }
                }
                (Wanted::Present, Some(_)) | (Wanted::Absent, None) => {}
                (Wanted::Absent, Some(_)) => return Err(Mismatch::Unwanted(*attribute)),
                (_, None) => return Err(Mismatch::Missing(*attribute)),
            }
        }
        self.push_key(request, key)
    }

    /// Returns whether a value matches one of the patterns of the condition at this index.
    fn is_like_one_of(
        &self,
        at: usize,
        patterns: &[Pattern],
        value: &str,
        request: &Request<'_>,
    ) -> bool {
        match self.values(at) {
            Some(values) => values.has(value, request.address(self.when[at].0)),
            None => patterns.iter().any(|pattern| pattern.matches(value)),
        }
    }

    fn values(&self, at: usize) -> Option<&Values> {
        self.seldom.as_ref()?.values.get(&at)
    }

    /// Returns the networks in which the rule's conditions found addresses of a request.
    pub(super) fn networks<'r>(
        &'r self,
        request: &Request<'_>,
    ) -> impl Iterator<Item = (AttributeId, FoundNetwork<'r>)> {
        let found = |at: usize| Some((self.when.get(at)?.0, self.network(at, request)?));
        (0..self.when.len()).filter_map(found)
    }

    /// Returns the network in which the condition at this index found the request's address.
    pub(super) fn network<'r>(
        &'r self,
        at: usize,
        request: &Request<'_>,
    ) -> Option<FoundNetwork<'r>> {
        let (attribute, _) = self.when.get(at)?;
        self.values(at)?.network(request.address(*attribute))
    }

    /// Sets the rule's failure policy and the store's deadline on a scope, where the rule gives them.
    pub(super) fn on_terms(&self, scope: Scope) -> Scope {
        on_terms(scope, self.on_store_failure, self.deadline)
    }

    /// Returns whether this rule replaces any other.
    pub(super) fn is_replacing(&self) -> bool {
        !matches!(&self.replaces, ReplacedRules::At(places) if places.is_empty())
    }

    /// Returns whether the other rule is left out of requests to which this one applies. A shadow rule replaces
    /// shadow rules only.
    pub(super) fn replaces(&self, other: &Rule) -> bool {
        let is_named = match &self.replaces {
            ReplacedRules::At(places) => places.binary_search(&other.at).is_ok(),
            ReplacedRules::All => !matches!(other.replaces, ReplacedRules::All),
        };
        is_named && (other.is_shadow || !self.is_shadow)
    }

    fn push_key<'r>(
        &'r self,
        request: &Request<'r>,
        key: &mut Vec<u8>,
    ) -> Result<(), Mismatch<'r>> {
        let from = key.len();
        for first_of in &self.key {
            let known = |own: &'r (AttributeId, Box<str>)| Some((&*own.1, request.known(own.0)?));
            let Some((name, value)) = first_of.iter().find_map(known) else {
                key.truncate(from);
                return Err(Mismatch::NoKey(first_of));
            };
            push_part(key, from, name, value);
        }
        Ok(())
    }

    /// Returns the limit that a request with this key spends, and why.
    pub(super) fn spent<'r>(&'r self, request: &Request<'r>, key: &[u8]) -> (SpentId, Because<'r>) {
        let Some(Seldom { tiers, overrides, .. }) = self.seldom.as_deref() else {
            return (self.default, Because::Default);
        };
        if !overrides.is_empty()
            && let Some((spent, network)) = overrides.find(self, request, key)
        {
            return (spent, Because::Override(network));
        }
        if let Some(Tiers { by, of }) = tiers
            && let Some(tier) = request.known(*by)
            && let Some(spent) = of.get(tier)
        {
            return (*spent, Because::Tier(tier));
        }
        (self.default, Because::Default)
    }

    /// Returns the attribute that names the tier, if the rule has tiers.
    pub(super) fn tiers_by(&self) -> Option<AttributeId> {
        self.seldom.as_ref()?.tiers.as_ref().map(|tiers| tiers.by)
    }

    /// Returns the cost of a request in units.
    pub(super) fn units(&self, request: &Request<'_>) -> u64 {
        let Costs { routes, default } = &self.cost;
        let is_on = |route: &config::Route| {
            let (method, path) =
                (request.value(AttributeId::METHOD), request.value(AttributeId::PATH));
            route.method.as_deref().is_none_or(|own| method == Some(own))
                && path.is_some_and(|path| route.path.matches(path))
        };
        let cost = routes.iter().find(|(route, _)| is_on(route)).map_or(default, |(_, cost)| cost);
        cost.units()
    }
}
