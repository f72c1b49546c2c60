//! How the fields of a body are read. Stricter than serde: `null` is not an absent field, and an array is not an object.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, Error, MapAccess, Unexpected, Visitor};
use tollgate_core::MAX_UNITS;

/// Reads a field that is there; `null` is not the same as an absent field.
pub(super) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    json: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// A whole number below 2^53: larger ones are not the same in every language.
#[derive(Clone, Copy, Debug)]
pub(super) struct Whole(pub(super) u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Whole, D::Error> {
        struct OfWhole;

        impl Visitor<'_> for OfWhole {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number up to {MAX_UNITS}")
            }

            fn visit_u64<E: Error>(self, number: u64) -> Result<Whole, E> {
                match number {
                    0..=MAX_UNITS => Ok(Whole(number)),
                    _ => Err(E::invalid_value(Unexpected::Unsigned(number), &self)),
                }
            }

            /// `5.0` and `5e0` are 5: some languages write all their numbers so.
            fn visit_f64<E: Error>(self, number: f64) -> Result<Whole, E> {
                // OK because those up to 2^53 are the same as a float; what is not 0 or more becomes 0.
                let whole = number as u64;
                match whole {
                    0..=MAX_UNITS if whole as f64 == number => Ok(Whole(whole)),
                    _ => Err(E::invalid_value(Unexpected::Float(number), &self)),
                }
            }
        }

        json.deserialize_u64(OfWhole)
    }
}

/// Reads a number. `null`, as which some languages write NaN, is not the same as an absent field.
pub(super) fn number<'de, D: Deserializer<'de>>(json: D) -> Result<Option<f64>, D::Error> {
    struct OfNumber;

    impl Visitor<'_> for OfNumber {
        type Value = f64;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a number")
        }

        fn visit_f64<E: Error>(self, number: f64) -> Result<f64, E> {
            Ok(number)
        }

        // Those that a float does not have are out of every range.
        fn visit_u64<E: Error>(self, number: u64) -> Result<f64, E> {
            Ok(number as f64)
        }

        fn visit_i64<E: Error>(self, number: i64) -> Result<f64, E> {
            Ok(number as f64)
        }
    }

    json.deserialize_f64(OfNumber).map(Some)
}

/// Reads an object, or `null` as none. Serde would take an array for the fields in their order.
pub(super) fn object<'de, D, T>(json: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de>,
{
    struct OfObject<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for OfObject<T> {
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

    json.deserialize_any(OfObject(PhantomData))
}
