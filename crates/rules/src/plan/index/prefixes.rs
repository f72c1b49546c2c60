//! Finds every prefix of a text among many.

/// Rules by prefix. Finding those of a text takes one binary search, however many there are.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    /// In order, once all are there.
    each: Vec<Prefix>,
}

#[derive(Debug)]
struct Prefix {
    text: Box<str>,
    rules: Vec<usize>,
    /// The longest other one that is a prefix of this.
    shorter: Option<usize>,
}

impl Prefixes {
    pub(super) fn add(&mut self, text: &str, rule: usize) {
        self.each.push(Prefix { text: text.into(), rules: vec![rule], shorter: None });
    }

    /// Puts them in order; none is found before.
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
            // Whatever is a prefix of this one is one of the one before it, or that one itself.
            self.each[at].shorter = self.longest_of(Some(at - 1), &self.each[at].text);
        }
    }

    /// The first of a chain of ever shorter ones that `text` begins with.
    fn longest_of(&self, mut at: Option<usize>, text: &str) -> Option<usize> {
        while let Some(own) = at.map(|at| &self.each[at]) {
            if text.starts_with(&*own.text) {
                return at;
            }
            at = own.shorter;
        }
        None
    }

    /// The rules of every prefix of `text`.
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
            let mut prefixes = Prefixes::default();
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
