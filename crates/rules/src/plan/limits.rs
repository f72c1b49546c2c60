//! The limits that a rule may spend.

use super::{Rule, SpentId};

impl Rule {
    /// Returns the limit for requests without a tier of the rule, and without an override.
    pub(crate) fn default_spent(&self) -> SpentId {
        self.default
    }

    /// Returns the tiers and their limits, in no order.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (&str, SpentId)> {
        let tiers = self.seldom.iter().filter_map(|seldom| seldom.tiers.as_ref());
        tiers.flat_map(|tiers| tiers.of.iter().map(|(tier, id)| (&**tier, *id)))
    }

    /// Returns the limit of each override.
    pub(crate) fn overrides(&self) -> impl Iterator<Item = SpentId> {
        self.seldom.iter().flat_map(|seldom| seldom.overrides.spends())
    }

    /// Returns the limit of a key's override.
    pub(crate) fn override_of(&self, key: &[u8]) -> Option<SpentId> {
        self.seldom.as_ref()?.overrides.find_by_key(self, key)
    }
}
