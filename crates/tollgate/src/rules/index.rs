//! Finds the few rules that may apply to a request among many.
//!
//! Every rule is filed under one thing that it wants of one attribute: the one that the fewest others
//! want too. A request looks up what it has, and finds those filed there; whether they apply is then
//! asked of each.

mod prefixes;

use std::collections::HashMap;

use ahash::RandomState;

use super::config::Wanted;
use super::names::AttributeId;
use super::pattern::Pattern;
use super::plan::Rule;
use super::request::Request;
use prefixes::Prefixes;

/// Rules by what they want.
#[derive(Debug, Default)]
pub(super) struct Index {
    attributes: HashMap<AttributeId, ByValue, RandomState>,
    /// Those that want nothing that could be looked up.
    others: Vec<usize>,
}

/// Rules by what they want of one attribute.
#[derive(Debug, Default)]
struct ByValue {
    exact: HashMap<Box<str>, Vec<usize>, RandomState>,
    prefixes: Prefixes,
    /// They want it to be there.
    present: Vec<usize>,
}

/// What a rule could be filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Heading<'a> {
    Exact(AttributeId, &'a str),
    Prefix(AttributeId, &'a str),
    Present(AttributeId),
}

impl Index {
    pub(super) fn new<'a>(rules: impl Iterator<Item = (usize, &'a Rule)> + Clone) -> Index {
        let mut crowds: HashMap<Heading<'_>, usize, RandomState> = HashMap::default();
        for heading in rules.clone().flat_map(|(_, rule)| ways_to_file(rule)).flatten() {
            *crowds.entry(heading).or_default() += 1;
        }
        let mut index = Index::default();
        for (at, rule) in rules {
            // Of equals the first: exact values before prefixes, prefixes before presence.
            let crowd = |way: &Vec<Heading<'_>>| way.iter().map(|heading| crowds[heading]).max();
            match ways_to_file(rule).into_iter().min_by_key(|way| (crowd(way), rank(way))) {
                Some(way) => way.into_iter().for_each(|heading| index.file(at, heading)),
                None => index.others.push(at),
            }
        }
        index.attributes.values_mut().for_each(|by_value| by_value.prefixes.finish());
        index
    }

    fn file(&mut self, at: usize, heading: Heading<'_>) {
        match heading {
            Heading::Exact(id, value) => {
                let by_value = self.attributes.entry(id).or_default();
                by_value.exact.entry(value.into()).or_default().push(at);
            }
            Heading::Prefix(id, prefix) => {
                self.attributes.entry(id).or_default().prefixes.add(prefix, at);
            }
            Heading::Present(id) => self.attributes.entry(id).or_default().present.push(at),
        }
    }

    /// All rules that may apply, in the order of the file, and some that do not.
    pub(super) fn candidates(&self, request: &Request<'_>, into: &mut Vec<usize>) {
        into.clear();
        into.extend_from_slice(&self.others);
        for seen in request.iter() {
            let Some(by_value) = self.attributes.get(&seen.id) else { continue };
            into.extend_from_slice(&by_value.present);
            if let Some(rules) = by_value.exact.get(seen.value) {
                into.extend_from_slice(rules);
            }
            by_value.prefixes.collect(seen.value, into);
        }
        into.sort_unstable();
        into.dedup();
    }
}

/// The ways to file a rule: under all headings of any one of them.
fn ways_to_file(rule: &Rule) -> Vec<Vec<Heading<'_>>> {
    let when = rule.when.iter().filter_map(|(id, wanted)| match wanted {
        Wanted::AnyOf(patterns) => Some(headings(*id, patterns)),
        Wanted::Present => Some(vec![Heading::Present(*id)]),
        Wanted::Absent => None,
    });
    let key = rule.key.iter().filter_map(|first_of| match &first_of[..] {
        [(only, _)] => Some(vec![Heading::Present(*only)]),
        _ => None,
    });
    when.chain(key).collect()
}

fn headings(id: AttributeId, patterns: &[Pattern]) -> Vec<Heading<'_>> {
    // What every value begins with finds nothing; `exact: ""` is not that.
    let begins_all = |pattern: &Pattern| {
        !matches!(pattern, Pattern::Exact(_)) && pattern.literal_prefix().is_empty()
    };
    if patterns.iter().any(begins_all) {
        return vec![Heading::Present(id)];
    }
    let each = patterns.iter().map(|pattern| match pattern {
        Pattern::Exact(value) => Heading::Exact(id, value),
        Pattern::Prefix(_) | Pattern::Glob(_) => Heading::Prefix(id, pattern.literal_prefix()),
    });
    each.collect()
}

fn rank(way: &[Heading<'_>]) -> u8 {
    let rank = |heading: &Heading<'_>| match heading {
        Heading::Exact(..) => 0,
        Heading::Prefix(..) => 1,
        Heading::Present(_) => 2,
    };
    way.iter().map(rank).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
