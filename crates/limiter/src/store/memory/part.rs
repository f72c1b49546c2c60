//! The parts of a check of several limits.

use smallvec::SmallVec;

use super::scopes::MemoryScope;
use crate::joint::Demand;

/// A list that needs no heap for up to 8 elements: most checks have no more parts than that.
pub(crate) type ShortVec<T> = SmallVec<[T; 8]>;

/// One limit's part in a check of several.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JointPart<'a> {
    pub(crate) scope: &'a MemoryScope,
    pub(crate) key: &'a [u8],
    pub(crate) demand: Demand,
}
