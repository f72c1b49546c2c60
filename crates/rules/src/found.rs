//! The rules that apply to a request, and their keys.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use tollgate_limiter::{Error, MAX_KEY_BYTES, Scope};

use super::plan::{Rule, Spent};

/// What the keys of a request take, as a rule.
const KEY_BYTES: usize = 128;

/// The most rules that may apply to one request. Their keys together have at most [`MAX_KEY_BYTES`].
const MAX_MATCHED: usize = 256;

/// The rules that apply to a request.
#[derive(Clone)]
pub(super) struct Found {
    pub(super) generation: u64,
    /// Of all rules, one after the other.
    pub(super) keys: Vec<u8>,
    pub(super) matched: Vec<Matched>,
    /// Which of them refuses whatever it is.
    pub(super) blocked_by: Option<usize>,
}

/// A rule that applies.
#[derive(Clone)]
pub(super) struct Matched {
    /// Which of the sets of attributes it applies to.
    pub(super) request: usize,
    pub(super) rule: Arc<Rule>,
    pub(super) spent: Arc<Spent>,
    pub(super) key: Range<usize>,
    pub(super) units: u64,
    /// Nothing is charged.
    pub(super) is_look: bool,
}

impl Matched {
    pub(super) fn scope(&self) -> Option<&Scope> {
        self.spent.scope()
    }
}

impl Found {
    pub(super) fn new(generation: u64) -> Found {
        // For the keys of a few rules, so that there is one allocation.
        let keys = Vec::with_capacity(KEY_BYTES);
        Found { generation, keys, matched: Vec::new(), blocked_by: None }
    }

    /// By what applies, those included that are left out themselves.
    pub(super) fn leave_out_replaced(&mut self) {
        let rules = self.matched.iter().map(|matched| &matched.rule);
        let replacing: Vec<Arc<Rule>> = rules.filter(|rule| rule.is_replacing()).cloned().collect();
        if !replacing.is_empty() {
            self.matched.retain(|own| !replacing.iter().any(|rule| rule.replaces(&own.rule)));
        }
    }

    /// On every store the same: a script takes no more at once, and nobody should.
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

    /// What the only charge costs.
    pub(super) fn units(&self) -> u64 {
        let charged = self.matched.iter().find(|matched| matched.scope().is_some());
        charged.map_or(1, |matched| matched.units)
    }
}

/// Rules alone: keys may be secrets.
impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.matched.iter().map(|matched| &matched.rule)).finish()
    }
}
