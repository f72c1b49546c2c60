//! The tests that a file carries, and whether its rules pass them.

use std::fmt::Write;

use tollgate_core::Excerpt;
use tollgate_limiter::Limiter;

use super::attributes::{Attributes, TrustLevel};
use super::config::{Config, Spend};
use super::explain::{LimitReason, MismatchReason, RuleAction, RuleEffect, applying, why_not};
use super::key::push_part;
use super::plan::Plan;
use super::position::Position;
use super::problem::Report;
use super::request::NumberedRequest;

const REMEDY: &str =
    "correct the rule or the test; `tollgate explain` shows what rules do with a request";

/// The attributes whose values messages show. The values of others may be secrets.
const SHOWN: [&str; 4] = ["method", "path", "ip", "tier"];

/// A request, and what the rules of its domain should do with it.
#[derive(Debug)]
pub(super) struct FileTest {
    pub(super) name: Box<str>,
    pub(super) at: Position,
    pub(super) domain: Box<str>,
    pub(super) sent: Vec<CaseAttribute>,
    /// Every rule that should apply.
    pub(super) expected: Vec<Expectation>,
}

/// An attribute of a test's request.
#[derive(Debug)]
pub(super) struct CaseAttribute {
    pub(super) name: Box<str>,
    pub(super) value: Box<str>,
    pub(super) trust: TrustLevel,
}

/// A rule that should apply, and its expected effect as far as the test gives it.
#[derive(Debug)]
pub(super) struct Expectation {
    pub(super) rule: Box<str>,
    pub(super) at: Position,
    pub(super) spend: Option<Spend>,
    /// In the order of the rule's key.
    pub(super) key: Option<Vec<(Box<str>, Box<str>)>>,
    pub(super) cost: Option<u64>,
    /// The units that a reservation should set aside.
    pub(super) reserve: Option<u64>,
}

/// Reports every test that the rules of a valid file fail.
pub(super) fn run(config: &Config, cases: &[FileTest], report: &mut Report) {
    let Some(first) = cases.first() else { return };
    // Nothing is charged, so a limiter without memory is enough.
    let limiter = Limiter::builder().max_bytes(0).build();
    match Plan::new(&limiter, config, None) {
        Ok(plan) => cases.iter().for_each(|case| case.run(&plan, config, report)),
        Err(error) => {
            let message = format!("the tests cannot be run: {error}");
            report.error(first.at, message, "correct that first");
        }
    }
}

impl FileTest {
    fn run(&self, plan: &Plan, config: &Config, report: &mut Report) {
        let request = self.request();
        let request = NumberedRequest::new(&request, &plan.names);
        let applying = applying(plan, &self.domain, &request);
        for expected in &self.expected {
            let applied = applying.iter().find(|(rule, _)| rule.name.name() == &*expected.rule);
            match applied {
                Some((_, applied)) => self.compare(expected, applied, config, report),
                None => {
                    let why = why_not(plan, &self.domain, &expected.rule, &request);
                    let why = why.map(|why| shown(&why)).unwrap_or_default();
                    let should = format!("should apply and does not{why}");
                    self.fail(&expected.rule, &should, expected.at, report);
                }
            }
        }
        for (rule, applied) in &applying {
            let name = rule.name.name();
            if !self.expected.iter().any(|expected| &*expected.rule == name) {
                let does = format!("should not apply, and {}", spends(&applied.spends));
                self.fail(name, &does, self.at, report);
            }
        }
    }

    fn request(&self) -> Attributes<'_> {
        self.sent.iter().fold(Attributes::new(), |request, CaseAttribute { name, value, trust }| {
            match trust {
                TrustLevel::Known => request.with(&**name, &**value),
                TrustLevel::Said => request.said(&**name, &**value),
                TrustLevel::Claimed => request.claimed(&**name, &**value),
            }
        })
    }

    /// Compares what a rule should do with what it does.
    fn compare(
        &self,
        expected: &Expectation,
        applied: &RuleEffect,
        config: &Config,
        report: &mut Report,
    ) {
        let Expectation { rule, at, spend, key, cost, reserve } = expected;
        let wanted = spend.map(|spend| spent(spend, config));
        if let Some(wanted) = wanted.filter(|wanted| *wanted != spent_by(&applied.spends)) {
            let mut does = format!("should spend `{wanted}`, and {}", spends(&applied.spends));
            if is_shown(&applied.because) {
                // Writing to a `String` cannot fail.
                let _ = write!(does, " ({})", applied.because);
            }
            self.fail(rule, &does, *at, report);
        }
        if let Some(cost) = cost.filter(|cost| *cost != applied.cost) {
            let does = format!("should cost {cost}, and costs {}", applied.cost);
            self.fail(rule, &does, *at, report);
        }
        if let Some(units) =
            reserve.filter(|units| (*units, true) != (applied.cost, applied.hold_for.is_some()))
        {
            let does = match applied.hold_for {
                Some(_) => format!("should reserve {units}, and reserves {}", applied.cost),
                None => format!("should reserve {units}, and charges {}", applied.cost),
            };
            self.fail(rule, &does, *at, report);
        }
        if let Some(key) = key.as_ref().filter(|key| encoded(key) != applied.key) {
            let names: Vec<&str> = key.iter().map(|(name, _)| &**name).collect();
            let (wanted, found) = (names.join(", "), names_in(&applied.key));
            let does = match wanted == found {
                true => format!("should have another value of `{wanted}` in its key"),
                false => format!("should have a key of `{wanted}`, and has one of `{found}`"),
            };
            self.fail(rule, &does, *at, report);
        }
    }

    fn fail(&self, rule: &str, does: &str, at: Position, report: &mut Report) {
        let message = format!("test `{}`: rule `{rule}` {does}", Excerpt::of(&self.name));
        report.error(at, message, REMEDY);
    }
}

/// Returns what a rule spends, as the file writes it: the name of a limit, `allow` or `block`.
fn spent(spend: Spend, config: &Config) -> &str {
    match spend {
        Spend::Limit(at) => config.limits.get(at).map_or("", |limit| &limit.name),
        Spend::Allow => "allow",
        Spend::Block => "block",
    }
}

fn spent_by(spends: &RuleAction) -> &str {
    match spends {
        RuleAction::Limit { name, .. } => name,
        RuleAction::Allow => "allow",
        RuleAction::Block => "block",
    }
}

fn spends(spends: &RuleAction) -> String {
    format!("spends `{}`", spent_by(spends))
}

/// Returns a key as rules write it.
fn encoded(key: &[(Box<str>, Box<str>)]) -> String {
    let mut encoded = Vec::new();
    key.iter().for_each(|(name, value)| push_part(&mut encoded, 0, name, value));
    String::from_utf8_lossy(&encoded).into_owned()
}

/// Returns the attributes that a key is made of, without their values.
fn names_in(key: &str) -> String {
    let names = key.split(',').map(|part| part.split_once('=').map_or("", |(name, _)| name));
    names.collect::<Vec<_>>().join(", ")
}

/// Returns whether a reason contains no secret.
fn is_shown(because: &LimitReason) -> bool {
    match because {
        LimitReason::Tier { by, .. } | LimitReason::NoTier { by, .. } => SHOWN.contains(&&**by),
        LimitReason::Override | LimitReason::NetworkOverride { .. } | LimitReason::Only => true,
    }
}

/// Returns why a rule does not apply, without values that may be secrets.
fn shown(why: &MismatchReason) -> String {
    match why {
        MismatchReason::Unlike { attribute, .. } | MismatchReason::Like { attribute, .. }
            if !SHOWN.contains(&&**attribute) =>
        {
            format!(" (`{}` has another value)", Excerpt::of(attribute))
        }
        _ => format!(" ({why})"),
    }
}
