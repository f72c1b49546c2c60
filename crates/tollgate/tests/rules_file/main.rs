//! Files of limits and rules: what is read, and what is said of those that are wrong.

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

/// What is wrong with a text called `limits.yaml`.
pub(crate) fn problems(text: &str) -> Problems {
    match Config::parse("limits.yaml", text) {
        Ok(config) => config.warnings().clone(),
        Err(problems) => problems,
    }
}
