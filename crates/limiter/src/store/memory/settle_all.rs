//! Operations on several holds at once: all shards are locked while they run.

use tollgate_core::{
    Cost, ExtendAnswer, HoldGrowth, HoldReference, HoldUse, LimitDecision, SettleAnswer,
    UnitRequest,
};

use super::shard::Shard;
use super::view::StoreView;
use super::{KeyPlace, MemoryScope, MemoryStore};

/// A hold of a request on several holds.
#[derive(Clone, Copy)]
pub(crate) struct HoldPart<'a> {
    pub(crate) scope: &'a MemoryScope,
    pub(crate) key: &'a [u8],
    pub(crate) hold: HoldReference,
}

impl MemoryStore {
    /// Charges what was used of each hold, as [`settle`](Self::settle) does.
    pub(crate) fn settle_all(
        &self,
        parts: &[(HoldPart<'_>, HoldUse)],
        now_us: u64,
    ) -> Vec<SettleAnswer> {
        let view = self.view(now_us);
        let places: Vec<KeyPlace> = parts.iter().map(|(part, _)| self.place_of(part)).collect();
        let mut locks = self.lock_shards(places.iter().copied());
        let settle = |(&place, (part, used)): (&KeyPlace, &(HoldPart<'_>, HoldUse))| {
            locks.shard(place).settle(place, part.scope, &view, part.hold, *used)
        };
        places.iter().zip(parts).map(settle).collect()
    }

    /// Extends all holds, or none if one cannot be extended, as
    /// [`RemoteStore::extend`](crate::store::RemoteStore::extend) says.
    pub(crate) fn extend_all(
        &self,
        parts: &[(HoldPart<'_>, HoldGrowth)],
        now_us: u64,
    ) -> Vec<ExtendAnswer> {
        let view = self.view(now_us);
        let places: Vec<KeyPlace> = parts.iter().map(|(part, _)| self.place_of(part)).collect();
        let mut locks = self.lock_shards(places.iter().copied());
        let all = || places.iter().copied().zip(parts);
        let is_granted: Vec<bool> = all()
            .map(|(place, (part, growth))| {
                locks.shard(place).can_extend(place, &view, part, *growth)
            })
            .collect();
        let is_refused = is_granted.contains(&false);
        let extend =
            |((place, (part, growth)), is_granted): ((KeyPlace, &(_, HoldGrowth)), bool)| {
                let HoldPart { scope, hold, .. } = *part;
                if is_granted && is_refused {
                    let decision = locks.shard(place).peek_growth(place, scope, &view, growth.more);
                    return ExtendAnswer::refused_for_another(decision);
                }
                locks.shard(place).extend(place, scope, &view, hold, *growth)
            };
        all().zip(is_granted).map(extend).collect()
    }

    fn place_of(&self, part: &HoldPart<'_>) -> KeyPlace {
        self.place(part.scope, part.key)
    }
}

impl Shard {
    /// Whether a hold is open and grows, if all others of its request grow too. Changes nothing.
    fn can_extend(
        &self,
        place: KeyPlace,
        view: &StoreView<'_>,
        HoldPart { scope, hold, .. }: &HoldPart<'_>,
        growth: HoldGrowth,
    ) -> bool {
        let Some(key) = self.held_key(place, scope) else { return false };
        let limit = match growth.more {
            Some(_) if key.holds.contains(hold.id) => &scope.limit,
            _ => key.limit(),
        };
        let more = growth.more.unwrap_or(Cost::ONE);
        let (decides, mut state, mut holds) = key.carried_copy(limit, view.now_us, more);
        let answer = decides.extend_hold(&mut state, &mut holds, view.now_us, *hold, growth);
        answer.is_granted()
    }

    /// Returns what a peek at the additional units shows.
    fn peek_growth(
        &self,
        place: KeyPlace,
        scope: &MemoryScope,
        view: &StoreView<'_>,
        more: Option<Cost>,
    ) -> LimitDecision {
        let request = UnitRequest::new(more.unwrap_or(Cost::ONE));
        match self.held_key(place, scope) {
            Some(key) => key.peek(&scope.limit, view.now_us, request),
            // Not reached: a hold that can grow is listed.
            None => scope.limit.peek(&scope.limit.fresh(), view.now_us, request),
        }
    }
}
