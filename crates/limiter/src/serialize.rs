//! Decisions and receipts for serde.
//!
//! Both can be serialised, but not deserialised. A receipt belongs to a key and a limiter, so
//! [`Scope::receipt`](crate::Scope::receipt) makes it again from its cost and place. A serialised decision is
//! read as a [`tollgate_core::LimitDecision`].

use serde::ser::{Serialize, SerializeStruct, Serializer};
use tollgate_core::ChargePlace;

use crate::decision::Decision;
use crate::receipt::Receipt;

/// The fields of [`tollgate_core::LimitDecision`], and whether the decision is a remembered one (`cached`), was made
/// with a lease (`leased`), or without the store (`degraded`).
impl Serialize for Decision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let decided = self.decided();
        let mut fields = serializer.serialize_struct("Decision", 10)?;
        fields.serialize_field("allowed", &decided.is_allowed())?;
        fields.serialize_field("limit", &decided.limit)?;
        fields.serialize_field("remaining", &decided.remaining)?;
        fields.serialize_field("retry_after_us", &decided.retry_after_us())?;
        fields.serialize_field("reset_after_us", &decided.reset_after_us)?;
        fields.serialize_field("delay_us", &decided.delay_us())?;
        fields.serialize_field("first_back_us", &decided.first_back_us)?;
        fields.serialize_field("cached", &self.is_cached())?;
        fields.serialize_field("leased", &self.is_leased())?;
        fields.serialize_field("degraded", &self.is_degraded())?;
        fields.end()
    }
}

/// The cost and the place.
impl Serialize for Receipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place: ChargePlace = self.place();
        let mut fields = serializer.serialize_struct("Receipt", 2)?;
        fields.serialize_field("cost", &self.cost())?;
        fields.serialize_field("place", &place)?;
        fields.end()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use serde::Deserialize;
    use tollgate_core::{ChargePlace, Cost};

    use crate::{Limiter, ManualClock};

    #[derive(Deserialize)]
    struct ReceiptJson {
        cost: Cost,
        place: ChargePlace,
    }

    #[test]
    fn decision_is_serialised_with_the_field_names_of_replay() {
        let limiter = Limiter::builder().clock(&ManualClock::at_us(0)).build();
        let api = limiter.scope("api", "fixed-window limit=10 window=1s").unwrap();
        let json = serde_json::to_value(api.check("a").cost(4).now().unwrap()).unwrap();
        let want = serde_json::json!({
            "allowed": true, "limit": 10, "remaining": 6, "retry_after_us": null, "reset_after_us": 1_000_000,
            "delay_us": 0, "first_back_us": 0, "cached": false, "leased": false, "degraded": false,
        });
        assert_eq!(json, want);
        let read: tollgate_core::LimitDecision = serde_json::from_value(json).unwrap();
        assert_eq!(read, *api.peek("a").cost(6).now().unwrap().decided());
    }

    #[test]
    fn receipt_is_made_again_from_its_serialised_form() {
        let limiter = Limiter::memory();
        let api = limiter.scope("api", "token-bucket capacity=10 refill=1/d").unwrap();
        let receipt = api.check("a").cost(4).now().unwrap().into_receipt().unwrap();
        let json = serde_json::to_string(&receipt).unwrap();
        let ReceiptJson { cost, place } = serde_json::from_str(&json).unwrap();
        let again = api.receipt("a", cost, place).unwrap();
        assert_eq!(api.refund_now("a", again).unwrap(), 4);
        assert_eq!(api.peek("a").now().unwrap().remaining(), 10);
    }
}
