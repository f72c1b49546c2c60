//! Finds every network that an address is in among many.

use std::mem;

use ipnet::IpNet;

use crate::networks::NetworkMap;

/// Rules by network.
#[derive(Debug, Default)]
pub(super) struct NetworkIndex {
    /// The networks that were added since the map was made.
    added: Vec<(IpNet, Vec<usize>)>,
    map: NetworkMap<Vec<usize>>,
}

impl NetworkIndex {
    pub(super) fn add(&mut self, network: IpNet, rule: usize) {
        self.added.push((network, vec![rule]));
    }

    /// Makes the map; no rule is found before that.
    pub(super) fn finish(&mut self) {
        self.map = NetworkMap::new(mem::take(&mut self.added), |into, from| into.append(from));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.map.is_empty()
    }

    /// Adds the rules of every network that an address is in.
    pub(super) fn collect(&self, address: &IpNet, into: &mut Vec<usize>) {
        self.map.holding(address).for_each(|(_, rules)| into.extend_from_slice(rules));
    }
}
