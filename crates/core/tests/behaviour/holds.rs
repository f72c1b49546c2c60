//! Holds: units that are set aside until they are settled or expire.

mod model;
mod moves;
mod random;
mod search;
mod tables;
