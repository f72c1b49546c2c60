//! The limits, and the names by which rules spend them.

use std::collections::HashMap;
use std::time::Duration;

use tollgate_core::{AlgorithmName, Excerpt, Limit, LimitError, Notation};

use super::fields::{Mapping, MappingFields, NameTable, Naming, TableRow, unspaced};
use super::lease::{LeasedLimit, ModeOrigin};
use super::{lease, names};
use crate::config::{LeaseSettings, LimitConfig, Spend};
use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

const LIMITS: NameTable = NameTable {
    name: "`limits`",
    item: "limit",
    remedy: "name each limit, like `free: token-bucket capacity=60 refill=1/s`",
    naming: Naming::Shown,
};

const LIMIT: Wording = Wording { name: "a limit", remedy: LIMITS.remedy };

const ALGORITHM_REMEDY: &str =
    "begin with it, like `{ algorithm: token-bucket, capacity: 60, refill: 1/s }`";

/// The names that a rule may use instead of a limit's.
const RESERVED: [(&str, Spend); 2] = [("allow", Spend::Allow), ("block", Spend::Block)];

/// The limits of a file, by name.
#[derive(Default)]
pub(super) struct LimitsTable<'n> {
    found: Vec<FoundLimit<'n>>,
    places: HashMap<&'n str, usize>,
    /// Whether the table of limits could not be read, which has been reported; names are then not looked up.
    is_lost: bool,
}

struct FoundLimit<'n> {
    name: &'n str,
    at: Position,
    /// `None` if the limit was refused; its name is still known.
    limit: Option<Limit>,
    lease: LeaseSettings,
    is_used: bool,
}

impl<'n> LimitsTable<'n> {
    pub(super) fn read(file: &MappingFields<'n, '_>, report: &mut Report) -> LimitsTable<'n> {
        let rows = file.or("limits", Vec::new(), |node| LIMITS.rows(node, report));
        let is_lost = rows.is_none() || file.may_have("limits");
        let mut limits = LimitsTable { is_lost, ..LimitsTable::default() };
        for TableRow { name, at, value } in rows.unwrap_or_default() {
            if RESERVED.iter().any(|(reserved, _)| *reserved == name) {
                let message = format!("a limit cannot be called `{name}`");
                let remedy = "choose another name: in a rule, this word is an action and not the name of a limit";
                report.error(at, message, remedy);
                continue;
            }
            if names::LIMIT.check(name, at, report).is_none() {
                continue;
            }
            let (limit, lease) = read_leasable(value, &LIMIT, report).unzip();
            let lease = lease.unwrap_or_default();
            limits.places.insert(name, limits.found.len());
            limits.found.push(FoundLimit { name, at, limit, lease, is_used: false });
        }
        limits
    }

    /// Reads the limit that a rule spends: a limit's name, `allow` or `block`.
    pub(super) fn spend(
        &mut self,
        node: &YamlNode<'_>,
        name: &str,
        report: &mut Report,
    ) -> Option<Spend> {
        let text = report.text(node, name, "name a limit, or use `allow` or `block`")?;
        if let Some((_, spend)) = RESERVED.iter().find(|(reserved, _)| *reserved == text) {
            return Some(*spend);
        }
        match self.places.get(text) {
            Some(&place) => {
                self.found[place].is_used = true;
                Some(Spend::Limit(place))
            }
            None => {
                if !self.is_lost {
                    self.unknown(text, node.at, report);
                }
                None
            }
        }
    }

    fn unknown(&self, text: &str, at: Position, report: &mut Report) {
        let reserved = RESERVED.map(|(name, _)| name);
        let known = self.found.iter().map(|limit| limit.name);
        let meant = report.meant(text, reserved.into_iter().chain(known));
        let remedy = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None if text.contains(' ') => "define it under `limits`, and name it here".into(),
            None => "define it under `limits`, or use `allow` or `block`".into(),
        };
        report.error(at, format!("there is no limit `{}`", Excerpt::of(text)), remedy);
    }

    /// Returns the size of a limit: the most that one request may cost.
    pub(super) fn size(&self, place: usize) -> Option<u64> {
        self.limit(place).map(|limit| limit.size())
    }

    pub(super) fn is_shaping(&self, place: usize) -> bool {
        self.limit(place).is_some_and(|limit| limit.is_shaping())
    }

    /// Returns how long a concurrency limit holds units; `None` for another limit.
    pub(super) fn concurrency_time(&self, place: usize) -> Option<Duration> {
        Some(Duration::from_micros(self.limit(place)?.hold_for()?.as_us()))
    }

    fn limit(&self, place: usize) -> Option<Limit> {
        self.found.get(place)?.limit
    }

    pub(super) fn name(&self, place: usize) -> &'n str {
        self.found.get(place).map_or("", |limit| limit.name)
    }

    pub(super) fn warn_of_unused(&self, report: &mut Report) {
        for limit in self.found.iter().filter(|limit| !limit.is_used) {
            let message = format!("no rule spends limit `{}`", limit.name);
            report.warn(
                limit.at,
                message,
                "name it in a rule, or ignore this if callers use the limit by its name",
            );
        }
    }

    /// Warns of leased limits that leases are of no use for.
    pub(super) fn warn_of_leases(&self, defaults: LeaseSettings, report: &mut Report) {
        for place in 0..self.found.len() {
            let at = self.found[place].at;
            let leased = self.leased(place, LeaseSettings::default(), defaults, at);
            leased.iter().for_each(|leased| leased.warn(report));
        }
    }

    /// Returns the settings of leases that a limit has itself.
    pub(super) fn lease(&self, place: usize) -> LeaseSettings {
        self.found.get(place).map(|limit| limit.lease).unwrap_or_default()
    }

    /// Returns a limit that a rule with these settings would lease; `None` in strict mode.
    pub(super) fn leased(
        &self,
        place: usize,
        rule: LeaseSettings,
        defaults: LeaseSettings,
        at: Position,
    ) -> Option<LeasedLimit<'_>> {
        let FoundLimit { name, limit, .. } = self.found.get(place)?;
        let own = rule.or(self.lease(place));
        let origin = if own.mode.is_some() { ModeOrigin::Own } else { ModeOrigin::Defaults };
        let options = own.or(defaults).chosen()?;
        Some(LeasedLimit { name, limit: limit.as_ref()?, options, origin, at })
    }

    pub(super) fn count(&self) -> usize {
        self.found.len()
    }

    pub(super) fn into_list(self) -> Vec<LimitConfig> {
        let named = |found: FoundLimit<'_>| {
            let FoundLimit { name, limit, lease, .. } = found;
            Some(LimitConfig { name: name.into(), limit: limit?, lease })
        };
        self.found.into_iter().filter_map(named).collect()
    }
}

/// How messages name a limit, and the remedy if a node is not a limit.
pub(super) struct Wording {
    pub(super) name: &'static str,
    pub(super) remedy: &'static str,
}

/// Reads a limit that is never leased.
pub(super) fn read_limit(
    node: &YamlNode<'_>,
    wording: &Wording,
    report: &mut Report,
) -> Option<Limit> {
    let (limit, lease) = read_leasable(node, wording, report)?;
    if lease != LeaseSettings::default() {
        let message = format!("{} cannot be leased: each process has its own", wording.name);
        report.error(node.at, message, "leave `mode` and `lease` out");
    }
    Some(limit)
}

/// Reads a limit from one text, or from a mapping of its parameters and of how it is leased.
fn read_leasable(
    node: &YamlNode<'_>,
    wording: &Wording,
    report: &mut Report,
) -> Option<(Limit, LeaseSettings)> {
    match &node.kind {
        NodeKind::Text { text, .. } if unspaced(text, &["algorithm"]).is_some() => {
            report.no_space(node.at, "algorithm");
            None
        }
        NodeKind::Text { text, .. } if !node.is_null() => match text.parse() {
            Ok(limit) => Some((limit, LeaseSettings::default())),
            Err(error) => {
                report.refused(node.at, &error, Notation::Text);
                None
            }
        },
        NodeKind::Map(_) => read_parameters(node, report),
        _ => {
            report.unfit(node, wording.name, "a text or a mapping", wording.remedy);
            None
        }
    }
}

fn read_parameters(node: &YamlNode<'_>, report: &mut Report) -> Option<(Limit, LeaseSettings)> {
    let errors_before = report.errors();
    let name = algorithm(node, report)?;
    let fields = MappingFields::read(node, mapping(name), report)?;
    let has_own_mode = name.parameters().contains(&"mode");
    let lease = match has_own_mode {
        true => lease::read_beside_mode(&fields, report),
        false => lease::read(&fields, report),
    };
    // Whether `mode` says how the limit is shared, and not how the bucket admits.
    let is_leases_mode = lease.mode.is_some();
    let mut parameters = Vec::new();
    for &parameter in name.parameters() {
        match fields.get(parameter) {
            Some(_) if parameter == "mode" && is_leases_mode => {}
            Some(value) => {
                let remedy = "use a number, a time or a rate, like `10`, `60s` or `1/s`";
                // A stand-in if the value is not a text, so that the other parameters are still read.
                let text = report.text(value, &format!("`{parameter}`"), remedy);
                parameters.push((parameter, text.unwrap_or(stand_in(parameter)), value.at));
            }
            // It has a default.
            None if parameter == "mode" => {}
            None if fields.may_have(parameter) => {}
            None => {
                let error = LimitError::Missing { algorithm: name, parameter };
                report.refused(node.at, &error, Notation::Yaml);
            }
        }
    }
    let is_there = |parameter: &&str| *parameter == "mode" || fields.get(parameter).is_some();
    let missing = name.parameters().iter().filter(|parameter| !is_there(parameter));
    parameters.extend(missing.map(|&parameter| (parameter, stand_in(parameter), node.at)));
    let limit = limit_of_parameters(name, parameters, node.at, report);
    // A limit with a stand-in is not the limit in the file.
    limit.filter(|_| report.errors() == errors_before).map(|limit| (limit, lease))
}

/// Returns the algorithm of a limit, even if the field's name is misspelt.
fn algorithm(node: &YamlNode<'_>, report: &mut Report) -> Option<AlgorithmName> {
    let is_meant = |name: &str| nearest(name, ["algorithm"]).is_some();
    let exact = MappingFields::of(node).find(|(name, _)| *name == "algorithm");
    let Some((name, value)) =
        exact.or_else(|| MappingFields::of(node).find(|(name, _)| is_meant(name)))
    else {
        let fields = MappingFields::read(node, &ANY, report)?;
        fields.require("algorithm", ALGORITHM_REMEDY, report);
        return None;
    };
    let found = report.text(value, "`algorithm`", ALGORITHM_REMEDY);
    let found = found.and_then(|text| match text.parse() {
        Ok(algorithm) => Some(algorithm),
        Err(error) => {
            report.refused(value.at, &error, Notation::Yaml);
            None
        }
    });
    // The misspelt field must be reported here, because the fields are not read without their algorithm.
    if found.is_none() && name != "algorithm" {
        MappingFields::read(node, &ANY, report);
    }
    found
}

/// Makes a limit of its parameters, and reports each parameter that is refused.
fn limit_of_parameters(
    name: AlgorithmName,
    mut parameters: Vec<(&'static str, &str, Position)>,
    at: Position,
    report: &mut Report,
) -> Option<Limit> {
    let pairs = |of: &[(&'static str, &str, Position)]| {
        Limit::from_parameters(name, of.iter().map(|&(parameter, value, _)| (parameter, value)))
    };
    let mut first = pairs(&parameters);
    let limit = first.as_ref().ok().copied();
    // The loop ends, because each round replaces one more parameter by a stand-in, which is never refused.
    while let Err(error) = &first {
        let faulty = parameters.iter_mut().find(|(name, ..)| error.parameter() == Some(name));
        let Some((parameter, value, at)) = faulty else {
            report.refused(at, error, Notation::Yaml);
            return None;
        };
        report.refused(*at, error, Notation::Yaml);
        *value = stand_in(parameter);
        first = pairs(&parameters);
    }
    limit
}

/// Returns a value that is valid with any other parameters.
fn stand_in(parameter: &str) -> &'static str {
    match parameter {
        "window" | "for" => "1s",
        "refill" | "leak" => "1000000000/s",
        "mode" => "policing",
        _ => "1",
    }
}

const fn mapping(algorithm: AlgorithmName) -> &'static Mapping {
    match algorithm {
        AlgorithmName::FixedWindow => &FIXED_WINDOW,
        AlgorithmName::SlidingWindowLog => &SLIDING_WINDOW_LOG,
        AlgorithmName::SlidingWindowCounter => &SLIDING_WINDOW_COUNTER,
        AlgorithmName::TokenBucket => &TOKEN_BUCKET,
        AlgorithmName::LeakyBucket => &LEAKY_BUCKET,
        AlgorithmName::Concurrency => &CONCURRENCY,
    }
}

/// A limit of any algorithm.
const ANY: Mapping = Mapping {
    name: "a limit",
    fields: &["algorithm", "limit", "window", "capacity", "refill", "leak", "mode", "for", "lease"],
    remedy: ALGORITHM_REMEDY,
};
const FIXED_WINDOW: Mapping = Mapping {
    name: "a fixed-window",
    fields: &["algorithm", "limit", "window", "mode", "lease"],
    remedy: ALGORITHM_REMEDY,
};
const SLIDING_WINDOW_LOG: Mapping = Mapping { name: "a sliding-window-log", ..FIXED_WINDOW };
const SLIDING_WINDOW_COUNTER: Mapping =
    Mapping { name: "a sliding-window-counter", ..FIXED_WINDOW };
const TOKEN_BUCKET: Mapping = Mapping {
    name: "a token-bucket",
    fields: &["algorithm", "capacity", "refill", "mode", "lease"],
    ..FIXED_WINDOW
};
const LEAKY_BUCKET: Mapping = Mapping {
    name: "a leaky-bucket",
    fields: &["algorithm", "capacity", "leak", "mode", "lease"],
    ..FIXED_WINDOW
};
const CONCURRENCY: Mapping =
    Mapping { name: "a concurrency limit", fields: &["algorithm", "limit", "for"], ..FIXED_WINDOW };
