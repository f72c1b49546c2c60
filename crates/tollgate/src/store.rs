//! Where state lives.

pub(crate) mod memory;
