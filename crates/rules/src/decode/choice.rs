//! The limit that a rule spends, by tier.

use super::fields::{Mapping, MappingFields, NameTable, Naming};
use super::limits::LimitsTable;
use super::names;
use super::sources::RequestOrigin;
use crate::config::{LimitChoice, Spend, TierConfig};
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

pub(super) const REMEDY: &str =
    "name a limit, or choose one like `{ by: tier, tiers: { pro: pro }, default: free }`";

const CHOICE: Mapping =
    Mapping { name: "`limit`", fields: &["by", "tiers", "default"], remedy: REMEDY };

const TIERS: NameTable = NameTable {
    name: "`tiers`",
    item: "tier",
    remedy: "say which limit each tier spends, like `tiers: { pro: pro }`",
    naming: Naming::Shown,
};

pub(super) fn read(
    node: &YamlNode<'_>,
    limits: &mut LimitsTable<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<LimitChoice> {
    match node.kind {
        NodeKind::Map(_) => {}
        NodeKind::Text { .. } if !node.is_null() => {
            return Some(LimitChoice {
                tiers: None,
                default: limits.spend(node, "`limit`", report)?,
            });
        }
        _ => {
            report.unfit(node, CHOICE.name, "a text or a mapping", REMEDY);
            return None;
        }
    }
    if MappingFields::of(node).any(|(name, _)| name == "algorithm") {
        let remedy = "define the limit under `limits`, and name it here";
        report.error(node.at, "a limit cannot be defined in a rule", remedy);
        return None;
    }
    let fields = MappingFields::read(node, &CHOICE, report)?;
    let by = fields.require("by", "name the attribute that chooses, like `by: tier`", report);
    let by = by.and_then(|node| names::ATTRIBUTE.read(node, "`by`", report));
    if let (Some(name), Some(node)) = (by, fields.get("by")) {
        origin.warn_of_name(name, node.at, report);
        let so = ": every request spends the `default`";
        origin.sources.warn_if_never(name, so, node.at, report);
    }
    let tiers = fields.require("tiers", TIERS.remedy, report);
    let of = tiers.and_then(|node| read_tiers(node, limits, report));
    let remedy = "name the limit of requests without a tier, or use `allow` or `block`";
    let default = fields.require("default", remedy, report);
    let default = default.and_then(|node| limits.spend(node, "`default`", report));
    Some(LimitChoice { tiers: Some(TierConfig { by: by?.into(), of: of? }), default: default? })
}

fn read_tiers(
    node: &YamlNode<'_>,
    limits: &mut LimitsTable<'_>,
    report: &mut Report,
) -> Option<Vec<(Box<str>, Spend)>> {
    let rows = TIERS.rows(node, report)?;
    if rows.is_empty() {
        report.error(node.at, "`tiers` has no tier", TIERS.remedy);
        return None;
    }
    let mut tiers = Vec::with_capacity(rows.len());
    for row in rows {
        let name = names::TIER.check(row.name, row.at, report);
        let spend = limits.spend(row.value, "a tier's limit", report);
        tiers.extend(name.zip(spend).map(|(name, spend)| (name.into(), spend)));
    }
    Some(tiers)
}
