//! Requests a second as bars, one group for each question.

use tollgate_bench::statistics::median;
use tollgate_bench::table::thousands;
use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::contenders::Contender;
use crate::questions::Question;
use crate::rounds::Measured;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const NAMES: f64 = 170.0;
const BARS: f64 = 322.0;
/// The width of the longest bar, which leaves room for its number.
const BAR_WIDTH: f64 = 600.0;
const TOP: f64 = 84.0;
const ROW_PITCH: f64 = 24.0;
const BAR_HEIGHT: f64 = 16.0;
/// The space between two questions.
const GAP: f64 = 16.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.peer{fill:#6e7781}.ceiling{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

pub(crate) fn draw(measured: &[Measured]) -> String {
    let caption = Caption {
        title: "Decisions per second over HTTP".to_owned(),
        description: measured.iter().map(described).collect::<Vec<_>>().join(" "),
    };
    let tops = tops(measured);
    let bottom = tops.last().map_or(TOP, |last| last + ROW_PITCH);
    let mut svg = Svg::new(WIDTH, (bottom + 12.0) as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Longer is better. In memory, asked by one thread of wrk on 50 connections; a server has one thread \
                too. The null server answers with a constant.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    svg.line("axis", Point { x: BARS, y: TOP - 6.0 }, Point { x: BARS, y: bottom - 2.0 });
    let most = measured.iter().map(per_s).fold(1.0, f64::max);
    let mut before = None;
    for (it, &top) in measured.iter().zip(&tops) {
        let width = per_s(it) / most * BAR_WIDTH;
        let bar = Area { left: BARS, top, width, height: BAR_HEIGHT };
        let base = bar.bottom() - 4.0;
        if before != Some(it.question) {
            svg.text("heading", Point { x: LEFT, y: base }, it.question.name());
        }
        before = Some(it.question);
        svg.text("", Point { x: NAMES, y: base }, it.contender.name());
        svg.rect(class(it.contender), bar);
        svg.text("value", Point { x: bar.right() + 4.0, y: base }, &thousands(per_s(it)));
    }
    svg.finish()
}

/// The upper edge of each bar.
fn tops(measured: &[Measured]) -> Vec<f64> {
    let gaps = |question| Question::ALL.iter().take_while(|&&other| other != question).count();
    let top = |(nth, it): (usize, &Measured)| {
        TOP + nth as f64 * ROW_PITCH + gaps(it.question) as f64 * GAP
    };
    measured.iter().enumerate().map(top).collect()
}

fn per_s(it: &Measured) -> f64 {
    median(it.requests_per_s.iter().copied())
}

fn described(it: &Measured) -> String {
    let (question, name) = (it.question.name(), it.contender.name());
    format!("{question}, {name}: {} a second.", thousands(per_s(it)))
}

const fn class(contender: Contender) -> &'static str {
    match contender {
        Contender::Null => "ceiling",
        Contender::Peer => "peer",
        Contender::Ours => "ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_bar() {
        let it = |question, contender| Measured {
            requests_per_s: vec![45_678.0; 3],
            ..Measured::new(question, contender)
        };
        let measured: Vec<Measured> = [Question::OneKey, Question::Denied]
            .into_iter()
            .flat_map(|question| Contender::ALL.map(|contender| it(question, contender)))
            .collect();
        let svg = draw(&measured);
        assert_eq!(svg.matches(">45,678</text>").count(), 6);
        for class in ["ours", "peer", "ceiling"] {
            assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), 2);
        }
        assert_eq!(svg.matches(">denied</text>").count(), 1);
    }
}
