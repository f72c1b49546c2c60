//! The rules that the server decides by, their source, and the limits for checks by name.
//!
//! - `limits`: the limits by their names, and the decisions of each
//! - `holds`: the numbers of operations on the holds of limits and rules
//! - `expiries`: open holds, counted by their expiry

mod expiries;
mod holds;
mod limits;

use std::sync::Arc;
use std::time::SystemTime;

use siphasher::sip::SipHasher13;
use tollgate::rules::{RuleName, Rules, RulesFile};
use tollgate::{Limiter, Scope};

pub(crate) use expiries::{CountedExpiry, FlowByExpiry, HoldCount, HoldFlow, SlotWidth};
use holds::RuleHoldTallies;
pub(crate) use holds::{CountedOperation, HoldTally};
pub(crate) use limits::NamedLimit;
use limits::NamedLimits;

/// The rules that the server decides by.
#[derive(Debug)]
pub(crate) struct RuleSet {
    rules: Rules,
    origin: RulesOrigin,
    limits: NamedLimits,
    rule_holds: RuleHoldTallies,
}

/// The source of the rules.
#[derive(Debug)]
enum RulesOrigin {
    File(RulesFile),
    /// A text that is part of the server, which is never reloaded.
    Text {
        hash: u64,
    },
}

/// How often the rules were loaded, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads {
    /// The number of reloads since the start that replaced the rules.
    pub(crate) accepted: u64,
    /// The number of reloads since the start whose file was refused.
    pub(crate) refused: u64,
    /// When the present rules were loaded; `None` for the rules of the example, which are loaded at the start.
    pub(crate) since: Option<SystemTime>,
}

/// Numbers of decisions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DecisionCounts {
    pub(crate) all: u64,
    /// The decisions that the store failed to make. The failure policy decided them, or they were errors.
    pub(crate) without_store: u64,
}

impl DecisionCounts {
    /// Returns the number of decisions made after `before`.
    pub(crate) fn since(self, before: DecisionCounts) -> DecisionCounts {
        DecisionCounts {
            all: self.all.saturating_sub(before.all),
            without_store: self.without_store.saturating_sub(before.without_store),
        }
    }
}

impl RuleSet {
    /// Returns the rules of a file, which follow its reloads.
    pub(crate) fn of_file(file: RulesFile) -> RuleSet {
        let (rules, limits) = (file.rules().clone(), NamedLimits::default());
        let rule_holds = RuleHoldTallies::default();
        RuleSet { rules, origin: RulesOrigin::File(file), limits, rule_holds }
    }

    /// Returns rules that were parsed from a text of the server.
    pub(crate) fn of_text(rules: Rules, text: &str) -> RuleSet {
        let origin = RulesOrigin::Text { hash: SipHasher13::new().hash(text.as_bytes()) };
        let rule_holds = RuleHoldTallies::default();
        RuleSet { rules, origin, limits: NamedLimits::default(), rule_holds }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    pub(crate) fn limiter(&self) -> &Limiter {
        self.rules.limiter()
    }

    /// Returns a limit of the file by its name.
    pub(crate) fn limit(&self, name: &str) -> Option<Arc<NamedLimit>> {
        self.limits.get(&self.rules, name)
    }

    /// Returns the tally of the holds of a limit, or of a rule by its domain and name; `None` if there is neither.
    pub(crate) fn hold_tally(&self, name: &str) -> Option<Arc<HoldTally>> {
        match self.limit(name) {
            Some(limit) => Some(Arc::clone(&limit.holds)),
            None => self.rule_holds.get(&self.rules, name),
        }
    }

    /// Returns the tally of each rule whose units were held.
    pub(crate) fn rule_hold_tallies(&self) -> Vec<(RuleName, Arc<HoldTally>)> {
        self.rule_holds.all(&self.rules)
    }

    /// Returns the scope of a limit, or the scope of a rule's key under the limit of this name. If the rule no longer
    /// spends that limit for the key, the scope is under another of its limits.
    pub(crate) fn scope_of(&self, name: &str, limit: &str, key: &[u8]) -> Option<Scope> {
        let of_rule = || {
            let mut limits = self.rules.rule(name)?.limits_of(key).into_iter();
            limits.find(|own| own.spends.name() == limit)?.scope
        };
        if limit.is_empty() { None } else { of_rule() }.or_else(|| self.rules.scope(name))
    }

    /// Returns every limit of the file, in alphabetical order.
    pub(crate) fn limits(&self) -> Vec<(Box<str>, Arc<NamedLimit>)> {
        self.limits.all(&self.rules)
    }

    /// Returns a hash of the present rules: 16 hexadecimal digits, the same on every server with the same rules.
    pub(crate) fn hash(&self) -> String {
        let hash = match &self.origin {
            RulesOrigin::File(file) => file.status().hash,
            RulesOrigin::Text { hash } => *hash,
        };
        format!("{hash:016x}")
    }

    /// Returns why the rules file was refused, which domains in use have no rules, or why the keys that verify tokens could not
    /// be fetched: the first of these problems that exists.
    pub(crate) fn problem(&self) -> Option<String> {
        match &self.origin {
            RulesOrigin::File(file) => file.status().problem,
            RulesOrigin::Text { .. } => {
                let missing = self.rules.missing_domains();
                (!missing.is_empty()).then(|| missing.to_string())
            }
        }
    }

    pub(crate) fn loads(&self) -> Loads {
        match &self.origin {
            RulesOrigin::File(file) => {
                let status = file.status();
                let since = Some(status.since);
                Loads { accepted: status.reloads, refused: status.failures, since }
            }
            RulesOrigin::Text { .. } => Loads { accepted: 0, refused: 0, since: None },
        }
    }

    /// Returns the number of decisions of the present rules and limits. Removed rules and limits do not count.
    pub(crate) fn decisions(&self) -> DecisionCounts {
        let rules = self.rules.counts().into_iter().map(|(_, counts)| counts);
        let limits = self.limits().into_iter().map(|(_, limit)| limit.tally.counts());
        rules.chain(limits).fold(DecisionCounts::default(), |sum, counts| {
            let decided = counts.allowed + counts.denied + counts.shadow_denied;
            DecisionCounts {
                all: sum.all + decided + counts.failed,
                without_store: sum.without_store + counts.degraded + counts.failed,
            }
        })
    }
}
