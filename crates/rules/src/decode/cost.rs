//! The costs of requests.

use std::time::Duration;

use tollgate_core::{Cost, Excerpt, HoldTime, MAX_UNITS};

use super::fields::{MappingFields, NameTable, Naming, TableRow};
use super::names;
use super::sources::RequestOrigin;
use crate::config::{CostRoute, Costs};
use crate::nearest::nearest;
use crate::pattern::Pattern;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most routes of a rule that may have their own costs: they are tried one after the other.
const MAX_ROUTES: usize = 1_000;

const REMEDY: &str = "use a whole number, one for each route like `{ \"POST /reports\": 10, default: 1 }`, or \
    `{ reserve: 1000 }` for units that are set aside";

const RESERVE_REMEDY: &str =
    "use a whole number, or an attribute like `{ attribute: estimated_tokens, default: 1000 }`";

const ROUTE_REMEDY: &str = "write it like `/v1/export/**` or `POST /reports`";

const RESERVE: &str = "reserve";
const ATTRIBUTE: &str = "attribute";
const DEFAULT: &str = "default";

const COST: NameTable =
    NameTable { name: "`cost`", item: "route", remedy: REMEDY, naming: Naming::Shown };

const RESERVED: NameTable =
    NameTable { name: "`reserve`", item: "route", remedy: RESERVE_REMEDY, naming: Naming::Shown };

pub(super) const ONE: Costs =
    Costs { attribute: None, routes: Vec::new(), default: Cost::ONE, is_reserved: false };

/// Reads a cost: units that are charged, or `{ reserve: … }` with units that are set aside.
pub(super) fn read(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Costs> {
    let has_reserve = MappingFields::of(node).any(|(name, _)| name == RESERVE);
    if !has_reserve {
        return units(node, &COST, origin, report);
    }
    let mut reserved = None;
    for TableRow { name, at, value } in COST.rows(node, report)? {
        if name == RESERVE {
            reserved = units(value, &RESERVED, origin, report);
        } else {
            let message = format!("`{}` beside `reserve`", Excerpt::of(name));
            let remedy =
                "write it inside, like `{ reserve: { \"POST /reports\": 10, default: 1 } }`";
            report.error(at, message, remedy);
        }
    }
    Some(Costs { is_reserved: true, ..reserved? })
}

/// Reads a number of units, or how it depends on the request.
fn units(
    node: &YamlNode<'_>,
    table: &NameTable,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Costs> {
    match node.kind {
        NodeKind::Map(_) => by_request(node, table, origin, report),
        NodeKind::Text { .. } if !node.is_null() => {
            Some(Costs { default: cost(node, report)?, ..ONE })
        }
        _ => {
            report.unfit(node, table.name, "a number or a mapping", table.remedy);
            None
        }
    }
}

fn by_request(
    node: &YamlNode<'_>,
    table: &NameTable,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Costs> {
    let rows = table.rows(node, report)?;
    if rows.len() > MAX_ROUTES {
        let message = format!("{} routes, above the maximum of {MAX_ROUTES}", rows.len());
        report.error(node.at, message, "use globs for them, or several rules");
        return None;
    }
    let (mut costs, mut has_default) = (ONE, false);
    for TableRow { name, at, value } in rows {
        if name == ATTRIBUTE {
            costs.attribute = attribute(value, origin, report);
            continue;
        }
        if name == RESERVE {
            report.error(at, "`reserve` inside `reserve`", "write the units here, without it");
            continue;
        }
        let cost = cost(value, report);
        if name == DEFAULT {
            has_default = true;
            costs.default = cost.unwrap_or(Cost::ONE);
        } else {
            let route = route(name, at, report);
            origin.warn_of_query(route.iter().map(|route| &route.path), at, report);
            costs.routes.extend(route.zip(cost));
        }
    }
    if costs.attribute.is_some() && !has_default {
        let remedy = "add the cost of a request without the attribute, like `default: 1000`";
        report.error(node.at, "`attribute` without `default`", remedy);
    }
    Some(costs)
}

/// Reads the attribute whose value is the cost.
fn attribute(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Box<str>> {
    let name = names::ATTRIBUTE.read(node, "`attribute`", report)?;
    origin.warn_of_name(name, node.at, report);
    origin.sources.warn_if_never(name, ": the cost never depends on it", node.at, report);
    Some(name.into())
}

fn cost(node: &YamlNode<'_>, report: &mut Report) -> Option<Cost> {
    let units = report.number(node, "a cost")?;
    let cost = Cost::new(units).ok();
    if cost.is_none() {
        let remedy = format!("use at most {MAX_UNITS}");
        report.error(node.at, "a cost is 2^53 or more", remedy);
    }
    cost
}

/// Reads `POST /reports` or `/v1/export/**`.
fn route(text: &str, at: Position, report: &mut Report) -> Option<CostRoute> {
    let mut words = text.split(' ');
    let (method, path) = match (words.next(), words.next(), words.next()) {
        (Some(path), None, _) => (None, path),
        (Some(method), Some(path), None) if !method.is_empty() => (Some(method), path),
        _ => (None, ""),
    };
    let found = Excerpt::of(text);
    if !path.starts_with(['/', '*']) {
        let remedy = match nearest(text, [DEFAULT, ATTRIBUTE, RESERVE]) {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => ROUTE_REMEDY.into(),
        };
        report.error(at, format!("`{found}` is not a route"), remedy);
        return None;
    }
    match method {
        Some("*") => {
            let remedy = "leave the method out: the route is then for all methods";
            report.error(at, format!("`{found}` has a star for a method"), remedy);
            None
        }
        Some(method) if method.contains([',', '|']) => {
            let message = format!("`{found}` has more than one method");
            report.error(
                at,
                message,
                "give each method a route of its own, or leave the method out for all methods",
            );
            None
        }
        Some(method) if !method.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-') => {
            let message = format!("`{found}` has a method that is not in capitals");
            report.error(at, message, "methods are like `POST`; lower case is another method");
            None
        }
        _ => Some(CostRoute { method: method.map(Into::into), path: Pattern::of(path) }),
    }
}

/// Reads how long units are held.
pub(super) fn hold_for(node: &YamlNode<'_>, report: &mut Report) -> Option<Duration> {
    let time = report.duration(node, "hold_for")?;
    if HoldTime::try_from(time).is_ok() {
        return Some(time);
    }
    report.error(node.at, "`hold_for` is 0 or above 366d", "use 1us to 366d");
    None
}
