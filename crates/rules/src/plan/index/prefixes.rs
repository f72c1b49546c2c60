//! Finds every prefix of a text among many.

/// Rules by prefix. Finding the rules of a text takes one binary search, however many prefixes there are.
#[derive(Debug, Default)]
pub(super) struct PrefixIndex {
    /// In order, once [`finish`](Self::finish) was called.
    each: Vec<IndexedPrefix>,
}

#[derive(Debug)]
struct IndexedPrefix {
    text: Box<str>,
    rules: Vec<usize>,
    /// The index of the longest other prefix that is a prefix of this one.
    shorter: Option<usize>,
}

impl PrefixIndex {
    pub(super) fn add(&mut self, text: &str, rule: usize) {
        self.each.push(IndexedPrefix { text: text.into(), rules: vec![rule], shorter: None });
    }

    /// Sorts the prefixes; no rule is found before that.
    pub(super) fn finish(&mut self) {
        self.each.sort_by(|one, other| one.text.cmp(&other.text));
        self.each.dedup_by(|later, earlier| {
            let is_same = later.text == earlier.text;
            if is_same {
                earlier.rules.append(&mut later.rules);
            }
            is_same
        });
        for at in 1..self.each.len() {
            // Every indexed prefix of this text is also a prefix of the previous text in order, or is that text.
            self.each[at].shorter = self.longest_of(Some(at - 1), &self.each[at].text);
        }
    }

    /// Returns the first prefix of `text` in a chain of ever shorter prefixes, starting at `at`.
    fn longest_of(&self, mut at: Option<usize>, text: &str) -> Option<usize> {
        while let Some(own) = at.map(|at| &self.each[at]) {
            if text.starts_with(&*own.text) {
                return at;
            }
            at = own.shorter;
        }
        None
    }

    /// Collects the rules of every prefix of `text`.
    pub(super) fn collect(&self, text: &str, into: &mut Vec<usize>) {
        let after = self.each.partition_point(|own| *own.text <= *text);
        let mut found = self.longest_of(after.checked_sub(1), text);
        while let Some(own) = found.map(|at| &self.each[at]) {
            into.extend_from_slice(&own.rules);
            found = own.shorter;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_prefix_is_found(texts in prop::collection::vec("[ab]{0,5}", 0..40), text in "[ab]{0,7}") {
            let mut prefixes = PrefixIndex::default();
            for (rule, prefix) in texts.iter().enumerate() {
                prefixes.add(prefix, rule);
            }
            prefixes.finish();
            let mut found = Vec::new();
            prefixes.collect(&text, &mut found);
            found.sort_unstable();
            let is_prefix = |&rule: &usize| text.starts_with(&texts[rule]);
            prop_assert_eq!(found, (0..texts.len()).filter(is_prefix).collect::<Vec<_>>());
        }
    }
}
