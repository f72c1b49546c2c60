//! Files of limits and rules: parsing valid files, and the problems of invalid ones.

#![allow(clippy::unwrap_used)]

#[macro_use]
mod keys;

mod documents;
mod files;
mod mistakes;
mod random;
mod schema;
mod tree;
mod valid;

use tollgate::rules::{Config, Problems};

/// The problems of a text under the name `limits.yaml`.
pub(crate) fn problems(text: &str) -> Problems {
    match Config::parse("limits.yaml", text) {
        Ok(config) => config.warnings().clone(),
        Err(problems) => problems,
    }
}
