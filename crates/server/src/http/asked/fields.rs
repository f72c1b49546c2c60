//! What a check asks, as it is on the wire: each field once, and none but these.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use tollgate_core::MAX_UNITS;

use crate::http::problem::shown;
use crate::trust::{MAX_ATTRIBUTES, Pairs};

/// Those of both forms, each of which may be there. `null` is not the same as nothing.
#[derive(Debug, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fields<'a> {
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) limit: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) key: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) domain: Option<Text<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) attributes: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) verified: Option<Pairs<'a>>,
    #[serde(borrow, default, deserialize_with = "given")]
    pub(super) said: Option<Pairs<'a>>,
    #[serde(default, deserialize_with = "given")]
    pub(super) cost: Option<Whole>,
    #[serde(default, deserialize_with = "given")]
    pub(super) max_wait_us: Option<Whole>,
}

/// What is there; `null` is not the same as nothing.
fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(json: D) -> Result<Option<T>, D::Error> {
    T::deserialize(json).map(Some)
}

/// A text that is part of the body, if nothing in it is escaped.
#[derive(Debug, serde::Deserialize)]
#[serde(transparent)]
pub(super) struct Text<'a>(#[serde(borrow)] pub(super) Cow<'a, str>);

/// A whole number below 2^53: others are not the same in every language.
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

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Pairs<'a>, D::Error> {
        struct OfPairs;

        impl<'de> Visitor<'de> for OfPairs {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts, such as {\"path\":\"/login\"}")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Pairs<'de>, M::Error> {
                let mut pairs = Pairs::default();
                while let Some((Text(name), Text(value))) = map.next_entry()? {
                    if pairs.value(&name).is_some() {
                        let name = shown(&name);
                        return Err(M::Error::custom(format!("attribute `{name}` is there twice")));
                    }
                    if pairs.0.len() == MAX_ATTRIBUTES {
                        let problem = format!("too many attributes; use at most {MAX_ATTRIBUTES}");
                        return Err(M::Error::custom(problem));
                    }
                    pairs.0.push((name, value));
                }
                Ok(pairs)
            }
        }

        json.deserialize_map(OfPairs)
    }
}
