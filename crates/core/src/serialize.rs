//! Limits, decisions and receipts for serde; the crate's documentation has a table of their forms.
//!
//! Deserialized values are checked: a limit by parsing its text, a cost by [`Cost::new`], and a verdict for
//! contradictions. Unknown fields are ignored, so that a line of `tollgate replay` can be read as a decision.

use core::fmt;

use serde::de::{self, Deserialize, Deserializer, Visitor};
use serde::ser::{Serialize, Serializer};

use crate::decision::{ChargePlace, ChargeReceipt, Cost, LimitDecision, Retry, Verdict};
use crate::limit::Limit;

impl Serialize for Limit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Limit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Limit, D::Error> {
        deserializer.deserialize_str(LimitText)
    }
}

/// Reads a limit from its text.
struct LimitText;

impl Visitor<'_> for LimitText {
    type Value = Limit;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a limit like `token-bucket capacity=60 refill=1/s`")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Limit, E> {
        text.parse().map_err(E::custom)
    }
}

impl Serialize for Cost {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.units().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Cost, D::Error> {
        Cost::new(u64::deserialize(deserializer)?).map_err(de::Error::custom)
    }
}

impl Serialize for Retry {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        wait_us(*self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Retry {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Retry, D::Error> {
        Option::deserialize(deserializer).map(retry)
    }
}

fn wait_us(retry: Retry) -> Option<u64> {
    match retry {
        Retry::AfterUs(wait_us) => Some(wait_us),
        Retry::Never => None,
    }
}

fn retry(wait_us: Option<u64>) -> Retry {
    wait_us.map_or(Retry::Never, Retry::AfterUs)
}

/// The fields of a [`Verdict`].
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "Verdict")]
struct VerdictFields {
    allowed: bool,
    /// None when allowed, and when waiting cannot help.
    retry_after_us: Option<u64>,
    #[serde(default)]
    delay_us: u64,
}

impl VerdictFields {
    const fn of(verdict: Verdict) -> VerdictFields {
        VerdictFields {
            allowed: verdict.is_allowed(),
            retry_after_us: verdict.retry_after_us(),
            delay_us: verdict.delay_us(),
        }
    }

    fn verdict<E: de::Error>(self) -> Result<Verdict, E> {
        match self {
            VerdictFields { allowed: true, retry_after_us: None, delay_us } => {
                Ok(Verdict::Allowed { delay_us })
            }
            VerdictFields { allowed: false, retry_after_us, delay_us: 0 } => {
                Ok(Verdict::Denied { retry: retry(retry_after_us) })
            }
            VerdictFields { allowed: true, .. } => {
                Err(E::custom("`retry_after_us` of an allowed request; leave it out, or use null"))
            }
            VerdictFields { allowed: false, .. } => {
                Err(E::custom("`delay_us` of a denied request; leave it out, or use 0"))
            }
        }
    }
}

impl Serialize for Verdict {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        VerdictFields::of(*self).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Verdict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Verdict, D::Error> {
        VerdictFields::deserialize(deserializer)?.verdict()
    }
}

/// The fields of a [`LimitDecision`].
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "Decision")]
struct DecisionFields {
    allowed: bool,
    limit: u64,
    remaining: u64,
    /// None when allowed, and when waiting cannot help.
    retry_after_us: Option<u64>,
    reset_after_us: u64,
    #[serde(default)]
    delay_us: u64,
    #[serde(default)]
    first_back_us: u64,
}

impl Serialize for LimitDecision {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us } = *self;
        let VerdictFields { allowed, retry_after_us, delay_us } = VerdictFields::of(verdict);
        let fields = DecisionFields {
            allowed,
            limit,
            remaining,
            retry_after_us,
            reset_after_us,
            delay_us,
            first_back_us,
        };
        fields.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for LimitDecision {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<LimitDecision, D::Error> {
        let fields = DecisionFields::deserialize(deserializer)?;
        let DecisionFields { allowed, retry_after_us, delay_us, .. } = fields;
        let verdict = VerdictFields { allowed, retry_after_us, delay_us }.verdict()?;
        let DecisionFields { limit, remaining, reset_after_us, first_back_us, .. } = fields;
        Ok(LimitDecision { verdict, limit, remaining, reset_after_us, first_back_us })
    }
}

/// The forms of a [`ChargePlace`].
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(remote = "ChargePlace", rename = "Place", rename_all = "snake_case")]
enum PlaceForms {
    Window { start_us: u64, window_us: u64 },
    Entry { at_us: u64 },
    Bucket { charged: u64, over_us: u64 },
    Lease { lease: u64, settlement: u32, until_us: u64 },
}

impl Serialize for ChargePlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        PlaceForms::serialize(self, serializer)
    }
}

impl<'de> Deserialize<'de> for ChargePlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChargePlace, D::Error> {
        PlaceForms::deserialize(deserializer)
    }
}

/// The fields of a [`ChargeReceipt`].
#[derive(serde::Serialize, serde::Deserialize)]
#[serde(rename = "Receipt")]
struct ReceiptFields {
    cost: Cost,
    place: ChargePlace,
}

impl Serialize for ChargeReceipt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        ReceiptFields { cost: self.cost(), place: self.place() }.serialize(serializer)
    }
}

/// Reads a stored receipt. As with [`ChargeReceipt::of`], a receipt that is invented or refunded twice gives back units
/// that other requests were charged.
impl<'de> Deserialize<'de> for ChargeReceipt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<ChargeReceipt, D::Error> {
        let ReceiptFields { cost, place } = ReceiptFields::deserialize(deserializer)?;
        Ok(ChargeReceipt::of(cost, place))
    }
}
