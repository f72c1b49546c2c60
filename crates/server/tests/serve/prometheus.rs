//! A strict parser of the Prometheus text format. Every deviation fails the test.

use std::collections::{BTreeMap, BTreeSet};

/// The metrics of a server.
#[derive(Debug)]
pub(crate) struct Page {
    /// The kind of every metric.
    pub(crate) kinds: BTreeMap<String, String>,
    pub(crate) samples: Vec<Sample>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Sample {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) value: f64,
}

impl Page {
    pub(crate) fn parse(text: &str) -> Page {
        let mut page = Page { kinds: BTreeMap::new(), samples: Vec::new() };
        let (mut helped, mut current) = (BTreeSet::new(), String::new());
        assert!(text.ends_with('\n'), "the last line has no newline");
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(help) = line.strip_prefix("# HELP ") {
                let (name, help) = help.split_once(' ').unwrap();
                assert!(is_name(name) && !help.trim().is_empty(), "{line}");
                assert!(helped.insert(name.to_owned()), "twice: {line}");
                current = name.to_owned();
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').unwrap();
                assert_eq!(name, current, "TYPE does not follow its HELP: {line}");
                assert!(["counter", "gauge", "histogram"].contains(&kind), "{line}");
                assert!(page.kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "{line}");
            } else {
                let sample = Sample::parse(line);
                let kind = page.kinds.get(&current).unwrap_or_else(|| panic!("no TYPE: {line}"));
                let suffixes: &[&str] =
                    if kind == "histogram" { &["_bucket", "_sum", "_count"] } else { &[""] };
                let is_its = suffixes.iter().any(|end| sample.name == format!("{current}{end}"));
                assert!(is_its, "the sample does not belong to {current}: {line}");
                assert_eq!(kind == "counter", current.ends_with("_total"), "{line}");
                page.samples.push(sample);
            }
        }
        page.check_that_series_differ();
        page.check_histograms();
        page
    }

    fn check_that_series_differ(&self) {
        let series: BTreeSet<_> = self.series().into_iter().collect();
        assert_eq!(series.len(), self.samples.len(), "a series exists twice");
    }

    /// Checks that buckets are cumulative and that the last one has every observation.
    fn check_histograms(&self) {
        for count in self.samples.iter().filter(|sample| self.is_count(sample)) {
            let name = count.name.strip_suffix("_count").unwrap();
            let mut buckets: Vec<_> = self.of(&format!("{name}_bucket")).collect();
            buckets.retain(|bucket| {
                bucket
                    .labels
                    .iter()
                    .all(|(label, own)| label == "le" || count.labels[label] == *own)
            });
            let bound = |bucket: &Sample| bucket.labels["le"].parse::<f64>().unwrap();
            assert!(buckets.is_sorted_by(|one, next| bound(one) < bound(next)), "{name}");
            assert!(buckets.is_sorted_by(|one, next| one.value <= next.value), "{name}");
            let last = buckets.last().unwrap();
            assert_eq!((&*last.labels["le"], last.value), ("+Inf", count.value), "{name}");
        }
    }

    fn is_count(&self, sample: &Sample) -> bool {
        let of = sample.name.strip_suffix("_count");
        of.is_some_and(|name| self.kinds.get(name).is_some_and(|kind| kind == "histogram"))
    }

    pub(crate) fn of(&self, name: &str) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(move |sample| sample.name == name)
    }

    /// Returns the sum of all samples with this name and these labels. Panics if there is no such sample.
    pub(crate) fn value(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let has = |sample: &&Sample| {
            labels.iter().all(|(label, own)| sample.labels.get(*label).is_some_and(|it| it == own))
        };
        let samples: Vec<_> = self.of(name).filter(has).collect();
        assert!(!samples.is_empty(), "no {name} {labels:?}");
        samples.iter().map(|sample| sample.value).sum()
    }

    /// Returns every series without its value, in alphabetical order.
    pub(crate) fn series(&self) -> Vec<String> {
        let each = self.samples.iter().map(|sample| format!("{} {:?}", sample.name, sample.labels));
        let mut series: Vec<_> = each.collect();
        series.sort_unstable();
        series
    }
}

impl Sample {
    fn parse(line: &str) -> Sample {
        let end = line.find(['{', ' ']).unwrap();
        let (name, mut rest) = line.split_at(end);
        assert!(is_name(name), "{line}");
        let mut labels = BTreeMap::new();
        if let Some(inner) = rest.strip_prefix('{') {
            rest = inner;
            loop {
                let (label, after) = rest.split_once("=\"").unwrap();
                let is_label = is_name(label) && !label.contains(':') && !label.starts_with("__");
                assert!(is_label, "{line}");
                let (value, after) = unescape(after);
                assert!(labels.insert(label.to_owned(), value).is_none(), "{line}");
                match after.strip_prefix(',') {
                    Some(next) => rest = next,
                    None => {
                        rest = after.strip_prefix('}').unwrap();
                        break;
                    }
                }
            }
        }
        let value = rest.strip_prefix(' ').unwrap();
        assert!(!value.contains(' '), "{line}");
        Sample { name: name.to_owned(), labels, value: value.parse().unwrap() }
    }
}

/// Returns the value before the closing quote, unescaped, and the text after the quote.
fn unescape(text: &str) -> (String, &str) {
    let (mut value, mut letters) = (String::new(), text.char_indices());
    while let Some((at, letter)) = letters.next() {
        match letter {
            '"' => return (value, &text[at + 1..]),
            '\\' => value.push(match letters.next().unwrap().1 {
                'n' => '\n',
                escaped @ ('\\' | '"') => escaped,
                other => panic!("`\\{other}` in {text}"),
            }),
            _ => value.push(letter),
        }
    }
    panic!("no closing quote: {text}")
}

fn is_name(text: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_:".contains(letter);
    !text.is_empty()
        && !text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(is_letter)
}
