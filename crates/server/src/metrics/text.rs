//! The text format of Prometheus.

use std::fmt::{Display, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use super::histogram::Histogram;

/// The text of a page while it is written.
#[derive(Default)]
pub(super) struct MetricsText {
    text: String,
    /// The metric whose samples are written.
    name: &'static str,
}

/// The type of a metric.
#[derive(Clone, Copy, Debug)]
pub(super) enum MetricKind {
    /// A number that only grows, until the server is started again.
    Counter,
    /// A number that may grow and shrink.
    Gauge,
    /// Numbers of durations up to each bound.
    Histogram,
}

impl MetricsText {
    /// Begins a metric with its name, type and one line of help.
    pub(super) fn metric(&mut self, name: &'static str, kind: MetricKind, help: &str) {
        let kind = match kind {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        self.name = name;
        // OK because writing to a `String` does not fail, here and below.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    /// Writes one sample of the metric.
    pub(super) fn sample(&mut self, labels: &[(&str, &str)], value: impl Display) {
        self.series("", labels, None, value);
    }

    /// Writes the histogram of the metric with these labels.
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

    /// Writes a metric with a single sample and no labels.
    pub(super) fn single(
        &mut self,
        name: &'static str,
        kind: MetricKind,
        help: &str,
        value: impl Display,
    ) {
        self.metric(name, kind, help);
        self.sample(&[], value);
    }

    /// Writes a label's value, escaped. Every backslash is escaped, so that different names stay different.
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
        let mut text = MetricsText::default();
        text.metric("a_total", MetricKind::Counter, "What it is.");
        text.sample(&[("one", "a\"b\\c\\\\d\ne"), ("two", "é{}=,")], 7);
        text.single("b", MetricKind::Gauge, "Another.", 0.5);
        let want = "# HELP a_total What it is.\n# TYPE a_total counter\n\
            a_total{one=\"a\\\"b\\\\c\\\\\\\\d\\ne\",two=\"é{}=,\"} 7\n\
            # HELP b Another.\n# TYPE b gauge\nb 0.5\n";
        assert_eq!(text.into_string(), want);
    }
}
