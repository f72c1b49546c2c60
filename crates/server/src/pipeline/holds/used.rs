//! The units that were used of each part of a hold.

use std::borrow::Cow;

use super::HoldProblem;
use super::target::{HoldTarget, TargetPart};
use crate::receipt::HeldBy;

/// The units used since the reservation.
#[derive(Debug, Default)]
pub(crate) struct UsedUnits<'a> {
    /// The units used of every part that has none of its own.
    pub(crate) every: Option<u64>,
    /// The units used of the parts of these rules.
    pub(crate) by_rule: Vec<(Cow<'a, str>, u64)>,
}

impl UsedUnits<'_> {
    /// Returns the units used of each part whose units are held. A place of a concurrency limit needs none, and rules give it
    /// none: it stays held until the hold ends.
    pub(super) fn of_parts(&self, target: &HoldTarget) -> Result<Vec<u64>, HoldProblem<'static>> {
        let is_known = |name: &str| {
            target.by == HeldBy::Rules
                && (target.parts.iter().any(|part| part.rule_name() == name)
                    || target.without_limit.iter().any(|own| own == name))
        };
        if let Some((name, _)) = self.by_rule.iter().find(|(name, _)| !is_known(name)) {
            return Err(HoldProblem::NotHeld { name: name.clone().into_owned() });
        }
        let is_place = |name: &str| {
            target.parts.iter().any(|part| part.rule_name() == name && part.scope.only_holds())
        };
        if let Some((name, _)) = self.by_rule.iter().find(|(name, _)| is_place(name)) {
            return Err(HoldProblem::CostOfPlace { name: name.clone().into_owned() });
        }
        target.held().map(|part| self.used_of(part, target.by)).collect()
    }

    fn used_of(&self, part: &TargetPart, by: HeldBy) -> Result<u64, HoldProblem<'static>> {
        let name = part.rule_name();
        match (part.scope.only_holds(), by) {
            (true, HeldBy::Rules) => return Ok(0),
            (true, HeldBy::Limit) => return Ok(self.every.unwrap_or(0)),
            (false, HeldBy::Limit) => return self.every.ok_or(HoldProblem::CostNotGiven),
            (false, HeldBy::Rules) => {}
        }
        let own = self.by_rule.iter().find(|(rule, _)| rule == name).map(|(_, units)| *units);
        own.or(self.every).ok_or_else(|| HoldProblem::UseNotGiven { name: name.to_owned() })
    }
}
