//! Receipts, each bound to the key that was charged.

use std::fmt;

use tollgate_core::{Cost, Place};

/// A charge to one key: the only way to refund it, and good for one refund.
///
/// A receipt belongs to the key and to the name of the limit that were charged. A refund with another
/// key, or through a scope of another name, is an error
/// ([`ReceiptMismatch`](crate::Error::ReceiptMismatch)) and changes nothing.
///
/// Not `Clone`: a refund takes the receipt away. A window's receipt is good only while the window
/// keeps its length.
#[derive(PartialEq, Eq)]
pub struct Receipt {
    charge: tollgate_core::Receipt,
    holder: Holder,
}

/// A fingerprint of a key and of its limit's name. Two are the same for the same key, and for two
/// different ones with a chance of 1 in 2^64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder(pub(crate) u64);

/// Without the fingerprint, which differs from one process to the next.
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
    #[inline(always)]
    pub(crate) fn new(charge: tollgate_core::Receipt, holder: Holder) -> Receipt {
        Receipt { charge, holder }
    }

    /// Returns the units that were charged.
    pub fn cost(&self) -> Cost {
        self.charge.cost()
    }

    /// Returns where in the key's state they were charged.
    pub fn place(&self) -> Place {
        self.charge.place()
    }

    /// Returns a copy, for a caller that makes sure by other means that one of the two is refunded.
    #[cfg(feature = "rules")]
    pub(crate) fn copy(&self) -> Receipt {
        let charge = tollgate_core::Receipt::of(self.charge.cost(), self.charge.place());
        Receipt { charge, holder: self.holder }
    }

    /// Returns the charge, if this is the receipt of `holder`.
    pub(crate) fn charge_of(self, holder: Holder) -> Option<tollgate_core::Receipt> {
        (self.holder == holder).then_some(self.charge)
    }
}
