//! Reads the fields of a body. Stricter than serde: `null` is not an absent field, and an array is not an object.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use tollgate_core::MAX_UNITS;

/// Reads a field that is present. `null` is not the same as an absent field.
pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// A whole number up to `MAX_UNITS`. Larger numbers are not exact in every language.
#[derive(Clone, Copy, Debug)]
pub(super) struct WholeNumber(pub(super) u64);

impl<'de> Deserialize<'de> for WholeNumber {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<WholeNumber, D::Error> {
        struct WholeNumberVisitor;

        impl Visitor<'_> for WholeNumberVisitor {
            type Value = WholeNumber;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number up to {MAX_UNITS}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<WholeNumber, E> {
                match number {
                    0..=MAX_UNITS => Ok(WholeNumber(number)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }

            /// Accepts `5.0` and `5e0` as 5: some languages write all numbers in this way.
            fn visit_f64<E: Error>(self, number: f64) -> Result<WholeNumber, E> {
                // OK because whole numbers up to 2^53 are exact as a float. Negative numbers and NaN become 0, which differs.
                let whole = number as u64;
                match whole {
                    0..=MAX_UNITS if whole as f64 == number => Ok(WholeNumber(whole)),
                    _ => Err(E::invalid_value(Unexpected::Float(number), &self)),
                }
            }
        }

        json.deserialize_u64(WholeNumberVisitor)
    }
}

/// Reads a number. `null` is not the same as an absent field; some languages write NaN as `null`.
pub(super) fn number<'de, D: Deserializer<'de>>(json: D) -> Result<Option<f64>, D::Error> {
    struct NumberVisitor;

    impl Visitor<'_> for NumberVisitor {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number")
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
            Ok(number)
        }

        // Numbers that a float cannot represent are out of every range.
        fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
            Ok(number as f64)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
            Ok(number as f64)
        }
    }

    json.deserialize_f64(NumberVisitor).map(Some)
}

/// Reads an object; `null` gives `None`. Serde's derived code would also accept an array with the fields in order.
pub(super) fn object<'de, D, T>(json: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct ObjectVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
        type Value = Option<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_unit<E: Error>(self) -> Result<Option<T>, E> {
            Ok(None)
        }

        fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Option<T>, M::Error> {
            T::deserialize(MapAccessDeserializer::new(map)).map(Some)
        }
    }

    json.deserialize_any(ObjectVisitor(PhantomData))
}
