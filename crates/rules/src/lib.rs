//! Rules: which limits a request spends.
//!
//! Use this crate through the crate `tollgate`, as `tollgate::rules`.
//!
//! A rule says which requests it is for, how their key is made, and which limit they spend. A file of rules, in YAML,
//! is read into a [`Config`]; [`Rules`] decide by it, and can be replaced while requests are decided.
//!
//! - `load`, `yaml`, `decode`: read a file into a configuration, or report every problem with its position; `contents`:
//!   helpers for all files that are read
//! - `config`: the contents of a file; `pattern`: patterns that values match; `networks`: addresses and the networks
//!   that contain them; `schema`: the JSON Schema for editors
//! - `attributes`, `descriptor`: a request; `request`, `names`: its attributes by number
//! - `plan`: compiled rules, with an index that finds the rules that may apply, and limits that requests bring with
//!   them; `key`: the keys that rules limit; `matched_rules`: the rules that apply to a request
//! - `check`, `ruling`: checks and their decisions; `tally`: counts of decisions; `reservation`, `rules_hold`: reservations
//!   and the units that they set aside
//! - `explain`: why a rule applies or does not; `domains`: which domains are in use; `cases`: the tests in a file;
//!   `info`: the limits that a rule may spend
//! - `rules`: rules that decide requests, and a snapshot of them; `head`: the attributes of an HTTP request
//! - `file`: rules that follow their file

mod attributes;
mod cases;
mod check;
mod config;
mod contents;
mod decode;
mod descriptor;
mod domains;
mod explain;
#[cfg(feature = "watch")]
mod file;
mod head;
mod info;
mod key;
mod load;
mod matched_rules;
mod names;
mod nearest;
mod networks;
mod pattern;
mod plan;
mod position;
mod problem;
mod request;
mod reservation;
mod rules;
mod rules_hold;
mod ruling;
mod schema;
mod tally;
mod yaml;

/// Reads YAML that is not a rules file, and reports every problem with its position: for importers of other formats.
pub mod reading {
    pub use super::decode::{ATTRIBUTE, DOMAIN, Mapping, MappingFields, NameKind};
    pub use super::load::FileContents;
    pub use super::position::Position;
    pub use super::problem::Report;
    pub use super::yaml::{NodeKind, YamlNode};
}

pub use attributes::Attributes;
pub use check::{RulesAnswer, RulesCheck};
pub use config::Config;
pub use descriptor::Descriptor;
pub use domains::MissingDomains;
pub use explain::{
    Explanation, LimitReason, MatchedNetwork, MismatchReason, RuleAction, RuleEffect,
};
#[cfg(feature = "watch")]
pub use file::{FileFollower, LoadError, RulesFile, Status};
pub use info::{RuleInfo, RuleLimit};
pub use key::push_part;
pub use plan::RuleName;
pub use problem::{Problem, Problems, Severity};
pub use reservation::{ReservationAnswer, RulesReservation};
pub use rules::{Rules, Snapshot};
pub use rules_hold::{HeldRule, RulesHold};
pub use ruling::{RulePart, Ruling};
pub use tally::Counts;
