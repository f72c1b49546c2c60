//! The settings of every rule that has none of its own, and how rules set them.

use std::time::Duration;

use tollgate_core::Excerpt;
use tollgate_limiter::OnFailure;

use super::fields::{Mapping, MappingFields};
use super::{lease, names};
use crate::config::LeaseSettings;
use crate::nearest::nearest;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

const DEFAULTS: Mapping = Mapping {
    name: "`defaults`",
    fields: &["domain", "on_store_failure", "deadline", "mode", "lease"],
    remedy: "write it like `defaults: { domain: api, deadline: 10ms }`",
};

const FAILURE_REMEDY: &str = "use `open`, `closed`, `local` or `{ local: { processes: 4 } }`";

const FAILURE: Mapping =
    Mapping { name: "`on_store_failure`", fields: &["local"], remedy: FAILURE_REMEDY };

const LOCAL: Mapping = Mapping {
    name: "`local`",
    fields: &["processes"],
    remedy: "say how many processes there are, like `{ local: { processes: 4 } }`",
};

const SHORTEST: Duration = Duration::from_millis(1);
const LONGEST: Duration = Duration::from_secs(3_600);

/// The settings of a rule that has none of its own.
#[derive(Default)]
pub(super) struct Defaults<'n> {
    pub(super) domain: Option<&'n str>,
    pub(super) on_store_failure: Option<OnFailure>,
    pub(super) deadline: Option<Duration>,
    pub(super) lease: LeaseSettings,
    /// Whether a domain is given; one that was refused is not reported as missing.
    pub(super) has_domain: bool,
}

impl<'n> Defaults<'n> {
    pub(super) fn read(node: &'n YamlNode<'_>, report: &mut Report) -> Defaults<'n> {
        let Some(fields) = MappingFields::read(node, &DEFAULTS, report) else {
            return Defaults::default();
        };
        let domain = fields.get("domain");
        Defaults {
            domain: domain.and_then(|node| names::DOMAIN.read(node, "`domain`", report)),
            on_store_failure: fields
                .get("on_store_failure")
                .and_then(|node| on_failure(node, report)),
            deadline: fields.get("deadline").and_then(|node| deadline(node, report)),
            lease: lease::read(&fields, report),
            has_domain: domain.is_some(),
        }
    }
}

pub(super) fn on_failure(node: &YamlNode<'_>, report: &mut Report) -> Option<OnFailure> {
    if let NodeKind::Map(_) = node.kind {
        let fields = MappingFields::read(node, &FAILURE, report)?;
        let local = fields.require("local", FAILURE_REMEDY, report)?;
        let fields = MappingFields::read(local, &LOCAL, report)?;
        let node = fields.require("processes", LOCAL.remedy, report)?;
        let processes = report.number(node, "`processes`")?;
        return match u32::try_from(processes) {
            Ok(processes) => Some(OnFailure::Local { processes: Some(processes) }),
            Err(_) => {
                let remedy = format!("use at most {}", u32::MAX);
                report.error(node.at, "`processes` is too large", remedy);
                None
            }
        };
    }
    match report.text(node, FAILURE.name, FAILURE_REMEDY)? {
        "open" => Some(OnFailure::Open),
        "closed" => Some(OnFailure::Closed),
        "local" => Some(OnFailure::Local { processes: None }),
        other => {
            let message = format!("`on_store_failure: {}` is unknown", Excerpt::of(other));
            let remedy = match nearest(other, ["open", "closed", "local"]) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None => FAILURE_REMEDY.into(),
            };
            report.error(node.at, message, remedy);
            None
        }
    }
}

pub(super) fn deadline(node: &YamlNode<'_>, report: &mut Report) -> Option<Duration> {
    let deadline = report.duration(node, "deadline")?;
    if (SHORTEST..=LONGEST).contains(&deadline) {
        return Some(deadline);
    }
    let which = if deadline < SHORTEST { "below 1ms" } else { "above 1h" };
    report.error(node.at, format!("`deadline` is {which}"), "use 1ms to 1h");
    None
}
