//! A limit's parameters: their names, values and text, and why one is refused.
//!
//! The module `error` uses `name` and `rate` for its messages. The modules that can refuse a parameter use `error`:
//! `accept` checks numbers, `value` parses text.

mod accept;
mod error;
mod name;
mod rate;
mod time;
mod value;

pub(crate) use accept::{concurrent_units, hold_time, limit_units, log_units, window_us};
pub use error::{Excerpt, LimitError, Notation};
pub use name::AlgorithmName;
pub use rate::Rate;
pub use time::duration_text;
pub(crate) use time::write_duration;
pub use value::parse_duration;
pub(crate) use value::{MAX_TEXT_BYTES, ParameterText, duration, parse_rate, units};
