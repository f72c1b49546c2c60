//! Finds the few rules that may apply to a request among many.
//!
//! Every rule is filed under one requirement that it has for one attribute: the requirement that the fewest other
//! rules share. A requirement is a value, a prefix of the value, a whole segment of it between slashes, a network
//! that holds it, or its presence. A request looks up its own attributes and finds the rules filed under them; each
//! of these rules is then tried.

mod networks;
mod prefixes;

use std::cmp::Reverse;
use std::collections::HashMap;

use ahash::RandomState;
use ipnet::IpNet;

use super::PlannedRule;
use crate::config::Requirement;
use crate::names::AttributeId;
use crate::networks::Networks;
use crate::pattern::Pattern;
use crate::request::NumberedRequest;
use networks::NetworkIndex;
use prefixes::PrefixIndex;

/// The rules by their requirements.
#[derive(Debug, Default)]
pub(crate) struct RuleIndex {
    attributes: HashMap<AttributeId, ValueIndex, RandomState>,
    /// The rules without a requirement that can be looked up.
    others: Vec<usize>,
}

/// The rules by their requirements of one attribute.
#[derive(Debug, Default)]
struct ValueIndex {
    exact: HashMap<Box<str>, Vec<usize>, RandomState>,
    prefixes: PrefixIndex,
    /// By a segment between slashes.
    segments: HashMap<Box<str>, Vec<usize>, RandomState>,
    /// By a network that the address is in.
    networks: NetworkIndex,
    /// The rules that require only its presence.
    present: Vec<usize>,
}

/// A requirement that a rule could be filed under.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum IndexHeading<'a> {
    Exact(AttributeId, &'a str),
    Prefix(AttributeId, &'a str),
    Segment(AttributeId, &'a str),
    Network(AttributeId, IpNet),
    Present(AttributeId),
}

/// The number of rules that could be filed under each heading.
type HeadingCounts<'a> = HashMap<IndexHeading<'a>, usize, RandomState>;

impl RuleIndex {
    pub(super) fn new<'a>(
        rules: impl Iterator<Item = (usize, &'a PlannedRule)> + Clone,
    ) -> RuleIndex {
        let mut crowds = HeadingCounts::default();
        for heading in rules.clone().flat_map(|(_, rule)| headings(rule)) {
            *crowds.entry(heading).or_default() += 1;
        }
        let mut index = RuleIndex::default();
        for (at, rule) in rules {
            let crowd =
                |way: &Vec<IndexHeading<'_>>| way.iter().map(|heading| crowds[heading]).max();
            // Among equal ways, the one with the most headings is chosen: each of them then matches fewer requests.
            let cost = |way: &Vec<IndexHeading<'_>>| (crowd(way), rank(way), Reverse(way.len()));
            match ways_to_file(rule, &crowds).into_iter().min_by_key(cost) {
                Some(way) => way.into_iter().for_each(|heading| index.file(at, heading)),
                None => index.others.push(at),
            }
        }
        for by_value in index.attributes.values_mut() {
            by_value.prefixes.finish();
            by_value.networks.finish();
        }
        index
    }

    fn file(&mut self, at: usize, heading: IndexHeading<'_>) {
        match heading {
            IndexHeading::Exact(id, value) => {
                let by_value = self.attributes.entry(id).or_default();
                by_value.exact.entry(value.into()).or_default().push(at);
            }
            IndexHeading::Prefix(id, prefix) => {
                self.attributes.entry(id).or_default().prefixes.add(prefix, at);
            }
            IndexHeading::Network(id, network) => {
                self.attributes.entry(id).or_default().networks.add(network, at);
            }
            IndexHeading::Segment(id, segment) => {
                let by_value = self.attributes.entry(id).or_default();
                by_value.segments.entry(segment.into()).or_default().push(at);
            }
            IndexHeading::Present(id) => self.attributes.entry(id).or_default().present.push(at),
        }
    }

    /// Collects all rules that may apply, in the order of the file; some of them may not apply.
    pub(crate) fn candidates(&self, request: &NumberedRequest<'_>, into: &mut Vec<usize>) {
        into.clear();
        into.extend_from_slice(&self.others);
        for seen in request.iter() {
            let Some(by_value) = self.attributes.get(&seen.id) else { continue };
            into.extend_from_slice(&by_value.present);
            if let Some(rules) = by_value.exact.get(seen.value) {
                into.extend_from_slice(rules);
            }
            by_value.prefixes.collect(seen.value, into);
            if !by_value.networks.is_empty()
                && let Some(address) = request.address(seen.id)
            {
                by_value.networks.collect(address, into);
            }
            if !by_value.segments.is_empty() {
                let segments = seen.value.split('/').filter_map(|own| by_value.segments.get(own));
                segments.for_each(|rules| into.extend_from_slice(rules));
            }
        }
        into.sort_unstable();
        into.dedup();
    }
}

/// Returns every heading that a rule could be filed under.
fn headings(rule: &PlannedRule) -> Vec<IndexHeading<'_>> {
    let when = rule.when.iter().flat_map(|(id, wanted)| {
        let patterns = match wanted {
            Requirement::AnyOf(patterns) => &patterns[..],
            Requirement::NoneOf(_) | Requirement::Present | Requirement::Absent => &[],
        };
        let by_start = patterns.iter().map(|pattern| by_start(*id, pattern));
        let by_segment = patterns.iter().flat_map(|pattern| by_segment(*id, pattern));
        by_start.chain(by_segment).chain([IndexHeading::Present(*id)])
    });
    let key = rule.key.iter().flatten().map(|(id, _)| IndexHeading::Present(*id));
    when.chain(key).collect()
}

/// Returns the ways to file a rule. A rule that is filed in one way is filed under all headings of that way.
fn ways_to_file<'a>(
    rule: &'a PlannedRule,
    crowds: &HeadingCounts<'a>,
) -> Vec<Vec<IndexHeading<'a>>> {
    let rarest = |headings: Vec<IndexHeading<'a>>| {
        headings.into_iter().min_by_key(|heading| crowds.get(heading).copied())
    };
    let mut ways = Vec::new();
    for (id, wanted) in &rule.when {
        match wanted {
            Requirement::Absent => continue,
            Requirement::Present | Requirement::NoneOf(_) => {
                ways.push(vec![IndexHeading::Present(*id)])
            }
            Requirement::AnyOf(patterns) => {
                ways.push(patterns.iter().map(|pattern| by_start(*id, pattern)).collect());
                // Only if each pattern has a segment.
                let segments = patterns.iter().map(|pattern| rarest(by_segment(*id, pattern)));
                ways.extend(segments.collect::<Option<Vec<_>>>());
            }
        }
    }
    // At least one of the alternatives must be present.
    let key = rule.key.iter();
    ways.extend(
        key.map(|first_of| first_of.iter().map(|(id, _)| IndexHeading::Present(*id)).collect()),
    );
    ways
}

fn by_start(id: AttributeId, pattern: &Pattern) -> IndexHeading<'_> {
    match pattern {
        Pattern::Exact(value) => IndexHeading::Exact(id, value),
        Pattern::In(Networks::One(network)) => IndexHeading::Network(id, *network),
        // Every value begins with an empty prefix, so an empty prefix would exclude no request.
        other if other.literal_prefix().is_empty() => IndexHeading::Present(id),
        other => IndexHeading::Prefix(id, other.literal_prefix()),
    }
}

fn by_segment(id: AttributeId, pattern: &Pattern) -> Vec<IndexHeading<'_>> {
    match pattern {
        Pattern::Exact(_) | Pattern::In(Networks::One(_)) => vec![by_start(id, pattern)],
        Pattern::Prefix(_) | Pattern::In(Networks::Set(_)) => Vec::new(),
        Pattern::Glob(glob) => {
            glob.literal_segments().map(|segment| IndexHeading::Segment(id, segment)).collect()
        }
    }
}

fn rank(way: &[IndexHeading<'_>]) -> u8 {
    let rank = |heading: &IndexHeading<'_>| match heading {
        IndexHeading::Exact(..) => 0,
        IndexHeading::Prefix(..) | IndexHeading::Segment(..) | IndexHeading::Network(..) => 1,
        IndexHeading::Present(_) => 2,
    };
    way.iter().map(rank).max().unwrap_or(0)
}

#[cfg(test)]
mod tests;
