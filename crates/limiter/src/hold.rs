//! Holds: units of a key that are set aside, and settled when it is known how many were used.
//!
//! - `operations`: settles and extends one or several holds

pub(crate) mod operations;

use std::slice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate_core::{
    Cost, ExtendAnswer, Extension, HoldGrowth, HoldId, HoldReference, HoldTime, HoldUse,
    LimitDecision, MAX_UNITS, UnitRequest, Verdict,
};

use crate::answer::Answer;
use crate::error::Error;
use crate::hold_answers::{HoldExtension, HoldSettlement};
use crate::joint::Demand;
use crate::key::Key;
use crate::scope::{RemoteScope, Scope, ScopeBackend, bounded};
use crate::store::{Call, ExtendPart, SettlePart};

/// How long the store has at least to release a dropped hold. No caller waits for that.
const RELEASE_DEADLINE: Duration = Duration::from_secs(5);

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
/// store cannot be reached, the units stay held until the hold expires. The answer to [`release`](Hold::release) says
/// whether the units were released.
#[derive(Debug)]
#[must_use = "a dropped hold is charged in full at its expiry, or released under a concurrency limit: settle or release it"]
pub struct Hold {
    scope: Scope,
    key: Box<[u8]>,
    id: HoldId,
    /// Shared with the answers of extensions.
    expires_us: Arc<AtomicU64>,
    /// The time of the operations; `None` for the clock's.
    at_us: Option<u64>,
    /// The units of checks that were merged with the reservation. Every settlement adds them to the used units.
    checked_units: u64,
    source: HoldSource,
    /// Whether the hold is released when this is dropped.
    releases: bool,
}

/// Where the units of a hold are set aside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HoldSource {
    /// On the store.
    Store,
    /// On this process's share of the limit, because the store failed. The scope of the hold is that share.
    Share {
        /// The number of processes that share the limit.
        processes: u32,
    },
    /// Nowhere, because the store failed and the policy is open.
    Nowhere,
}

impl Scope {
    /// Makes a hold again, in another process or after a restart: from the key, and from the [reference](Hold::reference)
    /// of the hold that was reserved under this name. An error if the key is longer than 1 MiB.
    ///
    /// The caller vouches for the reference: with an invented one it may end a hold of another caller. If there is no such
    /// hold, its operations change nothing and say so. A hold that was made again is not released when it is dropped, also
    /// under a concurrency limit.
    ///
    /// ```
    /// # use tollgate::{EndedHold, HoldReference, Limiter};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("llm", "fixed-window limit=10000 window=1h")?;
    /// let Some(hold) = tokens.reserve("team:7").cost(1_000).now()?.into_hold() else { return Ok(()) };
    /// let reference: HoldReference = hold.into_reference(); // the request continues elsewhere
    /// let settled = tokens.hold("team:7", reference)?.settle_now(700)?;
    /// assert_eq!(settled.charged_units(), 700);
    /// let again = tokens.hold("team:7", reference)?.settle_now(700)?;
    /// assert_eq!(again.ended(), Some(EndedHold::Unknown));
    /// # Ok(())
    /// # }
    /// ```
    pub fn hold<'k>(
        &self,
        key: impl Into<Key<'k>>,
        reference: HoldReference,
    ) -> Result<Hold, Error> {
        let key = key.into();
        let mut hold = Hold::new(self.clone(), bounded(key.as_bytes())?, reference);
        hold.releases = false;
        Ok(hold)
    }

    /// Makes a hold again that this process has [on its share](Hold::share_processes) of the limit, where `processes`
    /// share it. `None` if the limiter has no shares, because it is in memory, or if the share has no memory.
    ///
    /// A share is in the memory of one process. In any other process there is no such hold: its operations change nothing
    /// and say so.
    pub fn hold_on_share<'k>(
        &self,
        key: impl Into<Key<'k>>,
        reference: HoldReference,
        processes: u32,
    ) -> Result<Option<Hold>, Error> {
        let Some(share) = self.share(processes) else { return Ok(None) };
        let mut hold = share.hold(key, reference)?;
        hold.source = HoldSource::Share { processes };
        Ok(Some(hold))
    }
}

impl Hold {
    /// Returns a hold on the store, or on this process's share of a limit.
    pub(crate) fn new(scope: Scope, key: &[u8], reference: HoldReference) -> Hold {
        Hold {
            releases: scope.only_holds(),
            scope,
            key: key.into(),
            id: reference.id,
            expires_us: Arc::new(AtomicU64::new(reference.expires_us)),
            at_us: None,
            checked_units: 0,
            source: HoldSource::Store,
        }
    }

    /// Returns the hold of a reservation that is not answered yet. If the answer is never read, this is dropped, and the
    /// hold is released if its limit says so.
    pub(crate) fn pending(scope: Scope, key: &[u8], id: HoldId) -> Hold {
        Hold::new(scope, key, HoldReference { id, expires_us: u64::MAX })
    }

    /// Returns a pending hold with its expiry, once the store has made the reservation.
    pub(crate) fn granted(self, expires_us: u64) -> Hold {
        self.expires_us.store(expires_us, Ordering::Relaxed);
        self
    }

    /// From now on, nothing is released when this is dropped.
    pub(crate) fn keep_open(&mut self) {
        self.releases = false;
    }

    /// Drops a hold without a release.
    pub(crate) fn leave(mut self) {
        self.keep_open();
    }

    /// Returns the hold that this pending hold became when the store failed.
    pub(crate) fn elsewhere(
        &self,
        scope: Scope,
        reference: HoldReference,
        source: HoldSource,
    ) -> Hold {
        let mut hold = Hold::new(scope, &self.key, reference).with_checked(self.checked_units);
        hold.releases &= source != HoldSource::Nowhere;
        hold.source = source;
        hold
    }

    pub(crate) fn with_checked(mut self, checked_units: u64) -> Hold {
        self.checked_units = checked_units;
        self
    }

    /// Makes the operations on this hold at this time, in microseconds since the Unix epoch, instead of the clock's: for
    /// replaying a trace.
    pub fn at_us(mut self, now_us: u64) -> Hold {
        self.at_us = Some(now_us);
        self
    }

    /// Returns when the hold expires, in microseconds since the Unix epoch by the store's clock.
    pub fn expires_at_us(&self) -> u64 {
        self.expires_us.load(Ordering::Relaxed)
    }

    /// Returns the id of the hold and its last expiry, from which [`Scope::hold`] makes it again.
    pub fn reference(&self) -> HoldReference {
        HoldReference { id: self.id, expires_us: self.expires_at_us() }
    }

    /// Takes the reference, and leaves the hold open, also under a concurrency limit: another process settles it.
    ///
    /// The [`checked_units`](Self::checked_units) are not part of the reference. A hold that is made again from it does not
    /// add them to its settlements: add them to the used units.
    pub fn into_reference(self) -> HoldReference {
        let reference = self.reference();
        self.leave();
        reference
    }

    /// Returns the units of checks of the same name and key that were merged into this hold
    /// ([`Limiter::reserve_all`](crate::Limiter::reserve_all)). Every settlement of this hold adds them to the used units.
    pub fn checked_units(&self) -> u64 {
        self.checked_units
    }

    /// Returns a second value for the same hold, to settle it again if a settlement fails. It settles as this hold does,
    /// and is not released when it is dropped.
    ///
    /// ```
    /// # use tollgate::Limiter;
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let limiter = Limiter::memory();
    /// let tokens = limiter.scope("llm", "fixed-window limit=10000 window=1h")?;
    /// let Some(hold) = tokens.reserve("team:7").cost(1_000).await?.into_hold() else { return Ok(()) };
    /// let again = hold.again();
    /// if hold.settle(700).await.is_err() {
    ///     // The first settlement may have been made all the same. Two of them charge nothing twice.
    ///     again.settle(700).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn again(&self) -> Hold {
        Hold {
            scope: self.scope.clone(),
            key: self.key.clone(),
            expires_us: Arc::clone(&self.expires_us),
            releases: false,
            ..*self
        }
    }

    /// Returns the key whose units are held.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// Returns the scope that the units were reserved through.
    pub fn scope(&self) -> &Scope {
        &self.scope
    }

    /// Whether the store failed, and the hold was admitted by [`OnFailure`](crate::OnFailure). Under `local` its units are
    /// set aside on this process's share of the limit, under `open` nowhere. Such a hold is unknown to other processes.
    pub fn is_degraded(&self) -> bool {
        self.source != HoldSource::Store
    }

    /// Returns how many processes share the limit, if this hold is on this process's share of it: the store failed, and the
    /// policy is `local`. [`Scope::hold_on_share`] makes such a hold again.
    pub fn share_processes(&self) -> Option<u32> {
        match self.source {
            HoldSource::Share { processes } => Some(processes),
            HoldSource::Store | HoldSource::Nowhere => None,
        }
    }

    pub(crate) fn source(&self) -> HoldSource {
        self.source
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
    ///
    /// If the store fails, the answer is an error, and it is not known whether the settlement was made. To be able to
    /// settle again, keep the hold [`again`](Self::again); in another process, make it again from its
    /// [reference](Self::reference) with [`Scope::hold`]. A settlement that is sent twice charges nothing twice.
    pub fn settle(mut self, used: u64) -> Answer<HoldSettlement> {
        self.releases = false;
        self.send_settlement(self.last_use(used))
    }

    /// [`settle`](Self::settle), in memory. On a store across the network this is an error, and the hold is dropped.
    pub fn settle_now(mut self, used: u64) -> Result<HoldSettlement, Error> {
        let settled = self.settle_here(self.last_use(used))?;
        self.releases = false;
        Ok(settled)
    }

    /// Charges the units that were used since the reservation and not charged yet. The rest stays held until the same
    /// expiry. `used_so_far` is a total: a settlement that is sent twice charges nothing twice.
    ///
    /// Under a concurrency limit nothing is charged: the used units are free at once.
    pub fn settle_part(&self, used_so_far: u64) -> Answer<HoldSettlement> {
        self.send_settlement(self.use_so_far(used_so_far))
    }

    /// [`settle_part`](Self::settle_part), in memory.
    pub fn settle_part_now(&self, used_so_far: u64) -> Result<HoldSettlement, Error> {
        self.settle_here(self.use_so_far(used_so_far))
    }

    /// Ends the hold and charges nothing more: the units that no partial settlement has charged are free at once. The
    /// units of checks that were merged into this hold ([`Limiter::reserve_all`](crate::Limiter::reserve_all)) are
    /// charged even so.
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
        if let ScopeBackend::Memory { .. } = self.scope.backend() {
            return Answer::ready(self.extend_now(more, hold_for));
        }
        let growth = match growth(more, hold_for) {
            Ok(growth) => growth,
            Err(error) => return Answer::ready(Err(error)),
        };
        operations::extend(slice::from_ref(self), &[growth]).then(only)
    }

    /// [`extend`](Self::extend), in memory.
    pub fn extend_now(&self, more: u64, hold_for: Duration) -> Result<HoldExtension, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let growth = growth(more, hold_for)?;
        let now_us = self.now_us(|| backend.clock.now_us());
        let answer =
            backend.memory.extend(memory_scope, &self.key, now_us, self.reference(), growth);
        Ok(HoldExtension::new(answer, &self.expires_us))
    }

    pub(crate) fn last_use(&self, used: u64) -> HoldUse {
        HoldUse { is_last: true, ..self.use_so_far(used) }
    }

    /// Cuts units that no cost can have, so that a caller that has counted wrong can settle its hold.
    pub(crate) fn use_so_far(&self, used: u64) -> HoldUse {
        let units = used.saturating_add(self.checked_units).min(MAX_UNITS);
        HoldUse { units, is_last: false }
    }

    /// Returns the time that [`at_us`](Self::at_us) has set.
    pub(crate) fn given_at_us(&self) -> Option<u64> {
        self.at_us
    }

    pub(crate) fn now_us(&self, clock: impl FnOnce() -> u64) -> u64 {
        self.at_us.unwrap_or_else(clock)
    }

    /// Returns the time and the deadline of a request on this hold.
    pub(crate) fn call(&self, scope: &RemoteScope) -> Call {
        Call { at_us: scope.remote.time(self.at_us), ..scope.call() }
    }

    fn settle_here(&self, used: HoldUse) -> Result<HoldSettlement, Error> {
        let (backend, memory_scope) = self.scope.local()?;
        let now_us = self.now_us(|| backend.clock.now_us());
        let answer = backend.memory.settle(memory_scope, &self.key, now_us, self.reference(), used);
        self.scope.wake_waiters(&self.key);
        Ok(self.settlement(HoldSettlement::new(answer, &self.scope, &self.key)))
    }

    fn send_settlement(&self, used: HoldUse) -> Answer<HoldSettlement> {
        self.send_settlement_within(used, Duration::ZERO)
    }

    /// Sends a settlement. The store has at least `least_deadline` for it.
    fn send_settlement_within(
        &self,
        used: HoldUse,
        least_deadline: Duration,
    ) -> Answer<HoldSettlement> {
        if let ScopeBackend::Memory { .. } = self.scope.backend() {
            return Answer::ready(self.settle_here(used));
        }
        operations::settle(slice::from_ref(self), &[used], least_deadline).then(only)
    }

    /// Returns this hold's part in a settlement on a store across the network.
    pub(crate) fn settle_part_of(&self, scope: &RemoteScope, used: HoldUse) -> SettlePart {
        SettlePart { charge: scope.unit_charge(&self.key), hold: self.reference(), used }
    }

    /// Returns this hold's part in an extension on a store across the network.
    pub(crate) fn extend_part(&self, scope: &RemoteScope, growth: HoldGrowth) -> ExtendPart {
        let charge = match growth.more {
            Some(more) => scope.charge(&self.key, Demand::of(UnitRequest::new(more))),
            None => scope.unit_charge(&self.key),
        };
        ExtendPart { charge, hold: self.reference(), growth }
    }

    /// Marks a settlement of a hold on this process's share of the limit.
    pub(crate) fn settlement(&self, settled: HoldSettlement) -> HoldSettlement {
        if self.source == HoldSource::Store { settled } else { settled.on_share() }
    }

    /// Returns the answer to an extension, and remembers the new expiry.
    pub(crate) fn extension(&self, answer: ExtendAnswer) -> HoldExtension {
        HoldExtension::new(answer, &self.expires_us)
    }

    /// Returns the settlement of a hold that is nowhere.
    pub(crate) fn settle_nowhere(&self) -> HoldSettlement {
        HoldSettlement::of_nothing(self.unspent())
    }

    /// Returns the extension of a hold that is nowhere, which is always granted.
    pub(crate) fn extended_nowhere(&self, growth: HoldGrowth) -> ExtendAnswer {
        let now_us = self.now_us(|| self.scope.limiter().clock().now_us());
        let expires_us = now_us.saturating_add(growth.hold_for.as_us());
        let extension = Extension::Granted { expires_us, held_units: 0 };
        ExtendAnswer { decision: self.unspent(), extension }
    }

    /// Returns the decision that [`OnFailure::Open`](crate::OnFailure::Open) makes: nothing is spent.
    pub(crate) fn unspent(&self) -> LimitDecision {
        let limit = self.scope.limit();
        let decision = limit.peek(&limit.fresh(), 0, UnitRequest::new(Cost::ONE));
        LimitDecision { verdict: Verdict::Allowed { delay_us: 0 }, ..decision }
    }

    /// The last expiry that was granted, for the answer to an extension that is pending.
    pub(crate) fn shared_expiry(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.expires_us)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.releases {
            // The release is done or sent by now, so its answer can be dropped. If it fails, the hold expires.
            let nothing = HoldUse { units: 0, is_last: true };
            drop(self.send_settlement_within(nothing, RELEASE_DEADLINE));
        }
    }
}

/// Returns the only answer to an operation on one hold.
fn only<T>(answers: Result<Vec<T>, Error>) -> Result<T, Error> {
    // OK because there is one answer for each hold.
    answers?.pop().ok_or(Error::AnswerTaken)
}

/// Returns the growth of a hold by `more` units, or by none, and by this time.
pub(crate) fn growth(more: u64, hold_for: Duration) -> Result<HoldGrowth, Error> {
    let more = if more == 0 { None } else { Some(Cost::new(more)?) };
    Ok(HoldGrowth { more, hold_for: HoldTime::try_from(hold_for)? })
}
