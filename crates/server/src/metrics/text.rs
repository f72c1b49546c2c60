//! The text format of Prometheus.

use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::histogram::Histogram;

/// A page in the making.
#[derive(Default)]
pub(super) struct Text {
    text: String,
    /// The metric that samples are of.
    name: &'static str,
}

/// What becomes of a number over time.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// It grows, until the server is started again.
    Counter,
    Gauge,
    /// Counts of durations up to some bounds.
    Histogram,
}

impl Text {
    /// Another metric: what it is called, and what it means in a line.
    pub(super) fn metric(&mut self, name: &'static str, kind: Kind, help: &str) {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        self.name = name;
        // Writing to a text does not fail, here and below.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// One number of it.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.series("", labels, None, value);
    }

    /// All durations of it that have these labels.
    pub(super) fn histogram(&mut self, labels: &[(&str, &str)], histogram: &Histogram) {
        let mut count = 0;
        for (bound, up_to) in histogram.cumulative() {
            self.series("_bucket", labels, Some(("le", bound)), up_to);
            count = up_to;
        }
        self.series("_sum", labels, None, histogram.sum_seconds());
        self.series("_count", labels, None, count);
    }

    fn series(
        &mut self,
        suffix: &str,
        labels: &[(&str, &str)],
        last: Option<(&str, &str)>,
        value: impl Display,
    ) {
        self.text.push_str(self.name);
        self.text.push_str(suffix);
        for (place, (label, own)) in labels.iter().chain(&last).enumerate() {
            self.text.push(if place == 0 { '{' } else { ',' });
            let _ = write!(self.text, "{label}=\"");
            self.push_escaped(own);
            self.text.push('"');
        }
        if !labels.is_empty() || last.is_some() {
            self.text.push('}');
        }
        let _ = writeln!(self.text, " {value}");
    }

    /// A metric of one number.
    pub(super) fn single(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        value: impl Display,
    ) {
        self.metric(name, kind, help);
        self.sample(&[], value);
    }

    /// Escapes every backslash, also before another one: otherwise the names of two domains could become one.
    fn push_escaped(&mut self, value: &str) {
        for letter in value.chars() {
            match letter {
                '\\' => self.text.push_str("\\\\"),
                '"' => self.text.push_str("\\\""),
                '\n' => self.text.push_str("\\n"),
                _ => self.text.push(letter),
            }
        }
    }

    pub(super) fn into_string(self) -> String {
        self.text
    }
}

pub(super) fn unix_seconds(at: SystemTime) -> f64 {
    at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let mut text = Text::default();
        text.metric("a_total", Kind::Counter, "What it is.");
        text.sample(&[("one", "a\"b\\c\\\\d\ne"), ("two", "é{}=,")], 7);
        text.single("b", Kind::Gauge, "Another.", 0.5);
        let want = "# HELP a_total What it is.\n# TYPE a_total counter\n\
            a_total{one=\"a\\\"b\\\\c\\\\\\\\d\\ne\",two=\"é{}=,\"} 7\n\
            # HELP b Another.\n# TYPE b gauge\nb 0.5\n";
        assert_eq!(text.into_string(), want);
    }
}
