//! Reads texts, lists and numbers from nodes.

use std::time::Duration;

use tollgate_core::{AlgorithmName, Excerpt, LimitError, Notation, parse_duration};

use crate::nearest::nearest;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// Reading a node. Each function reports a problem, in which the node is called `name`, including its backticks, and
/// then returns `None`.
impl Report {
    /// Reads a text, also if YAML would call it a number.
    pub fn text<'n>(
        &mut self,
        node: &'n YamlNode<'_>,
        name: &str,
        remedy: &str,
    ) -> Option<&'n str> {
        match &node.kind {
            NodeKind::Text { text, .. } if !node.is_null() => Some(text),
            _ => {
                self.unfit(node, name, "a text", remedy);
                None
            }
        }
    }

    /// Returns the items of a list.
    pub fn list<'n, 't>(
        &mut self,
        node: &'n YamlNode<'t>,
        name: &str,
        remedy: &str,
    ) -> Option<&'n [YamlNode<'t>]> {
        match &node.kind {
            NodeKind::List(items) => Some(items),
            _ => {
                self.unfit(node, name, "a list", remedy);
                None
            }
        }
    }

    /// Reads a whole number of at least 1. A number beyond 64 bits becomes the largest.
    pub(super) fn number(&mut self, node: &YamlNode<'_>, name: &str) -> Option<u64> {
        let text = self.text(node, name, "use a whole number, like 10")?;
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // A number too large for 64 bits becomes the largest, which the caller refuses.
        let number = is_number.then(|| text.parse().unwrap_or(u64::MAX));
        if number.is_none() {
            let message = format!("{name} is `{}`, which is not a whole number", Excerpt::of(text));
            self.error(node.at, message, "use digits alone, like 10");
        } else if number == Some(0) {
            self.error(node.at, format!("{name} is 0"), "use at least 1");
        }
        number.filter(|&number| number > 0)
    }

    /// Reads `true` or `false`.
    pub(super) fn truth(&mut self, node: &YamlNode<'_>, name: &str) -> Option<bool> {
        const REMEDY: &str = "use `true` or `false`";
        let is_plain = matches!(node.kind, NodeKind::Text { is_plain: true, .. });
        match self.text(node, name, REMEDY)? {
            "true" => Some(true),
            "false" => Some(false),
            // YAML's other spellings.
            "True" | "TRUE" if is_plain => Some(true),
            "False" | "FALSE" if is_plain => Some(false),
            other => {
                let message = format!("{name} is `{}`", Excerpt::of(other));
                self.error(node.at, message, REMEDY);
                None
            }
        }
    }

    pub(super) fn duration(&mut self, node: &YamlNode<'_>, name: &'static str) -> Option<Duration> {
        let text = self.text(node, &format!("`{name}`"), "use a time, like `10ms`")?;
        match parse_duration(name, text) {
            Ok(duration) => Some(duration),
            Err(error @ LimitError::NotADuration { .. }) => {
                // The remedy of the core crate is for windows, which are longer.
                let remedy = "use one whole number and one unit, like `10ms` or `1s`";
                self.error(node.at, error.problem(Notation::Yaml), remedy);
                None
            }
            Err(error) => {
                self.refused(node.at, &error, Notation::Yaml);
                None
            }
        }
    }

    /// Reports a node of the wrong kind.
    pub(super) fn unfit(&mut self, node: &YamlNode<'_>, name: &str, wanted: &str, remedy: &str) {
        let found = match &node.kind {
            NodeKind::Text { text, .. } if text.is_empty() && node.is_null() => {
                return self.error(node.at, format!("{name} is empty"), remedy);
            }
            NodeKind::Text { text, .. } if node.is_null() => {
                let remedy = format!("{remedy}; if the text `{text}` is meant, put it in quotes");
                return self.error(node.at, format!("{name} is empty"), remedy);
            }
            NodeKind::Text { .. } => "a text",
            NodeKind::List(_) => "a list",
            NodeKind::Map(_) => "a mapping",
            NodeKind::Refused => return,
        };
        self.error(node.at, format!("{name} must be {wanted}, not {found}"), remedy);
    }

    /// Reports an error of the core crate about a limit or a time.
    pub(super) fn refused(&mut self, at: Position, error: &LimitError, notation: Notation) {
        let meant = match error {
            LimitError::UnknownAlgorithm { found } => {
                nearest(&found.to_string(), AlgorithmName::ALL.map(AlgorithmName::as_str))
            }
            _ => None,
        };
        let remedy = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => error.remedy(notation),
        };
        self.error(at, error.problem(notation), remedy);
    }

    /// Reports `capacity:60`, which YAML reads as one text.
    pub(super) fn no_space(&mut self, at: Position, field: &str) {
        self.error(at, format!("`{field}:` without a space after it"), "put a space after the `:`");
    }
}
