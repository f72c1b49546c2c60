//! The numbers of a state, as a slot keeps them.

/// A state's numbers, each below 2^53.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Words(pub(super) [u64; 4]);
