//! Draws the same traffic under all limits: the requests that each limit allows.

use crate::LimitRun;
use crate::chart::{ChartPanel, GrowDirection, MARK_HEIGHT, MarkShape, marks};
use crate::decisions::{leaving, most_in};
use crate::limits::{WINDOW_US, is_shaping};
use crate::svg::{Area, Caption, Point, Svg};
use crate::traffic::END_US;

const WIDTH: u32 = 1010;
const LEFT: f64 = 204.0;
const PLOT_WIDTH: f64 = 770.0;
const FIRST_TOP: f64 = 84.0;
const LANE_HEIGHT: f64 = 62.0;
const LANE_PITCH: f64 = 76.0;

/// A row of the picture: a name, two notes, and the times at which requests pass.
struct TrafficLane {
    name: &'static str,
    notes: [String; 2],
    class: &'static str,
    instants: Vec<u64>,
}

pub(crate) fn draw(runs: &[LimitRun]) -> String {
    let lanes: Vec<TrafficLane> =
        all_requests(runs).into_iter().chain(runs.iter().map(passed_requests)).collect();
    let caption = Caption {
        title: "The same traffic under six limits".to_owned(),
        description: lanes.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let height = FIRST_TOP + LANE_PITCH * lanes.len() as f64 + 20.0;
    let mut svg = Svg::new(WIDTH, height as u32, &caption);
    svg.text("title", Point { x: 24.0, y: 34.0 }, &caption.title);
    let note = "All limits allow a nominal 10 in 10 s. Each dot is a request, at the time at which it passes.";
    svg.text("note", Point { x: 24.0, y: 54.0 }, note);
    for (nth, lane) in lanes.iter().enumerate() {
        let top = FIRST_TOP + LANE_PITCH * nth as f64;
        let area = Area { left: LEFT, top, width: PLOT_WIDTH, height: LANE_HEIGHT };
        let panel = ChartPanel { area, until_us: END_US, top_units: 1 };
        draw_lane(lane, &panel, &mut svg);
        if nth + 1 == lanes.len() {
            panel.seconds(&mut svg, 10_000_000);
        }
    }
    svg.finish()
}

/// Returns the first lane, which has all requests.
fn all_requests(runs: &[LimitRun]) -> Option<TrafficLane> {
    let everyday = &runs.first()?.everyday;
    let notes = [format!("{} requests", everyday.len()), String::new()];
    let instants = everyday.iter().map(|it| it.at_us).collect();
    Some(TrafficLane { name: "All requests", notes, class: "asked", instants })
}

/// Returns the lane of a limit: the requests that pass.
fn passed_requests(run: &LimitRun) -> TrafficLane {
    let mut instants: Vec<u64> = leaving(&run.everyday).iter().map(|it| it.at_us).collect();
    instants.sort_unstable();
    let most = most_in(&leaving(&run.everyday), WINDOW_US);
    let verb = if is_shaping(&run.limit) { "leave" } else { "pass" };
    let notes = [format!("{} {verb}", instants.len()), format!("at most {most} in 10 s")];
    TrafficLane { name: run.drawn.title, notes, class: "allowed", instants }
}

fn description_of(lane: &TrafficLane) -> String {
    let [first, second] = &lane.notes;
    let comma = if second.is_empty() { "" } else { ", " };
    format!("{}: {first}{comma}{second}.", lane.name)
}

fn draw_lane(lane: &TrafficLane, panel: &ChartPanel, svg: &mut Svg) {
    panel.grid(svg, &[]);
    panel.baseline(svg);
    let bottom = panel.area.bottom();
    let points = panel.columns(&lane.instants, bottom, GrowDirection::Up);
    svg.path(lane.class, &marks(MarkShape::Dot, &points));
    let x = 24.0;
    svg.text("heading", Point { x, y: bottom - 5.0 * MARK_HEIGHT - 4.0 }, lane.name);
    for (note, y) in lane.notes.iter().zip([bottom - 14.0, bottom + 2.0]) {
        svg.text("note", Point { x, y }, note);
    }
}
