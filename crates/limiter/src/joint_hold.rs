//! A hold of several limits: settled and extended together.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use tollgate_core::{ExtendAnswer, Extension, HoldGrowth, HoldUse, SettleAnswer};

use crate::answer::Answer;
use crate::error::Error;
use crate::hold::{Hold, HoldSource, growth};
use crate::hold_answers::{HoldExtension, HoldSettlement, JointExtension};
use crate::scope::{RemoteScope, ScopeBackend};
use crate::store::memory::{HoldPart, MemoryBackend};
use crate::store::{Call, ExtendRequest, SettleRequest, Wake};

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
        self.send_settlements(self.last_uses(used))
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
        self.send_settlements(self.uses_so_far(used_so_far))
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
            Ok(growths) => self.send_extensions(growths),
            Err(error) => Answer::ready(Err(error)),
        }
    }

    /// [`extend`](Self::extend), in memory.
    pub fn extend_now(
        &self,
        growth: impl FnMut(&Hold) -> (u64, Duration),
    ) -> Result<JointExtension, Error> {
        let growths = self.growths(growth)?;
        let all: Vec<usize> = (0..self.holds.len()).collect();
        self.check_local()?;
        Ok(JointExtension::new(self.extend_in_memory(&all, &growths)))
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

    /// Returns an error if a hold is on a store across the network.
    fn check_local(&self) -> Result<(), Error> {
        self.holds.iter().try_for_each(|hold| hold.scope().local().map(drop))
    }

    fn settle_here(&self, uses: &[HoldUse]) -> Result<Vec<HoldSettlement>, Error> {
        self.check_local()?;
        let all: Vec<usize> = (0..self.holds.len()).collect();
        Ok(self.settle_in_memory(&all, uses))
    }

    fn send_settlements(&self, uses: Vec<HoldUse>) -> Answer<Vec<HoldSettlement>> {
        let HoldPlaces { memory, nowhere, remote } = self.places();
        let mut settled: Vec<Option<HoldSettlement>> = self.holds.iter().map(|_| None).collect();
        for (index, own) in memory.iter().zip(self.settle_in_memory(&memory, &uses)) {
            settled[*index] = Some(own);
        }
        for index in nowhere {
            settled[index] = Some(self.holds[index].settle_nowhere());
        }
        let Some(first) = self.remote_scope(&remote) else {
            return Answer::ready(
                settled.into_iter().collect::<Option<_>>().ok_or(Error::AnswerTaken),
            );
        };
        let scopes = remote.iter().filter_map(|&index| Some((index, self.scope_of(index)?)));
        let part = |(index, scope): (usize, &RemoteScope)| {
            self.holds[index].settle_part_of(scope, uses[index])
        };
        let parts = scopes.map(part).collect();
        let (call, wake) = (self.call(first, &remote), self.wake(&remote));
        let answer = first.remote.store.settle(SettleRequest { parts, call, wake });
        let keys: Vec<_> = remote
            .iter()
            .map(|&index| (self.holds[index].scope().clone(), self.holds[index].key().to_vec()))
            .collect();
        answer.then(move |answers| {
            let answers: Vec<SettleAnswer> = answers?;
            for ((&index, answer), (scope, key)) in remote.iter().zip(answers).zip(&keys) {
                settled[index] = Some(HoldSettlement::new(answer, scope, key));
            }
            // OK because a store returns one answer for each part.
            settled.into_iter().collect::<Option<_>>().ok_or(Error::AnswerTaken)
        })
    }

    /// Extends the holds on this process's share of a limit first: if their units do not fit, nothing is sent. If the store
    /// then refuses, the holds on the share stay extended. A hold has parts on both only if one of several servers failed.
    fn send_extensions(&self, growths: Vec<HoldGrowth>) -> Answer<JointExtension> {
        let HoldPlaces { memory, nowhere, remote } = self.places();
        let mut extended: Vec<Option<HoldExtension>> = self.holds.iter().map(|_| None).collect();
        let mut is_refused = false;
        for (index, own) in memory.iter().zip(self.extend_in_memory(&memory, &growths)) {
            is_refused |= !own.is_granted();
            extended[*index] = Some(own);
        }
        for index in nowhere {
            let hold = &self.holds[index];
            extended[index] = Some(match is_refused {
                true => refused_for_another(hold),
                false => hold.extend_nowhere(growths[index]),
            });
        }
        let first = match self.remote_scope(&remote) {
            Some(first) if !is_refused => first,
            _ => {
                for index in remote {
                    extended[index] = Some(refused_for_another(&self.holds[index]));
                }
                return Answer::ready(joined(extended));
            }
        };
        let scopes = remote.iter().filter_map(|&index| Some((index, self.scope_of(index)?)));
        let part = |(index, scope): (usize, &RemoteScope)| {
            self.holds[index].extend_part(scope, growths[index])
        };
        let (parts, call) = (scopes.map(part).collect(), self.call(first, &remote));
        let answer = first.remote.store.extend(ExtendRequest { parts, call });
        let expiries: Vec<Arc<AtomicU64>> =
            remote.iter().map(|&index| self.holds[index].shared_expiry()).collect();
        answer.then(move |answers| {
            let answers: Vec<ExtendAnswer> = answers?;
            for ((&index, answer), expiry) in remote.iter().zip(answers).zip(&expiries) {
                extended[index] = Some(HoldExtension::new(answer, expiry));
            }
            joined(extended)
        })
    }

    fn places(&self) -> HoldPlaces {
        let mut places = HoldPlaces::default();
        for (index, hold) in self.holds.iter().enumerate() {
            let of_place = match (hold.source(), hold.scope().backend()) {
                (HoldSource::Nowhere, _) => &mut places.nowhere,
                (_, ScopeBackend::Memory { .. }) => &mut places.memory,
                (_, ScopeBackend::Remote(_)) => &mut places.remote,
            };
            of_place.push(index);
        }
        places
    }

    fn scope_of(&self, index: usize) -> Option<&RemoteScope> {
        match self.holds[index].scope().backend() {
            ScopeBackend::Remote(scope) => Some(scope),
            ScopeBackend::Memory { .. } => None,
        }
    }

    fn remote_scope(&self, remote: &[usize]) -> Option<&RemoteScope> {
        self.scope_of(*remote.first()?)
    }

    /// Returns the time of a request on these holds, and the shortest of their deadlines.
    fn call(&self, first: &RemoteScope, remote: &[usize]) -> Call {
        let calls =
            remote.iter().filter_map(|&index| Some(self.holds[index].call(self.scope_of(index)?)));
        let shortest = calls.min_by_key(|call| call.deadline);
        shortest.unwrap_or_else(|| first.call())
    }

    /// Returns a function that wakes the waiters of the keys of these holds.
    fn wake(&self, remote: &[usize]) -> Wake {
        let wakes = remote.iter().map(|&index| {
            let hold = &self.holds[index];
            hold.scope().wake(hold.key())
        });
        let wakes: Vec<Wake> = wakes.collect();
        Arc::new(move || wakes.iter().for_each(|wake| wake()))
    }

    /// Returns the memory that these holds are in. All are in the same: the limiter's, or its share of the limits.
    fn memory(&self, memory: &[usize]) -> Option<(&MemoryBackend, u64)> {
        let hold = &self.holds[*memory.first()?];
        let (backend, _) = hold.scope().local().ok()?;
        Some((backend, hold.now_us(|| backend.clock.now_us())))
    }

    /// Returns these holds, each with what is to be done with it.
    fn memory_parts<'h, T: Copy>(
        &'h self,
        memory: &[usize],
        of_all: &[T],
    ) -> Vec<(HoldPart<'h>, T)> {
        let part = |&index: &usize| {
            let hold = &self.holds[index];
            let (_, scope) = hold.scope().local().ok()?;
            Some((HoldPart { scope, key: hold.key(), hold: hold.reference() }, of_all[index]))
        };
        memory.iter().filter_map(part).collect()
    }

    fn settle_in_memory(&self, memory: &[usize], uses: &[HoldUse]) -> Vec<HoldSettlement> {
        let Some((backend, now_us)) = self.memory(memory) else { return Vec::new() };
        let answers = backend.memory.settle_all(&self.memory_parts(memory, uses), now_us);
        let holds = memory.iter().map(|&index| &self.holds[index]);
        let settlement = |(answer, hold): (SettleAnswer, &Hold)| {
            hold.scope().wake_waiters(hold.key());
            hold.settlement(HoldSettlement::new(answer, hold.scope(), hold.key()))
        };
        answers.into_iter().zip(holds).map(settlement).collect()
    }

    fn extend_in_memory(&self, memory: &[usize], growths: &[HoldGrowth]) -> Vec<HoldExtension> {
        let Some((backend, now_us)) = self.memory(memory) else { return Vec::new() };
        let answers = backend.memory.extend_all(&self.memory_parts(memory, growths), now_us);
        let holds = memory.iter().map(|&index| &self.holds[index]);
        answers.into_iter().zip(holds).map(|(answer, hold)| hold.extension(answer)).collect()
    }
}

/// The indices of holds, by where their units are set aside.
#[derive(Default)]
struct HoldPlaces {
    memory: Vec<usize>,
    nowhere: Vec<usize>,
    remote: Vec<usize>,
}

/// Whether both are holds of one key under one name.
fn is_same_key(one: &Hold, other: &Hold) -> bool {
    let number = |hold: &Hold| hold.scope().registered_name().number();
    number(one) == number(other) && one.key() == other.key()
}

/// Returns the answer for a hold that was not extended because another hold of its request could not be.
fn refused_for_another(hold: &Hold) -> HoldExtension {
    hold.extension(ExtendAnswer { decision: hold.unspent(), extension: Extension::Refused })
}

fn joined(extended: Vec<Option<HoldExtension>>) -> Result<JointExtension, Error> {
    // OK because a store returns one answer for each part.
    let each: Option<Vec<HoldExtension>> = extended.into_iter().collect();
    each.map(JointExtension::new).ok_or(Error::AnswerTaken)
}
