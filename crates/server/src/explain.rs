//! `tollgate explain`: says which rules of a file apply to a request, which do not, and why.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, bail};
use serde::Serialize;
use tollgate::rules::{Attributes, Explanation, MatchedNetwork, RuleAction, RuleEffect, Rules};
use tollgate::{Limit, Limiter, OnFailure};
use tollgate_core::duration_text;

use crate::cli::{ExplainArgs, Format};
use crate::lease_bounds::LeaseBounds;
use crate::{print, print_error, validate};

pub(crate) fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let config = match validate::load(&args.file) {
        Ok(config) => config,
        Err(problems) => {
            print_error(&problems.to_string());
            return Ok(ExitCode::FAILURE);
        }
    };
    if !config.warnings().is_empty() {
        print_error(&config.warnings().to_string());
    }
    // OK because explaining charges nothing: the limiter keeps no key.
    let limiter = Limiter::builder().max_bytes(0).build();
    let rules = Rules::new(&limiter, &config).context("the rules")?;
    let domain = domain(args.domain.as_deref(), &rules, &args.file)?;
    let mut request = Attributes::new();
    for (name, value) in &args.attributes {
        request = match (name.as_str(), value.parse()) {
            ("ip", Ok(ip)) => request.with_address(rules.client_address(ip)),
            _ => request.with(name, value),
        };
    }
    for (name, value) in &args.said {
        request = request.said(name, value);
    }
    for (name, value) in &args.claims {
        request = request.claimed(name, value);
    }
    let explanations = rules.explain(&domain, &request);
    match args.format {
        Format::Human => print(&report(&domain, &explanations))?,
        Format::Json => {
            let rules: Vec<_> = explanations.iter().map(ExplainedRule::of).collect();
            print(&(serde_json::to_string_pretty(&rules)? + "\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the domain to explain: the one that `--domain` names, or the file's only domain.
fn domain(chosen: Option<&str>, rules: &Rules, file: &Path) -> anyhow::Result<String> {
    let domains = rules.domains();
    let file = file.display();
    match (chosen, &domains[..]) {
        (_, []) => bail!("{file} has no rules; add some under `rules`"),
        (Some(chosen), domains) if domains.iter().any(|own| own == chosen) => Ok(chosen.to_owned()),
        (Some(chosen), domains) => {
            bail!("{file} has no rules of a domain `{chosen}`; use one of {}", domains.join(", "))
        }
        (None, [only]) => Ok(only.clone()),
        (None, domains) => {
            bail!("{file} has several domains; choose one with --domain: {}", domains.join(", "))
        }
    }
}

fn report(domain: &str, explanations: &[Explanation]) -> String {
    let mut text = String::new();
    for explanation in explanations {
        // OK because writing to a `String` does not fail, here and below.
        let _ = describe(&mut text, explanation);
    }
    let applied = explanations.iter().filter(|it| it.outcome.is_ok()).count();
    let refuses = |it: &&Explanation| {
        let spends = it.outcome.as_ref().map(|applied| &applied.spends);
        !it.is_shadow && spends == Ok(&RuleAction::Block)
    };
    if let Some(refuser) = explanations.iter().find(refuses) {
        let _ =
            writeln!(text, "refused by {}, whatever the other rules decide", refuser.rule.name());
    }
    let _ = match applied {
        0 => writeln!(text, "no rule of `{domain}` applies: the request is allowed"),
        _ => writeln!(text, "{applied} of {} rules of `{domain}` apply", explanations.len()),
    };
    text
}

fn describe(text: &mut String, explanation: &Explanation) -> std::fmt::Result {
    let name = explanation.rule.name();
    let applied = match &explanation.outcome {
        Ok(applied) => applied,
        Err(why) => return writeln!(text, "{name}: does not apply: {why}"),
    };
    let shadow = if explanation.is_shadow { " (shadow rule: refuses nothing)" } else { "" };
    writeln!(text, "{name}: applies{shadow}")?;
    for found in &applied.networks {
        writeln!(text, "  when      `{}` is in {found}", found.attribute)?;
    }
    writeln!(text, "  key       {}", shown_key(&applied.key))?;
    match &applied.spends {
        RuleAction::Limit { name, limit } => {
            writeln!(text, "  limit     {name}: {limit}")?;
            writeln!(text, "            {}", applied.because)?;
            match &applied.cost_attribute {
                Some(attribute) => {
                    writeln!(text, "  cost      {}, from `{attribute}`", applied.cost)?
                }
                None => writeln!(text, "  cost      {}", applied.cost)?,
            }
            if let Some(time) = applied.hold_for {
                writeln!(text, "  hold      {}", held(limit, time))?;
            }
            writeln!(text, "  bound     {}", bound(limit))?;
            if let Some(lease) = lease_bounds(applied) {
                writeln!(text, "  leased    {}", lease.times())?;
                writeln!(text, "            {}", lease.unused())?;
            }
            writeln!(text, "  failure   {}", on_failure(applied))?;
            writeln!(text, "            {}", failure_bound(applied.on_store_failure, limit))?;
        }
        RuleAction::Allow => writeln!(text, "  allowed   always: {}", applied.because)?,
        RuleAction::Block => writeln!(text, "  refused   always: {}", applied.because)?,
        _ => {}
    }
    Ok(())
}

fn shown_key(key: &str) -> String {
    match key {
        "" => "the same for all requests".to_owned(),
        key => key.escape_debug().to_string(),
    }
}

/// Describes a limit's bound: `at most 120 in any 1m: capacity + floor(rate * (t - 1))`, or
/// `at most 10 held at any instant`.
fn bound(limit: &Limit) -> String {
    let bound = limit.bound();
    if limit.only_holds() {
        return format!("at most {} held at any instant", bound.max_units);
    }
    let interval = duration_text(bound.interval_us);
    format!("at most {} in any {interval}: {}", bound.max_units, bound.formula)
}

/// Describes a hold: `30s, unless the caller settles it before; then charged in full`.
fn held(limit: &Limit, time: Duration) -> String {
    let time = duration_text(u64::try_from(time.as_micros()).unwrap_or(u64::MAX));
    match limit.only_holds() {
        true => format!("{time}, unless the caller releases it before; then free"),
        false => format!("{time}, unless the caller settles it before; then charged in full"),
    }
}

/// Returns how the limit is leased; `None` if the store decides each check.
fn lease_bounds(applied: &RuleEffect) -> Option<LeaseBounds> {
    match &applied.spends {
        RuleAction::Limit { limit, .. } => LeaseBounds::of(applied.lease?, limit),
        _ => None,
    }
}

fn on_failure(applied: &RuleEffect) -> String {
    let policy = policy(applied.on_store_failure);
    match applied.deadline {
        Some(deadline) => format!("{policy}, after {deadline:?}"),
        None => policy,
    }
}

fn policy(on_failure: Option<OnFailure>) -> String {
    match on_failure {
        Some(OnFailure::Open) => "open".to_owned(),
        Some(OnFailure::Closed) => "closed".to_owned(),
        Some(OnFailure::Local { processes: Some(processes) }) => {
            format!("local, the share of 1 of {processes} processes")
        }
        Some(OnFailure::Local { processes: None }) => {
            "local, the share of 1 of the live processes".to_owned()
        }
        _ => "local (the default), the share of 1 of the live processes".to_owned(),
    }
}

/// Describes what a limit admits while the store fails, in addition to what the store admitted before:
/// `while the store fails: at most 120 more in any 1m, in all processes together`.
fn failure_bound(on_failure: Option<OnFailure>, limit: &Limit) -> String {
    let admitted = match (on_failure.unwrap_or_default(), limit.only_holds()) {
        (OnFailure::Closed, _) => "nothing".to_owned(),
        (OnFailure::Local { .. }, true) => {
            let most = limit.bound().max_units;
            format!("at most {most} more held at any instant, in all processes together")
        }
        (OnFailure::Local { .. }, false) => {
            let bound = limit.bound();
            let interval = duration_text(bound.interval_us);
            format!("at most {} more in any {interval}, in all processes together", bound.max_units)
        }
        _ => "no bound".to_owned(),
    };
    format!("while the store fails: {admitted}")
}

/// A rule's explanation, as printed with `--format json`.
#[derive(Serialize)]
struct ExplainedRule<'e> {
    rule: &'e str,
    domain: &'e str,
    applies: bool,
    shadow: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<&'e str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    networks: Vec<ExplainedNetwork<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    spends: Option<ExplainedAction<'e>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    because: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cost_attribute: Option<&'e str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    hold_for_us: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    on_store_failure: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deadline_us: Option<u128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<LeaseBounds>,
}

/// A network that a rule names, and the attribute of the request whose address it contains.
#[derive(Serialize)]
struct ExplainedNetwork<'e> {
    attribute: &'e str,
    network: &'e str,
    #[serde(skip_serializing_if = "Option::is_none")]
    set: Option<&'e str>,
}

impl<'e> ExplainedNetwork<'e> {
    fn of(found: &'e MatchedNetwork) -> ExplainedNetwork<'e> {
        let MatchedNetwork { attribute, network, set, .. } = found;
        ExplainedNetwork { attribute, network, set: set.as_deref() }
    }
}

/// The limit that a rule spends for the request, or `allow` or `block`.
#[derive(Serialize)]
#[serde(rename_all = "lowercase")]
enum ExplainedAction<'e> {
    Limit { name: &'e str, limit: String, bound: ExplainedBound },
    Allow,
    Block,
}

/// The most units that a limit admits in its own interval, with the formula for any interval. For a concurrency limit
/// this is the most units that are held at any instant.
#[derive(Serialize)]
struct ExplainedBound {
    interval_us: u64,
    max: u64,
    formula: &'static str,
}

impl<'e> ExplainedRule<'e> {
    fn of(explanation: &'e Explanation) -> ExplainedRule<'e> {
        let applied = explanation.outcome.as_ref().ok();
        ExplainedRule {
            rule: explanation.rule.name(),
            domain: explanation.rule.domain(),
            applies: applied.is_some(),
            shadow: explanation.is_shadow,
            why_not: explanation.outcome.as_ref().err().map(ToString::to_string),
            key: applied.map(|applied| &*applied.key),
            networks: applied
                .iter()
                .flat_map(|it| &it.networks)
                .map(ExplainedNetwork::of)
                .collect(),
            spends: applied.and_then(|applied| ExplainedAction::of(&applied.spends)),
            because: applied.map(|applied| applied.because.to_string()),
            cost: applied.map(|applied| applied.cost),
            cost_attribute: applied.and_then(|applied| applied.cost_attribute.as_deref()),
            hold_for_us: applied
                .and_then(|applied| applied.hold_for)
                .map(|hold_for| hold_for.as_micros()),
            on_store_failure: applied
                .and_then(|applied| applied.on_store_failure)
                .map(|on_failure| policy(Some(on_failure))),
            deadline_us: applied
                .and_then(|applied| applied.deadline)
                .map(|deadline| deadline.as_micros()),
            lease: applied.and_then(lease_bounds),
        }
    }
}

impl<'e> ExplainedAction<'e> {
    fn of(spends: &'e RuleAction) -> Option<ExplainedAction<'e>> {
        match spends {
            RuleAction::Limit { name, limit } => {
                let bound = limit.bound();
                let bound = ExplainedBound {
                    interval_us: bound.interval_us,
                    max: bound.max_units,
                    formula: bound.formula,
                };
                Some(ExplainedAction::Limit { name, limit: limit.to_string(), bound })
            }
            RuleAction::Allow => Some(ExplainedAction::Allow),
            RuleAction::Block => Some(ExplainedAction::Block),
            _ => None,
        }
    }
}
