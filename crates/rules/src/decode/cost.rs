//! The costs of requests.

use tollgate_core::{Cost, Excerpt, MAX_UNITS};

use super::fields::{NameTable, Naming, TableRow};
use super::sources::RequestOrigin;
use crate::config::{CostRoute, Costs};
use crate::nearest::nearest;
use crate::pattern::Pattern;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most routes of a rule that may have their own costs: they are tried one after the other.
const MAX_ROUTES: usize = 1_000;

const REMEDY: &str =
    "use a whole number, or one for each route like `{ \"POST /reports\": 10, default: 1 }`";

const ROUTE_REMEDY: &str = "write it like `/v1/export/**` or `POST /reports`";

const ROUTES: NameTable =
    NameTable { name: "`cost`", item: "route", remedy: REMEDY, naming: Naming::Shown };

pub(super) const ONE: Costs = Costs { routes: Vec::new(), default: Cost::ONE };

pub(super) fn read(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Costs> {
    match node.kind {
        NodeKind::Map(_) => read_routes(node, origin, report),
        NodeKind::Text { .. } if !node.is_null() => {
            Some(Costs { default: cost(node, report)?, ..ONE })
        }
        _ => {
            report.unfit(node, ROUTES.name, "a number or a mapping", REMEDY);
            None
        }
    }
}

fn read_routes(
    node: &YamlNode<'_>,
    origin: RequestOrigin<'_>,
    report: &mut Report,
) -> Option<Costs> {
    let rows = ROUTES.rows(node, report)?;
    if rows.len() > MAX_ROUTES {
        let message = format!("{} routes, above the maximum of {MAX_ROUTES}", rows.len());
        report.error(node.at, message, "use globs for them, or several rules");
        return None;
    }
    let mut costs = ONE;
    for TableRow { name, at, value } in rows {
        let cost = cost(value, report);
        if name == "default" {
            costs.default = cost.unwrap_or(Cost::ONE);
        } else {
            let route = route(name, at, report);
            origin.warn_of_query(route.iter().map(|route| &route.path), at, report);
            costs.routes.extend(route.zip(cost));
        }
    }
    Some(costs)
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
        let remedy = match nearest(text, ["default"]) {
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
