//! Rules compiled from a configuration: every name is a number, every limit is a scope, and an index finds the rules.
//!
//! - `make`: compiles a configuration; `limits`: the limits of one rule
//! - `values`: conditions on many values, or on networks
//! - `overrides`: limits for single keys, and for the networks that an address is in

mod index;
mod limits;
mod make;
mod overrides;
mod request_limits;
mod values;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;

use ahash::RandomState;
use tollgate_core::MAX_UNITS;
use tollgate_limiter::{Error, LeaseOptions, Limiter, OnFailure, Scope};

use super::config::{self, Costs, Requirement};
use super::domains::{DomainUse, UnknownDomains};
use super::key::push_part;
use super::names::WantedAttributes;
use super::names::{AttributeId, AttributeNames};
use super::networks::FoundNetwork;
use super::pattern::Pattern;
use super::request::NumberedRequest;
use super::tally::RuleTally;
use index::RuleIndex;
use overrides::Overrides;
use request_limits::RequestLimits;
use tollgate_identity::Identity;
use tollgate_identity::config::IdentityConfig;
use values::ValueTable;

/// A plan of this many rules, at about 1 kB each, no longer fits a CPU cache.
const TOO_MANY_FOR_A_CACHE: usize = 2_000;

pub(super) type Map<K, V> = HashMap<K, V, RandomState>;

/// All rules of a file, compiled. A plan never changes: a new file makes a new plan.
pub(super) struct Plan {
    pub(super) generation: u64,
    pub(super) names: AttributeNames,
    /// Shared, like `spends`: a ruling that the caller keeps then keeps only its own rules in memory, and not all
    /// limits of a plan that is no longer in use.
    pub(super) rules: Vec<Arc<PlannedRule>>,
    /// The distinct limits and actions that rules spend.
    pub(super) spends: Vec<Arc<SpendTarget>>,
    /// The first limit that each rule spends, by the name of its scope.
    pub(super) scopes: Map<Box<str>, SpendTargetId>,
    /// The rules of each domain, as indices into `rules`, and the index that finds them.
    pub(super) domains: Map<Box<str>, DomainRules>,
    /// Domains whose requests are deliberately not limited.
    pub(super) retired_domains: HashSet<Box<str>>,
    pub(super) unknown_domains: UnknownDomains,
    pub(super) limits: Map<Box<str>, NamedScope>,
    request_limits: RequestLimits,
    pub(super) wanted_attributes: WantedAttributes,
    /// Whether one of the limits delays requests.
    pub(super) is_shaping: bool,
    /// Whether one of the rules sets units aside.
    pub(super) is_reserving: bool,
    pub(super) identity: Option<ConfiguredIdentity>,
}

impl Plan {
    /// Returns whether requests of a domain are not limited although the file does not list the domain as retired.
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
            identity.identity.start();
        }
    }
}

// Only the status of a file that is followed reports it.
#[cfg(feature = "watch")]
impl Plan {
    /// Returns the problem with the fetched keys that verify tokens, if there is one.
    pub(super) fn keys_problem(&self) -> Option<String> {
        self.identity.as_ref()?.identity.problem()
    }
}

/// How clients are identified, and the configuration of that.
#[derive(Clone)]
pub(super) struct ConfiguredIdentity {
    config: IdentityConfig,
    pub(super) identity: Arc<Identity>,
}

impl ConfiguredIdentity {
    /// Keeps the previous identity if the configuration is the same, with the tokens that are already verified.
    fn new(
        config: &IdentityConfig,
        limiter: &Limiter,
        before: Option<&ConfiguredIdentity>,
    ) -> Result<ConfiguredIdentity, Error> {
        if let Some(same) = before.filter(|before| before.config == *config) {
            return Ok(same.clone());
        }
        let running = before.map(|before| (&before.config, &*before.identity));
        let mut identity = Identity::configured(config, running)?.on_clock(limiter.clock());
        if let Some(before) = before {
            identity = identity.with_counts_of(&before.identity);
        }
        Ok(ConfiguredIdentity { config: config.clone(), identity: Arc::new(identity) })
    }
}

/// The rules of one domain.
#[derive(Debug, Default)]
pub(super) struct DomainRules {
    /// Indices into [`Plan::rules`], in the order of the file.
    pub(super) rules: Vec<usize>,
    pub(super) index: RuleIndex,
    pub(super) usage: DomainUse,
}

/// A compiled rule.
pub(super) struct PlannedRule {
    pub(super) name: RuleName,
    pub(super) when: Vec<(AttributeId, Requirement)>,
    /// For each part of the key, its alternatives: the first attribute that is known is used.
    pub(super) key: Vec<Vec<(AttributeId, Box<str>)>>,
    default: SpendTargetId,
    /// Boxed, so that `PlannedRule` stays small and more rules fit in a CPU cache.
    rare: Option<Box<RareParts>>,
    pub(super) cost: Costs,
    pub(super) is_shadow: bool,
    pub(super) on_store_failure: Option<OnFailure>,
    pub(super) deadline: Option<Duration>,
    pub(super) tally: Arc<RuleTally>,
    /// The rule's index in [`Plan::rules`].
    at: usize,
    replaces: ReplacedRules,
}

/// The rules that a rule replaces.
enum ReplacedRules {
    /// Their indices in [`Plan::rules`], in ascending order.
    At(Vec<usize>),
    /// All rules of the domain, except rules that themselves replace all rules.
    All,
}

/// The parts that few rules have.
struct RareParts {
    /// The attribute whose value is the cost.
    measure: Option<AttributeId>,
    /// Whether the units of every limit are set aside.
    is_reserved: bool,
    /// How long units are held; the default of the limit applies if `None`.
    hold_for: Option<Duration>,
    /// The conditions on many values or on networks, by their indices in [`PlannedRule::when`].
    values: Map<usize, ValueTable>,
    tiers: Option<TierLimits>,
    overrides: Overrides,
}

impl RareParts {
    fn is_empty(&self) -> bool {
        let holds_nothing = !self.is_reserved && self.hold_for.is_none();
        let has_no_limits = self.tiers.is_none() && self.overrides.is_empty();
        self.measure.is_none() && holds_nothing && self.values.is_empty() && has_no_limits
    }
}

/// The limits of tiers, and the attribute that names the tier.
#[derive(Debug)]
struct TierLimits {
    by: AttributeId,
    of: Map<Box<str>, SpendTargetId>,
}

/// A limit for callers that use it by its name.
pub(super) struct NamedScope {
    pub(super) scope: Scope,
    /// How the limit is leased on a store that has leases; `None` in strict mode.
    pub(super) lease: Option<LeaseOptions>,
}

/// The name of a rule, and its domain.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    domain: Arc<str>,
    name: Arc<str>,
}

/// An index into [`Plan::spends`].
pub(super) type SpendTargetId = usize;

/// The limit that a rule spends, or what the rule does instead.
#[derive(Debug)]
pub(super) enum SpendTarget {
    Limit {
        name: Arc<str>,
        scope: Scope,
        /// How the limit is leased on a store that has leases; `None` in strict mode.
        lease: Option<LeaseOptions>,
    },
    /// Every request is allowed without a limit.
    Allow,
    /// Every request is refused.
    Block,
}

/// Why a request spends this target of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpendReason<'r> {
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
    /// The value matches a pattern that the condition at this index excludes.
    Like(usize, &'r str),
    /// None of these attributes of the key is present and known.
    NoKey(&'r [(AttributeId, Box<str>)]),
}

/// Sets the failure policy and the store's deadline on a scope, where they are given.
fn with_terms(scope: Scope, on_failure: Option<OnFailure>, deadline: Option<Duration>) -> Scope {
    let scope = match on_failure {
        Some(on_failure) => scope.on_failure(on_failure),
        None => scope,
    };
    match deadline {
        Some(deadline) => scope.deadline(deadline),
        None => scope,
    }
}

/// Leases a scope, if its limit is leased.
fn with_leases(scope: Scope, lease: Option<LeaseOptions>) -> Result<Scope, Error> {
    match lease {
        Some(options) => scope.leased(options),
        None => Ok(scope),
    }
}

impl Plan {
    /// Reads a part of each of these rules, which will be tried next, if there are more rules than a CPU cache holds. The
    /// cache misses of all rules then overlap, instead of happening one after the other.
    pub(super) fn fetch(&self, rules: &[usize]) {
        if self.rules.len() < TOO_MANY_FOR_A_CACHE || rules.len() < 2 {
            return;
        }
        let rules = || rules.iter().map(|&at| &*self.rules[at]);
        let own = |rule: &PlannedRule| rule.default + rule.when.len() + rule.key.len();
        black_box(rules().map(own).sum::<usize>());
        let lists = |rule: &PlannedRule| {
            let conditions = rule.when.iter().map(|(_, wanted)| wanted.patterns().len());
            let parts = rule.key.iter().map(Vec::len);
            let spent = usize::from(self.spends[rule.default].scope().is_some());
            conditions.chain(parts).sum::<usize>() + spent + rule.tally.fetch()
        };
        black_box(rules().map(lists).sum::<usize>());
        let texts = |rule: &PlannedRule| {
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

impl SpendTarget {
    pub(super) fn scope(&self) -> Option<&Scope> {
        match self {
            SpendTarget::Limit { scope, .. } => Some(scope),
            SpendTarget::Allow | SpendTarget::Block => None,
        }
    }

    /// Returns how the limit is leased on a store that has leases; `None` in strict mode.
    pub(super) fn lease(&self) -> Option<LeaseOptions> {
        match self {
            SpendTarget::Limit { lease, .. } => *lease,
            SpendTarget::Allow | SpendTarget::Block => None,
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
impl fmt::Debug for PlannedRule {
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

impl PlannedRule {
    /// Appends the rule's key if the rule applies to a request; returns why not if it does not.
    pub(super) fn apply<'r>(
        &'r self,
        request: &NumberedRequest<'r>,
        key: &mut Vec<u8>,
    ) -> Result<(), Mismatch<'r>> {
        for (at, (attribute, wanted)) in self.when.iter().enumerate() {
            let value = request.value(*attribute);
            match (wanted, value) {
                (Requirement::AnyOf(patterns), Some(value)) => {
                    if !self.is_like_one_of(at, patterns, value, request) {
                        return Err(Mismatch::Unlike(at, value));
                    }
                }
                (Requirement::NoneOf(patterns), Some(value)) => {
                    if self.is_like_one_of(at, patterns, value, request) {
                        return Err(Mismatch::Like(at, value));
                    }
                }
                (Requirement::Present, Some(_)) | (Requirement::Absent, None) => {}
                (Requirement::Absent, Some(_)) => return Err(Mismatch::Unwanted(*attribute)),
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
        request: &NumberedRequest<'_>,
    ) -> bool {
        match self.values(at) {
            Some(values) => values.has(value, request.address(self.when[at].0)),
            None => patterns.iter().any(|pattern| pattern.matches(value)),
        }
    }

    fn values(&self, at: usize) -> Option<&ValueTable> {
        self.rare.as_ref()?.values.get(&at)
    }

    /// Returns the networks in which the rule's conditions found addresses of a request.
    pub(super) fn networks<'r>(
        &'r self,
        request: &NumberedRequest<'_>,
    ) -> impl Iterator<Item = (AttributeId, FoundNetwork<'r>)> {
        let found = |at: usize| Some((self.when.get(at)?.0, self.network(at, request)?));
        (0..self.when.len()).filter_map(found)
    }

    /// Returns the network in which the condition at this index found the request's address.
    pub(super) fn network<'r>(
        &'r self,
        at: usize,
        request: &NumberedRequest<'_>,
    ) -> Option<FoundNetwork<'r>> {
        let (attribute, _) = self.when.get(at)?;
        self.values(at)?.network(request.address(*attribute))
    }

    /// Sets the rule's failure policy and the store's deadline on a scope, where the rule gives them.
    pub(super) fn with_terms(&self, scope: Scope) -> Scope {
        with_terms(scope, self.on_store_failure, self.deadline)
    }

    /// Returns whether this rule replaces any other.
    pub(super) fn is_replacing(&self) -> bool {
        !matches!(&self.replaces, ReplacedRules::At(places) if places.is_empty())
    }

    /// Returns whether the other rule does not decide requests to which this rule applies. A shadow rule replaces shadow
    /// rules only.
    pub(super) fn replaces(&self, other: &PlannedRule) -> bool {
        let is_named = match &self.replaces {
            ReplacedRules::At(places) => places.binary_search(&other.at).is_ok(),
            ReplacedRules::All => !matches!(other.replaces, ReplacedRules::All),
        };
        is_named && (other.is_shadow || !self.is_shadow)
    }

    fn push_key<'r>(
        &'r self,
        request: &NumberedRequest<'r>,
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
    pub(super) fn spent<'r>(
        &'r self,
        request: &NumberedRequest<'r>,
        key: &[u8],
    ) -> (SpendTargetId, SpendReason<'r>) {
        let Some(RareParts { tiers, overrides, .. }) = self.rare.as_deref() else {
            return (self.default, SpendReason::Default);
        };
        if !overrides.is_empty()
            && let Some((spent, network)) = overrides.find(self, request, key)
        {
            return (spent, SpendReason::Override(network));
        }
        if let Some(TierLimits { by, of }) = tiers
            && let Some(tier) = request.known(*by)
            && let Some(spent) = of.get(tier)
        {
            return (*spent, SpendReason::Tier(tier));
        }
        (self.default, SpendReason::Default)
    }

    /// Returns the attribute that names the tier, if the rule has tiers.
    pub(super) fn tiers_by(&self) -> Option<AttributeId> {
        self.rare.as_ref()?.tiers.as_ref().map(|tiers| tiers.by)
    }

    /// Whether the units of a request that spends this target are set aside.
    pub(super) fn reserves(&self, spent: &SpendTarget) -> bool {
        let Some(scope) = spent.scope() else { return false };
        scope.only_holds() || self.is_reserved()
    }

    /// Whether the rule's cost says that units are set aside.
    pub(super) fn is_reserved(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.is_reserved)
    }

    /// Returns how long units are held; the default of the limit applies if `None`.
    pub(super) fn hold_for(&self) -> Option<Duration> {
        self.rare.as_ref()?.hold_for
    }

    /// Returns the cost of a request that its attribute gives: at least 1. `None` if the attribute is not known, or is not
    /// a whole number below 2^53.
    pub(super) fn measured(&self, request: &NumberedRequest<'_>) -> Option<u64> {
        let value = request.known(self.rare.as_ref()?.measure?)?;
        let units: u64 = value.parse().ok()?;
        (units <= MAX_UNITS).then_some(units.max(1))
    }

    /// Returns the cost of a request in units.
    pub(super) fn units(&self, request: &NumberedRequest<'_>) -> u64 {
        if let Some(units) = self.measured(request) {
            return units;
        }
        let Costs { routes, default, .. } = &self.cost;
        let is_on = |route: &config::CostRoute| {
            let (method, path) =
                (request.value(AttributeId::METHOD), request.value(AttributeId::PATH));
            route.method.as_deref().is_none_or(|own| method == Some(own))
                && path.is_some_and(|path| route.path.matches(path))
        };
        let cost = routes.iter().find(|(route, _)| is_on(route)).map_or(default, |(_, cost)| cost);
        cost.units()
    }
}
