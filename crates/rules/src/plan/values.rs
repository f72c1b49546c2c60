//! Conditions on many values, or on networks.

use std::collections::HashSet;

use ahash::RandomState;
use ipnet::IpNet;

use crate::config::Requirement;
use crate::networks::{FoundNetwork, NetworkTable};
use crate::pattern::Pattern;

/// Up to this number of values, to compare them one by one is as fast as a lookup.
const FEW: usize = 8;

/// The many values that an attribute may have, or must not have.
pub(super) struct ValueTable {
    exact: HashSet<Box<str>, RandomState>,
    networks: Option<NetworkTable<()>>,
    /// Prefixes and globs.
    others: Vec<Pattern>,
}

impl ValueTable {
    /// Returns the values of a condition; `None` if its patterns are to be compared one by one.
    pub(super) fn of(wanted: &Requirement) -> Option<ValueTable> {
        let patterns = wanted.patterns();
        let has_networks = patterns.iter().any(|pattern| pattern.networks().is_some());
        if patterns.len() <= FEW && !has_networks {
            return None;
        }
        let (mut exact, mut others) = (HashSet::default(), Vec::new());
        for pattern in patterns {
            match pattern {
                Pattern::Exact(value) => {
                    exact.insert(value.clone());
                }
                Pattern::Prefix(_) | Pattern::Glob(_) => others.push(pattern.clone()),
                Pattern::In(_) => {}
            }
        }
        let networks = patterns.iter().filter_map(|pattern| Some((pattern.networks()?, ())));
        let networks = has_networks.then(|| NetworkTable::new(networks));
        Some(ValueTable { exact, networks, others })
    }

    pub(super) fn has_networks(&self) -> bool {
        self.networks.is_some()
    }

    /// Returns whether a value matches. `address` is the value as an address, as far as it is known.
    pub(super) fn has(&self, value: &str, address: Option<&IpNet>) -> bool {
        self.exact.contains(value)
            || self.network(address).is_some()
            || self.others.iter().any(|pattern| pattern.matches(value))
    }

    /// Returns the longest network that an address is in.
    pub(super) fn network(&self, address: Option<&IpNet>) -> Option<FoundNetwork<'_>> {
        let (found, ()) = self.networks.as_ref()?.longest(address?)?;
        Some(found)
    }
}
