//! Answers that the store has not given yet, and complete answers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tollgate::rules::{RulesAnswer, Ruling};
use tollgate::{Answer, Decision, Error};

use super::holds::SentRulesReservation;
use crate::ruleset::NamedLimit;

/// The answer to a request that was sent to the store.
#[derive(Debug)]
pub(crate) enum SentDecision<'a> {
    Limit(PendingLimitAnswer<'a>),
    Rules(PendingRuling),
}

/// The answer of a named limit, not given yet.
#[derive(Debug)]
pub(crate) struct PendingLimitAnswer<'a> {
    pub(super) limit: Arc<NamedLimit>,
    pub(super) key: Cow<'a, str>,
    pub(super) answer: Answer<Decision>,
    /// When the request was sent, if the store is across the network.
    pub(super) sent_at: Option<Instant>,
}

/// The answer of the rules, not given yet.
#[derive(Debug)]
pub(crate) struct PendingRuling {
    pub(super) answer: RulesAnswer,
    /// When the request was sent, if the store is across the network.
    pub(super) sent_at: Option<Instant>,
}

/// The answer of the rules to a proxy's request.
#[derive(Debug)]
pub(crate) enum ProxiedRuling {
    Check(PendingRuling),
    /// The answer to a check, which the store has given at once.
    Ready {
        ruled: Result<Ruling, Error>,
        sent_at: Option<Instant>,
    },
    Reservation(SentRulesReservation),
}

/// A decision or a ruling, with a receipt if something was charged.
#[derive(Debug)]
pub(crate) enum PipelineAnswer {
    Limit { decision: Decision, receipt: Option<String> },
    Rules { ruling: Ruling, receipt: Option<String> },
}
