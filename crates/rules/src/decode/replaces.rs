//! The rules that a rule replaces. Whether these rules exist is checked once all rules have been read.

use std::collections::{BTreeMap, HashMap, HashSet};

use tollgate_core::Excerpt;

use super::names;
use crate::config::Replacement;
use crate::position::Position;
use crate::problem::Report;
use crate::yaml::{NodeKind, YamlNode};

/// The most rules that one rule may replace.
const MAX_REPLACED: usize = 1_000;

const REMEDY: &str =
    "list other rules of the domain, like `replaces: [per-client]`, or use `replaces: all`";

/// A rule that is replaced, and the position of its name.
pub(super) struct ReplacedName<'n> {
    pub(super) name: &'n str,
    at: Position,
}

/// A rule by its domain and its name.
pub(super) type RuleId<'n> = (&'n str, &'n str);

/// The value of a rule's field `replaces`.
pub(super) enum ReplacesField<'n> {
    Named(Vec<ReplacedName<'n>>),
    All,
}

impl ReplacesField<'_> {
    pub(super) fn to_config(&self) -> Replacement {
        match self {
            ReplacesField::Named(named) => {
                Replacement::Named(named.iter().map(|named| named.name.into()).collect())
            }
            ReplacesField::All => Replacement::All,
        }
    }
}

/// The rules that replace others, in the order of the file.
#[derive(Default)]
pub(super) struct ReplacingRules<'n> {
    each: Vec<(RuleId<'n>, Vec<ReplacedName<'n>>)>,
    /// The rules that replace all others.
    all: HashSet<RuleId<'n>>,
}

/// Reads the rules that a rule replaces, each once. `all` means all rules; in a list it is the name of a rule.
pub(super) fn read<'n>(node: &'n YamlNode<'_>, report: &mut Report) -> Option<ReplacesField<'n>> {
    if matches!(&node.kind, NodeKind::Text { text, .. } if text == "all") {
        return Some(ReplacesField::All);
    }
    let items = report.list(node, "`replaces`", REMEDY)?;
    if items.len() > MAX_REPLACED {
        let message = format!("{} rules, above the maximum of {MAX_REPLACED}", items.len());
        report.error(node.at, message, "replace fewer");
        return None;
    }
    let mut seen = HashSet::new();
    let mut named = Vec::with_capacity(items.len());
    for item in items {
        let Some(name) = names::RULE.read(item, "a rule of `replaces`", report) else { continue };
        match seen.insert(name) {
            true => named.push(ReplacedName { name, at: item.at }),
            false => {
                let message = format!("rule `{name}` is replaced twice");
                report.error(item.at, message, "keep one of them");
            }
        }
    }
    Some(ReplacesField::Named(named))
}

impl<'n> ReplacingRules<'n> {
    pub(super) fn add(&mut self, rule: RuleId<'n>, replaced: ReplacesField<'n>) {
        match replaced {
            ReplacesField::Named(named) if named.is_empty() => {}
            ReplacesField::Named(named) => self.each.push((rule, named)),
            ReplacesField::All => {
                self.all.insert(rule);
            }
        }
    }

    /// Reports every rule that names a rule with `replaces: all`, because the two would replace each other. Rules
    /// with `replaces: all` are in no other circle, because they do not replace each other.
    pub(super) fn check_all(&self, report: &mut Report) {
        for ((domain, _), named) in &self.each {
            for ReplacedName { name, at } in named {
                if self.all.contains(&(*domain, *name)) {
                    let message = format!(
                        "rule `{name}` has `replaces: all`, so the two rules would replace each other"
                    );
                    let remedy = format!(
                        "remove `{name}` here, or list rules in the `replaces` of `{name}`"
                    );
                    report.error(*at, message, remedy);
                }
            }
        }
    }

    /// Reports every name that is not another rule; `known` has all rules of the file.
    pub(super) fn check_names(&self, known: &BTreeMap<RuleId<'n>, Position>, report: &mut Report) {
        for ((domain, own), named) in &self.each {
            for ReplacedName { name, at } in named {
                if name == own {
                    let message = format!("rule `{own}` replaces itself");
                    report.error(*at, message, "name another rule of its domain");
                } else if !known.contains_key(&(*domain, *name)) {
                    let others = known.keys().filter(|(of, other)| of == domain && other != own);
                    let meant = report.meant(name, others.map(|(_, other)| *other));
                    let remedy = meant.map(|meant| format!("did you mean `{meant}`?"));
                    let message =
                        format!("there is no rule `{name}` in domain `{}`", Excerpt::of(domain));
                    report.error(*at, message, remedy.unwrap_or_else(|| REMEDY.into()));
                }
            }
        }
    }

    /// Reports rules that replace each other in a circle: if all of them apply to a request, none would decide it.
    pub(super) fn check_circles(&self, report: &mut Report) {
        let places: HashMap<RuleId<'n>, usize> =
            self.each.iter().enumerate().map(|(at, (rule, _))| (*rule, at)).collect();
        let mut steps = vec![SearchStep::NotTaken; self.each.len()];
        for start in 0..self.each.len() {
            // The rules on the path, each with the index of its next name to follow. Without recursion, because a
            // chain may be as long as the file.
            let mut path: Vec<(usize, usize)> = Vec::new();
            if steps[start] == SearchStep::NotTaken {
                steps[start] = SearchStep::OnPath(0);
                path.push((start, 0));
            }
            while let Some((at, next)) = path.last_mut() {
                let ((domain, own), named) = &self.each[*at];
                let Some(ReplacedName { name, at: said_at }) = named.get(*next) else {
                    steps[*at] = SearchStep::Done;
                    path.pop();
                    continue;
                };
                *next += 1;
                // A rule that replaces itself has been reported.
                let Some(&place) = places.get(&(*domain, *name)).filter(|_| name != own) else {
                    continue;
                };
                match steps[place] {
                    SearchStep::OnPath(from) => self.circle(&path[from..], *said_at, report),
                    SearchStep::Done => {}
                    SearchStep::NotTaken => {
                        steps[place] = SearchStep::OnPath(path.len());
                        path.push((place, 0));
                    }
                }
            }
        }
    }

    fn circle(&self, path: &[(usize, usize)], at: Position, report: &mut Report) {
        const MOST: usize = 5;
        let name = |(place, _): &(usize, usize)| format!("`{}`", self.each[*place].0.1);
        let mut names: Vec<String> = path.iter().take(MOST).map(name).collect();
        if path.len() > MOST {
            names.push(format!("{} others", path.len() - MOST));
        }
        let message = format!("rules {} replace each other", names.join(" and "));
        report.error(at, message, "remove one of them from the `replaces` of another");
    }
}

/// How far the search for circles has followed a rule.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchStep {
    NotTaken,
    /// At this index in the path.
    OnPath(usize),
    Done,
}
