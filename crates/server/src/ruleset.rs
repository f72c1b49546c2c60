//! The rules that decide, where they come from, and the limits that can be called by their names.
//!
//! - `limits`: those limits, and what each decided

mod limits;

use std::sync::Arc;
use std::time::SystemTime;

use siphasher::sip::SipHasher13;
use tollgate::Limiter;
use tollgate::rules::{Rules, RulesFile};

pub(crate) use limits::NamedLimit;
use limits::NamedLimits;

/// The rules that decide.
#[derive(Debug)]
pub(crate) struct RuleSet {
    rules: Rules,
    origin: Origin,
    limits: NamedLimits,
}

/// Where rules come from.
#[derive(Debug)]
enum Origin {
    File(RulesFile),
    /// A text that is part of the server, which is never reloaded.
    Text {
        hash: u64,
    },
}

/// How the rules came to be as they are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loads {
    /// How often a file was taken over since the start.
    pub(crate) taken: u64,
    /// How often a file was refused since the start.
    pub(crate) refused: u64,
    /// When the rules began to decide; `None` if that was when the server was started.
    pub(crate) since: Option<SystemTime>,
}

/// The number of decisions.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Decisions {
    pub(crate) all: u64,
    /// The decisions among them that the store failed to make, whatever came of them.
    pub(crate) without_store: u64,
}

impl Decisions {
    /// Returns the decisions that were made after `before`.
    pub(crate) fn since(self, before: Decisions) -> Decisions {
        Decisions {
            all: self.all.saturating_sub(before.all),
            without_store: self.without_store.saturating_sub(before.without_store),
        }
    }
}

impl RuleSet {
    /// The rules of a file, as it is now and will be.
    pub(crate) fn of_file(file: RulesFile) -> RuleSet {
        let (rules, limits) = (file.rules().clone(), NamedLimits::default());
        RuleSet { rules, origin: Origin::File(file), limits }
    }

    /// Rules that were made from a text.
    pub(crate) fn of_text(rules: Rules, text: &str) -> RuleSet {
        let origin = Origin::Text { hash: SipHasher13::new().hash(text.as_bytes()) };
        RuleSet { rules, origin, limits: NamedLimits::default() }
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

    /// Returns every limit of the file, in alphabetical order.
    pub(crate) fn limits(&self) -> Vec<(Box<str>, Arc<NamedLimit>)> {
        self.limits.all(&self.rules)
    }

    /// Returns a hash of the rules that decide: 16 digits, the same on every server that has the same rules.
    pub(crate) fn hash(&self) -> String {
        let hash = match &self.origin {
            Origin::File(file) => file.status().hash,
            Origin::Text { hash } => *hash,
        };
        format!("{hash:016x}")
    }

    /// Returns why the rules file was refused, or which domains in use have no rules.
    pub(crate) fn problem(&self) -> Option<String> {
        match &self.origin {
            Origin::File(file) => file.status().problem,
            Origin::Text { .. } => {
                let missing = self.rules.missing_domains();
                (!missing.is_empty()).then(|| missing.to_string())
            }
        }
    }

    pub(crate) fn loads(&self) -> Loads {
        match &self.origin {
            Origin::File(file) => {
                let status = file.status();
                let since = Some(status.since);
                Loads { taken: status.reloads, refused: status.failures, since }
            }
            Origin::Text { .. } => Loads { taken: 0, refused: 0, since: None },
        }
    }

    /// Returns what the rules and limits of the file decided so far. Rules and limits that are gone do not count.
    pub(crate) fn decisions(&self) -> Decisions {
        let rules = self.rules.counts().into_iter().map(|(_, counts)| counts);
        let limits = self.limits().into_iter().map(|(_, limit)| limit.tally.counts());
        rules.chain(limits).fold(Decisions::default(), |sum, counts| {
            let decided = counts.allowed + counts.denied + counts.shadow_denied;
            Decisions {
                all: sum.all + decided + counts.failed,
                without_store: sum.without_store + counts.degraded + counts.failed,
            }
        })
    }
}
