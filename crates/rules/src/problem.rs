//! Problems of a file, each with its position and a remedy.

use std::fmt;
use std::sync::Arc;

use super::nearest::nearest;
use super::position::{Position, end_of};

/// The most problems that are printed.
const MAX_LISTED: usize = 100;

/// The most errors of a file that are kept, and the most warnings; the rest are counted.
const MAX_KEPT: usize = 1_000;

/// Whether a problem makes a file invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// The file cannot be used.
    Error,
    /// The file can be used, but probably has a mistake.
    Warning,
    /// The file has no mistake here, but something is worth knowing.
    Note,
}

/// A problem of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Problem {
    severity: Severity,
    file: Arc<str>,
    at: Option<Position>,
    message: String,
    remedy: String,
}

impl Problem {
    /// Returns whether the problem makes the file invalid.
    pub fn severity(&self) -> Severity {
        self.severity
    }

    /// Returns the name of the file, as it was given by the caller.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Returns the line, from 1; `None` if the file could not be read at all.
    pub fn line(&self) -> Option<u32> {
        self.at.map(|at| at.line)
    }

    /// Returns the character in the line, from 1; `None` if the file could not be read at all.
    pub fn column(&self) -> Option<u32> {
        self.at.map(|at| at.column)
    }

    /// Returns the problem.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Returns the remedy.
    pub fn remedy(&self) -> &str {
        &self.remedy
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
            Severity::Note => "note",
        })
    }
}

impl fmt::Display for Problem {
    /// Prints `error: limits.yaml:14:11: …`, and the remedy on a second line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { severity, file, at, message, remedy } = self;
        match at {
            Some(Position { line, column }) => write!(f, "{severity}: {file}:{line}:{column}: ")?,
            None => write!(f, "{severity}: {file}: ")?,
        }
        write!(f, "{message}\n  {remedy}")
    }
}

/// All problems of a file and of the files that it names, in the order of their lines.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Problems {
    kept: Vec<Problem>,
    errors: usize,
    warnings: usize,
    /// At most a thousand for each file.
    notes: Vec<Problem>,
}

impl Problems {
    /// Returns errors and warnings, in the order of the file. At most the first thousand errors and the first
    /// thousand warnings of a file are kept.
    pub fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.kept.iter()
    }

    /// Returns the problems that make the file invalid.
    pub fn errors(&self) -> impl Iterator<Item = &Problem> {
        self.iter().filter(|problem| problem.severity == Severity::Error)
    }

    /// Returns the problems that leave the file valid.
    pub fn warnings(&self) -> impl Iterator<Item = &Problem> {
        self.iter().filter(|problem| problem.severity == Severity::Warning)
    }

    /// Returns the notes, which are no problems: they are neither counted nor printed with the problems.
    pub fn notes(&self) -> impl Iterator<Item = &Problem> {
        self.notes.iter()
    }

    /// Returns whether no problem was found.
    pub fn is_empty(&self) -> bool {
        self.errors + self.warnings == 0
    }

    /// Adds an error about a file as a whole, such as a requirement of the program that reads it.
    ///
    /// ```
    /// # use tollgate::rules::{Config, Problems};
    /// # fn main() -> Result<(), Problems> {
    /// let config = Config::parse("rules.yaml", "rules: []")?;
    /// let problems = config.warnings().clone();
    /// let problems = problems.with_error("rules.yaml", "no rules for domain `api`", "add rules for it");
    /// assert!(problems.to_string().starts_with("error: rules.yaml: no rules for domain `api`\n  add rules for it"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn with_error(
        self,
        file: &str,
        message: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Problems {
        let mut report = Report::continuing(file, self);
        report.keep(Severity::Error, None, message.into(), remedy.into());
        report.with([])
    }

    pub(crate) fn has_errors(&self) -> bool {
        self.errors > 0
    }
}

impl fmt::Display for Problems {
    /// Prints at most a hundred problems, errors before warnings if there are more, and their numbers.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut listed = 0;
        let mut errors_left = self.errors().count().min(MAX_LISTED);
        let mut warnings_left = MAX_LISTED - errors_left;
        for problem in self.iter() {
            let left = match problem.severity {
                Severity::Error => &mut errors_left,
                Severity::Warning | Severity::Note => &mut warnings_left,
            };
            if *left > 0 {
                *left -= 1;
                listed += 1;
                writeln!(f, "{problem}")?;
            }
        }
        let more = self.errors + self.warnings - listed;
        if more > 0 {
            writeln!(f, "and {more} more")?;
        }
        match (self.errors, self.warnings) {
            (0, warnings) => f.write_str(&counted(warnings, "warning")),
            (errors, 0) => f.write_str(&counted(errors, "error")),
            (errors, warnings) => {
                write!(f, "{}, {}", counted(errors, "error"), counted(warnings, "warning"))
            }
        }
    }
}

fn counted(count: usize, noun: &str) -> String {
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

impl std::error::Error for Problems {}

/// The problems of one file, while it is read.
pub struct Report {
    file: Arc<str>,
    found: Problems,
}

impl Report {
    /// Returns an empty report; messages call the file `file`.
    pub fn new(file: &str) -> Report {
        Report { file: file.into(), found: Problems::default() }
    }

    /// Returns a report that begins with problems found earlier.
    pub fn continuing(file: &str, found: Problems) -> Report {
        Report { file: file.into(), found }
    }

    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }

    /// Returns the number of errors so far.
    pub fn errors(&self) -> usize {
        self.found.errors
    }

    /// Reports a problem that makes the file invalid.
    pub fn error(&mut self, at: Position, message: impl Into<String>, remedy: impl Into<String>) {
        self.keep(Severity::Error, Some(at), message.into(), remedy.into());
    }

    /// Reports a probable mistake that leaves the file valid.
    pub fn warn(&mut self, at: Position, message: impl Into<String>, remedy: impl Into<String>) {
        self.keep(Severity::Warning, Some(at), message.into(), remedy.into());
    }

    /// Reports what is worth knowing about a part of the file that has no mistake.
    pub(crate) fn note(&mut self, at: Position, message: String, remedy: String) {
        if self.found.notes.len() < MAX_KEPT {
            let (severity, file) = (Severity::Note, self.file.clone());
            self.found.notes.push(Problem { severity, file, at: Some(at), message, remedy });
        }
    }

    /// Reports an error of the file as a whole.
    pub fn unreadable(&mut self, message: String, remedy: &str) {
        self.keep(Severity::Error, None, message, remedy.into());
    }

    fn keep(&mut self, severity: Severity, at: Option<Position>, message: String, remedy: String) {
        let found = match severity {
            Severity::Error => &mut self.found.errors,
            Severity::Warning | Severity::Note => &mut self.found.warnings,
        };
        *found += 1;
        if *found <= MAX_KEPT {
            let file = self.file.clone();
            self.found.kept.push(Problem { severity, file, at, message, remedy });
        }
    }

    /// Returns the name that was probably meant; `None` once there are too many errors for the answer to be printed.
    pub(crate) fn meant<'n>(
        &self,
        text: &str,
        names: impl IntoIterator<Item = &'n str>,
    ) -> Option<&'n str> {
        if self.errors() < MAX_LISTED { nearest(text, names) } else { None }
    }

    /// Moves positions that the parser has put on a line after the end of the text to its end.
    pub(crate) fn keep_within(&mut self, text: &str) {
        if self.found.is_empty() {
            return;
        }
        let end = end_of(text);
        for problem in &mut self.found.kept {
            problem.at = problem.at.map(|at| at.min(end));
        }
    }

    /// Returns all problems, by line, and after them the problems of other files.
    pub fn with(mut self, others: impl IntoIterator<Item = Report>) -> Problems {
        self.found.kept.sort_by_key(|problem| problem.at);
        for Report { mut found, .. } in others {
            found.kept.sort_by_key(|problem| problem.at);
            self.found.kept.append(&mut found.kept);
            self.found.notes.append(&mut found.notes);
            self.found.errors += found.errors;
            self.found.warnings += found.warnings;
        }
        self.found
    }
}
