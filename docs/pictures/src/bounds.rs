//! Draws the largest number of units that each limit admits in an interval, by the length of the interval: the measured
//! number, and the bound.

use crate::LimitRun;
use crate::chart::{ChartPanel, MarkShape, marks};
use crate::decisions::{LevelStep, PassedUnits, admitted, leaving, most_in};
use crate::limits::{WINDOW_US, is_shaping};
use crate::svg::{Area, Caption, Point, Svg};

const WIDTH: u32 = 880;
const HEIGHT: u32 = 560;
const COLUMNS: usize = 3;
const UNTIL_US: u64 = 2 * WINDOW_US;

/// The step between the lengths of intervals that are measured.
const EVERY_US: u64 = 100_000;
/// The time that is added to each length, because requests can follow two microseconds after a burst.
const SLACK_US: u64 = 3;

pub(crate) fn draw(runs: &[LimitRun]) -> String {
    let caption = Caption {
        title: "The most units admitted, by the length of the interval".to_owned(),
        description: runs.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let mut svg = Svg::new(WIDTH, HEIGHT, &caption);
    svg.text("title", Point { x: 24.0, y: 34.0 }, &caption.title);
    let note = "Shaded: the most units measured in any interval of this length, under attack. \
                Line: the stated bound. Dashed: the limit.";
    svg.text("note", Point { x: 24.0, y: 54.0 }, note);
    for (nth, run) in runs.iter().enumerate() {
        let (column, row) = (nth % COLUMNS, nth / COLUMNS);
        let area = Area {
            left: 52.0 + 278.0 * column as f64,
            top: 106.0 + 232.0 * row as f64,
            width: 236.0,
            height: 160.0,
        };
        draw_panel(run, &ChartPanel { area, until_us: UNTIL_US, top_units: 32 }, &mut svg);
    }
    svg.text("note middle", Point { x: 440.0, y: HEIGHT as f64 - 18.0 }, "length of the interval");
    svg.finish()
}

fn description_of(run: &LimitRun) -> String {
    let measured = most_in(&admitted(&run.attack), WINDOW_US);
    let bound = run.limit.bound_over(WINDOW_US).max_units;
    format!("{}: {measured} units measured in 10 s, bound {bound}.", run.drawn.title)
}

fn draw_panel(run: &LimitRun, panel: &ChartPanel, svg: &mut Svg) {
    let heading = Point { x: panel.area.left, y: panel.area.top - 10.0 };
    svg.text("heading", heading, run.drawn.title);
    svg.path("area", &panel.filled(&measured(&admitted(&run.attack))));
    if is_shaping(&run.limit) {
        svg.path("leaving-area", &panel.filled(&measured(&leaving(&run.attack))));
        svg.text("", panel.at(13_000_000, 4), "leaving");
        svg.text("", panel.at(13_000_000, 18), "admitted");
    }
    panel.grid(svg, &[0, 10, 20, 30]);
    panel.baseline(svg);
    panel.seconds(svg, WINDOW_US / 2);
    svg.line("limit", panel.at(0, run.limit.size()), panel.at(UNTIL_US, run.limit.size()));
    let bound = by_interval(|interval_us| run.limit.bound_over(interval_us).max_units);
    svg.path("bound", &panel.outline(&bound));
    label(run, panel, svg);
}

/// Writes two numbers: the most units at once, and the most in one window.
fn label(run: &LimitRun, panel: &ChartPanel, svg: &mut Svg) {
    let admitted = admitted(&run.attack);
    let at_once = most_in(&admitted, SLACK_US);
    // Below the line of the limit.
    let line = if at_once < 2 * run.limit.size() { run.limit.size() } else { at_once };
    let words = Point { x: panel.x(0) + 5.0, y: panel.y(line) + 15.0 };
    svg.text("", words, &format!("{at_once} in {SLACK_US} µs"));

    let most = most_in(&admitted, WINDOW_US);
    let point = panel.at(WINDOW_US, most);
    svg.path("allowed", &marks(MarkShape::Dot, &[point]));
    let words = Point { x: point.x - 6.0, y: point.y - 9.0 };
    svg.text("end", words, &format!("{most} in 10 s"));
}

/// Returns the most units that passed, by the length of the interval.
fn measured(passing: &[PassedUnits]) -> Vec<LevelStep> {
    by_interval(|interval_us| most_in(passing, interval_us))
}

/// Returns the counts for all lengths of intervals, as the steps at which the count changes.
fn by_interval(count: impl Fn(u64) -> u64) -> Vec<LevelStep> {
    let lengths = (0..UNTIL_US / EVERY_US).map(|nth| nth * EVERY_US);
    let mut steps: Vec<LevelStep> =
        lengths.map(|length_us| (length_us, count(length_us + SLACK_US))).collect();
    steps.dedup_by_key(|(_, count)| *count);
    steps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decisions::decide;
    use crate::limits::LIMITS;
    use crate::traffic::attack;

    #[test]
    fn attack_reaches_every_bound() {
        for drawn in &LIMITS {
            let limit: tollgate_core::Limit = drawn.limit.parse().unwrap();
            let attacked = admitted(&decide(&limit, &attack()).unwrap());
            let bound = by_interval(|interval_us| limit.bound_over(interval_us).max_units);
            assert_eq!(measured(&attacked), bound, "{limit}");
        }
    }
}
