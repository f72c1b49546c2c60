//! Networks: one network as a value in a rule, and named sets of networks, in the rules file or in a file of their
//! own.

use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;

use ipnet::IpNet;
use tollgate_core::Excerpt;

use super::fields::{Mapping, MappingFields, NameTable, Naming, TableRow};
use super::names;
use crate::contents::{self, beside, bounded};
use crate::networks::{self, NetworkError, NetworkMap, NetworkSet, Networks};
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The largest file of networks.
const MAX_FILE_BYTES: usize = 16 << 20;

/// The most networks in all sets together, at about 50 bytes each.
const MAX_NETWORKS: usize = 500_000;

/// The most sets: a condition may compare an address with each.
const MAX_SETS: usize = 64;

/// The characters that begin a comment in a file of networks.
const COMMENT: [char; 2] = ['#', ';'];

const REMEDY: &str = "write it like `192.0.2.7` or `10.0.0.0/8`; names are not looked up";

const SET_REMEDY: &str =
    "list them, like `[10.0.0.0/8]`, or name a file that has them, like `{ file: blocked.txt }`";

const NETWORKS: NameTable = NameTable {
    name: "`networks`",
    item: "set of networks",
    remedy: "give each set a name, like `networks: { blocked: { file: blocked.txt } }`",
    naming: Naming::Shown,
};

const SET: Mapping = Mapping { name: "a set of networks", fields: &["file"], remedy: SET_REMEDY };

/// Reads another file by its path as written, up to a number of bytes.
type NetworkFileReader<'a> = dyn FnMut(&Path, usize) -> io::Result<Vec<u8>> + 'a;

/// The files of networks that a rules file names, and their problems.
pub(crate) struct NetworkFiles<'a> {
    read: &'a mut NetworkFileReader<'a>,
    reports: Vec<Report>,
}

/// The sets of networks of a file.
#[derive(Default)]
pub(super) struct NetworkSets<'n> {
    sets: Vec<NamedSet<'n>>,
    /// The number of networks in all sets.
    count: usize,
    /// Whether the section could not be read, so that a name that is not found is not reported.
    is_broken: bool,
}

/// A set of networks, its name, and whether a rule uses it.
struct NamedSet<'n> {
    name: &'n str,
    at: Position,
    /// `None` if it could not be read.
    set: Option<Arc<NetworkSet>>,
    is_used: bool,
}

impl<'a> NetworkFiles<'a> {
    pub(crate) fn new(read: &'a mut NetworkFileReader<'a>) -> NetworkFiles<'a> {
        NetworkFiles { read, reports: Vec::new() }
    }

    /// Returns one report for each file that was read.
    pub(crate) fn into_reports(self) -> Vec<Report> {
        self.reports
    }

    /// Reads the networks in the file that `node` names.
    fn networks(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<Vec<IpNet>> {
        let path = report.text(node, "`file`", "name a file, like `blocked.txt`")?;
        if path.is_empty() {
            report.error(node.at, "`file` is empty", "name a file, like `blocked.txt`");
            return None;
        }
        let bytes = (self.read)(Path::new(path), MAX_FILE_BYTES);
        let bytes = match bytes.and_then(|bytes| bounded(bytes, MAX_FILE_BYTES)) {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("`{}` cannot be read: {error}", Excerpt::of(path));
                report.error(node.at, message, file_remedy(&error));
                return None;
            }
        };
        let mut own = Report::new(&beside(report.file(), Path::new(path)).display().to_string());
        let networks = lines(&bytes, &mut own);
        self.reports.push(own);
        networks
    }
}

fn file_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => "let this user read it",
        ErrorKind::FileTooLarge => "use larger networks, or split it into several sets",
        ErrorKind::Unsupported => "use `Config::load`, or list the networks here",
        _ => "name a file of networks, relative to this one",
    }
}

/// Reads one network or address a line; `None` if a line is neither.
fn lines(bytes: &[u8], report: &mut Report) -> Option<Vec<IpNet>> {
    let text = contents::text(bytes, report)?;
    let mut networks = Vec::new();
    for (line, number) in text.lines().zip(1..) {
        let entry = line.split(COMMENT).next().unwrap_or_default();
        let spaces = entry.chars().take_while(|letter| letter.is_whitespace()).count();
        let entry = entry.trim();
        if entry.is_empty() {
            continue;
        }
        match networks::parse(entry) {
            Ok(network) => networks.push(network),
            Err(error) => {
                // OK because no line has 2^32 characters.
                let at = Position { line: number, column: spaces as u32 + 1 };
                refuse(&NetworkText { text: entry, at, naming: Naming::Hidden }, error, report);
            }
        }
    }
    (report.errors() == 0).then_some(networks)
}

impl<'n> NetworkSets<'n> {
    /// Reads the section `networks`.
    pub(super) fn read(
        node: &'n YamlNode<'_>,
        files: &mut NetworkFiles<'_>,
        report: &mut Report,
    ) -> NetworkSets<'n> {
        let Some(rows) = NETWORKS.rows(node, report) else { return NetworkSets::none(true) };
        if rows.len() > MAX_SETS {
            let message =
                format!("{} sets of networks, above the maximum of {MAX_SETS}", rows.len());
            report.error(node.at, message, "put networks that rules treat alike into one set");
            return NetworkSets::none(true);
        }
        let mut sets = NetworkSets::default();
        for TableRow { name, at, value } in rows {
            names::NETWORKS.check(name, at, report);
            let set = set(value, files, report).and_then(|networks| {
                sets.count(networks.len(), value.at, report)?;
                if networks.is_empty() {
                    let message = format!("networks `{}` are empty", Excerpt::of(name));
                    report.warn(value.at, message, "no address is in them; add a network");
                }
                let networks = networks.into_iter().map(|network| (network, ())).collect();
                let networks = NetworkMap::new(networks, |(), ()| {});
                Some(Arc::new(NetworkSet { name: name.into(), networks }))
            });
            sets.sets.push(NamedSet { name, at, set, is_used: false });
        }
        sets
    }

    /// Returns no sets, of a section that is absent or, if `is_broken`, could not be recognised.
    pub(super) fn none(is_broken: bool) -> NetworkSets<'n> {
        NetworkSets { is_broken, ..NetworkSets::default() }
    }

    /// Reports once that there are too many networks.
    fn count(&mut self, more: usize, at: Position, report: &mut Report) -> Option<()> {
        let before = self.count;
        // OK because files are too short for 2^64 networks.
        self.count += more;
        if before <= MAX_NETWORKS && self.count > MAX_NETWORKS {
            let message = format!("more than {MAX_NETWORKS} networks in all sets");
            report.error(at, message, "use larger networks for them");
        }
        (self.count <= MAX_NETWORKS).then_some(())
    }

    /// Returns the set that a node names.
    pub(super) fn named(&mut self, node: &YamlNode<'_>, report: &mut Report) -> Option<Networks> {
        let remedy = "name a set that is under `networks`";
        let name = report.text(node, "`networks`", remedy)?;
        if let Some(named) = self.sets.iter_mut().find(|named| named.name == name) {
            named.is_used = true;
            return named.set.clone().map(Networks::Set);
        }
        if self.is_broken {
            return None;
        }
        let message = format!("networks `{}` are not defined", Excerpt::of(name));
        let remedy = match report.meant(name, self.sets.iter().map(|named| named.name)) {
            _ if networks::parse(name).is_ok() => {
                format!("write `{{ network: {name} }}` for one network")
            }
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "define them, like `networks: { blocked: { file: blocked.txt } }`".into(),
        };
        report.error(node.at, message, remedy);
        None
    }

    /// Reads a value that is one network or one address.
    pub(super) fn network(&self, value: &NetworkText<'_>, report: &mut Report) -> Option<Networks> {
        let NetworkText { text, at, .. } = *value;
        let error = match networks::parse(text) {
            Ok(network) => return Some(Networks::One(network)),
            Err(error) => error,
        };
        if self.sets.iter().any(|named| named.name == text) {
            let message = format!("`{text}` is the name of networks, not an address");
            report.error(at, message, format!("write `{{ networks: {text} }}` for all of them"));
        } else {
            refuse(value, error, report);
        }
        None
    }

    /// Warns of sets that no rule uses.
    pub(super) fn warn_of_unused(&self, report: &mut Report) {
        for NamedSet { name, at, .. } in self.sets.iter().filter(|named| !named.is_used) {
            let message = format!("networks `{}` that no rule uses", Excerpt::of(name));
            let remedy =
                format!("use them in a rule, like `when: {{ ip: {{ networks: {name} }} }}`");
            report.warn(*at, message, remedy);
        }
    }
}

/// A text that should be a network.
pub(super) struct NetworkText<'t> {
    pub(super) text: &'t str,
    pub(super) at: Position,
    /// Whether messages show a text that does not look like an address, because it may be a secret.
    pub(super) naming: Naming,
}

impl NetworkText<'_> {
    fn is_shown(&self) -> bool {
        let fits = |letter: char| letter.is_ascii_hexdigit() || ".:/".contains(letter);
        let is_like_an_address = self.text.chars().all(fits) && self.text.contains(['.', ':']);
        self.naming == Naming::Shown || is_like_an_address
    }
}

/// Reads the networks of one set.
fn set(
    node: &YamlNode<'_>,
    files: &mut NetworkFiles<'_>,
    report: &mut Report,
) -> Option<Vec<IpNet>> {
    match &node.kind {
        NodeKind::List(items) => {
            let networks: Vec<IpNet> =
                items.iter().filter_map(|item| listed(item, "a network", report)).collect();
            (networks.len() == items.len()).then_some(networks)
        }
        NodeKind::Map(_) => {
            let fields = MappingFields::read(node, &SET, report)?;
            let file = match fields.get("file") {
                None if !fields.is_empty_mapping() => return None,
                _ => fields.require("file", SET_REMEDY, report)?,
            };
            files.networks(file, report)
        }
        _ => {
            report.unfit(node, SET.name, "a list or a mapping", SET_REMEDY);
            None
        }
    }
}

/// Reads one network or address of a list.
pub(super) fn listed(node: &YamlNode<'_>, name: &str, report: &mut Report) -> Option<IpNet> {
    let text = report.text(node, name, REMEDY)?;
    let value = NetworkText { text, at: node.at, naming: Naming::Shown };
    networks::parse(text).map_err(|error| refuse(&value, error, report)).ok()
}

/// Reports why a text is not a network.
fn refuse(value: &NetworkText<'_>, error: NetworkError, report: &mut Report) {
    let shown = match value.text {
        "" => "an empty text".into(),
        text if value.is_shown() => format!("`{}`", Excerpt::of(text)),
        _ => "this".to_owned(),
    };
    let (message, remedy) = match error {
        NetworkError::Malformed => {
            (format!("{shown} is neither an address nor a network"), REMEDY.into())
        }
        NetworkError::TooLong { address } => {
            let whole = IpNet::from(address);
            let most = whole.max_prefix_len();
            let message = format!("{shown} has more than {most} bits after the `/`");
            (message, format!("use at most {most}; `{whole}` is that address alone"))
        }
        NetworkError::HostBits { written } => {
            let bits = written.prefix_len();
            let (whole, alone) = (written.trunc(), written.addr());
            let message = format!("{shown} has bits set after its first {bits}");
            (message, format!("write `{whole}` for the network, or `{alone}` for the address"))
        }
    };
    report.error(value.at, message, remedy);
}
