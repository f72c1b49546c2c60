//! The charge of one limit, as a part of a receipt.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use tollgate::{Decision, Error, Limit, Receipt, Scope};
use tollgate_core::{ChargePlace, Cost, LimitDecision};

use super::number::{read_number, read_text, write_number, write_text};

const IN_WINDOW: u8 = 0;
const IN_LOG: u8 = 1;
const IN_BUCKET: u8 = 2;
const IN_LEASE: u8 = 3;

/// The charge of one limit.
#[derive(Clone, PartialEq)]
pub(super) struct ReceiptPart<'p> {
    /// The name of the limit, or of the rule.
    pub(super) scope: &'p str,
    pub(super) key: &'p [u8],
    pub(super) cost: Cost,
    pub(super) place: ChargePlace,
    /// How long the charge may count, from its time: at most the length of a fixed window, and twice the window of a
    /// sliding window counter.
    pub(super) lasts_us: u64,
}

impl<'p> ReceiptPart<'p> {
    /// Returns the charge of a decision; `None` if nothing was charged.
    pub(super) fn of(
        scope: &'p Scope,
        key: &'p [u8],
        decision: &Decision,
    ) -> Option<ReceiptPart<'p>> {
        Some(ReceiptPart::new(scope, key, decision.receipt()?, decision.decided()))
    }

    /// Returns the charge of a receipt, which was given with this decision.
    pub(super) fn new(
        scope: &'p Scope,
        key: &'p [u8],
        receipt: &Receipt,
        decided: &LimitDecision,
    ) -> ReceiptPart<'p> {
        let (cost, place) = (receipt.cost(), receipt.place());
        // After `reset_after` nothing is spent under the key, so this charge no longer counts either.
        let lasts_us = decided.reset_after_us;
        let lasts_us = match (place, scope.limit()) {
            // `reset_after` is longer than the window only if the clock was before the window.
            (ChargePlace::Window { window_us, .. }, Limit::FixedWindow(_)) => {
                lasts_us.min(window_us)
            }
            // The next window of a sliding counter still counts this window's charges.
            (ChargePlace::Window { window_us, .. }, _) => window_us.saturating_mul(2),
            // The charge can be refunded until its lease ends, which may be later.
            (ChargePlace::Lease { until_us, .. }, _) => {
                lasts_us.max(until_us.saturating_sub(unix_us()))
            }
            _ => lasts_us,
        };
        ReceiptPart { scope: scope.name(), key, cost, place, lasts_us }
    }

    /// Whether the charge was made with a lease.
    pub(super) fn is_leased(&self) -> bool {
        matches!(self.place, ChargePlace::Lease { .. })
    }

    /// Returns the library's receipt, for the scope of this name; an error if the key is too long.
    pub(super) fn receipt(&self, scope: &Scope) -> Result<Receipt, Error> {
        scope.receipt(self.key, self.cost, self.place)
    }

    /// Returns the time from which the charge is treated as if it no longer counted. A log may still count it, if its
    /// window was made longer after the charge.
    pub(super) fn until_us(&self) -> u64 {
        match self.place {
            ChargePlace::Window { start_us, window_us } => {
                start_us.saturating_add(self.lasts_us.max(window_us))
            }
            ChargePlace::Entry { at_us } => at_us.saturating_add(self.lasts_us),
            ChargePlace::Bucket { over_us, .. } => over_us,
            ChargePlace::Lease { until_us, .. } => until_us,
        }
    }

    /// Appends the part to `bytes`.
    pub(super) fn write(&self, bytes: &mut Vec<u8>) {
        write_text(bytes, self.scope.as_bytes());
        write_text(bytes, self.key);
        write_number(bytes, self.cost.units());
        write_number(bytes, self.lasts_us);
        let (kind, first, second) = match self.place {
            ChargePlace::Window { start_us, window_us } => (IN_WINDOW, start_us, window_us),
            ChargePlace::Entry { at_us } => (IN_LOG, at_us, 0),
            ChargePlace::Bucket { charged, over_us } => (IN_BUCKET, charged, over_us),
            ChargePlace::Lease { lease, settlement, .. } => (IN_LEASE, lease, settlement.into()),
        };
        bytes.push(kind);
        write_number(bytes, first);
        write_number(bytes, second);
        if let ChargePlace::Lease { until_us, .. } = self.place {
            write_number(bytes, until_us);
        }
    }

    /// Reads the first part of `bytes`, and removes it from them.
    pub(super) fn read(bytes: &mut &'p [u8]) -> Option<ReceiptPart<'p>> {
        let scope = str::from_utf8(read_text(bytes)?).ok()?;
        let key = read_text(bytes)?;
        let cost = Cost::new(read_number(bytes)?).ok()?;
        let lasts_us = read_number(bytes)?;
        let kind = *bytes.split_off_first()?;
        let (first, second) = (read_number(bytes)?, read_number(bytes)?);
        let place = match kind {
            IN_WINDOW => ChargePlace::Window { start_us: first, window_us: second },
            IN_LOG => ChargePlace::Entry { at_us: first },
            IN_BUCKET => ChargePlace::Bucket { charged: first, over_us: second },
            IN_LEASE => {
                let until_us = read_number(bytes)?;
                let settlement = second.try_into().ok()?;
                ChargePlace::Lease { lease: first, settlement, until_us }
            }
            _ => return None,
        };
        Some(ReceiptPart { scope, key, cost, place, lasts_us })
    }
}

fn unix_us() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX)
}

/// Without the key, which may be a secret.
impl fmt::Debug for ReceiptPart<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, cost) = (self.scope, self.cost.units());
        f.debug_struct("ReceiptPart")
            .field("scope", &scope)
            .field("cost", &cost)
            .finish_non_exhaustive()
    }
}
