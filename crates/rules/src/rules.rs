//! Rules that decide requests, and a snapshot of them.

use std::fmt;
use std::net::IpAddr;
use std::slice;
use std::sync::Arc;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tollgate_core::Limit;
use tollgate_identity::{ClientAddress, Identity, Ipv6Prefix, RequestHead};
use tollgate_limiter::{Error, LeaseOptions, Limiter, Scope};

use crate::attributes::Attributes;
use crate::check::{RequestSets, RulesCheck};
use crate::config::Config;
use crate::descriptor::Descriptor;
use crate::domains::{MissingDomains, RequiredDomains};
use crate::explain::{self, Explanation};
use crate::head;
use crate::plan::{Plan, RuleName};
use crate::reservation::RulesReservation;
use crate::tally::Counts;

/// Rules that decide requests. Cheap to clone; clones share everything.
#[derive(Clone)]
pub struct Rules {
    inner: Arc<RulesInner>,
}

struct RulesInner {
    limiter: Limiter,
    plan: ArcSwap<Plan>,
    /// Held while the rules are replaced, so that only one caller replaces them at a time.
    replacing: Mutex<()>,
    required_domains: RequiredDomains,
}

impl Rules {
    /// Returns rules that spend a limiter's limits. Logs the configuration's [warnings](Config::warnings).
    pub fn new(limiter: &Limiter, config: &Config) -> Result<Rules, Error> {
        log_warnings(config);
        let plan = Plan::new(limiter, config, None)?;
        plan.start();
        let plan = ArcSwap::from_pointee(plan);
        let (replacing, required_domains) = (Mutex::new(()), RequiredDomains::default());
        let inner = RulesInner { limiter: limiter.clone(), plan, replacing, required_domains };
        Ok(Rules { inner: Arc::new(inner) })
    }

    /// Replaces the rules, and returns their generation. Checks in flight are decided by the rules that they began
    /// with. A key keeps what it has spent under a rule of the same name, even if the rule's limit has changed. Logs
    /// the configuration's [warnings](Config::warnings).
    ///
    /// If it fails, the rules do not change. It fails with [`Error::DomainsInUse`] if the new rules have no rule for
    /// a domain that a check has named or that is [required](Self::require_domain), because the requests of that
    /// domain would no longer be limited. A file that lists the domain under `retired_domains` may remove it.
    pub fn replace(&self, config: &Config) -> Result<u64, Error> {
        log_warnings(config);
        let RulesInner { limiter, plan, replacing, required_domains } = &*self.inner;
        let _alone = replacing.lock();
        let before = plan.load();
        let domains = before.domains.iter().map(|(name, domain)| (&**name, &domain.usage));
        required_domains.check_removed(domains, config)?;
        let new = Plan::new(limiter, config, Some(&before))?;
        let generation = new.generation;
        new.start();
        plan.store(Arc::new(new));
        Ok(generation)
    }

    /// Declares that the caller uses a domain. From then on [`missing_domains`](Self::missing_domains) lists the
    /// domain while it has no rules, and rules that remove it are [refused](Self::replace). Returns whether it has
    /// rules now.
    ///
    /// `RateLimitLayer::rules` of the middleware requires its domain.
    pub fn require_domain(&self, domain: &str) -> bool {
        self.inner.required_domains.add(domain);
        self.has_domain(domain)
    }

    /// Returns the domains that are in use and have no rules, so that their requests are not limited. A domain is in
    /// use if it is [required](Self::require_domain), or if a check has named it since the rules were loaded. At most
    /// 64 of the latter are kept.
    pub fn missing_domains(&self) -> MissingDomains {
        let plan = self.plan();
        let is_missing = |name: &str| plan.is_missing_domain(name);
        self.inner.required_domains.missing(&plan.unknown_domains, is_missing)
    }

    /// Returns a check of a request by the rules of a domain. If no rule applies, the request is allowed.
    pub fn check<'a>(&'a self, domain: &'a str, request: &'a Attributes<'a>) -> RulesCheck<'a> {
        RulesCheck::new(
            &self.inner.limiter,
            self.plan(),
            domain,
            RequestSets::Plain(slice::from_ref(request)),
        )
    }

    /// Returns a reservation of a request by the rules of a domain: units of the rules that say so are set aside, and
    /// charged when the request ends.
    ///
    /// [`check`](Self::check) charges the units of such a rule at once. A check is [`Error::MustReserve`] if a rule that
    /// is enforced spends a concurrency limit; a shadow rule is then a peek.
    pub fn reserve<'a>(
        &'a self,
        domain: &'a str,
        request: &'a Attributes<'a>,
    ) -> RulesReservation<'a> {
        self.check(domain, request).reserving()
    }

    /// Returns a check of a request with several sets of attributes. The rules are applied to each set separately;
    /// either all rules that apply are charged, or none. If a rule has the same key for two sets, it is charged once,
    /// with the costs added.
    pub fn check_sets<'a>(
        &'a self,
        domain: &'a str,
        requests: &'a [Attributes<'a>],
    ) -> RulesCheck<'a> {
        RulesCheck::new(&self.inner.limiter, self.plan(), domain, RequestSets::Plain(requests))
    }

    /// Returns a check like [`check_sets`](Self::check_sets), with a cost and a limit for each set.
    pub fn check_each<'a>(
        &'a self,
        domain: &'a str,
        requests: &'a [Descriptor<'a>],
    ) -> RulesCheck<'a> {
        RulesCheck::new(&self.inner.limiter, self.plan(), domain, RequestSets::Each(requests))
    }

    /// Explains which rules of a domain apply to a request, which do not, and why. Charges nothing.
    pub fn explain(&self, domain: &str, request: &Attributes<'_>) -> Vec<Explanation> {
        explain::explain(&self.plan(), domain, request)
    }

    /// Returns the domains that have rules, in alphabetical order.
    pub fn domains(&self) -> Vec<String> {
        let mut domains: Vec<_> = self.plan().domains.keys().map(|name| name.to_string()).collect();
        domains.sort_unstable();
        domains
    }

    /// Returns the limit of this name, to be spent directly. Its keys are separate from the keys of rules that spend
    /// the same limit.
    pub fn limit(&self, name: &str) -> Option<Scope> {
        self.plan().limits.get(name).map(|limit| limit.scope.clone())
    }

    /// Returns how the limit of this name is leased for callers that use it by its name, on a store that has leases.
    /// `None` if the store decides each check.
    pub fn lease_of(&self, name: &str) -> Option<LeaseOptions> {
        self.plan().limits.get(name)?.lease
    }

    /// Returns the scope of a limit or a rule by its [name](Scope::name): `free`, or `api/per-client`. `None` if
    /// there is no such limit or rule any more. For a rule that spends several limits it is the scope of the first: a
    /// key has one state under all of them.
    pub fn scope(&self, name: &str) -> Option<Scope> {
        let plan = self.plan();
        let of_rule = || plan.scopes.get(name).and_then(|&spent| plan.spends.get(spent)?.scope());
        let named = plan.limits.get(name).map(|limit| &limit.scope);
        named.or_else(of_rule).cloned()
    }

    /// Returns every limit of the file, in alphabetical order of their names.
    pub fn limits(&self) -> Vec<(String, Limit)> {
        let plan = self.plan();
        let limits = plan.limits.iter();
        let limits = limits.map(|(name, limit)| (name.to_string(), *limit.scope.limit()));
        let mut limits: Vec<_> = limits.collect();
        limits.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        limits
    }

    /// Returns whether a domain has rules; a request of a domain without rules is allowed.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.plan().domains.contains_key(domain)
    }

    /// Returns whether rules use an attribute; if not, the caller need not compute it. `api_key`, `tier`, `method`
    /// and `path` always count as used.
    pub fn uses_attribute(&self, attribute: &str) -> bool {
        self.inner.plan.load().names.id(attribute).is_some()
    }

    /// Returns the counts of every rule's decisions, since a rule of that name was added.
    pub fn counts(&self) -> Vec<(RuleName, Counts)> {
        let plan = self.plan();
        plan.rules.iter().map(|rule| (rule.name.clone(), rule.tally.counts())).collect()
    }

    /// Returns the generation: 1 for the first rules, one more each time they are replaced.
    pub fn generation(&self) -> u64 {
        self.inner.plan.load().generation
    }

    /// Returns a client's address with its text in keys, where IPv6 is grouped as the file says under `identity`:
    /// for programs that make [`Attributes`] without the middleware.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # use tollgate::rules::{Attributes, Config, Rules};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config::parse("rules.yaml", "identity: { ipv6_prefix: 48 }\nrules: []")?;
    /// let rules = Rules::new(&Limiter::memory(), &config)?;
    /// let address = rules.client_address("2001:db8:12:34ff::1".parse()?);
    /// assert_eq!(address.as_str(), "2001:db8:12::/48");
    /// let request = Attributes::new().with_address(address); // `ip`
    /// # Ok(())
    /// # }
    /// ```
    pub fn client_address(&self, ip: IpAddr) -> ClientAddress {
        self.snapshot().client_address(ip)
    }

    /// Returns the limiter whose limits the rules spend.
    pub fn limiter(&self) -> &Limiter {
        &self.inner.limiter
    }

    /// Returns the current rules, which stay the same while a request is processed: for programs that decide HTTP
    /// requests without the middleware.
    ///
    /// ```
    /// use http::{HeaderMap, Request};
    /// use tollgate::Limiter;
    /// use tollgate::http::{HeaderFamilies, Identity, Outcome, Peer, RequestHead};
    /// use tollgate::rules::{Config, Rules};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let file = "limits: { one: fixed-window limit=1 window=1d }\n\
    ///             rules: [{ name: per-client, domain: api, key: [ip], limit: one }]";
    /// let rules = Rules::new(&Limiter::memory(), &Config::parse("rules.yaml", file)?)?;
    ///
    /// let peer = Peer("203.0.113.9:4711".parse()?);
    /// let request = Request::get("/reports").extension(peer).body(())?;
    ///
    /// let (now, plain) = (rules.snapshot(), Identity::new());
    /// let head = RequestHead::new(&request, now.identity().unwrap_or(&plain));
    /// let ruling = now.check("api", &now.attributes(&head)).now()?;
    ///
    /// let mut headers = HeaderMap::new();
    /// HeaderFamilies::ALL.add_headers(&Outcome::of_rules(&ruling), 0, &mut headers);
    /// assert_eq!(headers["x-ratelimit-remaining"], "0");
    /// # Ok(())
    /// # }
    /// ```
    pub fn snapshot(&self) -> Snapshot<'_> {
        Snapshot { rules: self, plan: self.plan() }
    }

    pub(crate) fn plan(&self) -> Arc<Plan> {
        self.inner.plan.load_full()
    }
}

/// The rules at one moment: a reload does not change them.
pub struct Snapshot<'r> {
    rules: &'r Rules,
    plan: Arc<Plan>,
}

impl<'r> Snapshot<'r> {
    /// Returns how clients are identified, if the file says so.
    pub fn identity(&self) -> Option<&Identity> {
        self.plan.identity.as_ref().map(|configured| &*configured.identity)
    }

    /// Returns the domain of the rules, if they have only one.
    pub fn only_domain(&self) -> Option<&str> {
        let mut domains = self.plan.domains.keys();
        domains.next().filter(|_| domains.next().is_none()).map(|only| &**only)
    }

    /// Returns whether a domain has rules; a request of a domain without rules is allowed.
    pub fn has_domain(&self, domain: &str) -> bool {
        self.plan.domains.contains_key(domain)
    }

    /// Returns a request's attributes, as far as the rules use them.
    pub fn attributes<'a>(&'a self, head: &'a RequestHead<'_>) -> Attributes<'a> {
        head::attributes(head, &self.plan.wanted_attributes)
    }

    /// Returns whether one of the limits delays requests.
    pub fn is_shaping(&self) -> bool {
        self.plan.is_shaping
    }

    /// Returns whether one of the rules sets units aside, so that its requests should be [reserved](Self::reserve).
    pub fn is_reserving(&self) -> bool {
        self.plan.is_reserving
    }

    /// Returns whether a rule uses an attribute; if not, the caller need not compute it.
    pub fn uses_attribute(&self, attribute: &str) -> bool {
        self.plan.names.id(attribute).is_some()
    }

    /// Returns a client's address with its text in keys: [`Rules::client_address`].
    pub fn client_address(&self, ip: IpAddr) -> ClientAddress {
        match self.identity() {
            Some(identity) => identity.client_address(ip),
            None => ClientAddress::of(ip, Ipv6Prefix::default()),
        }
    }

    /// Returns a check of a request: [`Rules::check`].
    pub fn check<'a>(&self, domain: &'a str, request: &'a Attributes<'a>) -> RulesCheck<'a>
    where
        'r: 'a,
    {
        let request = RequestSets::Plain(slice::from_ref(request));
        RulesCheck::new(&self.rules.inner.limiter, Arc::clone(&self.plan), domain, request)
    }

    /// Returns a reservation of a request: [`Rules::reserve`].
    pub fn reserve<'a>(&self, domain: &'a str, request: &'a Attributes<'a>) -> RulesReservation<'a>
    where
        'r: 'a,
    {
        self.check(domain, request).reserving()
    }

    /// Returns a check of a request with several sets of attributes: [`Rules::check_each`].
    pub fn check_each<'a>(&self, domain: &'a str, requests: &'a [Descriptor<'a>]) -> RulesCheck<'a>
    where
        'r: 'a,
    {
        RulesCheck::new(
            &self.rules.inner.limiter,
            Arc::clone(&self.plan),
            domain,
            RequestSets::Each(requests),
        )
    }
}

impl fmt::Debug for Snapshot<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("generation", &self.plan.generation)
            .finish_non_exhaustive()
    }
}

fn log_warnings(config: &Config) {
    let warnings = config.warnings();
    if !warnings.is_empty() {
        tracing::warn!(%warnings, "the rules have warnings");
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plan = self.plan();
        let rules: Vec<_> = plan.rules.iter().map(|rule| rule.name.to_string()).collect();
        f.debug_struct("Rules")
            .field("generation", &plan.generation)
            .field("rules", &rules)
            .finish()
    }
}
