//! Settlements and extensions of holds, wherever their units are set aside: on the store, on this process's share of a
//! limit, or nowhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{
    Cost, ExtendAnswer, GrantedExtension, HoldGrowth, HoldReference, HoldUse, SettleAnswer,
    UnitRequest,
};

use super::{Hold, HoldSource};
use crate::answer::Answer;
use crate::error::Error;
use crate::hold_answers::{HoldExtension, HoldSettlement};
use crate::scope::{RemoteScope, Scope, ScopeBackend};
use crate::store::memory::{HoldPart, MemoryBackend};
use crate::store::{Call, ExtendRequest, SettleRequest, Wake};

/// Charges what was used of each hold. A store across the network has at least `least_deadline` for it.
pub(crate) fn settle(
    holds: &[Hold],
    uses: &[HoldUse],
    least_deadline: Duration,
) -> Answer<Vec<HoldSettlement>> {
    let HoldPlaces { memory, nowhere, remote } = HoldPlaces::of(holds);
    let mut settled: Vec<Option<HoldSettlement>> = holds.iter().map(|_| None).collect();
    for (&index, own) in memory.iter().zip(settle_in_memory(holds, &memory, uses)) {
        settled[index] = Some(own);
    }
    for index in nowhere {
        settled[index] = Some(holds[index].settle_nowhere());
    }
    let Some(first) = remote_scope(holds, &remote) else {
        return Answer::ready(complete(settled));
    };
    let part =
        |(index, scope): (usize, &RemoteScope)| holds[index].settle_part_of(scope, uses[index]);
    let parts = remote_scopes(holds, &remote).map(part).collect();
    let call = call(holds, first, &remote);
    let call = Call { deadline: call.deadline.max(least_deadline), ..call };
    let wake = wake(holds, &remote);
    let answer = first.remote.store.settle(SettleRequest { parts, call, wake });
    let keys: Vec<(Scope, Vec<u8>)> = remote
        .iter()
        .map(|&index| (holds[index].scope().clone(), holds[index].key().to_vec()))
        .collect();
    answer.then(move |answers| {
        for ((&index, answer), (scope, key)) in remote.iter().zip(answers?).zip(&keys) {
            settled[index] = Some(HoldSettlement::new(answer, scope, key));
        }
        complete(settled)
    })
}

/// Charges what was used of the holds at these indices, which are in memory.
pub(crate) fn settle_in_memory(
    holds: &[Hold],
    memory: &[usize],
    uses: &[HoldUse],
) -> Vec<HoldSettlement> {
    let Some((backend, now_us)) = memory_of(holds, memory) else { return Vec::new() };
    let answers = backend.memory.settle_all(&memory_parts(holds, memory, uses), now_us);
    let settlement = |(answer, &index): (SettleAnswer, &usize)| {
        let hold = &holds[index];
        hold.scope().wake_waiters(hold.key());
        hold.settlement(HoldSettlement::new(answer, hold.scope(), hold.key()))
    };
    answers.into_iter().zip(memory).map(settlement).collect()
}

/// Extends all holds, or none.
///
/// Holds on this process's share of a limit are extended first: if their units do not fit, nothing is sent. If the store
/// then refuses or fails, these extensions are taken back. A request has holds on both only if one of several servers failed.
pub(crate) fn extend(holds: &[Hold], growths: &[HoldGrowth]) -> Answer<Vec<HoldExtension>> {
    let HoldPlaces { memory, nowhere, remote } = HoldPlaces::of(holds);
    let mut extended: Vec<Option<HoldExtension>> = holds.iter().map(|_| None).collect();
    let before: Vec<HoldReference> = memory.iter().map(|&at| holds[at].reference()).collect();
    let own = extend_in_memory(holds, &memory, growths);
    let is_granted = own.iter().all(HoldExtension::is_granted);
    let shares: Vec<ShareExtension> = memory
        .iter()
        .zip(before)
        .map(|(&index, before)| ShareExtension::new(holds, index, before, growths[index]))
        .collect();
    memory.iter().zip(own).for_each(|(&index, own)| extended[index] = Some(own));
    let unheld: Vec<UnheldExtension> =
        nowhere.iter().map(|&index| UnheldExtension::new(holds, index, growths[index])).collect();
    let first = match remote_scope(holds, &remote) {
        Some(first) if is_granted => first,
        _ => {
            unheld.iter().for_each(|own| extended[own.index] = Some(own.answer(is_granted)));
            for index in remote {
                let refused = ExtendAnswer::refused_for_another(holds[index].unspent());
                extended[index] = Some(holds[index].extension(refused));
            }
            return Answer::ready(complete(extended));
        }
    };
    let part =
        |(index, scope): (usize, &RemoteScope)| holds[index].extend_part(scope, growths[index]);
    let parts = remote_scopes(holds, &remote).map(part).collect();
    let call = call(holds, first, &remote);
    let answer = first.remote.store.extend(ExtendRequest { parts, call });
    let expiries: Vec<Arc<AtomicU64>> =
        remote.iter().map(|&index| holds[index].shared_expiry()).collect();
    answer.then(move |answers| {
        let is_granted = answers.as_ref().is_ok_and(|all| all.iter().all(ExtendAnswer::is_granted));
        if !is_granted {
            shares.iter().for_each(|own| extended[own.index] = own.take_back());
        }
        for ((&index, answer), expiry) in remote.iter().zip(answers?).zip(&expiries) {
            extended[index] = Some(HoldExtension::new(answer, expiry));
        }
        unheld.iter().for_each(|own| extended[own.index] = Some(own.answer(is_granted)));
        complete(extended)
    })
}

/// Extends the holds at these indices, which are in memory: all or none.
pub(crate) fn extend_in_memory(
    holds: &[Hold],
    memory: &[usize],
    growths: &[HoldGrowth],
) -> Vec<HoldExtension> {
    let Some((backend, now_us)) = memory_of(holds, memory) else { return Vec::new() };
    let answers = backend.memory.extend_all(&memory_parts(holds, memory, growths), now_us);
    answers.into_iter().zip(memory).map(|(answer, &index)| holds[index].extension(answer)).collect()
}

/// An extension on this process's share of a limit, until the store has answered.
struct ShareExtension {
    index: usize,
    scope: Scope,
    key: Box<[u8]>,
    at_us: Option<u64>,
    extended: GrantedExtension,
    expires_us: Arc<AtomicU64>,
}

impl ShareExtension {
    /// Notes an extension that was made: the hold has its new expiry already.
    fn new(holds: &[Hold], index: usize, before: HoldReference, growth: HoldGrowth) -> Self {
        let hold = &holds[index];
        let (more, expires_us) = (growth.more, hold.expires_at_us());
        ShareExtension {
            index,
            scope: hold.scope().clone(),
            key: hold.key().into(),
            at_us: hold.given_at_us(),
            extended: GrantedExtension { hold: before, more, expires_us },
            expires_us: hold.shared_expiry(),
        }
    }

    /// Takes the extension back, and returns the answer for the hold.
    fn take_back(&self) -> Option<HoldExtension> {
        let (backend, scope) = self.scope.local().ok()?;
        let now_us = self.at_us.unwrap_or_else(|| backend.clock.now_us());
        backend.memory.take_back(scope, &self.key, now_us, self.extended);
        let GrantedExtension { hold, more, expires_us } = self.extended;
        // It fails if the hold was extended again meanwhile: then the later expiry stays.
        let _ = self.expires_us.compare_exchange(
            expires_us,
            hold.expires_us,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        let request = UnitRequest::new(more.unwrap_or(Cost::ONE));
        let peeked = backend.memory.peek(scope, &self.key, now_us, request);
        Some(HoldExtension::new(ExtendAnswer::refused_for_another(peeked), &self.expires_us))
    }
}

/// An extension of a hold whose units are set aside nowhere, until the store has answered for the other holds.
struct UnheldExtension {
    index: usize,
    granted: ExtendAnswer,
    expires_us: Arc<AtomicU64>,
}

impl UnheldExtension {
    fn new(holds: &[Hold], index: usize, growth: HoldGrowth) -> UnheldExtension {
        let hold = &holds[index];
        let (granted, expires_us) = (hold.extended_nowhere(growth), hold.shared_expiry());
        UnheldExtension { index, granted, expires_us }
    }

    fn answer(&self, is_granted: bool) -> HoldExtension {
        let answer = match is_granted {
            true => self.granted,
            false => ExtendAnswer::refused_for_another(self.granted.decision),
        };
        HoldExtension::new(answer, &self.expires_us)
    }
}

/// The indices of holds, by where their units are set aside.
#[derive(Default)]
struct HoldPlaces {
    memory: Vec<usize>,
    nowhere: Vec<usize>,
    remote: Vec<usize>,
}

impl HoldPlaces {
    fn of(holds: &[Hold]) -> HoldPlaces {
        let mut places = HoldPlaces::default();
        for (index, hold) in holds.iter().enumerate() {
            let of_place = match (hold.source(), hold.scope().backend()) {
                (HoldSource::Nowhere, _) => &mut places.nowhere,
                (_, ScopeBackend::Memory { .. }) => &mut places.memory,
                (_, ScopeBackend::Remote(_)) => &mut places.remote,
            };
            of_place.push(index);
        }
        places
    }
}

fn scope_of(hold: &Hold) -> Option<&RemoteScope> {
    match hold.scope().backend() {
        ScopeBackend::Remote(scope) => Some(scope),
        ScopeBackend::Memory { .. } => None,
    }
}

fn remote_scope<'h>(holds: &'h [Hold], remote: &[usize]) -> Option<&'h RemoteScope> {
    scope_of(&holds[*remote.first()?])
}

/// Returns the index and the scope of each of these holds, which are on a store across the network.
fn remote_scopes<'h>(
    holds: &'h [Hold],
    remote: &[usize],
) -> impl Iterator<Item = (usize, &'h RemoteScope)> {
    remote.iter().filter_map(|&index| Some((index, scope_of(&holds[index])?)))
}

/// Returns the time of a request on these holds, and the shortest of their deadlines.
fn call(holds: &[Hold], first: &RemoteScope, remote: &[usize]) -> Call {
    let calls = remote_scopes(holds, remote).map(|(index, scope)| holds[index].call(scope));
    calls.min_by_key(|call| call.deadline).unwrap_or_else(|| first.call())
}

/// Returns a function that wakes the waiters of the keys of these holds.
fn wake(holds: &[Hold], remote: &[usize]) -> Wake {
    let mut wakes: Vec<Wake> =
        remote.iter().map(|&index| holds[index].scope().wake(holds[index].key())).collect();
    match wakes.len() {
        1 => wakes.remove(0),
        _ => Arc::new(move || wakes.iter().for_each(|wake| wake())),
    }
}

/// Returns the memory that these holds are in. All are in the same: the limiter's, or its share of the limits.
fn memory_of<'h>(holds: &'h [Hold], memory: &[usize]) -> Option<(&'h MemoryBackend, u64)> {
    let hold = &holds[*memory.first()?];
    let (backend, _) = hold.scope().local().ok()?;
    Some((backend, hold.now_us(|| backend.clock.now_us())))
}

/// Returns these holds, each with what is to be done with it.
fn memory_parts<'h, T: Copy>(
    holds: &'h [Hold],
    memory: &[usize],
    of_all: &[T],
) -> Vec<(HoldPart<'h>, T)> {
    let part = |&index: &usize| {
        let hold = &holds[index];
        let (_, scope) = hold.scope().local().ok()?;
        Some((HoldPart { scope, key: hold.key(), hold: hold.reference() }, of_all[index]))
    };
    memory.iter().filter_map(part).collect()
}

fn complete<T>(answers: Vec<Option<T>>) -> Result<Vec<T>, Error> {
    // OK because a store returns one answer for each part.
    answers.into_iter().collect::<Option<_>>().ok_or(Error::AnswerTaken)
}
