//! The JSON Schema of a file, for editors. Draft 7, which the YAML language server supports best.

use super::config::Config;

impl Config {
    /// Returns the JSON Schema of a file of limits and rules.
    pub fn schema() -> &'static str {
        include_str!("schema.json")
    }
}
