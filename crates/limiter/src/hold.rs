//! Holds: units of a key that are set aside, and settled when it is known how many were used.

use std::future::IntoFuture;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tollgate_core::{
    Cost, CostError, EndedHold, ExtendAnswer, Extension, HoldError, HoldGrowth, HoldId,
    HoldReference, HoldTime, HoldUse, LimitDecision, Reservation, ReserveAnswer, SettleAnswer,
    Settlement, UnitRequest,
};

use crate::answer::Answer;
use crate::decision::{Decision, DecisionSource};
use crate::error::{Error, StoreError};
use crate::joint::Demand;
use crate::key::Key;
use crate::receipt::Receipt;
use crate::scope::{RemoteScope, Scope, ScopeBackend, bounded};
use crate::store::{Call, ExtendPart, ExtendRequest, JointRequest, SettlePart, SettleRequest};

/// How long units are held by default.
const DEFAULT_HOLD_FOR: Duration = Duration::from_secs(60);

/// A reservation that has not been decided yet: await it, or decide it [`now`](HoldRequest::now).
///
/// Awaiting it, or calling `into_future`, sends it before the first poll. If the future is dropped before it returns the
/// hold, the units are held until the hold expires. The units of a concurrency limit are
/// [released](Hold#dropped-holds) instead.
#[derive(Clone, Debug)]
#[must_use = "nothing is reserved until this is awaited, or `now` is called"]
pub struct HoldRequest<'a> {
    scope: &'a Scope,
    key: Key<'a>,
    at_us: Option<u64>,
    cost: Result<Cost, CostError>,
    hold_for: Result<HoldTime, HoldError>,
    within: Option<Duration>,
}

impl Scope {
    /// Sets units of `key` aside, if a check of them would be allowed. The cost is 1 unless [set](HoldRequest::cost), and
    /// the units are held for 60 s unless [set](HoldRequest::hold_for); under a concurrency limit for the limit's own time.
    ///
    /// For costs that are known only afterwards, such as the tokens of an LLM call: reserve an estimate, make the call,
    /// and [settle](Hold::settle) what it used. Held units count as spent, so that calls at the same time do not exceed
    /// the limit together.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use tollgate::Limiter;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("llm", "token-bucket capacity=10000 refill=10000/m")?;
    /// let reserved = tokens.reserve("team:7").cost(4_000).hold_for(Duration::from_secs(120)).now()?;
    /// # let before = reserved.decision().remaining();
    /// # assert_eq!(before, 6_000);
    /// let Some(hold) = reserved.into_hold() else {
    ///     return Ok(()); // refused: `retry_after()` says when to try again
    /// };
    /// // The call is made, and used 1,250 tokens. The other 2,750 are free at once.
    /// let settled = hold.settle_now(1_250)?;
    /// assert_eq!(settled.charged_units(), 1_250);
    /// # assert!(tokens.peek("team:7").now()?.remaining() >= 8_750);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// A key has at most 1,024 holds at a time. A [shaping](Scope::is_shaping) limit cannot have holds: an error. On a
    /// store across the network a reservation is never admitted by [`OnFailure`](crate::OnFailure): if the store fails,
    /// that is an error.
    pub fn reserve<'a>(&'a self, key: impl Into<Key<'a>>) -> HoldRequest<'a> {
        HoldRequest {
            scope: self,
            key: key.into(),
            at_us: None,
            cost: Ok(Cost::ONE),
            hold_for: self.limit().hold_for().map_or_else(|| DEFAULT_HOLD_FOR.try_into(), Ok),
            within: None,
        }
    }
}

impl<'a> HoldRequest<'a> {
    /// Sets the units to set aside, 1 by default. At least 1, below 2^53.
    pub fn cost(self, units: u64) -> HoldRequest<'a> {
        HoldRequest { cost: Cost::new(units), ..self }
    }

    /// Sets how long the units are held unless the hold is settled or [extended](Hold::extend) before: 1 us to 366 days.
    /// The default is 60 s; under a concurrency limit it is the limit's own time.
    pub fn hold_for(self, time: Duration) -> HoldRequest<'a> {
        HoldRequest { hold_for: HoldTime::try_from(time), ..self }
    }

    /// Decides at this time, in microseconds since the Unix epoch, instead of the clock's. The operations on the hold are
    /// at the clock's time.
    pub fn at_us(self, now_us: u64) -> HoldRequest<'a> {
        HoldRequest { at_us: Some(now_us), ..self }
    }

    /// Sets the caller's own deadline, as [`Check::within`](crate::Check::within) does.
    pub fn within(self, time: Duration) -> HoldRequest<'a> {
        HoldRequest { within: Some(time), ..self }
    }

    /// Decides without waiting.
    pub fn now(&self) -> Result<HoldDecision, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let (key, reservation) = (self.bounded_key()?, self.reservation()?);
        let now_us = self.at_us.unwrap_or_else(|| backend.clock.now_us());
        let answer = backend.memory.reserve(memory_scope, key, now_us, reservation)?;
        Ok(HoldDecision::new(answer, self.scope, key))
    }

    fn send(&self, scope: &RemoteScope) -> Answer<HoldDecision> {
        let (key, reservation) = match (self.bounded_key(), self.reservation()) {
            (Ok(key), Ok(reservation)) => (key, reservation),
            (Err(error), _) | (_, Err(error)) => return Answer::ready(Err(error)),
        };
        if !scope.remote.store.has_holds() {
            return Answer::ready(Err(Error::HoldsUnsupported));
        }
        let at_us = scope.remote.time(self.at_us);
        let call = Call { at_us, ..scope.call() }.bounded(self.within);
        let charges = vec![scope.charge(key, Demand::of_reservation(reservation))];
        let answer = scope.remote.store.check_all(JointRequest { charges, call });
        // Made before the answer comes: if that is never read, the hold is dropped, and released if its limit says so.
        let hold = Hold::new(self.scope, key, reservation.id, u64::MAX);
        answer.then(move |answer| {
            let joint = match answer {
                Ok(joint) => joint,
                Err(error) => return Err(hold.not_reserved(error)),
            };
            let granted = joint.hold(0);
            let hold = hold.granted(granted.map(|hold| hold.expires_us));
            // OK because a store returns one decision for each charge.
            let decision = *joint.each().first().ok_or(Error::AnswerTaken)?.decided();
            Ok(HoldDecision::of(decision, hold))
        })
    }

    fn bounded_key(&self) -> Result<&[u8], Error> {
        bounded(self.key.as_bytes())
    }

    fn reservation(&self) -> Result<Reservation, Error> {
        self.scope.limit().can_hold()?;
        Ok(Reservation { id: next_id(), cost: self.cost?, hold_for: self.hold_for? })
    }
}

impl IntoFuture for HoldRequest<'_> {
    type Output = Result<HoldDecision, Error>;
    type IntoFuture = Answer<HoldDecision>;

    fn into_future(self) -> Answer<HoldDecision> {
        match self.scope.backend() {
            ScopeBackend::Memory { .. } => Answer::ready(self.now()),
            ScopeBackend::Remote(scope) => self.send(scope),
        }
    }
}

/// Returns an id that no other hold has: the sum of a count and a random number that is drawn once in each process.
fn next_id() -> HoldId {
    static START: OnceLock<u64> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let start = START.get_or_init(|| RandomState::new().hash_one(std::process::id()));
    HoldId(start.wrapping_add(COUNT.fetch_add(1, Ordering::Relaxed)))
}

/// The answer to a reservation: the decision, and the hold if it was admitted.
#[derive(Debug)]
#[must_use = "the reservation may have been refused: branch on `into_hold()`"]
pub struct HoldDecision {
    decision: Decision,
    hold: Option<Hold>,
}

impl HoldDecision {
    fn new(
        ReserveAnswer { decision, hold }: ReserveAnswer,
        scope: &Scope,
        key: &[u8],
    ) -> HoldDecision {
        let hold = hold.map(|hold| Hold::new(scope, key, hold.id, hold.expires_us));
        HoldDecision::of(decision, hold)
    }

    fn of(decision: LimitDecision, hold: Option<Hold>) -> HoldDecision {
        HoldDecision { decision: Decision::uncharged(decision, DecisionSource::Store), hold }
    }

    /// Whether the units are held.
    pub fn is_allowed(&self) -> bool {
        self.decision.is_allowed()
    }

    /// Returns how long a refused reservation must wait, exactly, provided that the holds of the key are left to
    /// expire; `None` for a reservation that was admitted, and for a cost above the limit. If a memory store at its
    /// ceiling has no memory for the hold, this is the time until a hold expires, or 1 s if the expiry of no hold
    /// would free memory.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decision.retry_after()
    }

    /// Returns the decision. It has no receipt: a settlement returns the receipt of what it charged.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Returns the hold; `None` for a refused reservation.
    pub fn hold(&self) -> Option<&Hold> {
        self.hold.as_ref()
    }

    /// Takes the decision and the hold.
    pub fn into_parts(self) -> (Decision, Option<Hold>) {
        (self.decision, self.hold)
    }

    /// Takes the hold; `None` for a refused reservation.
    pub fn into_hold(self) -> Option<Hold> {
        self.hold
    }
}

/// Units of a key that are set aside until the hold is settled or expires.
///
/// At its expiry a hold is charged in full. [Release](Hold::release) a hold whose units were not used.
///
/// ```
/// # use std::time::Duration;
/// # use tollgate::Limiter;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::memory();
/// let tokens = limiter.scope("llm", "fixed-window limit=10000 window=1h")?;
/// let reserved = tokens.reserve("team:7").cost(1_000).now()?;
/// if let Some(hold) = reserved.into_hold() {
///     // While the response streams: charge what was used so far, and ask for more.
///     hold.settle_part_now(800)?;
///     let longer = hold.extend_now(500, Duration::from_secs(60))?;
///     assert!(longer.is_granted());
///     // It ends after 1,100 tokens in all.
///     hold.settle_now(1_100)?;
/// }
/// assert_eq!(tokens.peek("team:7").now()?.remaining(), 8_900);
/// # Ok(())
/// # }
/// ```
///
/// The limit of the scope may change while the hold is open: the hold stays valid until it ends.
///
/// # Dropped holds
///
/// A dropped hold is left to expire, because its units may have been used: only a settlement says how many were.
///
/// A hold of a concurrency limit is different, because its units are only ever held. When it is dropped, it is released,
/// so it can be kept as a permit:
///
/// ```
/// # use tollgate::Limiter;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let limiter = Limiter::memory();
/// let exports = limiter.scope("exports", "concurrency limit=2 for=5m")?;
/// let permit = exports.reserve("team:7").now()?.into_hold();
/// assert_eq!(exports.peek("team:7").now()?.remaining(), 1);
/// drop(permit); // also when the job returns early, or panics
/// assert_eq!(exports.peek("team:7").now()?.remaining(), 2);
/// # Ok(())
/// # }
/// ```
///
/// In memory that is done at once. On a store across the network the release is sent, and its answer is not read: if the
/// store cannot be reached, the units stay held until the hold expires. [`release`](Hold::release) tells.
#[derive(Debug)]
#[must_use = "a dropped hold is charged in full at its expiry, or released under a concurrency limit: settle or release it"]
pub struct Hold {
    scope: Scope,
    key: Box<[u8]>,
    id: HoldId,
    /// Shared with the answers of extensions.
    expires_us: Arc<AtomicU64>,
    /// Whether the hold is released when this is dropped.
    releases: bool,
}

impl Hold {
    fn new(scope: &Scope, key: &[u8], id: HoldId, expires_us: u64) -> Hold {
        Hold {
            scope: scope.clone(),
            key: key.into(),
            id,
            expires_us: Arc::new(AtomicU64::new(expires_us)),
            releases: scope.only_holds(),
        }
    }

    /// Returns this hold with its expiry, once the store has answered; `None` if the reservation was refused.
    fn granted(mut self, expires_us: Option<u64>) -> Option<Hold> {
        let Some(expires_us) = expires_us else {
            self.releases = false;
            return None;
        };
        self.expires_us.store(expires_us, Ordering::Relaxed);
        Some(self)
    }

    /// Returns the error of a reservation. If the store may have made it, the hold is released.
    fn not_reserved(mut self, error: Error) -> Error {
        self.releases &= matches!(
            error,
            Error::Store(
                StoreError::Unreachable { .. } | StoreError::Timeout { .. } | StoreError::Gone
            )
        );
        error
    }

    /// Returns when the hold expires, in microseconds since the Unix epoch by the store's clock.
    pub fn expires_at_us(&self) -> u64 {
        self.expires_us.load(Ordering::Relaxed)
    }

    /// Returns the key whose units are held.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the scope that the units were reserved through.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Ends the hold, and charges the units that were used since the reservation, including the units of earlier partial
    /// settlements. The rest is free at once.
    ///
    /// Units used beyond the hold are charged too, because they were consumed: requests are refused until the debt has
    /// drained. At most one whole limit is charged beyond a hold, and the answer says how much was cut.
    ///
    /// Under a concurrency limit nothing is charged, and all units of the hold are free at once.
    ///
    /// A hold that has expired, or was forgotten by a reset, is not charged again, and the answer says so.
    pub fn settle(mut self, used: u64) -> Answer<HoldSettlement> {
        self.releases = false;
        self.send_settlement(HoldUse { units: used, is_last: true })
    }

    /// [`settle`](Self::settle), in memory. On a store across the network this is an error, and the hold is dropped.
    pub fn settle_now(mut self, used: u64) -> Result<HoldSettlement, Error> {
        let settled = self.settle_here(HoldUse { units: used, is_last: true })?;
        self.releases = false;
        Ok(settled)
    }

    /// Charges the units that were used since the reservation and not charged yet. The rest stays held until the same
    /// expiry. `used_so_far` is a total: a settlement that is sent twice charges nothing twice.
    ///
    /// Under a concurrency limit nothing is charged: the used units are free at once.
    pub fn settle_part(&self, used_so_far: u64) -> Answer<HoldSettlement> {
        self.send_settlement(HoldUse { units: used_so_far, is_last: false })
    }

    /// [`settle_part`](Self::settle_part), in memory.
    pub fn settle_part_now(&self, used_so_far: u64) -> Result<HoldSettlement, Error> {
        self.settle_here(HoldUse { units: used_so_far, is_last: false })
    }

    /// Ends the hold and charges nothing more: the units that no partial settlement has charged are free at once.
    pub fn release(self) -> Answer<HoldSettlement> {
        self.settle(0)
    }

    /// [`release`](Self::release), in memory.
    pub fn release_now(self) -> Result<HoldSettlement, Error> {
        self.settle_now(0)
    }

    /// Adds `more` units to the hold if a check of them would be allowed, and moves its expiry to `hold_for` from
    /// now. If that is refused, the hold does not change. If `more` is 0, only the expiry moves, which is never
    /// refused.
    pub fn extend(&self, more: u64, hold_for: Duration) -> Answer<HoldExtension> {
        let ScopeBackend::Remote(scope) = self.scope.backend() else {
            return Answer::ready(self.extend_now(more, hold_for));
        };
        let growth = match growth(more, hold_for) {
            Ok(growth) => growth,
            Err(error) => return Answer::ready(Err(error)),
        };
        let charge = match growth.more {
            Some(more) => scope.charge(&self.key, Demand::of(UnitRequest::new(more))),
            None => scope.unit_charge(&self.key),
        };
        let parts = vec![ExtendPart { charge, hold: self.reference(), growth }];
        let answer = scope.remote.store.extend(ExtendRequest { parts, call: scope.call() });
        let expires_us = Arc::clone(&self.expires_us);
        answer.then(move |answers| {
            let answer = answers?.pop().ok_or(Error::AnswerTaken)?;
            Ok(HoldExtension::new(answer, &expires_us))
        })
    }

    /// [`extend`](Self::extend), in memory.
    pub fn extend_now(&self, more: u64, hold_for: Duration) -> Result<HoldExtension, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let growth = growth(more, hold_for)?;
        let now_us = backend.clock.now_us();
        let answer =
            backend.memory.extend(memory_scope, &self.key, now_us, self.reference(), growth);
        Ok(HoldExtension::new(answer, &self.expires_us))
    }

    fn settle_here(&self, used: HoldUse) -> Result<HoldSettlement, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let now_us = backend.clock.now_us();
        let answer = backend.memory.settle(memory_scope, &self.key, now_us, self.reference(), used);
        self.scope.wake_waiters(&self.key);
        Ok(HoldSettlement::new(answer, &self.scope, &self.key))
    }

    fn send_settlement(&self, used: HoldUse) -> Answer<HoldSettlement> {
        let ScopeBackend::Remote(scope) = self.scope.backend() else {
            return Answer::ready(self.settle_here(used));
        };
        let (charge, wake) = (scope.unit_charge(&self.key), self.scope.wake(&self.key));
        let parts = vec![SettlePart { charge, hold: self.reference(), used }];
        let answer = scope.remote.store.settle(SettleRequest { parts, call: scope.call(), wake });
        let (scope, key) = (self.scope.clone(), self.key.clone());
        answer.then(move |answers| {
            let answer = answers?.pop().ok_or(Error::AnswerTaken)?;
            Ok(HoldSettlement::new(answer, &scope, &key))
        })
    }

    /// Returns the id of the hold and its last expiry.
    pub fn reference(&self) -> HoldReference {
        HoldReference { id: self.id, expires_us: self.expires_at_us() }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.releases {
            // The release is done or sent by now, so its answer can be dropped. If it fails, the hold expires.
            drop(self.send_settlement(HoldUse { units: 0, is_last: true }));
        }
    }
}

fn growth(more: u64, hold_for: Duration) -> Result<HoldGrowth, Error> {
    let more = if more == 0 { None } else { Some(Cost::new(more)?) };
    Ok(HoldGrowth { more, hold_for: HoldTime::try_from(hold_for)? })
}

/// The answer to a settlement.
#[derive(Debug, PartialEq, Eq)]
pub struct HoldSettlement {
    decided: LimitDecision,
    charged_units: u64,
    excess_units: u64,
    cut_units: u64,
    receipt: Option<Receipt>,
    ended: Option<EndedHold>,
}

impl HoldSettlement {
    fn new(SettleAnswer { decision, settlement }: SettleAnswer, scope: &Scope, key: &[u8]) -> Self {
        let mut answer = HoldSettlement {
            decided: decision,
            charged_units: 0,
            excess_units: 0,
            cut_units: 0,
            receipt: None,
            ended: None,
        };
        match settlement {
            Settlement::Done { charged_units, excess_units, cut_units, receipt } => {
                (answer.charged_units, answer.excess_units) = (charged_units, excess_units);
                answer.cut_units = cut_units;
                answer.receipt = receipt.map(|charge| Receipt::new(charge, scope.fingerprint(key)));
            }
            Settlement::Ended(ended) => answer.ended = Some(ended),
        }
        answer
    }

    /// Returns why nothing was charged: the hold had ended before. `None` if it was open.
    pub fn ended(&self) -> Option<EndedHold> {
        self.ended
    }

    /// Returns the units that this settlement charged.
    pub fn charged_units(&self) -> u64 {
        self.charged_units
    }

    /// Returns how many of the charged units were beyond the hold.
    pub fn excess_units(&self) -> u64 {
        self.excess_units
    }

    /// Returns the units that were used and not charged, because more than one whole limit was used beyond the hold.
    pub fn cut_units(&self) -> u64 {
        self.cut_units
    }

    /// Returns the receipt of the charge; `None` if nothing was charged.
    pub fn receipt(&self) -> Option<&Receipt> {
        self.receipt.as_ref()
    }

    /// Takes the receipt, with which the charge can be refunded.
    pub fn into_receipt(self) -> Option<Receipt> {
        self.receipt
    }

    /// Returns what remains of the limit that the key is under, with times in microseconds. It says allowed if the
    /// hold was open.
    pub fn decided(&self) -> &LimitDecision {
        &self.decided
    }
}

/// The answer to an extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the extension may have been refused: branch on `is_granted()`"]
pub struct HoldExtension {
    decided: LimitDecision,
    extension: Extension,
}

impl HoldExtension {
    fn new(ExtendAnswer { decision, extension }: ExtendAnswer, expiry: &AtomicU64) -> Self {
        if let Extension::Granted { expires_us } = extension {
            expiry.store(expires_us, Ordering::Relaxed);
        }
        HoldExtension { decided: decision, extension }
    }

    /// Whether the hold is now as large and as long as requested.
    pub fn is_granted(&self) -> bool {
        matches!(self.extension, Extension::Granted { .. })
    }

    /// Returns why the hold cannot be extended: it had ended. `None` if it was open.
    pub fn ended(&self) -> Option<EndedHold> {
        match self.extension {
            Extension::Ended(ended) => Some(ended),
            Extension::Granted { .. } | Extension::Refused => None,
        }
    }

    /// Returns how long a refused extension must wait; `None` if it was granted, or can never be.
    pub fn retry_after(&self) -> Option<Duration> {
        self.decided.retry_after_us().map(Duration::from_micros)
    }

    /// Returns the limit's decision on the extension, with times in microseconds.
    pub fn decided(&self) -> &LimitDecision {
        &self.decided
    }

    /// Returns the effect on the hold.
    pub fn extension(&self) -> Extension {
        self.extension
    }
}
