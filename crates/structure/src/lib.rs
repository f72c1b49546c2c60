//! Checks the structure of a Cargo workspace. Used by tests only.
//!
//! ```text
//! cargo test -p tollgate-structure              checks this workspace
//! cargo run -p tollgate-structure               lists the module cycles of this workspace
//! cargo run -p tollgate-structure -- PATH       lists the module cycles of the workspace or crate at PATH
//! cargo run -p tollgate-structure -- tollgate   lists the module cycles of one crate of this workspace
//! ```
//!
//! Four rules are checked; `tests/workspace.rs` has their tables:
//!
//! - crates depend on each other in one direction: [`layer_problems`]
//! - sibling modules inside a crate depend on each other in one direction: [`module_cycles`]
//! - no two types of the workspace have the same name: [`type_definitions`], [`type_name_problems`]
//! - the walks in ARCHITECTURE.md are short and name files that exist: [`walk_problems`]
//!
//! How module cycles are found, in order:
//!
//! 1. `metadata`: gets the crates and their root files from Cargo
//! 2. `module`: reads the files of a crate into a tree of modules; `scan`: collects what a module defines, imports and refers to
//! 3. `resolve`: finds the modules that a path refers to, through imports and re-exports
//! 4. `cycles`: builds the graph of sibling modules, and finds its cycles
//!
//! Two uses of a module are not detected: a call of its method or trait implementation that does not name the module, and
//! a name that a macro builds.

mod cycles;
mod error;
mod layers;
mod metadata;
mod module;
mod resolve;
mod scan;
mod type_names;
mod walks;

pub use cycles::{Cycle, Edge, module_cycles};
pub use error::StructureError;
pub use layers::{Dependency, layer_problems};
pub use metadata::{CrateRoot, Workspace};
pub use type_names::{NamedType, type_definitions, type_name_problems};
pub use walks::walk_problems;
