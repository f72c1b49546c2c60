//! The JSON fields of a check. Each may occur once, and unknown fields are an error.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use tollgate_core::MAX_UNITS;

use crate::http::problem::excerpt;
use crate::trust::{MAX_ATTRIBUTES, Pairs};

/// The fields of both forms. All are optional, but none may be `null`.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct CheckFields<'a> {
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) limit: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) key: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) domain: Option<BorrowedText<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) attributes: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) verified: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "not_null")]
    pub(super) said: Option<Pairs<'a>>,
    #[serde(default, deserialize_with = "not_null")]
    pub(super) cost: Option<JsonInteger>,
    #[serde(default, deserialize_with = "not_null")]
    pub(super) max_wait_us: Option<JsonInteger>,
}

/// Deserializes a field that is present, and refuses `null`.
pub(in crate::http) fn not_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// A text, borrowed from the body unless it has escapes.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub(in crate::http) struct BorrowedText<'a>(#[serde(borrow)] pub(in crate::http) Cow<'a, str>);

/// A whole number below 2^53. Some languages cannot represent all larger numbers exactly.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) struct JsonInteger(pub(in crate::http) u64);

impl<'de> Deserialize<'de> for JsonInteger {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<JsonInteger, D::Error> {
        struct JsonIntegerVisitor;

        impl Visitor<'_> for JsonIntegerVisitor {
            type Value = JsonInteger;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number up to {MAX_UNITS}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<JsonInteger, E> {
                match number {
                    0..=MAX_UNITS => Ok(JsonInteger(number)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }

            /// Accepts `5.0` and `5e0` as 5, because some languages write all numbers as floats.
            fn visit_f64<E: Error>(self, number: f64) -> Result<JsonInteger, E> {
                // OK because floats represent whole numbers up to 2^53 exactly, and a negative number becomes 0,
                // which differs from it.
                let whole = number as u64;
                match whole {
                    0..=MAX_UNITS if whole as f64 == number => Ok(JsonInteger(whole)),
                    _ => Err(E::invalid_value(Unexpected::Float(number), &self)),
                }
            }
        }

        json.deserialize_u64(JsonIntegerVisitor)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Pairs<'a>, D::Error> {
        struct PairsVisitor;

        impl<'de> Visitor<'de> for PairsVisitor {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings, such as {\"path\":\"/login\"}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs<'de>, M::Error> {
                let mut pairs = Pairs::default();
                while let Some((BorrowedText(name), BorrowedText(value))) = map.next_entry()? {
                    if pairs.value(&name).is_some() {
                        let name = excerpt(&name);
                        return Err(M::Error::custom(format!("attribute `{name}` occurs twice")));
                    }
                    if pairs.0.len() == MAX_ATTRIBUTES {
                        let problem = format!("too many attributes; send at most {MAX_ATTRIBUTES}");
                        return Err(M::Error::custom(problem));
                    }
                    pairs.0.push((name, value));
                }
                Ok(pairs)
            }
        }

        json.deserialize_map(PairsVisitor)
    }
}
