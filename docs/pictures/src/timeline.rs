//! Draws one limit over time: the requests, `remaining`, and the units admitted in the last window.

use crate::LimitRun;
use crate::chart::{ChartPanel, GrowDirection, MARK_HEIGHT, MarkShape, marks};
use crate::decisions::{admitted, leaving, most_in, remaining, trailing};
use crate::limits::{WINDOW_US, has_aligned_windows, is_shaping};
use crate::svg::{Area, Caption, Point, Svg};
use crate::traffic::{END_US, PARTS};

const WIDTH: u32 = 880;
const LEFT: f64 = 84.0;
const PLOT_WIDTH: f64 = 770.0;
/// The largest number of marks in a column, in each direction.
const MAX_MARKS: f64 = 10.0;

pub(crate) fn draw(run: &LimitRun) -> String {
    let shaping = is_shaping(&run.limit);
    let mut svg = Svg::new(WIDTH, if shaping { 554 } else { 492 }, &caption(run));
    let [requests_panel, remaining_panel, admitted_panel] = [
        panel(Area { top: 106.0, height: 2.0 * MAX_MARKS * MARK_HEIGHT + 8.0, ..PLOT }, 1),
        panel(Area { top: 252.0, height: 70.0, ..PLOT }, 10),
        panel(Area { top: 354.0, height: 100.0, ..PLOT }, 22),
    ];
    header(run, &mut svg);
    for panel in [&requests_panel, &remaining_panel, &admitted_panel] {
        if has_aligned_windows(&run.limit) {
            panel.windows(&mut svg);
        }
    }
    requests(run, &requests_panel, &mut svg);
    heading(&remaining_panel, &mut svg, "Remaining: the largest cost that would be allowed");
    remaining_panel.grid(&mut svg, &[0, 5, 10]);
    remaining_panel.baseline(&mut svg);
    svg.path("curve", &remaining_panel.outline(&remaining(&run.probed)));
    last_window(run, &admitted_panel, &mut svg);
    if shaping {
        let strip = panel(Area { top: 488.0, height: 28.0, ..PLOT }, 1);
        departures(run, &strip, &mut svg);
        strip.seconds(&mut svg, 10_000_000);
    } else {
        admitted_panel.seconds(&mut svg, 10_000_000);
    }
    svg.finish()
}

const PLOT: Area = Area { left: LEFT, top: 0.0, width: PLOT_WIDTH, height: 0.0 };

fn panel(area: Area, top_units: u64) -> ChartPanel {
    ChartPanel { area, until_us: END_US, top_units }
}

fn caption(run: &LimitRun) -> Caption {
    let (allowed, refused) = run.allowed_and_refused();
    let most = most_in(&admitted(&run.everyday), WINDOW_US);
    let bound = run.limit.bound_over(WINDOW_US).max_units;
    Caption {
        title: format!("{}: the same traffic over 70 s", run.drawn.title),
        description: format!(
            "{}: of {} requests, {allowed} are allowed and {refused} refused. \
             At most {most} units are admitted in any 10 s; the worst case is {bound}.",
            run.limit,
            allowed + refused
        ),
    }
}

fn header(run: &LimitRun, svg: &mut Svg) {
    let (allowed, refused) = run.allowed_and_refused();
    let x = 24.0;
    svg.text("title", Point { x, y: 34.0 }, run.drawn.title);
    let shaded =
        if has_aligned_windows(&run.limit) { "; every other window is shaded" } else { "" };
    let note = format!("{}: {allowed} allowed, {refused} refused{shaded}", run.limit);
    svg.text("note", Point { x, y: 54.0 }, &note);
}

/// Draws allowed requests upwards from the middle, and refused requests downwards.
fn requests(run: &LimitRun, panel: &ChartPanel, svg: &mut Svg) {
    let words = "Requests: each mark is one request, each column is half a second";
    svg.text("heading", Point { x: panel.area.left, y: panel.area.top - 25.0 }, words);
    panel.grid(svg, &[]);
    let middle_y = panel.area.top + panel.area.height / 2.0;
    let [left, right] = [panel.area.left, panel.area.right()].map(|x| Point { x, y: middle_y });
    svg.line("axis", left, right);
    for part in PARTS {
        let x = (panel.x(part.from_us) + panel.x(part.until_us)) / 2.0;
        let y = panel.area.top - 8.0;
        svg.text("tick middle", Point { x, y }, part.name);
    }
    for (allowed, class, mark, grow) in [
        (true, "allowed", MarkShape::Dot, GrowDirection::Up),
        (false, "refused", MarkShape::Cross, GrowDirection::Down),
    ] {
        let chosen = run.everyday.iter().filter(|it| it.allowed == allowed);
        let instants: Vec<u64> = chosen.map(|it| it.at_us).collect();
        svg.path(class, &marks(mark, &panel.columns(&instants, middle_y, grow)));
        let y = if allowed { middle_y - 30.0 } else { middle_y + 30.0 };
        svg.path(class, &marks(mark, &[Point { x: 20.0, y }]));
        svg.text("", Point { x: 28.0, y: y + 4.0 }, class);
    }
}

/// Draws the units that were admitted, and those that left, in the last window.
fn last_window(run: &LimitRun, panel: &ChartPanel, svg: &mut Svg) {
    heading(panel, svg, "Units admitted in the 10 s up to each instant");
    panel.grid(svg, &[0, 10, 20]);
    panel.baseline(svg);
    let size = run.limit.size();
    let bound = run.limit.bound_over(WINDOW_US).max_units;
    let limit_label = format!("limit {size}");
    svg.line("limit", panel.at(0, size), panel.at(END_US, size));
    if bound == size {
        label(panel, svg, "bound-label", size, &format!("{limit_label}: also the worst case"));
    } else {
        svg.line("bound", panel.at(0, bound), panel.at(END_US, bound));
        label(panel, svg, "note", size, &limit_label);
        label(panel, svg, "bound-label", bound, &format!("worst case {bound}"));
    }
    if is_shaping(&run.limit) {
        let steps = trailing(&leaving(&run.everyday), WINDOW_US);
        svg.path("leaving", &panel.outline(&steps));
        svg.text("", Point { x: panel.x(50_500_000), y: panel.y(14) }, "admitted");
        svg.text("", Point { x: panel.x(50_500_000), y: panel.y(5) }, "leaving (dashed)");
    }
    svg.path("curve", &panel.outline(&trailing(&admitted(&run.everyday), WINDOW_US)));
}

/// Draws the times at which shaped requests leave.
fn departures(run: &LimitRun, panel: &ChartPanel, svg: &mut Svg) {
    heading(panel, svg, "Departures: at least a second apart");
    panel.grid(svg, &[]);
    panel.baseline(svg);
    let y = panel.area.top + panel.area.height / 2.0;
    let points: Vec<Point> = leaving(&run.everyday)
        .iter()
        .map(|passing| Point { x: panel.x(passing.at_us), y })
        .collect();
    svg.path("leaves", &marks(MarkShape::Diamond, &points));
    svg.path("leaves", &marks(MarkShape::Diamond, &[Point { x: 20.0, y }]));
    svg.text("", Point { x: 28.0, y: y + 4.0 }, "leaves");
}

fn heading(panel: &ChartPanel, svg: &mut Svg, words: &str) {
    svg.text("heading", Point { x: panel.area.left, y: panel.area.top - 8.0 }, words);
}

/// Writes a text under a horizontal line, at its left end.
fn label(panel: &ChartPanel, svg: &mut Svg, class: &str, units: u64, words: &str) {
    let on_line = panel.at(0, units);
    svg.text(class, Point { x: on_line.x + 6.0, y: on_line.y + 14.0 }, words);
}
