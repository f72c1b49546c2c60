//! The units that rules have set aside for a request.

use std::sync::Arc;
use std::time::Duration;

use tollgate_limiter::{Answer, Error, Hold, HoldSettlement, JointExtension, JointHold};

use super::matched_rules::{MatchedRule, MatchedRules};
use super::plan::{PlannedRule, RuleName};

/// The units that the rules of a request have set aside, until they are settled or expire.
///
/// Each operation is on all of them, in one request to the store. When it is dropped, the units of concurrency limits are
/// released, and the others are left to expire, which charges them in full.
#[derive(Debug, Default)]
#[must_use = "dropped units are charged in full at their expiry, or released under a concurrency limit: settle or release \
              them"]
pub struct RulesHold {
    hold: JointHold,
    rules: Vec<RuleUnits>,
}

/// The units of one rule.
#[derive(Debug)]
struct RuleUnits {
    rule: Arc<PlannedRule>,
    /// The index of the hold.
    hold: usize,
    units: u64,
    hold_for: Duration,
}

/// One rule's units in a [`RulesHold`].
#[derive(Clone, Copy, Debug)]
pub struct HeldRule<'h> {
    own: &'h RuleUnits,
    hold: &'h Hold,
}

impl RulesHold {
    pub(super) fn new(
        hold: JointHold,
        found: &MatchedRules,
        hold_for: Option<Duration>,
    ) -> RulesHold {
        let parts = found.matched.iter().filter(|matched| matched.scope().is_some());
        let units = |(part, matched): (usize, &MatchedRule)| {
            let at = hold.position_of_part(part).filter(|_| matched.is_held)?;
            let own = || matched.rule.hold_for().or_else(|| Some(matched.scope()?.hold_for()));
            let (rule, units) = (Arc::clone(&matched.rule), matched.units);
            Some(RuleUnits { rule, hold: at, units, hold_for: hold_for.or_else(own)? })
        };
        let rules = parts.enumerate().filter_map(units).collect();
        RulesHold { hold, rules }
    }

    /// Returns whether nothing is held: no rule that applied set units aside.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// Returns the rules whose units are held, in the order of the file.
    pub fn rules(&self) -> impl Iterator<Item = HeldRule<'_>> {
        let held = |own| Some(HeldRule { own, hold: self.hold.holds().get(own.hold)? });
        self.rules.iter().filter_map(held)
    }

    /// Returns the shortest time for which any of the units are held: [renew](Self::renew) them before it has passed.
    /// `None` if nothing is held.
    pub fn hold_for(&self) -> Option<Duration> {
        self.rules.iter().map(|rule| rule.hold_for).min()
    }

    /// Makes the operations at this time, as [`Hold::at_us`] does.
    pub fn at_us(self, now_us: u64) -> RulesHold {
        RulesHold { hold: self.hold.at_us(now_us), ..self }
    }

    /// Returns the holds, without the rules that reserved them.
    pub fn into_joint(self) -> JointHold {
        self.hold
    }

    /// Ends all holds, and charges what was used: `used` returns the units for a rule. Nothing is charged to a concurrency
    /// limit. The answer has one entry for each key. See [`Hold::settle`].
    ///
    /// `hold.settle(|_| 812)` charges 812 units to every rule. If rules count different things, `used` chooses by the
    /// [attribute](HeldRule::attribute) of their cost, or by their [name](HeldRule::name).
    pub fn settle(self, used: impl FnMut(HeldRule<'_>) -> u64) -> Answer<Vec<HoldSettlement>> {
        let mut used = self.units_of_holds(used).into_iter();
        self.hold.settle(|_| used.next().unwrap_or(0))
    }

    /// [`settle`](Self::settle), in memory.
    pub fn settle_now(
        self,
        used: impl FnMut(HeldRule<'_>) -> u64,
    ) -> Result<Vec<HoldSettlement>, Error> {
        let mut used = self.units_of_holds(used).into_iter();
        self.hold.settle_now(|_| used.next().unwrap_or(0))
    }

    /// Charges what was used so far and not charged yet; the rest stays held. See [`Hold::settle_part`].
    pub fn settle_part(
        &self,
        used_so_far: impl FnMut(HeldRule<'_>) -> u64,
    ) -> Answer<Vec<HoldSettlement>> {
        let mut used = self.units_of_holds(used_so_far).into_iter();
        self.hold.settle_part(|_| used.next().unwrap_or(0))
    }

    /// Ends all holds and charges nothing more. See [`Hold::release`].
    pub fn release(self) -> Answer<Vec<HoldSettlement>> {
        self.hold.release()
    }

    /// [`release`](Self::release), in memory.
    pub fn release_now(self) -> Result<Vec<HoldSettlement>, Error> {
        self.hold.release_now()
    }

    /// Moves the expiry of each hold: the hold then lasts for the hold time of its rule from now. Never refused, unless
    /// a hold has ended.
    pub fn renew(&self) -> Answer<JointExtension> {
        self.extend(|_| 0)
    }

    /// Extends all holds, or none: `more` returns the units to add for a rule, which may be 0. Each hold then lasts for
    /// the hold time of its rule from now. See [`Hold::extend`].
    pub fn extend(&self, more: impl FnMut(HeldRule<'_>) -> u64) -> Answer<JointExtension> {
        let mut growths = self.growths(more).into_iter();
        self.hold.extend(|_| growths.next().unwrap_or_default())
    }

    /// [`extend`](Self::extend), in memory.
    pub fn extend_now(
        &self,
        more: impl FnMut(HeldRule<'_>) -> u64,
    ) -> Result<JointExtension, Error> {
        let mut growths = self.growths(more).into_iter();
        self.hold.extend_now(|_| growths.next().unwrap_or_default())
    }

    /// Adds up the units of the rules of each hold: several sets of attributes may have one key.
    fn units_of_holds(&self, mut units: impl FnMut(HeldRule<'_>) -> u64) -> Vec<u64> {
        let mut units_of_holds = vec![0_u64; self.hold.holds().len()];
        for rule in self.rules() {
            let own = &mut units_of_holds[rule.own.hold];
            *own = own.saturating_add(units(rule));
        }
        units_of_holds
    }

    /// Returns the units to add to each hold, and the longest time of its rules.
    fn growths(&self, more: impl FnMut(HeldRule<'_>) -> u64) -> Vec<(u64, Duration)> {
        let longest = |at: usize| {
            let times = self.rules.iter().filter(|rule| rule.hold == at).map(|rule| rule.hold_for);
            times.max().unwrap_or_default()
        };
        let more = self.units_of_holds(more).into_iter().enumerate();
        more.map(|(at, more)| (more, longest(at))).collect()
    }
}

impl<'h> HeldRule<'h> {
    /// Returns the rule's name.
    pub fn name(&self) -> &'h RuleName {
        &self.own.rule.name
    }

    /// Returns the attribute whose value the rule sets aside (`cost.reserve.attribute`); `None` for a rule that sets aside
    /// a number of its own. Rules with one attribute count the same thing.
    pub fn attribute(&self) -> Option<&'h str> {
        self.own.rule.cost.attribute.as_deref()
    }

    /// Returns the units that were set aside, without later extensions.
    pub fn units(&self) -> u64 {
        self.own.units
    }

    /// Returns how long the units are held from a reservation or a renewal on.
    pub fn hold_for(&self) -> Duration {
        self.own.hold_for
    }

    /// Returns whether the rule is in shadow mode.
    pub fn is_shadow(&self) -> bool {
        self.own.rule.is_shadow
    }

    /// Returns the hold. Several sets of attributes with one key share a hold.
    pub fn hold(&self) -> &'h Hold {
        self.hold
    }
}
