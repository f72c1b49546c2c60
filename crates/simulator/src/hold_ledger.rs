//! The first check: what a process uses is held for it.

use std::collections::HashMap;

use tollgate_core::{HoldId, OpenHold};

/// The units that were used of each lease, counted by the simulator.
#[derive(Debug, Default)]
pub(crate) struct HoldLedger {
    used: HashMap<(u32, HoldId), u64>,
}

impl HoldLedger {
    pub(crate) fn used(&self, key: u32, id: HoldId) -> u64 {
        self.used.get(&(key, id)).copied().unwrap_or(0)
    }

    pub(crate) fn give_back(&mut self, key: u32, id: HoldId, units: u64) {
        if let Some(used) = self.used.get_mut(&(key, id)) {
            *used -= units;
        }
    }

    /// Counts a use. Returns what is wrong, unless the store holds at this moment all units of the lease that were used
    /// and are not settled.
    pub(crate) fn take(
        &mut self,
        key: u32,
        id: HoldId,
        units: u64,
        hold: Option<OpenHold>,
    ) -> Option<String> {
        let used = self.used.entry((key, id)).or_default();
        *used += units;
        let Some(hold) = hold else {
            return Some(format!("{units} units of a lease that is not open on the store"));
        };
        let unsettled = used.saturating_sub(hold.used);
        (unsettled > hold.units).then(|| {
            format!("{unsettled} units are used and not settled, and {} are held", hold.units)
        })
    }
}
