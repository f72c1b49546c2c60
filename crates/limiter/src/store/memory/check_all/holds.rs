//! The charges of a check of several limits whose units are set aside.

use tollgate_core::{LimitDecision, Role};

use super::{CheckLocks, JointCharge, StateStorage};
use crate::store::memory::held::{self, FIRST_HOLD_BYTES, HeldKey, HeldKeyId, LIST_BYTES};
use crate::store::memory::logs;
use crate::store::memory::shard::HoldMemory;
use crate::store::memory::view::StoreView;

impl JointCharge<'_> {
    /// Decides a reservation and holds nothing; `None` if this charge is no reservation.
    pub(super) fn peek_reserve(&self, now_us: u64) -> Option<LimitDecision> {
        let reservation = self.part.demand.reservation()?;
        self.limit.peek_reserve(&self.state, &self.holds, now_us, reservation.cost).ok()
    }

    /// Whether the key has a slot in the table, or needs one if it is charged. A key with holds has none.
    pub(super) fn needs_slot(&self) -> bool {
        !self.is_peek() && self.storage != StateStorage::Held && self.part.demand.hold.is_none()
    }

    fn held_id(&self) -> HeldKeyId {
        HeldKey::id(self.place, self.part.scope)
    }
}

impl CheckLocks<'_> {
    /// Takes memory for the hold of each reservation that its limit admits. A reservation without memory will be refused.
    /// Returns `false` if the whole request will be refused for that reason.
    pub(super) fn take_for_holds(
        &mut self,
        charges: &mut [JointCharge<'_>],
        view: &StoreView<'_>,
    ) -> bool {
        // These keys look dead while their states are taken out, so they are excepted from the removal of dead keys.
        let taken_out: Vec<HeldKeyId> = charges
            .iter()
            .filter(|charge| charge.storage == StateStorage::Held)
            .map(JointCharge::held_id)
            .collect();
        for charge in charges.iter_mut().filter(|charge| charge.part.demand.hold.is_some()) {
            let (place, request) = (charge.place, charge.part.demand.request);
            let shard = self.shard(place);
            let (is_admitted, bytes) = match charge.storage {
                StateStorage::Held => {
                    let peek = charge.peek_reserve(view.now_us);
                    (peek.is_some_and(|it| it.is_allowed()), held::growth_bytes(&charge.holds))
                }
                _ => {
                    let list_bytes = if shard.has_held() { 0 } else { LIST_BYTES };
                    let is_admitted = charge.limit.can_hold().is_ok()
                        && shard.admits(place, &charge.limit, view.now_us, request);
                    (is_admitted, FIRST_HOLD_BYTES + list_bytes)
                }
            };
            if !is_admitted {
                continue;
            }
            let HoldMemory::Missing { expiry_us } = shard.take_for_hold(bytes, &taken_out, view)
            else {
                charge.held_bytes += bytes;
                continue;
            };
            let until_us = held::first_expiry_us(&charge.holds, view.now_us).or(expiry_us);
            charge.without_memory_us = Some(held::wait_at_ceiling_us(until_us, view.now_us));
            if charge.part.demand.role == Role::Enforced {
                return false;
            }
        }
        true
    }

    /// Puts back the state of a reservation whose key had no holds before. With a hold it goes to the keys with holds.
    pub(super) fn put_reserved(&mut self, charge: JointCharge<'_>, view: &StoreView<'_>) {
        let JointCharge { part, limit, place, state, holds, held_bytes, .. } = charge;
        let shard = self.shard(place);
        if holds.is_empty() {
            let log_bytes = logs::state_bytes(&state);
            if state != limit.fresh() || shard.find(place).is_some() {
                shard.put_state(place, state, view.budget);
            }
            view.budget.replace(held_bytes, log_bytes);
            return;
        }
        shard.hold_first(place, part.scope, (state, holds), held_bytes, view);
    }
}
