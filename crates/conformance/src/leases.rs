//! Leases: holds from which a process takes units without asking the store.
//!
//! For stores that have leases: [`lease_suite!`](crate::lease_suite) runs these.

use std::time::Duration;

use proptest::prelude::*;
use tollgate_core::{
    Cost, EndedHold, HoldId, HoldReference, HoldTime, HoldUse, Holds, LeaseAnswer, LeaseRequest,
    LeaseState, Limit, MAX_HOLDS, Reservation, Settlement, State, UnitRequest,
};
use tollgate_limiter::{Limiter, ManualClock, Scope};

use crate::any;
use crate::store::{Make, S, START_US, block_on, cases, named, open, scope};

/// The algorithms that can have leases, each with room for 100.
const LIMITS: [&str; 5] = [
    "fixed-window limit=100 window=1m",
    "sliding-window-log limit=100 window=1m",
    "sliding-window-counter limit=100 window=1m",
    "token-bucket capacity=100 refill=1/s",
    "leaky-bucket capacity=100 leak=1/s mode=policing",
];

const SECOND: Duration = Duration::from_secs(1);

/// A request to open lease `number` with `want` units for a second.
fn request(number: u64, want: u64) -> LeaseRequest {
    LeaseRequest {
        id: HoldId::of_lease(number),
        expires_us: None,
        used: 0,
        need: None,
        want,
        most: u64::MAX,
        lease_for: HoldTime::from_us(S).unwrap(),
    }
}

/// A request to renew that lease, which was last granted until `expires_us`.
fn renewal(number: u64, expires_us: u64, used: u64) -> LeaseRequest {
    LeaseRequest { expires_us: Some(expires_us), used, ..request(number, 0) }
}

fn needing(units: u64, request: LeaseRequest) -> LeaseRequest {
    LeaseRequest { need: Some(Cost::new(units).unwrap()), ..request }
}

async fn lease(scope: &Scope, request: LeaseRequest) -> LeaseAnswer {
    scope.lease_on_store("a", request).await.unwrap()
}

/// Returns the unused units, the expiry after [`START_US`], and the number of leases; nothing without a lease.
fn opened(answer: &LeaseAnswer) -> Option<(u64, u64, u32)> {
    match answer.lease {
        LeaseState::Open { unused, expires_us, holders, .. } => {
            Some((unused, expires_us - START_US, holders))
        }
        _ => None,
    }
}

async fn remaining(scope: &Scope) -> u64 {
    scope.peek("a").await.unwrap().remaining()
}

/// Ends a lease, and returns the units that are charged; `None` if it had ended.
async fn end(scope: &Scope, number: u64, expires_us: u64, used: u64) -> Option<u64> {
    let reference = HoldReference { id: HoldId::of_lease(number), expires_us };
    let settled = scope.hold("a", reference).unwrap().settle(used).await.unwrap();
    settled.ended().is_none().then(|| settled.charged_units())
}

pub async fn lease_takes_units_and_its_use_is_charged(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        let answer = lease(&scope, request(1, 30)).await;
        assert_eq!(opened(&answer), Some((30, S, 1)), "{text}");
        assert!(matches!(answer.lease, LeaseState::Open { lasts_us: S, .. }), "{text}");
        assert_eq!((answer.decision.remaining, answer.receipt), (70, None), "{text}");
        assert!(!scope.check("a").cost(71).await.unwrap().is_allowed(), "{text}");
        clock.set_us(START_US + S / 2);
        let renewed =
            lease(&scope, LeaseRequest { want: 25, ..renewal(1, START_US + S, 10) }).await;
        assert_eq!(opened(&renewed), Some((25, 3 * S / 2, 1)), "{text}");
        assert_eq!(renewed.decision.remaining, 65, "{text}");
        assert_eq!(end(&scope, 1, START_US + 3 * S / 2, 15).await, Some(5), "{text}");
        assert_eq!(remaining(&scope).await, 85, "{text}");
    }
}

pub async fn request_for_a_lease_sent_twice_charges_nothing_twice(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let start = LeaseRequest { want: 30, ..request(1, 30) };
        assert_eq!(opened(&lease(&scope, start).await), Some((30, S, 1)), "{text}");
        // The answer was lost, and the process sends the request again.
        assert_eq!(opened(&lease(&scope, start).await), Some((30, S, 1)), "{text}");
        assert_eq!(remaining(&scope).await, 70, "{text}");
        // Lost, repeated and late renewals: each has the sum of what was used.
        for (used, unused) in [(5, 25), (5, 25), (12, 18), (5, 18), (12, 18)] {
            let answer = lease(&scope, renewal(1, START_US + S, used)).await;
            assert_eq!(opened(&answer), Some((unused, S, 1)), "{text}: {used}");
            assert_eq!(remaining(&scope).await, 70, "{text}: {used}");
        }
        assert_eq!(end(&scope, 1, START_US + S, 12).await, Some(0), "{text}");
        assert_eq!(remaining(&scope).await, 88, "{text}");
    }
}

pub async fn check_that_waits_for_a_lease_is_charged_beside_it(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        let answer = lease(&scope, needing(4, request(1, 30))).await;
        assert_eq!(opened(&answer), Some((30, S, 1)), "{text}");
        assert!(answer.decision.is_allowed() && answer.decision.remaining == 66, "{text}");
        let receipt = answer.receipt.unwrap();
        assert_eq!(receipt.cost().units(), 4, "{text}");
        let receipt = scope.receipt("a", receipt.cost(), receipt.place()).unwrap();
        assert_eq!(scope.refund("a", receipt).await, Ok(4), "{text}");
        // A check that is refused leaves the lease as it is, but for its expiry and what was used.
        let more = LeaseRequest { want: 50, ..renewal(1, START_US + S, 10) };
        let refused = lease(&scope, needing(71, more)).await;
        assert_eq!(opened(&refused), Some((20, S, 1)), "{text}");
        assert_eq!((refused.decision.is_allowed(), refused.receipt), (false, None), "{text}");
        assert!(refused.decision.retry_after_us().is_some_and(|us| us > 0), "{text}");
        assert_eq!(remaining(&scope).await, 70, "{text}");
        // Without a lease a refusal opens none.
        let refused = lease(&scope, needing(71, request(2, 5))).await;
        assert_eq!((refused.lease, refused.decision.is_allowed()), (LeaseState::None, false));
        assert_eq!(scope.state("a").await.unwrap().holds.len(), 1, "{text}");
    }
}

pub async fn expired_lease_is_charged_in_full_and_not_renewed(make: Make) {
    for text in LIMITS {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        assert!(opened(&lease(&scope, request(1, 30)).await).is_some(), "{text}");
        clock.set_us(START_US + S - 1);
        assert!(opened(&lease(&scope, renewal(1, START_US + S, 4)).await).is_some(), "{text}");
        clock.set_us(START_US + 2 * S - 1);
        let late = lease(&scope, needing(2, renewal(1, START_US + 2 * S - 1, 9))).await;
        assert_eq!(late.lease, LeaseState::Ended(EndedHold::Expired), "{text}");
        // The check is decided all the same. A bucket has leaked some of what was charged.
        assert!(late.decision.is_allowed() && late.receipt.is_some(), "{text}");
        assert!((68..=70).contains(&remaining(&scope).await), "{text}");
        assert_eq!(end(&scope, 1, START_US + 2 * S - 1, 9).await, None, "{text}");
        // Without a check the answer says that the renewal was refused.
        let late = lease(&scope, renewal(1, START_US + 2 * S - 1, 9)).await;
        assert_eq!(late.lease, LeaseState::Ended(EndedHold::Expired), "{text}");
        assert!(!late.decision.is_allowed() && late.decision.retry_after_us().is_none(), "{text}");
    }
}

pub async fn lease_that_was_settled_or_reset_is_unknown(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        for is_reset in [false, true] {
            assert!(opened(&lease(&scope, request(1, 30)).await).is_some(), "{text}");
            match is_reset {
                false => assert_eq!(end(&scope, 1, START_US + S, 0).await, Some(0), "{text}"),
                true => scope.reset("a").await.unwrap(),
            }
            let late = lease(&scope, needing(1, renewal(1, START_US + S, 9))).await;
            assert_eq!(late.lease, LeaseState::Ended(EndedHold::Unknown), "{text}");
            assert_eq!(late.decision.remaining, 99, "{text}");
            scope.reset("a").await.unwrap();
        }
    }
}

pub async fn lease_of_a_window_ends_with_the_window(make: Make) {
    for text in LIMITS.iter().filter(|text| text.contains("fixed") || text.contains("counter")) {
        let (clock, limiter) = open(make);
        let scope = scope(&limiter, text);
        clock.set_us(START_US + 60 * S - 10);
        let answer = lease(&scope, request(1, 30)).await;
        assert_eq!(opened(&answer), Some((30, 60 * S - 1, 1)), "{text}");
        assert!(matches!(answer.lease, LeaseState::Open { lasts_us: 9, .. }), "{text}");
        clock.set_us(START_US + 60 * S - 1);
        let late = lease(&scope, renewal(1, START_US + 60 * S - 1, 30)).await;
        assert_eq!(late.lease, LeaseState::Ended(EndedHold::Expired), "{text}");
        assert_eq!(lease(&scope, request(2, 30)).await.lease, LeaseState::None, "{text}");
        clock.set_us(START_US + 60 * S);
        assert!(opened(&lease(&scope, request(3, 30)).await).is_some(), "{text}");
    }
}

pub async fn leases_of_a_key_share_half_of_what_remains(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        assert_eq!(opened(&lease(&scope, request(1, 90)).await), Some((50, S, 1)), "{text}");
        // A hold that is no lease takes units, but is no holder.
        let hold = scope.reserve("a").cost(10).hold_for(SECOND).await.unwrap().into_hold().unwrap();
        assert_eq!(opened(&lease(&scope, request(2, 90)).await), Some((10, S, 2)), "{text}");
        let few = LeaseRequest { most: 3, ..request(3, 90) };
        assert_eq!(opened(&lease(&scope, few).await), Some((3, S, 3)), "{text}");
        assert_eq!(remaining(&scope).await, 27, "{text}");
        hold.release().await.unwrap();
        // The last unit is never leased.
        assert!(scope.check("a").cost(36).await.unwrap().is_allowed(), "{text}");
        assert_eq!(lease(&scope, request(4, 90)).await.lease, LeaseState::None, "{text}");
        assert_eq!(remaining(&scope).await, 1, "{text}");
    }
}

pub async fn use_beyond_a_lease_is_charged_as_excess(make: Make) {
    for text in LIMITS {
        let (_, limiter) = open(make);
        let scope = scope(&limiter, text);
        assert!(opened(&lease(&scope, request(1, 30)).await).is_some(), "{text}");
        let answer = lease(&scope, renewal(1, START_US + S, 45)).await;
        assert_eq!(opened(&answer), Some((0, S, 1)), "{text}");
        assert_eq!(remaining(&scope).await, 55, "{text}");
        // At most one whole limit.
        assert!(opened(&lease(&scope, renewal(1, START_US + S, 1_000)).await).is_some(), "{text}");
        assert_eq!(remaining(&scope).await, 0, "{text}");
    }
}

pub async fn key_with_the_most_holds_gets_no_lease(make: Make) {
    let (_, limiter) = open(make);
    let scope = scope(&limiter, "fixed-window limit=90000 window=1m");
    for nth in 1..=MAX_HOLDS as u64 {
        assert!(opened(&lease(&scope, request(nth, 1)).await).is_some(), "{nth}");
    }
    let answer = lease(&scope, needing(1, request(5_000, 10))).await;
    assert_eq!((answer.lease, answer.decision.is_allowed()), (LeaseState::None, true));
    // One of them can still be renewed, and grows.
    let grown = lease(&scope, LeaseRequest { want: 9, ..renewal(7, START_US + S, 1) }).await;
    assert_eq!(opened(&grown), Some((9, S, MAX_HOLDS as u32)));
    assert_eq!(end(&scope, 8, START_US + S, 1).await, Some(1));
    assert!(opened(&lease(&scope, request(5_000, 10)).await).is_some());
}

pub async fn open_leases_stay_valid_when_the_limit_changes(make: Make) {
    for text in LIMITS {
        for other in LIMITS {
            let (_, limiter) = open(make);
            let before = named(&limiter, "changing", text);
            assert!(opened(&lease(&before, request(1, 30)).await).is_some(), "{text}");
            let larger = other.replace("=100 ", "=200 ");
            let after = named(&limiter, "changing", &larger);
            let more = LeaseRequest { want: 60, ..renewal(1, START_US + S, 10) };
            let answer = lease(&after, needing(5, more)).await;
            assert_eq!(opened(&answer), Some((60, S, 1)), "{text} to {larger}");
            let (limit, left) = (answer.decision.limit, answer.decision.remaining);
            assert_eq!((limit, left), (200, 125), "{text} to {larger}");
            assert_eq!(end(&after, 1, START_US + S, 20).await, Some(10), "{text} to {larger}");
            assert_eq!(remaining(&after).await, 175, "{text} to {larger}");
        }
    }
}

/// A key that has units held under a concurrency limit stays under it for as long as they do not fit the other limit.
pub async fn key_under_an_old_limit_without_leases_gets_none(make: Make) {
    let (_, limiter) = open(make);
    let old = named(&limiter, "changing", "concurrency limit=100 for=1m");
    let hold = old.reserve("a").cost(90).await.unwrap().into_hold().unwrap();
    let scope = named(&limiter, "changing", "fixed-window limit=50 window=1m");
    let refused = lease(&scope, needing(1, request(1, 30))).await;
    assert_eq!((refused.lease, refused.decision.is_allowed()), (LeaseState::None, false));
    let peeked = lease(&scope, request(1, 30)).await;
    assert_eq!((peeked.lease, peeked.decision.is_allowed()), (LeaseState::None, true));
    let ended = lease(&scope, renewal(1, START_US + S, 3)).await;
    assert_eq!(ended.lease, LeaseState::Ended(EndedHold::Unknown));
    assert!(!ended.decision.is_allowed());
    hold.release().await.unwrap();
    assert!(opened(&lease(&scope, request(1, 30)).await).is_some());
}

/// The request of one step of a random trace.
#[derive(Clone, Debug)]
enum LeaseAct {
    Check,
    Reserve,
    /// Opens a lease, or renews an earlier one (`renews`). `needs`: whether a check waits for the answer.
    Lease {
        renews: Option<prop::sample::Index>,
        is_repeated: bool,
        needs: bool,
        used: u64,
    },
    /// Ends one of the leases.
    End(prop::sample::Index, u64),
}

fn act() -> impl Strategy<Value = LeaseAct> {
    let index = any::<prop::sample::Index>;
    let renews = prop::option::weighted(0.7, index());
    let lease = (renews, prop::bool::weighted(0.2), any::<bool>(), 0..1_500_u64);
    let lease = lease.prop_map(|(renews, is_repeated, needs, used)| LeaseAct::Lease {
        renews,
        is_repeated,
        needs,
        used,
    });
    prop_oneof![
        2 => Just(LeaseAct::Check),
        1 => Just(LeaseAct::Reserve),
        5 => lease,
        1 => (index(), 0..1_500_u64).prop_map(|(which, used)| LeaseAct::End(which, used)),
    ]
}

/// A key of the store, and the same key as the algorithm keeps it.
struct LeaseTrace {
    clock: ManualClock,
    _limiter: Limiter,
    scope: Scope,
    limit: Limit,
    state: State,
    holds: Holds,
    /// Every lease, and the last expiry that was granted.
    leases: Vec<(HoldId, Option<u64>)>,
    now_us: u64,
}

impl LeaseTrace {
    fn new(make: Make, limit: Limit) -> LeaseTrace {
        let (clock, limiter) = open(make);
        let scope = limiter.scope("leased", limit).unwrap();
        let (state, holds) = (limit.fresh(), Holds::default());
        let (now_us, leases) = (START_US, Vec::new());
        LeaseTrace { clock, _limiter: limiter, scope, limit, state, holds, leases, now_us }
    }

    /// Moves the clock by thousandths of the limit's interval.
    fn tick(&mut self, part: u64) {
        let interval_us = u128::from(self.limit.bound().interval_us);
        // Not near the end of time, where the times in receipts round.
        let by_us = (interval_us * u128::from(part) / 1_000).min(1 << 44) as u64;
        self.now_us = (self.now_us + by_us).min(1 << 52);
        self.clock.set_us(self.now_us);
    }

    /// Thousandths of the units that a lease has had.
    fn used(&self, id: HoldId, part: u64) -> u64 {
        let open = self.holds.iter().find(|open| open.id == id);
        let had = open.map_or(3, |open| open.units.saturating_add(open.used));
        (u128::from(had) * u128::from(part) / 1_000).min(1 << 53) as u64
    }

    async fn act(&mut self, act: &LeaseAct, units: u64) -> Result<(), TestCaseError> {
        let (now_us, cost) = (self.now_us, Cost::new(units).unwrap());
        match act {
            LeaseAct::Check => {
                let own = self.scope.check("a").cost(units).await.unwrap();
                let (state, holds) = (&mut self.state, &mut self.holds);
                let request = UnitRequest::new(cost);
                let checked = self.limit.check_beside(state, holds, now_us, request);
                prop_assert_eq!(own.decided(), &checked.decision);
            }
            LeaseAct::Reserve => {
                let reserved = self.scope.reserve("a").cost(units).hold_for(SECOND);
                let (decision, hold) = reserved.await.unwrap().into_parts();
                let id = hold.as_ref().map_or(HoldId(0), |hold| hold.reference().id);
                let hold_for = HoldTime::from_us(S).unwrap();
                let reservation = Reservation { id, cost, hold_for };
                let (state, holds) = (&mut self.state, &mut self.holds);
                let answer = self.limit.reserve(state, holds, now_us, reservation).unwrap();
                prop_assert_eq!(decision.decided(), &answer.decision);
                prop_assert_eq!(hold.map(|hold| hold.into_reference()), answer.hold);
            }
            LeaseAct::Lease { renews, is_repeated, needs, used } => {
                let index = match renews {
                    Some(which) if !self.leases.is_empty() => which.index(self.leases.len()),
                    _ => {
                        self.leases.push((HoldId::of_lease(self.leases.len() as u64), None));
                        self.leases.len() - 1
                    }
                };
                let (id, granted_us) = self.leases[index];
                let request = LeaseRequest {
                    id,
                    expires_us: granted_us.filter(|_| !is_repeated),
                    used: self.used(id, *used),
                    need: needs.then_some(cost),
                    want: 3 * units,
                    most: 2 * units + self.limit.size() / 3,
                    lease_for: HoldTime::from_us(S + units % 1_000).unwrap(),
                };
                let own = self.scope.lease_on_store("a", request).await.unwrap();
                let (state, holds) = (&mut self.state, &mut self.holds);
                let answer = self.limit.lease(state, holds, now_us, request).unwrap();
                prop_assert_eq!(&own, &answer, "{:?}", request);
                if let LeaseState::Open { expires_us, .. } = answer.lease {
                    self.leases[index].1 = Some(expires_us);
                }
            }
            LeaseAct::End(which, used) => {
                let Some((id, Some(expires_us))) =
                    (!self.leases.is_empty()).then(|| self.leases[which.index(self.leases.len())])
                else {
                    return Ok(());
                };
                let (hold, units) = (HoldReference { id, expires_us }, self.used(id, *used));
                let own = self.scope.hold("a", hold).unwrap().settle(units).await.unwrap();
                let (state, holds) = (&mut self.state, &mut self.holds);
                let used = HoldUse { units, is_last: true };
                let answer = self.limit.settle_hold(state, holds, now_us, hold, used);
                prop_assert_eq!(own.decided(), &answer.decision);
                let ended = match answer.settlement {
                    Settlement::Ended(ended) => Some(ended),
                    Settlement::Done { .. } => None,
                };
                prop_assert_eq!(own.ended(), ended);
            }
        }
        Ok(())
    }
}

/// On a clock that only moves forward, so that a forgotten key cannot be told from a whole one.
pub fn every_request_for_a_lease_is_the_algorithms_own(make: Make) {
    let limit =
        any::holding_limit().prop_filter("can be leased", |limit| limit.can_lease().is_ok());
    let tick = prop_oneof![3 => Just(0_u64), 3 => 0..50_u64, 1 => 0..1_500_u64];
    let units = prop_oneof![3 => 1..4_u64, 2 => 1..1_000_u64];
    let steps = prop::collection::vec((tick, act(), units, any::<bool>()), 1..60);
    proptest!(cases(128), |(limit in limit, steps in steps)| {
        let mut trace = LeaseTrace::new(make, limit);
        for (tick, act, units, is_part) in steps {
            trace.tick(tick);
            let part = (u128::from(limit.size()) * u128::from(units) / 4_000).max(1) as u64;
            block_on(trace.act(&act, if is_part { part } else { units }))?;
        }
    });
}
