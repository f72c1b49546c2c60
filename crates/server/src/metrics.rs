//! What Prometheus is told.

use crate::served::Served;

/// What was counted so far.
#[derive(Debug, Default)]
pub(crate) struct Metrics {}

impl Metrics {
    /// The text that Prometheus reads.
    pub(crate) fn render(&self, _served: &Served) -> String {
        String::new()
    }
}
