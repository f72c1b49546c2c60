//! The values of an attribute that a descriptor applies to, given its siblings.
//!
//! In envoyproxy/ratelimit, an exact value comes before values with a star, earlier stars come before later
//! ones, and a key without a value applies to the rest.

use std::collections::{BTreeSet, HashMap};

use super::read::{ConfigDescriptor, DescriptorValue};

/// The values of an attribute that a descriptor applies to: values that match one pattern, and none of some
/// others.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct MatchingValues<'t> {
    /// `None` matches any value.
    pub(super) like: Option<ValuePattern<'t>>,
    pub(super) none_of: Vec<ValuePattern<'t>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValuePattern<'t> {
    Exact(&'t str),
    Prefix(&'t str),
    Glob(&'t str),
}

impl MatchingValues<'_> {
    /// Whether every value matches.
    pub(super) fn is_any(&self) -> bool {
        self.like.is_none() && self.none_of.is_empty()
    }
}

/// The descriptors of one level, by key.
pub(super) struct SiblingLevel<'t> {
    of: HashMap<&'t str, KeySiblings<'t>>,
}

#[derive(Default)]
struct KeySiblings<'t> {
    exact: BTreeSet<&'t str>,
    /// In the order of precedence.
    stars: Vec<ValuePattern<'t>>,
}

impl<'t> SiblingLevel<'t> {
    pub(super) fn new(descriptors: &'t [ConfigDescriptor]) -> SiblingLevel<'t> {
        let mut of: HashMap<&str, KeySiblings<'_>> = HashMap::new();
        for ConfigDescriptor { key, value, .. } in descriptors {
            let beside = of.entry(key).or_default();
            match value {
                DescriptorValue::Any => {}
                DescriptorValue::Exact(text) => {
                    beside.exact.insert(text);
                }
                DescriptorValue::Prefix(start) => beside.stars.push(ValuePattern::Prefix(start)),
                DescriptorValue::Glob(text) => beside.stars.push(ValuePattern::Glob(text)),
            }
        }
        SiblingLevel { of }
    }

    /// Returns the values that one descriptor applies to; `None` if it applies to no value. Lists at most `most + 1`
    /// values that are excluded, so that a caller can tell when there are more than `most`.
    pub(super) fn values_of(
        &self,
        one: &'t ConfigDescriptor,
        most: usize,
    ) -> Option<MatchingValues<'t>> {
        let beside = self.of.get(&*one.key)?;
        let like = match &one.value {
            DescriptorValue::Exact(text) => {
                return Some(MatchingValues {
                    like: Some(ValuePattern::Exact(text)),
                    none_of: Vec::new(),
                });
            }
            DescriptorValue::Any => None,
            DescriptorValue::Prefix(start) => Some(ValuePattern::Prefix(start)),
            DescriptorValue::Glob(text) => Some(ValuePattern::Glob(text)),
        };
        let start = like.map_or("", ValuePattern::start);
        let before = beside.stars.iter().copied().take_while(|star| Some(*star) != like);
        let before: Vec<ValuePattern<'_>> = before.filter(|star| star.may_meet(start)).collect();
        let takes_all = |star: &ValuePattern<'_>| matches!(star, ValuePattern::Prefix(all) if start.starts_with(all));
        if before.iter().any(takes_all) {
            return None;
        }
        let like = like.filter(|like| *like != ValuePattern::Prefix(""));
        Some(MatchingValues { like, none_of: beside.excluded(start, before, most) })
    }
}

impl<'t> KeySiblings<'t> {
    /// Returns the values and stars that take precedence, without the ones that another star covers.
    fn excluded(
        &self,
        start: &'t str,
        stars: Vec<ValuePattern<'t>>,
        most: usize,
    ) -> Vec<ValuePattern<'t>> {
        let prefixes: BTreeSet<&str> = stars.iter().filter_map(|star| star.prefix()).collect();
        // Only the last prefix before a text in this order can be a prefix of it, because a prefix sorts
        // before the texts that begin with it, and no prefix in the set begins with another.
        let is_included = |text: &str, among: &BTreeSet<&str>| {
            among.range(..text).next_back().is_some_and(|prefix| text.starts_with(prefix))
        };
        let mut least: BTreeSet<&str> = BTreeSet::new();
        for prefix in prefixes {
            if !is_included(prefix, &least) {
                least.insert(prefix);
            }
        }
        let exact = self.exact.range(start..).copied().take_while(|text| text.starts_with(start));
        let is_named = |text: &&str| !least.contains(text) && !is_included(text, &least);
        let exact = exact.filter(is_named).map(ValuePattern::Exact);
        let stars = stars.iter().copied().filter(|star| match star {
            ValuePattern::Prefix(prefix) => least.contains(prefix),
            _ => true,
        });
        exact.chain(stars).take(most.saturating_add(1)).collect()
    }
}

impl<'t> ValuePattern<'t> {
    /// Returns the text before the first star.
    fn start(self) -> &'t str {
        match self {
            ValuePattern::Exact(text) | ValuePattern::Prefix(text) => text,
            ValuePattern::Glob(text) => text.split('*').next().unwrap_or_default(),
        }
    }

    fn prefix(self) -> Option<&'t str> {
        match self {
            ValuePattern::Prefix(text) => Some(text),
            _ => None,
        }
    }

    /// Whether a value that begins with `start` can match.
    fn may_meet(self, start: &str) -> bool {
        self.start().starts_with(start) || start.starts_with(self.start())
    }
}
