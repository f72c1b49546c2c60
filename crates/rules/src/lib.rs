//! Rules: from a request to its limits.
//!
//! Use them through the crate `tollgate`, as `tollgate::rules`.
//!
//! A rule says which requests it is for, how their key is made, and which limit they spend. A file of
//! rules, in YAML, is a [`Config`]; [`Rules`] decide by it, and can be given another while they do.
//!
//! - `load`, `yaml`, `decode`: from a file to a configuration, with everything that is wrong with it; `contents`: what is
//!   common to all files that are read
//! - `config`: what a file says; `pattern`: what a value must be like; `networks`: addresses and what they are in;
//!   `schema`: the same for editors
//! - `attributes`, `descriptor`: a request; `request`, `names`: the same by number
//! - `plan`: rules made ready, with an index that finds those that may apply, and limits by other numbers; `key`: whom
//!   they limit; `found`: the rules that apply to a request
//! - `check`, `ruling`: asking them, and what they say; `tally`: how often
//! - `explain`: why they say it; `domains`: which domains are in use; `cases`: the tests that a file carries;
//!   `info`: what a rule may spend
//! - `rules`: rules that decide requests, and a snapshot of them; `head`: an HTTP request as they see it
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
mod found;
mod head;
mod info;
mod key;
mod load;
mod names;
mod nearest;
mod networks;
mod pattern;
mod plan;
mod position;
mod problem;
mod request;
mod rules;
mod ruling;
mod schema;
mod tally;
mod yaml;

/// Reading YAML that is not a rules file, with the position of everything that is wrong with it: for importers of other
/// formats.
pub mod reading {
    pub use super::decode::{ATTRIBUTE, DOMAIN, Fields, Mapping, NameKind};
    pub use super::load::Source;
    pub use super::position::Position;
    pub use super::problem::Report;
    pub use super::yaml::{Kind, Node};
}

pub use attributes::Attributes;
pub use check::{RulesAnswer, RulesCheck};
pub use config::Config;
pub use descriptor::Descriptor;
pub use domains::MissingDomains;
pub use explain::{Applied, Explanation, MatchedNetwork, NotApplied, Reason, Spends};
#[cfg(feature = "watch")]
pub use file::{Following, LoadError, RulesFile, Status};
pub use info::{RuleInfo, RuleLimit};
pub use key::push_part;
pub use plan::RuleName;
pub use problem::{Problem, Problems, Severity};
pub use rules::{Rules, Snapshot};
pub use ruling::{RulePart, Ruling};
pub use tally::Counts;
