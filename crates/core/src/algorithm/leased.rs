//! Leases: holds from which a process takes units without asking the store.

use super::MAX_TIME_US;
use super::held::{self, BesideHolds, decision_after, decision_on_ended, expiry_us, find, look};
use crate::decision::CheckResult;
use crate::holds::{EndedHold, HoldId, HoldReference, HoldUse, Holds, MAX_HOLDS, OpenHold};
use crate::lease::{LeaseAnswer, LeaseRequest, LeaseState};

/// Opens or renews a lease, and decides the check that waits.
///
/// The check comes before the growth of the lease, and a refused check leaves the lease as it is: units that the lease
/// took then would make the check wait longer than its answer says.
pub(crate) fn lease<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    request: LeaseRequest,
) -> LeaseAnswer {
    held::restart_clock(limit, state, holds, now_us);
    let renewed = renew(limit, state, holds, now_us, &request);
    let checked = request.need.map(|cost| held::check(limit, state, holds, now_us, cost));
    let is_refused = checked.as_ref().is_some_and(|checked| !checked.decision.is_allowed());
    let lease = match renewed {
        Err(ended) => LeaseState::Ended(ended),
        Ok(()) if is_refused => standing(limit, state, holds, now_us, request.id),
        Ok(()) => grow(limit, state, holds, now_us, &request),
    };
    let (decision, receipt) = match checked {
        Some(CheckResult { decision, .. }) if is_refused => (decision, None),
        Some(CheckResult { receipt, .. }) => (decision_after(limit, state, holds, now_us), receipt),
        None if renewed.is_err() => (decision_on_ended(limit, state, holds, now_us), None),
        None => (decision_after(limit, state, holds, now_us), None),
    };
    LeaseAnswer { decision, receipt, lease }
}

/// Charges what was taken from an open lease, and moves its expiry. Returns an error if the request is a renewal and
/// the lease has ended.
fn renew<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    request: &LeaseRequest,
) -> Result<(), EndedHold> {
    // Without an expiry that was granted before, only a lease that is listed can have expired.
    let expires_us = request.expires_us.unwrap_or(MAX_TIME_US + 1);
    let reference = HoldReference { id: request.id, expires_us };
    match find(limit, state, holds, now_us, reference) {
        Err(EndedHold::Unknown) if request.expires_us.is_none() => return Ok(()),
        Err(ended) => return Err(ended),
        Ok(_) => {}
    }
    let used = HoldUse { units: request.used, is_last: false };
    held::settle(limit, state, holds, now_us, reference, used);
    let at_us = held::bring_up(limit, state, holds, now_us);
    if let Some(open) = holds.remove(request.id) {
        let until_us = until_us(limit, at_us, request);
        // The process may count on the expiry that was granted before.
        holds.insert(OpenHold { expires_us: until_us.max(open.expires_us), ..open });
    }
    Ok(())
}

/// Adds units to the lease, or opens it. At most half of what remains, divided among the leases of the key, is leased,
/// so that the last units are decided one by one.
fn grow<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    request: &LeaseRequest,
) -> LeaseState {
    let leased = holds.get(request.id).copied();
    let unused = leased.map_or(0, |open| open.units);
    let (remaining, leases, has_place) = look(limit, state, holds, now_us, |view| {
        let leases = view.open.iter().filter(|hold| hold.id.is_lease()).count() as u64;
        (view.leasable(), leases, view.open.len() < MAX_HOLDS)
    });
    // At least 1, also for an id without the lease bit.
    let leases = (leases + u64::from(leased.is_none())).max(1);
    let wanted = request.want.min(request.most).saturating_sub(unused);
    let more = wanted.min(remaining / (2 * leases));
    if more > 0 && (leased.is_some() || has_place) {
        add(limit, state, holds, now_us, request, more);
    }
    standing(limit, state, holds, now_us, request.id)
}

/// Adds units that fit to the lease, or opens it with them.
fn add<A: BesideHolds>(
    limit: &A,
    state: &mut A::State,
    holds: &mut Holds,
    now_us: u64,
    request: &LeaseRequest,
    more: u64,
) {
    if let Some(open) = holds.remove(request.id) {
        holds.insert(OpenHold { units: open.units + more, ..open });
        return;
    }
    // A refusal must leave no trace, so the key is brought up only if the lease is opened.
    let at_us = look(limit, state, holds, now_us, |view| view.at_us);
    let expires_us = until_us(limit, at_us, request);
    if expires_us > at_us {
        held::bring_up(limit, state, holds, now_us);
        holds.insert(OpenHold { id: request.id, units: more, expires_us, used: 0 });
    }
}

/// The expiry of a lease that is taken or renewed at `at_us`.
fn until_us<A: BesideHolds>(limit: &A, at_us: u64, request: &LeaseRequest) -> u64 {
    expiry_us(at_us, request.lease_for).min(limit.lease_ends_us(at_us))
}

/// The lease as it is after the request.
fn standing<A: BesideHolds>(
    limit: &A,
    state: &A::State,
    holds: &Holds,
    now_us: u64,
    id: HoldId,
) -> LeaseState {
    look(limit, state, holds, now_us, |view| {
        let Some(open) = view.open.iter().find(|hold| hold.id == id) else {
            return LeaseState::None;
        };
        let leases = view.open.iter().filter(|hold| hold.id.is_lease()).count();
        LeaseState::Open {
            unused: open.units,
            expires_us: open.expires_us,
            lasts_us: open.expires_us - view.at_us,
            // OK because a key has at most 1,024 holds.
            holders: leases as u32,
        }
    })
}
