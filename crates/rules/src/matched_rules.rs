//! The rules that apply to a request, and their keys.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tollgate_limiter::{Error, MAX_KEY_BYTES, Scope};

use super::plan::{PlannedRule, SpendTarget};

/// The usual size of a request's keys together.
const KEY_BYTES: usize = 128;

/// The most rules that may apply to one request. Their keys together have at most [`MAX_KEY_BYTES`].
const MAX_MATCHED: usize = 256;

/// The rules that apply to a request.
#[derive(Clone)]
pub(super) struct MatchedRules {
    pub(super) generation: u64,
    /// The keys of all rules, one after the other.
    pub(super) keys: Vec<u8>,
    pub(super) matched: Vec<MatchedRule>,
    /// The index of the first rule that blocks the request.
    pub(super) blocked_by: Option<usize>,
}

/// A rule that applies.
#[derive(Clone)]
pub(super) struct MatchedRule {
    /// The index of the set of attributes that it applies to.
    pub(super) request: usize,
    pub(super) rule: Arc<PlannedRule>,
    pub(super) spent: Arc<SpendTarget>,
    pub(super) key: Range<usize>,
    pub(super) units: u64,
    /// Whether this is a peek, which charges nothing.
    pub(super) is_peek: bool,
    /// Whether a reservation sets the units aside.
    pub(super) is_held: bool,
}

impl MatchedRule {
    pub(super) fn scope(&self) -> Option<&Scope> {
        self.spent.scope()
    }
}

impl MatchedRules {
    pub(super) fn new(generation: u64) -> MatchedRules {
        // Enough for the keys of a few rules, so that there is one allocation.
        let keys = Vec::with_capacity(KEY_BYTES);
        MatchedRules { generation, keys, matched: Vec::new(), blocked_by: None }
    }

    /// Removes the rules that another rule replaces, also if that other rule is itself replaced.
    pub(super) fn remove_replaced(&mut self) {
        let rules = self.matched.iter().map(|matched| &matched.rule);
        let replacing: Vec<Arc<PlannedRule>> =
            rules.filter(|rule| rule.is_replacing()).cloned().collect();
        if !replacing.is_empty() {
            self.matched.retain(|own| !replacing.iter().any(|rule| rule.replaces(&own.rule)));
        }
    }

    /// Checks the bounds. They are the same on every store: a Redis script takes no more charges in one call, and no
    /// request should need more.
    pub(super) fn check_bounds(&self) -> Result<(), Error> {
        let count = self.matched.len();
        if count > MAX_MATCHED {
            return Err(Error::TooManyCharges { count, most: MAX_MATCHED });
        }
        let bytes = self.keys.len();
        if bytes > MAX_KEY_BYTES {
            return Err(Error::KeysTooLong { bytes, most: MAX_KEY_BYTES });
        }
        Ok(())
    }

    /// Returns the cost of the only charge.
    pub(super) fn units(&self) -> u64 {
        let charged = self.matched.iter().find(|matched| matched.scope().is_some());
        charged.map_or(1, |matched| matched.units)
    }
}

/// Prints the rules only: keys may be secrets.
impl fmt::Debug for MatchedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.matched.iter().map(|matched| &matched.rule)).finish()
    }
}
