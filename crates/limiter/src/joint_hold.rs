//! A hold of several limits: settled and extended together.

use std::time::Duration;

use tollgate_core::{HoldGrowth, HoldUse};

use crate::answer::Answer;
use crate::error::Error;
use crate::hold::{Hold, growth, operations};
use crate::hold_answers::{HoldSettlement, JointExtension};

/// Units of several limits that are set aside together ([`Limiter::reserve_all`](crate::Limiter::reserve_all)), until they
/// are settled or expire.
///
/// It has one [`Hold`] for each key whose units are held. Each operation is on all of them, in one request to the store;
/// [`into_holds`](Self::into_holds) takes them apart. When it is dropped, the holds of concurrency limits are released, and
/// the others are left to expire ([`Hold`](Hold#dropped-holds)).
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::Limiter;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::memory();
/// let team = limiter.scope("team", "fixed-window limit=10000 window=1h")?;
/// let all = limiter.scope("all", "fixed-window limit=50000 window=1h")?;
/// let parts = [team.reserve("team:7").cost(1_000).into(), all.reserve("all").cost(1_000).into()];
/// if let Some(hold) = limiter.reserve_all_now(&parts)?.into_hold() {
///     // 500 more for both, or for none; each is held for another minute.
///     let longer = hold.extend_now(|_| (500, Duration::from_secs(60)))?;
///     assert!(longer.is_granted());
///     hold.settle_now(|_| 1_200)?;
/// }
/// assert_eq!(team.peek("team:7").now()?.remaining(), 8_800);
/// assert_eq!(all.peek("all").now()?.remaining(), 48_800);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Default)]
#[must_use = "dropped holds are charged in full at their expiry, or released under a concurrency limit: settle or release them"]
pub struct JointHold {
    holds: Vec<Hold>,
    /// The index of the hold of each part of the reservation.
    of_parts: Vec<Option<usize>>,
}

impl From<Hold> for JointHold {
    fn from(hold: Hold) -> JointHold {
        JointHold { holds: vec![hold], of_parts: vec![Some(0)] }
    }
}

impl JointHold {
    pub(crate) fn new(holds: Vec<Hold>, of_parts: Vec<Option<usize>>) -> JointHold {
        JointHold { holds, of_parts }
    }

    /// Joins holds, for example holds that were [made again](crate::Scope::hold) in another process. An error if they
    /// belong to different limiters, or if two are of the same key under one name: those are settled one by one.
    pub fn of(holds: Vec<Hold>) -> Result<JointHold, Error> {
        for (index, hold) in holds.iter().enumerate() {
            let earlier = &holds[..index];
            if earlier.iter().any(|other| !other.scope().limiter().is_same(hold.scope().limiter()))
            {
                return Err(Error::DifferentLimiters);
            }
            if earlier.iter().any(|other| is_same_key(other, hold)) {
                return Err(Error::SameKeyTwice { scope: hold.scope().name().to_owned() });
            }
        }
        let of_parts = (0..holds.len()).map(Some).collect();
        Ok(JointHold { holds, of_parts })
    }

    /// Returns the holds, one for each key whose units are set aside, in the order of the parts that reserved them.
    pub fn holds(&self) -> &[Hold] {
        &self.holds
    }

    /// Takes the holds apart, to settle each of them by itself.
    pub fn into_holds(self) -> Vec<Hold> {
        self.holds
    }

    /// Returns the hold of the part at this index of the reservation; `None` for a part whose units were not set aside.
    /// Parts of one key under one name share a hold.
    pub fn of_part(&self, index: usize) -> Option<&Hold> {
        self.holds.get(self.position_of_part(index)?)
    }

    /// Returns the index among [`holds`](Self::holds) of the hold of a part.
    pub fn position_of_part(&self, index: usize) -> Option<usize> {
        self.of_parts.get(index).copied().flatten()
    }

    /// Returns whether nothing is held: no part of the reservation set units aside.
    pub fn is_empty(&self) -> bool {
        self.holds.is_empty()
    }

    /// Makes the operations on these holds at this time, as [`Hold::at_us`] does.
    pub fn at_us(self, now_us: u64) -> JointHold {
        let holds = self.holds.into_iter().map(|hold| hold.at_us(now_us)).collect();
        JointHold { holds, ..self }
    }

    /// Ends all holds, and charges what was used of each, as [`Hold::settle`] does: `used` returns the units for a hold.
    /// The answer has one entry for each hold, in their order.
    pub fn settle(mut self, used: impl FnMut(&Hold) -> u64) -> Answer<Vec<HoldSettlement>> {
        self.keep_open();
        operations::settle(&self.holds, &self.last_uses(used), Duration::ZERO)
    }

    /// [`settle`](Self::settle), in memory.
    pub fn settle_now(
        mut self,
        used: impl FnMut(&Hold) -> u64,
    ) -> Result<Vec<HoldSettlement>, Error> {
        let settled = self.settle_here(&self.last_uses(used))?;
        self.keep_open();
        Ok(settled)
    }

    /// From now on, nothing is released when this is dropped.
    fn keep_open(&mut self) {
        self.holds.iter_mut().for_each(Hold::keep_open);
    }

    /// Charges what was used of each hold and not charged yet, as [`Hold::settle_part`] does.
    pub fn settle_part(
        &self,
        used_so_far: impl FnMut(&Hold) -> u64,
    ) -> Answer<Vec<HoldSettlement>> {
        operations::settle(&self.holds, &self.uses_so_far(used_so_far), Duration::ZERO)
    }

    /// [`settle_part`](Self::settle_part), in memory.
    pub fn settle_part_now(
        &self,
        used_so_far: impl FnMut(&Hold) -> u64,
    ) -> Result<Vec<HoldSettlement>, Error> {
        self.settle_here(&self.uses_so_far(used_so_far))
    }

    /// Ends all holds and charges nothing more, as [`Hold::release`] does.
    pub fn release(self) -> Answer<Vec<HoldSettlement>> {
        self.settle(|_| 0)
    }

    /// [`release`](Self::release), in memory.
    pub fn release_now(self) -> Result<Vec<HoldSettlement>, Error> {
        self.settle_now(|_| 0)
    }

    /// Extends all holds, or none: `growth` returns the units to add to a hold, which may be 0, and how long the hold
    /// lasts from now. See [`Hold::extend`].
    pub fn extend(&self, growth: impl FnMut(&Hold) -> (u64, Duration)) -> Answer<JointExtension> {
        match self.growths(growth) {
            Ok(growths) => {
                operations::extend(&self.holds, &growths).then(|each| each.map(JointExtension::new))
            }
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// [`extend`](Self::extend), in memory.
    pub fn extend_now(
        &self,
        growth: impl FnMut(&Hold) -> (u64, Duration),
    ) -> Result<JointExtension, Error> {
        let growths = self.growths(growth)?;
        let all = self.all_local()?;
        Ok(JointExtension::new(operations::extend_in_memory(&self.holds, &all, &growths)))
    }

    fn uses_so_far(&self, mut used: impl FnMut(&Hold) -> u64) -> Vec<HoldUse> {
        self.holds.iter().map(|hold| hold.use_so_far(used(hold))).collect()
    }

    fn last_uses(&self, mut used: impl FnMut(&Hold) -> u64) -> Vec<HoldUse> {
        self.holds.iter().map(|hold| hold.last_use(used(hold))).collect()
    }

    fn growths(
        &self,
        mut of: impl FnMut(&Hold) -> (u64, Duration),
    ) -> Result<Vec<HoldGrowth>, Error> {
        let growth = |hold| {
            let (more, hold_for) = of(hold);
            growth(more, hold_for)
        };
        self.holds.iter().map(growth).collect()
    }

    /// Returns the indices of all holds; an error if a hold is on a store across the network.
    fn all_local(&self) -> Result<Vec<usize>, Error> {
        self.holds.iter().try_for_each(|hold| hold.scope().local().map(drop))?;
        Ok((0..self.holds.len()).collect())
    }

    fn settle_here(&self, uses: &[HoldUse]) -> Result<Vec<HoldSettlement>, Error> {
        Ok(operations::settle_in_memory(&self.holds, &self.all_local()?, uses))
    }
}

/// Whether both are holds of one key under one name.
fn is_same_key(one: &Hold, other: &Hold) -> bool {
    let number = |hold: &Hold| hold.scope().registered_name().number();
    number(one) == number(other) && one.key() == other.key()
}
