//! Overrides: limits for single keys, and for the networks that an address is in.

use super::{Map, PlannedRule, SpendTargetId};
use crate::key::push_part;
use crate::names::AttributeId;
use crate::networks::{self, FoundNetwork, NetworkTable, Networks};
use crate::request::NumberedRequest;

/// The overrides of a rule.
#[derive(Default)]
pub(super) struct Overrides {
    pub(super) exact: Map<Vec<u8>, SpendTargetId>,
    pub(super) in_networks: Vec<NetworkOverrides>,
}

/// The overrides that have networks for one attribute of one part of the rule's key.
pub(super) struct NetworkOverrides {
    part: usize,
    attribute: AttributeId,
    /// By the other parts of the key.
    others: Map<Vec<u8>, NetworkTable<SpendTargetId>>,
}

/// An override that has networks.
pub(super) struct NetworkOverride<'c> {
    /// The part of the rule's key that must be in the networks, and its attribute.
    pub(super) part: usize,
    pub(super) attribute: AttributeId,
    pub(super) networks: &'c Networks,
    /// The other parts, as a key.
    pub(super) others: Vec<u8>,
    pub(super) spent: SpendTargetId,
}

impl Overrides {
    pub(super) fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.in_networks.is_empty()
    }

    /// Groups overrides, which come in the order of the file.
    pub(super) fn new(
        exact: Map<Vec<u8>, SpendTargetId>,
        in_networks: Vec<NetworkOverride<'_>>,
    ) -> Overrides {
        type GroupedOverrides<'c> = Map<Vec<u8>, Vec<(&'c Networks, SpendTargetId)>>;
        let mut groups: Vec<((usize, AttributeId), GroupedOverrides<'_>)> = Vec::new();
        for own in in_networks {
            let of = (own.part, own.attribute);
            let at = groups.iter().position(|(group, _)| *group == of).unwrap_or_else(|| {
                groups.push((of, Map::default()));
                groups.len() - 1
            });
            groups[at].1.entry(own.others).or_default().push((own.networks, own.spent));
        }
        let group = |((part, attribute), values): (_, GroupedOverrides<'_>)| {
            let values = values.into_iter();
            let others = values.map(|(others, each)| (others, NetworkTable::new(each))).collect();
            NetworkOverrides { part, attribute, others }
        };
        Overrides { exact, in_networks: groups.into_iter().map(group).collect() }
    }

    /// Returns the limit that an override gives to a request with this key, and the network of the override, if it
    /// has one.
    pub(super) fn find<'r>(
        &'r self,
        rule: &'r PlannedRule,
        request: &NumberedRequest<'_>,
        key: &[u8],
    ) -> Option<(SpendTargetId, Option<FoundNetwork<'r>>)> {
        if let Some(spent) = self.exact.get(key) {
            return Some((*spent, None));
        }
        let found = self.in_networks.iter().find_map(|own| own.find(rule, request));
        found.map(|(found, spent)| (spent, Some(found)))
    }
}

impl Overrides {
    /// Returns the limit that an override gives to the requests of a key. An override for a part of a group of IPv6
    /// addresses is not found by the key of the group, because it is for some of the group's requests only.
    pub(super) fn find_by_key(&self, rule: &PlannedRule, key: &[u8]) -> Option<SpendTargetId> {
        let exact = self.exact.get(key).copied();
        exact.or_else(|| self.in_networks.iter().find_map(|own| own.find_by_key(rule, key)))
    }

    /// Returns the limit of each override.
    pub(super) fn spends(&self) -> impl Iterator<Item = SpendTargetId> {
        let tables = self.in_networks.iter().flat_map(|own| own.others.values());
        self.exact.values().chain(tables.flat_map(NetworkTable::values)).copied()
    }
}

impl NetworkOverrides {
    fn find_by_key(&self, rule: &PlannedRule, key: &[u8]) -> Option<SpendTargetId> {
        let mut parts: Vec<&[u8]> = key.split(|byte| *byte == b',').collect();
        let own = (self.part < parts.len()).then(|| parts.remove(self.part))?;
        let (_, name) = rule.key.get(self.part)?.iter().find(|(id, _)| *id == self.attribute)?;
        let value = own.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        let address = networks::known_of(str::from_utf8(value).ok()?)?;
        let (_, spent) = self.others.get(&parts.join(&b','))?.longest(&address)?;
        Some(*spent)
    }

    fn find(
        &self,
        rule: &PlannedRule,
        request: &NumberedRequest<'_>,
    ) -> Option<(FoundNetwork<'_>, SpendTargetId)> {
        let address = request.address(self.attribute)?;
        let mut others = Vec::new();
        for (at, first_of) in rule.key.iter().enumerate() {
            let mut known = first_of.iter().filter_map(|own| Some((own, request.known(own.0)?)));
            let ((id, name), value) = known.next()?;
            match at == self.part {
                true if *id != self.attribute => return None,
                true => {}
                false => push_part(&mut others, 0, name, value),
            }
        }
        let (found, spent) = self.others.get(&others)?.longest(address)?;
        Some((found, *spent))
    }
}
