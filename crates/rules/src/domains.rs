//! Domains that are in use. Requests of a domain without rules are not limited, so a domain in use must not
//! disappear unnoticed.
//!
//! A domain is in use if a layer or an operator requires it, or if a check has named it.

use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tollgate_core::Excerpt;
use tollgate_limiter::Error;

use super::config::Config;

/// The most names of domains without rules that are kept: a caller may invent them.
const MAX_UNKNOWN: usize = 64;

/// Whether a check has named the domain, which has rules.
#[derive(Debug, Default)]
pub(super) struct DomainUse(AtomicBool);

impl DomainUse {
    pub(super) fn new(is_used: bool) -> DomainUse {
        DomainUse(AtomicBool::new(is_used))
    }

    /// Writes only once, so that checks on several threads do not contend for a cache line.
    #[inline]
    pub(super) fn set(&self) {
        if !self.is_set() {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// The domains without rules that checks have named since the rules were loaded.
#[derive(Debug, Default)]
pub(super) struct UnknownDomains(Mutex<BTreeSet<Box<str>>>);

impl UnknownDomains {
    /// Records a name, and warns the first time.
    pub(super) fn add(&self, domain: &str) {
        let mut names = self.0.lock();
        if names.len() >= MAX_UNKNOWN || names.contains(domain) {
            return;
        }
        names.insert(domain.into());
        drop(names);
        let domain = Excerpt::of(domain);
        tracing::warn!(%domain, "checks name a domain that has no rules: such requests are not limited");
    }

    fn names(&self) -> BTreeSet<Box<str>> {
        self.0.lock().clone()
    }
}

/// The domains that layers and operators require, whether they have rules or not.
#[derive(Debug, Default)]
pub(super) struct RequiredDomains(Mutex<BTreeSet<Box<str>>>);

impl RequiredDomains {
    pub(super) fn add(&self, domain: &str) {
        self.0.lock().insert(domain.into());
    }

    fn names(&self) -> BTreeSet<Box<str>> {
        self.0.lock().clone()
    }

    /// Refuses a configuration that has no rules for a domain in use, unless it lists the domain as retired. `before` are
    /// the domains that have rules until now.
    pub(super) fn check_removed<'d>(
        &self,
        before: impl Iterator<Item = (&'d str, &'d DomainUse)>,
        config: &Config,
    ) -> Result<(), Error> {
        let required = self.names();
        let is_in_use = |name: &str, usage: &DomainUse| usage.is_set() || required.contains(name);
        let with_rules: HashSet<&str> = config.rules.iter().map(|rule| &*rule.domain).collect();
        let is_kept =
            |name: &str| with_rules.contains(name) || config.retired_domains.contains(name);
        let removed: BTreeSet<&str> = before
            .filter(|(name, usage)| is_in_use(name, usage) && !is_kept(name))
            .map(|(name, _)| name)
            .collect();
        match removed.is_empty() {
            true => Ok(()),
            false => Err(Error::DomainsInUse { domains: listed(removed.iter().copied()) }),
        }
    }

    /// Returns the required and the unknown domains for which `is_missing` holds.
    pub(super) fn missing(
        &self,
        unknown: &UnknownDomains,
        is_missing: impl Fn(&str) -> bool,
    ) -> MissingDomains {
        let mut names = self.names();
        names.append(&mut unknown.names());
        let missing = MissingDomains { names: names.into_iter().map(String::from).collect() };
        missing.still_missing(is_missing)
    }
}

/// Domains that are in use and have no rules: their requests are not limited.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MissingDomains {
    names: Vec<String>,
}

impl MissingDomains {
    /// Returns the names, in alphabetical order. A caller of [`Rules::check`](super::Rules::check) may have invented
    /// a name, so escape the names before they are shown.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Keeps the domains for which `is_missing` holds.
    pub(super) fn still_missing(mut self, is_missing: impl Fn(&str) -> bool) -> MissingDomains {
        self.names.retain(|name| is_missing(name));
        self
    }

    /// Returns whether every domain in use has rules.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }
}

/// Prints the problem and its remedy, with the names shortened and escaped.
impl fmt::Display for MissingDomains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = listed(self.names.iter().map(String::as_str));
        write!(
            f,
            "no rules for {names}, which is in use: its requests are not limited; add rules for it, or list it under \
             `retired_domains`"
        )
    }
}

/// Returns at most five names, each in backticks.
fn listed<'n>(names: impl ExactSizeIterator<Item = &'n str>) -> String {
    const MOST: usize = 5;
    let more = names.len().saturating_sub(MOST);
    let mut listed: Vec<String> =
        names.take(MOST).map(|name| format!("domain `{}`", Excerpt::of(name))).collect();
    if more > 0 {
        listed.push(format!("{more} more"));
    }
    listed.join(", ")
}
