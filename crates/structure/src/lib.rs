//! Checks the structure of a Cargo workspace. Used by tests only.
//!
//! ```text
//! cargo test -p tollgate-structure              checks this workspace
//! cargo run -p tollgate-structure               lists the module cycles of this workspace
//! cargo run -p tollgate-structure -- PATH       lists those of the workspace or crate at PATH
//! cargo run -p tollgate-structure -- tollgate   lists those of one crate of this workspace
//! ```
//!
//! Four rules are checked; `tests/workspace.rs` has their tables:
//!
//! - crates depend on each other in one direction: [`layer_problems`]
//! - sibling modules inside a crate depend on each other in one direction: [`module_cycles`], [`cycle_problems`]
//! - a type has a name that no other type of the workspace has: [`type_definitions`], [`type_name_problems`]
//! - the walks in ARCHITECTURE.md are short and name files that exist: [`walk_problems`]
//!
//! How module cycles are found, in order:
//!
//! 1. `metadata`: asks Cargo for the crates and their root files
//! 2. `module`: reads the files of a crate into a tree of modules; `scan`: collects what a module defines, imports and refers to
//! 3. `resolve`: finds the modules that a path leads to, through imports and re-exports
//! 4. `cycles`: builds the graph between sibling modules and finds its cycles; `known`: compares them with the known ones
//!
//! Not detected: the use of another module's method or trait implementation without naming that module, and names that
//! a macro builds.

mod cycles;
mod error;
mod known;
mod layers;
mod metadata;
mod module;
mod resolve;
mod scan;
mod type_names;
mod walks;

pub use cycles::{Cycle, Edge, module_cycles};
pub use error::StructureError;
pub use known::cycle_problems;
pub use layers::{Dependency, layer_problems};
pub use metadata::{CrateRoot, Workspace};
pub use type_names::{NamedType, type_definitions, type_name_problems};
pub use walks::walk_problems;
