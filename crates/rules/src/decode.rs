//! Decodes the tree of a file into a configuration, and reports every problem.
//!
//! Each part is read as far as possible, and problems are reported at their positions: a file with errors gives no
//! configuration, but all its errors at once.

mod api_keys;
mod cases;
mod choice;
mod cost;
mod defaults;
mod fields;
mod identity;
mod key;
mod lease;
mod limits;
mod missing;
mod names;
mod networks;
mod overrides;
mod read;
mod replaces;
mod retired;
mod rule;
mod sources;
mod when;

use std::collections::HashSet;

use super::cases::FileTest;
use super::config::{Config, RuleConfig};
use super::position::Position;
use super::problem::Report;
use super::yaml::YamlNode;
pub(super) use api_keys::{ApiKeys, KeysFile, nothing as no_api_keys};
use cases::CaseReader;
use defaults::Defaults;
pub use fields::{Mapping, MappingFields};
pub(super) use identity::{MAX_KEY_FILE_BYTES, TokenKeys};
use limits::LimitsTable;
pub use names::{ATTRIBUTE, DOMAIN, NameKind};
pub(super) use networks::NetworkFiles;
use networks::NetworkSets;
use rule::RulesReader;
use sources::AttributeSources;

const FILE: Mapping = Mapping {
    name: "the file",
    fields: &[
        "defaults",
        "limits",
        "networks",
        "api_keys",
        "api_keys_file",
        "identity",
        "caller_attributes",
        "rules",
        "retired_domains",
        "tests",
    ],
    remedy: "begin it with `limits:`, and `rules:` after them",
};

/// A configuration, and the parts of it that are still to be read from other files.
pub(super) struct DecodedFile {
    pub(super) config: Config,
    pub(super) api_keys: ApiKeys,
    pub(super) keys_file: Option<KeysFile>,
    /// The keys that verify tokens, which the configuration does not have yet.
    pub(super) jwt_keys: TokenKeys,
    /// The tests in the file.
    pub(super) cases: Vec<FileTest>,
}

/// Decodes a file's tree. Problems are in the report; if it has errors, the returned value must not be used.
pub(super) fn decode(
    root: &YamlNode<'_>,
    files: &mut NetworkFiles<'_>,
    report: &mut Report,
) -> Option<DecodedFile> {
    let fields = MappingFields::read(root, &FILE, report)?;
    let defaults = fields.get("defaults").map(|node| Defaults::read(node, report));
    let mut limits = LimitsTable::read(&fields, report);
    let mut networks = match fields.get("networks") {
        Some(node) => NetworkSets::read(node, files, report),
        None => NetworkSets::none(fields.may_have("networks")),
    };
    let nodes = fields.get("rules").and_then(|node| report.list(node, "`rules`", RULE_REMEDY));
    let has = |name| fields.get(name).is_some() || fields.may_have(name);
    if !has("limits") && !has("rules") {
        nothing(root.at, report);
    }
    let defaults = defaults.unwrap_or_default();
    let Defaults { on_store_failure, deadline, lease, .. } = defaults;
    let default_domain = defaults.domain;
    let section = fields.get("identity").and_then(|node| identity::read(node, report));
    let sources = AttributeSources::read(&fields, section.as_ref(), report);
    let mut reading = RulesReader::new(defaults, &mut limits, &mut networks, &sources);
    let rules: Vec<RuleConfig> =
        nodes.unwrap_or_default().iter().filter_map(|node| reading.read(node, report)).collect();
    reading.check_replaced(report);
    let retired = fields.get("retired_domains").map(|node| retired::read(node, &rules, report));
    // With errors it is not known which names are used.
    let is_whole = report.errors() == 0 && !rules.is_empty();
    if is_whole {
        reading.warn_of_missing(&rules, report);
        limits.warn_of_unused(report);
        limits.warn_of_leases(lease, report);
        networks.warn_of_unused(report);
    }
    // Tests are read only if the file has no errors: only then are all rules and limits that they name known. Unused
    // limits are warned of before that, because a limit that only a test names is unused.
    let tests = fields.get("tests").filter(|_| report.errors() == 0);
    let cases =
        tests.map(|node| CaseReader::new(&rules, default_domain, &mut limits).read(node, report));
    let mut api_keys = ApiKeys::new(is_whole.then(|| tiers_of(&rules)));
    if let Some(table) = fields.get("api_keys") {
        api_keys.read(table, report);
    }
    let keys_file = fields.get("api_keys_file").and_then(|node| KeysFile::read(node, report));
    let limits = limits.into_list();
    let (identity, jwt_keys) = section.map(|section| (section.identity, section.keys)).unzip();
    let retired_domains = retired.unwrap_or_default();
    let config = Config {
        limits,
        rules,
        retired_domains,
        on_store_failure,
        deadline,
        lease,
        identity,
        ..Config::default()
    };
    let (jwt_keys, cases) = (jwt_keys.unwrap_or_default(), cases.unwrap_or_default());
    Some(DecodedFile { config, api_keys, keys_file, jwt_keys, cases })
}

const RULE_REMEDY: &str = "write each rule after a dash, like `- name: per-client`";

/// Reports a file without contents.
pub(super) fn nothing(at: Position, report: &mut Report) {
    report.error(
        at,
        "neither limits nor rules",
        "begin with a limit, like `limits: { free: token-bucket capacity=60 refill=1/s }`",
    );
}

/// Returns the tiers that rules have limits for.
fn tiers_of(rules: &[RuleConfig]) -> HashSet<Box<str>> {
    let tiers = rules.iter().filter_map(|rule| rule.limit.tiers.as_ref());
    tiers.flat_map(|tiers| tiers.of.iter().map(|(tier, _)| tier.clone())).collect()
}
