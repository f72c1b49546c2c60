//! The algorithms in Lua: the text of each twin, for a store that decides inside Redis.
//!
//! The first lines of each text say after which others to load it. [`MULDIV`] comes first, then [`ALGORITHM`].

/// Twin of [`muldiv`](crate::store::muldiv).
pub const MULDIV: &str = include_str!("../muldiv.lua");

/// Twin of [`Algorithm`](crate::Algorithm).
pub const ALGORITHM: &str = include_str!("../algorithm.lua");

/// Twin of [`FixedWindow`](crate::FixedWindow).
pub const FIXED_WINDOW: &str = include_str!("../algorithm/fixed_window.lua");

/// Twin of [`SlidingWindowCounter`](crate::SlidingWindowCounter).
pub const SLIDING_WINDOW_COUNTER: &str = include_str!("../algorithm/sliding_window_counter.lua");

/// Twin of [`SlidingWindowLog`](crate::SlidingWindowLog).
pub const SLIDING_WINDOW_LOG: &str = include_str!("../algorithm/sliding_window_log.lua");

/// The bucket behind [`TOKEN_BUCKET`] and [`LEAKY_BUCKET`].
pub const BUCKET: &str = include_str!("../algorithm/bucket.lua");

/// Twin of [`TokenBucket`](crate::TokenBucket).
pub const TOKEN_BUCKET: &str = include_str!("../algorithm/token_bucket.lua");

/// Twin of [`LeakyBucket`](crate::LeakyBucket).
pub const LEAKY_BUCKET: &str = include_str!("../algorithm/leaky_bucket.lua");

/// Twin of [`Concurrency`](crate::Concurrency).
pub const CONCURRENCY: &str = include_str!("../algorithm/concurrency.lua");

/// Twin of the operations on a key with [`Holds`](crate::Holds). It needs all sections of the other twins, also "beyond a
/// check" and "carrying over".
pub const HOLDS: &str = include_str!("../holds.lua");
