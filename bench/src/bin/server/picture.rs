//! Draws the requests per second as bars, with a group for each kind of request.

use tollgate_bench::statistics::median;
use tollgate_bench::table::thousands;
use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::contenders::ServerContender;
use crate::request_kinds::RequestKind;
use crate::rounds::ServerMeasurements;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const NAMES: f64 = 170.0;
const BARS: f64 = 322.0;
/// The width of the longest bar, which leaves room for its number.
const BAR_WIDTH: f64 = 600.0;
const TOP: f64 = 84.0;
const ROW_PITCH: f64 = 24.0;
const BAR_HEIGHT: f64 = 16.0;
/// The space between two groups.
const GAP: f64 = 16.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.peer{fill:#6e7781}.ceiling{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

pub(crate) fn draw(measured: &[ServerMeasurements]) -> String {
    let caption = Caption {
        title: "Decisions per second over HTTP".to_owned(),
        description: measured.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let tops = tops(measured);
    let bottom = tops.last().map_or(TOP, |last| last + ROW_PITCH);
    let mut svg = Svg::new(WIDTH, (bottom + 12.0) as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Longer is better. In memory, with requests of one thread of wrk on 50 connections to a server with one \
                thread. The null server always sends the same answer.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    svg.line("axis", Point { x: BARS, y: TOP - 6.0 }, Point { x: BARS, y: bottom - 2.0 });
    let most = measured.iter().map(per_s).fold(1.0, f64::max);
    let mut before = None;
    for (it, &top) in measured.iter().zip(&tops) {
        let width = per_s(it) / most * BAR_WIDTH;
        let bar = Area { left: BARS, top, width, height: BAR_HEIGHT };
        let base = bar.bottom() - 4.0;
        if before != Some(it.kind) {
            svg.text("heading", Point { x: LEFT, y: base }, it.kind.name());
        }
        before = Some(it.kind);
        svg.text("", Point { x: NAMES, y: base }, it.contender.name());
        svg.rect(class(it.contender), bar);
        svg.text("value", Point { x: bar.right() + 4.0, y: base }, &thousands(per_s(it)));
    }
    svg.finish()
}

/// Returns the upper edge of each bar.
fn tops(measured: &[ServerMeasurements]) -> Vec<f64> {
    let gaps = |kind| RequestKind::ALL.iter().take_while(|&&other| other != kind).count();
    let top = |(nth, it): (usize, &ServerMeasurements)| {
        TOP + nth as f64 * ROW_PITCH + gaps(it.kind) as f64 * GAP
    };
    measured.iter().enumerate().map(top).collect()
}

fn per_s(it: &ServerMeasurements) -> f64 {
    median(it.requests_per_s.iter().copied())
}

fn description_of(it: &ServerMeasurements) -> String {
    let (kind, name) = (it.kind.name(), it.contender.name());
    format!("{kind}, {name}: {} per second.", thousands(per_s(it)))
}

const fn class(contender: ServerContender) -> &'static str {
    match contender {
        ServerContender::Null => "ceiling",
        ServerContender::Peer => "peer",
        ServerContender::Ours => "ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_bar() {
        let it = |kind, contender| ServerMeasurements {
            requests_per_s: vec![45_678.0; 3],
            ..ServerMeasurements::new(kind, contender)
        };
        let measured: Vec<ServerMeasurements> = [RequestKind::OneKey, RequestKind::Denied]
            .into_iter()
            .flat_map(|kind| ServerContender::ALL.map(|contender| it(kind, contender)))
            .collect();
        let svg = draw(&measured);
        assert_eq!(svg.matches(">45,678</text>").count(), 6);
        for class in ["ours", "peer", "ceiling"] {
            assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), 2);
        }
        assert_eq!(svg.matches(">denied</text>").count(), 1);
    }
}
