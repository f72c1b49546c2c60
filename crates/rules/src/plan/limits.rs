//! The limits that a rule may spend.

use super::{PlannedRule, SpendTargetId};

impl PlannedRule {
    /// Returns the limit for requests without a tier of the rule, and without an override.
    pub(crate) fn default_spent(&self) -> SpendTargetId {
        self.default
    }

    /// Returns the tiers and their limits, in no order.
    pub(crate) fn tiers(&self) -> impl Iterator<Item = (&str, SpendTargetId)> {
        let tiers = self.rare.iter().filter_map(|rare| rare.tiers.as_ref());
        tiers.flat_map(|tiers| tiers.of.iter().map(|(tier, id)| (&**tier, *id)))
    }

    /// Returns the limit of each override.
    pub(crate) fn overrides(&self) -> impl Iterator<Item = SpendTargetId> {
        self.rare.iter().flat_map(|rare| rare.overrides.spends())
    }

    /// Returns the limit of a key's override.
    pub(crate) fn override_of(&self, key: &[u8]) -> Option<SpendTargetId> {
        self.rare.as_ref()?.overrides.find_by_key(self, key)
    }
}
