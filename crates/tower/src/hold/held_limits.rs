//! The units of a request that are set aside, under one limit or under several.

use std::mem;
use std::time::Duration;

use tollgate_limiter::{Answer, Hold, HoldSettlement, JointExtension, JointHold};
use tollgate_rules::{HeldRule, RulesHold};

/// The units of a request that are set aside, under one limit or under several.
#[derive(Debug, Default)]
pub(crate) struct HeldLimits {
    joint: JointHold,
    /// One for each hold of `joint`, in their order.
    parts: Vec<HeldPart>,
}

/// The units that are held under one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldPart {
    /// The units that are held, including the units of an extension in flight.
    pub(crate) units: u64,
    /// How long they are held, unless the hold is renewed.
    pub(crate) hold_for: Duration,
    /// The limit is a concurrency limit, whose units are only ever held: a place for as long as the request is under way.
    pub(crate) is_place: bool,
}

impl HeldLimits {
    /// Takes the hold of a request under one limit, with its units and its time.
    pub(crate) fn of_limit(hold: Hold, units: u64, hold_for: Duration) -> HeldLimits {
        let is_place = hold.scope().only_holds();
        let parts = vec![HeldPart { units, hold_for, is_place }];
        HeldLimits { joint: JointHold::from(hold), parts }
    }

    /// Takes what rules have set aside.
    pub(crate) fn of_rules(held: RulesHold) -> HeldLimits {
        // The middleware has one set of attributes for a request, so each rule has a hold of its own.
        let part = |rule: HeldRule<'_>| HeldPart {
            units: rule.units(),
            hold_for: rule.hold_for(),
            is_place: rule.hold().scope().only_holds(),
        };
        let parts = held.rules().map(part).collect();
        HeldLimits { joint: held.into_joint(), parts }
    }

    pub(super) fn holds(&self) -> &[Hold] {
        self.joint.holds()
    }

    /// Returns each hold with the units that its settlement charges: these, or what is held if they are not known.
    pub(super) fn with_uses(&self, used: Option<u64>) -> impl Iterator<Item = (&Hold, u64)> {
        let uses = self.parts.iter().map(move |part| used.unwrap_or(part.units));
        self.holds().iter().zip(uses)
    }

    /// Whether nothing but places is held.
    pub(super) fn only_places(&self) -> bool {
        self.parts.iter().all(|part| part.is_place)
    }

    /// Returns the shortest time that units are held for.
    pub(super) fn shortest_time(&self) -> Duration {
        self.parts.iter().map(|part| part.hold_for).min().unwrap_or(Duration::MAX)
    }

    /// Returns the units that the request may use under each of its limits: the fewest that are held under one of them.
    pub(super) fn units(&self) -> u64 {
        let only_places = self.only_places();
        let counted = self.parts.iter().filter(|part| only_places || !part.is_place);
        counted.map(|part| part.units).min().unwrap_or(0)
    }

    /// Returns when the first of the holds expires.
    pub(super) fn expires_at_us(&self) -> Option<u64> {
        self.holds().iter().map(Hold::expires_at_us).min()
    }

    /// Ends the hold, and charges these units under each limit, or what is held there if they are not known.
    pub(super) fn settle(self, used: Option<u64>) -> Answer<Vec<HoldSettlement>> {
        let mut parts = self.parts.iter();
        self.joint.settle(|_| used.unwrap_or(parts.next().map_or(0, |part| part.units)))
    }

    /// Ends the hold, and charges under each limit what `used` returns.
    pub(super) fn settle_each(self, used: impl FnMut(&Hold) -> u64) -> Answer<Vec<HoldSettlement>> {
        self.joint.settle(used)
    }

    /// Sends an extension: by `more` units under each limit. Places are added only if nothing else is held. All
    /// expiries move.
    pub(super) fn extend(&mut self, more: u64) -> Answer<JointExtension> {
        self.grow(|units| units.saturating_add(more));
        let only_places = self.only_places();
        let mut parts = self.parts.iter();
        self.joint.extend(|_| match parts.next() {
            Some(part) if part.is_place && !only_places => (0, part.hold_for),
            Some(part) => (more, part.hold_for),
            None => (0, Duration::ZERO),
        })
    }

    /// Notes that an extension by these units was not granted.
    pub(super) fn shrink(&mut self, more: u64) {
        self.grow(|units| units.saturating_sub(more));
    }

    fn grow(&mut self, change: impl Fn(u64) -> u64) {
        let only_places = self.only_places();
        for part in self.parts.iter_mut().filter(|part| only_places || !part.is_place) {
            part.units = change(part.units);
        }
    }

    /// Leaves the holds to their expiries.
    pub(super) fn leave(self) {
        for hold in self.joint.into_holds() {
            hold.into_reference();
        }
    }

    /// Separates places from the units that are charged in the end.
    pub(super) fn split_places(self) -> (HeldLimits, HeldLimits) {
        let both = self.joint.into_holds().into_iter().zip(self.parts);
        let (places, charged) = both.partition(|(_, part)| part.is_place);
        (HeldLimits::rejoined(places), HeldLimits::rejoined(charged))
    }

    /// Removes the holds that have ended on the store, as the answer to an extension of all holds says. Returns whether some
    /// have ended and others are still open; otherwise nothing is removed.
    pub(super) fn forget_ended(&mut self, extension: &JointExtension) -> bool {
        let each = extension.each();
        let ended = each.iter().filter(|part| part.ended().is_some()).count();
        // The lengths differ if places were separated while the extension was in flight.
        if ended == 0 || ended == each.len() || each.len() != self.parts.len() {
            return false;
        }
        let HeldLimits { joint, parts } = mem::take(self);
        let all = joint.into_holds().into_iter().zip(parts).zip(each);
        let (ended, open): (Vec<_>, Vec<_>) = all.partition(|(_, part)| part.ended().is_some());
        for ((hold, _), _) in ended {
            hold.into_reference();
        }
        *self = HeldLimits::rejoined(open.into_iter().map(|(both, _)| both).collect());
        true
    }

    fn rejoined(both: Vec<(Hold, HeldPart)>) -> HeldLimits {
        let (holds, parts) = both.into_iter().unzip();
        // OK because the holds of one request are on one limiter, and of different keys.
        HeldLimits { joint: JointHold::of(holds).unwrap_or_default(), parts }
    }

    /// Returns the units that are held in all.
    pub(super) fn total(&self) -> u64 {
        self.parts.iter().fold(0, |sum, part| sum.saturating_add(part.units))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }
}
