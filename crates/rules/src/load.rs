//! Reads a configuration from a path or a text.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read};
use std::path::{Component, Path};

use super::cases;
use tollgate_identity::config::{JwtConfig, MAX_JWKS_BYTES};

use super::config::Config;
use super::contents::{self, beside, bounded, too_large};
use super::decode::{self, DecodedFile, MAX_KEY_FILE_BYTES, NetworkFiles, TokenKeys};
use super::position::Position;
use super::problem::{Problems, Report};
use super::yaml::{self, MAX_DEPTH, YamlNode};

const MAX_KEYS_FILE_BYTES: usize = 16 << 20;

const SPLIT: &str = "split it, or put the API keys into a file of their own (`api_keys_file`)";

const FEWER_KEYS: &str = "keep only the keys that need a tier";

impl Config {
    /// The most bytes that a rules file may have.
    pub const MAX_BYTES: usize = 4 << 20;

    /// Reads a file of limits and rules, and the files that it names: the table of API keys, networks, and the keys
    /// of tokens.
    ///
    /// All problems are reported at once, each with its line and a remedy.
    ///
    /// ```no_run
    /// # use tollgate::rules::Config;
    /// match Config::load("limits.yaml") {
    ///     Ok(config) => println!("{} rules", config.rules()),
    ///     Err(problems) => eprintln!("{problems}"),
    /// }
    /// ```
    pub fn load(path: impl AsRef<Path>) -> Result<Config, Problems> {
        Config::load_with(path.as_ref(), read)
    }

    /// Does the same with another way to read a file, which gets the most bytes that the file may have.
    pub(super) fn load_with(
        path: &Path,
        mut read: impl FnMut(&Path, usize) -> io::Result<Vec<u8>>,
    ) -> Result<Config, Problems> {
        let file = path.display().to_string();
        let bytes = read(path, Config::MAX_BYTES).map_err(|error| unreadable(&file, &error))?;
        let directory = path.parent().unwrap_or(Path::new(""));
        let mut read = |named: &Path, max_bytes| read(&directory.join(named), max_bytes);
        Config::parse_around(&file, &bytes, FileContext { read: &mut read, variable })
    }

    /// Reads limits and rules from an open input, like standard input or a pipe, which messages call `file`. Files
    /// that it names are relative to `directory`.
    pub fn read(file: &str, input: impl Read, directory: &Path) -> Result<Config, Problems> {
        let mut bytes = Vec::new();
        // One more byte, to notice an input that is too large. OK because the limit is far below 2^64.
        let mut input = input.take(Config::MAX_BYTES as u64 + 1);
        input.read_to_end(&mut bytes).map_err(|error| unreadable(file, &error))?;
        let mut read = |named: &Path, max_bytes| read(&directory.join(named), max_bytes);
        Config::parse_around(file, &bytes, FileContext { read: &mut read, variable })
    }

    /// Reads limits and rules from the contents of a file, which messages call `file`. The contents cannot name other
    /// files, only environment variables.
    ///
    /// ```
    /// # use tollgate::rules::Config;
    /// let config = Config::parse("limits.yaml", "
    ///     limits:
    ///       free: token-bucket capacity=60 refill=1/s
    ///     rules:
    ///       - { name: per-client, domain: api, key: [ip], limit: free }
    /// ")?;
    /// assert_eq!((config.limits(), config.rules()), (1, 1));
    /// # Ok::<(), tollgate::rules::Problems>(())
    /// ```
    pub fn parse(file: &str, text: impl AsRef<[u8]>) -> Result<Config, Problems> {
        Config::parse_with(file, text, |_| {
            Err(io::Error::new(ErrorKind::Unsupported, "files are not read here"))
        })
    }

    /// Reads limits and rules from the contents of a file. Other files that it names are read with `read`, which gets
    /// the path as it is written. `read` should bound the bytes that it reads, because the path may name anything,
    /// even `/dev/zero`.
    pub fn parse_with(
        file: &str,
        text: impl AsRef<[u8]>,
        mut read: impl FnMut(&Path) -> io::Result<Vec<u8>>,
    ) -> Result<Config, Problems> {
        let mut read = |named: &Path, _| read(named);
        Config::parse_around(file, text.as_ref(), FileContext { read: &mut read, variable })
    }

    fn parse_around(
        file: &str,
        text: &[u8],
        mut around: FileContext<'_>,
    ) -> Result<Config, Problems> {
        let mut report = Report::new(file);
        let mut config = Config::default();
        let source = FileContents {
            bytes: text,
            max_bytes: Config::MAX_BYTES,
            max_depth: MAX_DEPTH,
            smaller: SPLIT,
        };
        let mut read = |named: &Path, max_bytes| around.read(file, named, max_bytes);
        let mut networks = NetworkFiles::new(&mut read);
        let decode =
            |root: &YamlNode<'_>, report: &mut Report| decode::decode(root, &mut networks, report);
        let decoded = source.read(decode::nothing, &mut report, decode).flatten();
        let mut others = networks.into_reports();
        if let Some(DecodedFile { config: own, mut api_keys, keys_file, jwt_keys, cases }) = decoded
        {
            let max_bytes = MAX_KEYS_FILE_BYTES;
            match keys_file.as_ref().map(|keys| (keys, around.read(file, &keys.path, max_bytes))) {
                None => {}
                Some((keys_file, Err(error))) => {
                    keys_file.unreadable(&error, keys_remedy(&error), &mut report);
                }
                Some((keys_file, Ok(bytes))) => {
                    let name = beside(file, &keys_file.path).display().to_string();
                    let mut report = Report::new(&name);
                    let max_depth = MAX_DEPTH;
                    let source =
                        FileContents { bytes: &bytes, max_bytes, max_depth, smaller: FEWER_KEYS };
                    source.read(decode::no_api_keys, &mut report, |root, report| {
                        api_keys.read(root, report);
                    });
                    others.push(report);
                }
            }
            config = Config { api_keys: api_keys.into_tiers(), ..own };
            if let Some(jwt) = config.identity.as_mut().and_then(|it| it.jwt.as_mut()) {
                around.fetch(file, jwt_keys, jwt, &mut report);
            }
            // Rules with errors cannot be tested.
            if report.errors() == 0 && others.iter().all(|other| other.errors() == 0) {
                cases::run(&config, &cases, &mut report);
                config.tests = cases.len();
            }
        }
        let problems = report.with(others);
        match problems.has_errors() {
            true => Err(problems),
            false => Ok(Config { warnings: problems, ..config }),
        }
    }

    /// Returns the warnings: mistakes that leave the file valid.
    pub fn warnings(&self) -> &Problems {
        &self.warnings
    }
}

/// Access to what a file may name: other files, each read with a maximum of bytes, and environment variables.
struct FileContext<'a> {
    read: &'a mut dyn FnMut(&Path, usize) -> io::Result<Vec<u8>>,
    variable: fn(&str) -> Option<OsString>,
}

impl FileContext<'_> {
    /// Returns the contents of another file that `file` names.
    fn read(&mut self, file: &str, named: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
        match is_same(&beside(file, named), Path::new(file)) {
            true => Err(io::Error::new(ErrorKind::InvalidInput, "it is this file")),
            false => (self.read)(named, max_bytes),
        }
    }

    /// Adds the keys that verify tokens, as far as they can be read, and reports the others.
    fn fetch(&mut self, file: &str, found: TokenKeys, jwt: &mut JwtConfig, report: &mut Report) {
        let variable = self.variable;
        let mut read = |named: &Path, max_bytes: usize| {
            let bytes = self.read(file, named, max_bytes)?;
            bounded(bytes, max_bytes)
        };
        for key in found.keys {
            let read = |named: &Path| read(named, MAX_KEY_FILE_BYTES);
            jwt.keys.extend(key.fetch(read, variable, report));
        }
        if let Some(jwks) = found.jwks {
            jwt.jwks = jwks.fetch(|named| read(named, MAX_JWKS_BYTES), report);
        }
    }
}

/// Returns an environment variable of this process.
fn variable(name: &str) -> Option<OsString> {
    env::var_os(name)
}

/// The contents of a file, and their bounds.
pub struct FileContents<'b> {
    /// The contents.
    pub bytes: &'b [u8],
    /// The most bytes that the file may have.
    pub max_bytes: usize,
    /// The most levels that lists and mappings may be nested.
    pub max_depth: usize,
    /// The remedy in the error message if the file is larger.
    pub smaller: &'static str,
}

impl FileContents<'_> {
    /// Parses the contents and calls `decode` with the tree. For an empty file it calls `nothing`, which reports
    /// that.
    pub fn read<R>(
        self,
        nothing: fn(Position, &mut Report),
        report: &mut Report,
        decode: impl FnOnce(&YamlNode<'_>, &mut Report) -> R,
    ) -> Option<R> {
        if self.bytes.len() > self.max_bytes {
            report.error(Position::START, too_large(self.max_bytes), self.smaller);
            return None;
        }
        let text = contents::text(self.bytes, report)?;
        let decoded = match yaml::parse(text, self.max_depth, report) {
            Some(root) if !root.is_null() => Some(decode(&root, report)),
            None if report.errors() > 0 => None,
            _ => {
                nothing(Position::START, report);
                None
            }
        };
        report.keep_within(text);
        decoded
    }
}

/// Returns whether two paths are the same, as far as their text shows.
fn is_same(one: &Path, other: &Path) -> bool {
    let steps = |path| Path::components(path).filter(|step| *step != Component::CurDir);
    steps(one).eq(steps(other))
}

fn unreadable(file: &str, error: &io::Error) -> Problems {
    let mut report = Report::new(file);
    report.unreadable(format!("cannot be read: {error}"), remedy(error));
    report.with(None)
}

/// Returns the contents of a file, if it is a regular file and not too large.
pub(super) fn read(path: &Path, max_bytes: usize) -> io::Result<Vec<u8>> {
    let kind = fs::metadata(path)?.file_type();
    if kind.is_dir() {
        return Err(io::Error::new(ErrorKind::IsADirectory, "it is a directory"));
    }
    // Opening a pipe without a writer would wait for ever.
    if !kind.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let file = File::open(path)?;
    let mut bytes = Vec::new();
    // One more byte, to notice a file that is too large. OK because the limits are far below 2^64.
    file.take(max_bytes as u64 + 1).read_to_end(&mut bytes)?;
    bounded(bytes, max_bytes)
}

fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::NotFound => "check the path",
        ErrorKind::PermissionDenied => "let this user read it",
        ErrorKind::FileTooLarge => SPLIT,
        _ => "name a YAML file of limits and rules",
    }
}

/// Returns the remedy for a file of API keys that cannot be read.
fn keys_remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::PermissionDenied => remedy(error),
        ErrorKind::FileTooLarge => FEWER_KEYS,
        ErrorKind::Unsupported => "use `Config::load`, or put the keys under `api_keys`",
        _ => "name a file of keys and tiers, relative to this one",
    }
}

#[cfg(test)]
mod tests;
