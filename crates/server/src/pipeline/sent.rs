//! A request on its way to the store, and its answer.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use tollgate::rules::{RulesAnswer, Ruling};
use tollgate::{Answer, Decision};

use crate::ruleset::NamedLimit;

/// A request on its way to the store.
#[derive(Debug)]
pub(crate) enum SentRequest<'a> {
    Limit(SentLimit<'a>),
    Rules(SentRuling),
}

/// A request to a named limit.
#[derive(Debug)]
pub(crate) struct SentLimit<'a> {
    pub(super) limit: Arc<NamedLimit>,
    pub(super) key: Cow<'a, str>,
    pub(super) answer: Answer<Decision>,
    /// When it was sent, if the store is across the network.
    pub(super) at: Option<Instant>,
}

/// A request to rules.
#[derive(Debug)]
pub(crate) struct SentRuling {
    pub(super) answer: RulesAnswer,
    /// When it was sent, if the store is across the network.
    pub(super) at: Option<Instant>,
}

/// What was decided, and the receipt for what was charged, if anything was.
#[derive(Debug)]
pub(crate) enum PipelineAnswer {
    Limit { decision: Decision, receipt: Option<String> },
    Rules { ruling: Ruling, receipt: Option<String> },
}
