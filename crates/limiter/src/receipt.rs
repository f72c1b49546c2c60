//! Receipts, each bound to the key that was charged.

use std::fmt;

use tollgate_core::{ChargePlace, Cost};

/// The receipt of a charge to one key. A refund of the charge needs it, and it is good for one refund.
///
/// A receipt belongs to the key and to the name of the limit that were charged. A refund with another
/// key, or through a scope of another name, is an error
/// ([`ReceiptMismatch`](crate::Error::ReceiptMismatch)) and changes nothing.
///
/// Not `Clone`: a refund takes the receipt. The receipt of a window is good only while the window keeps its
/// length.
#[derive(PartialEq, Eq)]
pub struct Receipt {
    charge: tollgate_core::ChargeReceipt,
    fingerprint: Fingerprint,
}

/// A fingerprint of a key and of its limit's name. Equal keys have equal fingerprints; two different keys
/// have equal ones with a chance of 1 in 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fingerprint(pub(crate) u64);

/// Omits the fingerprint, which differs from one process to the next.
impl fmt::Debug for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (cost, place) = (self.cost(), self.place());
        f.debug_struct("Receipt")
            .field("cost", &cost)
            .field("place", &place)
            .finish_non_exhaustive()
    }
}

impl Receipt {
    /// Returns the receipt of a charge to the key with this fingerprint.
    #[inline(always)]
    pub fn new(charge: tollgate_core::ChargeReceipt, fingerprint: Fingerprint) -> Receipt {
        Receipt { charge, fingerprint }
    }

    /// Returns the units that were charged.
    pub fn cost(&self) -> Cost {
        self.charge.cost()
    }

    /// Returns where in the key's state the units were charged.
    pub fn place(&self) -> ChargePlace {
        self.charge.place()
    }

    /// Returns a copy, for a caller that ensures in another way that only one of the two is refunded.
    pub fn copy(&self) -> Receipt {
        let charge = tollgate_core::ChargeReceipt::of(self.charge.cost(), self.charge.place());
        Receipt { charge, fingerprint: self.fingerprint }
    }

    /// Returns the charge, if this receipt has the fingerprint.
    pub(crate) fn charge_of(
        self,
        fingerprint: Fingerprint,
    ) -> Option<tollgate_core::ChargeReceipt> {
        (self.fingerprint == fingerprint).then_some(self.charge)
    }
}
