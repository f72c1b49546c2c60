//! YAML as a tree in which every node has its position.
//!
//! Only what a configuration needs: one document of texts, lists and mappings. Anchors, tags, merge keys and aliases,
//! which can make a small file huge, are refused.

mod syntax;

use std::borrow::Cow;

use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Tag};

use super::position::Position;
use super::problem::Report;

/// The most levels of nested lists and mappings: more than any rule has.
pub(crate) const MAX_DEPTH: usize = 16;

/// The most texts, lists and mappings together.
const MAX_NODES: usize = 1_000_000;

/// A text, a list or a mapping, and its position.
pub struct YamlNode<'t> {
    /// The position of its first character.
    pub at: Position,
    /// The contents.
    pub kind: NodeKind<'t>,
}

/// The contents of a node.
pub enum NodeKind<'t> {
    /// A text, also if YAML would call it a number.
    Text {
        /// The text without its quotes.
        text: Cow<'t, str>,
        /// Whether it has no quotes.
        is_plain: bool,
    },
    /// `[a, b]`
    List(Vec<YamlNode<'t>>),
    /// `{ a: b }`
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>),
    /// A node that was reported and refused.
    Refused,
}

impl YamlNode<'_> {
    /// Returns the text of the node, if it has one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match &self.kind {
            NodeKind::Text { text, .. } => Some(text),
            _ => None,
        }
    }

    /// Returns whether the node is empty, `~` or `null`, without quotes.
    pub fn is_null(&self) -> bool {
        match &self.kind {
            NodeKind::Text { text, is_plain: true } => {
                matches!(&**text, "" | "~" | "null" | "Null" | "NULL")
            }
            _ => false,
        }
    }
}

/// Returns the document in a text. `None` if the text is empty, or if it cannot be read, which is then reported.
pub(crate) fn parse<'t>(
    text: &'t str,
    max_depth: usize,
    report: &mut Report,
) -> Option<YamlNode<'t>> {
    if let Some((code, at)) = syntax::control_character(text) {
        let message = format!("the character U+{code:04X}, which does not print");
        report.error(at, message, "remove it, or write it as an escape in double quotes");
        return None;
    }
    let mut parser = Parser::new_from_str(text);
    let mut tree = Tree { max_depth, ..Tree::default() };
    while let Some(event) = parser.next_event() {
        let ended = match event {
            Ok((event, span)) => tree.take(event, position(span.start), report),
            Err(error) => {
                let at = position(*error.marker());
                let (at, message, remedy) = syntax::explained(error.info(), at, text, max_depth);
                report.error(at, message, remedy);
                Err(ParseFailure)
            }
        };
        if ended.is_err() {
            return None;
        }
    }
    tree.root
}

/// Returns the error for nesting too deep. The parser has a limit of its own, for what it reads ahead.
fn too_deep(max_depth: usize) -> (String, &'static str) {
    let message = format!("nested more than {max_depth} deep");
    (message, "nest it less deeply")
}

fn position(marker: Marker) -> Position {
    let narrow = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
    Position { line: narrow(marker.line()), column: narrow(marker.col()).saturating_add(1) }
}

/// Reading has ended with an error, which has been reported.
struct ParseFailure;

/// A list or a mapping that has not ended yet.
struct OpenNode<'t> {
    at: Position,
    kind: OpenKind<'t>,
}

enum OpenKind<'t> {
    List(Vec<YamlNode<'t>>),
    /// The entries, and the key whose value comes next.
    Map(Vec<(YamlNode<'t>, YamlNode<'t>)>, Option<YamlNode<'t>>),
}

#[derive(Default)]
struct Tree<'t> {
    root: Option<YamlNode<'t>>,
    open: Vec<OpenNode<'t>>,
    max_depth: usize,
    nodes: usize,
    documents: usize,
}

impl<'t> Tree<'t> {
    fn take(
        &mut self,
        event: Event<'t>,
        at: Position,
        report: &mut Report,
    ) -> Result<(), ParseFailure> {
        match event {
            Event::DocumentStart(_) => return self.begin_document(at, report),
            Event::Alias(_) => {
                let remedy =
                    "write out what it stands for; put a text that begins with * in quotes";
                report.error(at, "aliases are not supported", remedy);
                return self.place(YamlNode { at, kind: NodeKind::Refused }, report);
            }
            Event::Scalar(text, style, anchor, tag) => {
                refuse_decoration(at, anchor, tag, report);
                let is_plain = style == ScalarStyle::Plain;
                return self
                    .place(YamlNode { at, kind: NodeKind::Text { text, is_plain } }, report);
            }
            Event::SequenceStart(anchor, tag) => {
                refuse_decoration(at, anchor, tag, report);
                return self.begin(at, OpenKind::List(Vec::new()), report);
            }
            Event::MappingStart(anchor, tag) => {
                refuse_decoration(at, anchor, tag, report);
                return self.begin(at, OpenKind::Map(Vec::new(), None), report);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                if let Some(OpenNode { at, kind }) = self.open.pop() {
                    let kind = match kind {
                        OpenKind::List(items) => NodeKind::List(items),
                        OpenKind::Map(entries, _) => NodeKind::Map(entries),
                    };
                    return self.place(YamlNode { at, kind }, report);
                }
            }
            Event::Nothing | Event::StreamStart | Event::StreamEnd | Event::DocumentEnd => {}
        }
        Ok(())
    }

    fn begin_document(&mut self, at: Position, report: &mut Report) -> Result<(), ParseFailure> {
        self.documents += 1;
        if self.documents > 1 {
            report.error(at, "a second document", "keep one document in a file");
            return Err(ParseFailure);
        }
        Ok(())
    }

    fn begin(
        &mut self,
        at: Position,
        kind: OpenKind<'t>,
        report: &mut Report,
    ) -> Result<(), ParseFailure> {
        if self.open.len() == self.max_depth {
            let (message, remedy) = too_deep(self.max_depth);
            report.error(at, message, remedy);
            return Err(ParseFailure);
        }
        self.open.push(OpenNode { at, kind });
        Ok(())
    }

    /// Adds a complete node to the list or mapping that contains it.
    fn place(&mut self, node: YamlNode<'t>, report: &mut Report) -> Result<(), ParseFailure> {
        self.nodes += 1;
        if self.nodes > MAX_NODES {
            let message = format!("more than {MAX_NODES} texts, lists and mappings");
            report.error(node.at, message, "split the file");
            return Err(ParseFailure);
        }
        match self.open.last_mut().map(|open| &mut open.kind) {
            None => self.root = Some(node),
            Some(OpenKind::List(items)) => items.push(node),
            Some(OpenKind::Map(entries, key)) => match key.take() {
                None => *key = Some(node),
                Some(mut key) => {
                    if !is_usable_key(&key, report) {
                        key.kind = NodeKind::Refused;
                    }
                    // An empty value has no position of its own: the key's is used.
                    let at = if node.is_empty_text() { key.at } else { node.at };
                    entries.push((key, YamlNode { at, ..node }));
                }
            },
        }
        Ok(())
    }
}

impl YamlNode<'_> {
    fn is_empty_text(&self) -> bool {
        matches!(&self.kind, NodeKind::Text { text, is_plain: true } if text.is_empty())
    }
}

fn refuse_decoration(at: Position, anchor: usize, tag: Option<Cow<'_, Tag>>, report: &mut Report) {
    if anchor > 0 {
        let remedy = "remove it; put a text that begins with & in quotes";
        report.error(at, "anchors are not supported", remedy);
    }
    if tag.is_some() {
        let remedy = "remove it; put a text that begins with ! in quotes";
        report.error(at, "tags are not supported", remedy);
    }
}

fn is_usable_key(key: &YamlNode<'_>, report: &mut Report) -> bool {
    match &key.kind {
        NodeKind::Text { text, is_plain: true } if text == "<<" => {
            report.error(key.at, "merge keys are not supported", "write out what it stands for");
            false
        }
        NodeKind::Text { .. } if key.is_null() => {
            report.error(key.at, "a field without a name", "name it; put null or ~ in quotes");
            false
        }
        NodeKind::Text { .. } => true,
        NodeKind::Refused => false,
        NodeKind::List(_) | NodeKind::Map(_) => {
            let remedy = "use a text; put one that begins with [ or { in quotes";
            report.error(key.at, "the name of a field is a list or a mapping", remedy);
            false
        }
    }
}
