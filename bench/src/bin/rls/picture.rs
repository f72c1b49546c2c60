//! Draws the requests per second as bars.

use tollgate_bench::statistics::median;
use tollgate_bench::table::thousands;
use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::contenders::RlsContender;
use crate::rounds::RlsMeasurements;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const BARS: f64 = 322.0;
/// The width of the longest bar, which leaves room for its number.
const BAR_WIDTH: f64 = 600.0;
const TOP: f64 = 84.0;
const ROW_PITCH: f64 = 24.0;
const BAR_HEIGHT: f64 = 16.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.ceiling{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

pub(crate) fn draw(measured: &[RlsMeasurements]) -> String {
    let description_of = |it: &RlsMeasurements| {
        format!("{}: {} per second.", it.contender.name(), thousands(per_s(it)))
    };
    let caption = Caption {
        title: "Envoy's rate limit service: answers per second".to_owned(),
        description: measured.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let bottom = TOP + measured.len() as f64 * ROW_PITCH;
    let mut svg = Svg::new(WIDTH, (bottom + 12.0) as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Longer is better. In memory, one descriptor, sent by h2load -c 8 -m 32 -t 1 to a server with one thread. The \
                null service is made with tonic, and decides nothing.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    svg.line("axis", Point { x: BARS, y: TOP - 6.0 }, Point { x: BARS, y: bottom - 2.0 });
    let most = measured.iter().map(per_s).fold(1.0, f64::max);
    for (nth, it) in measured.iter().enumerate() {
        let (top, width) = (TOP + nth as f64 * ROW_PITCH, per_s(it) / most * BAR_WIDTH);
        let bar = Area { left: BARS, top, width, height: BAR_HEIGHT };
        let base = bar.bottom() - 4.0;
        svg.text("", Point { x: LEFT, y: base }, it.contender.name());
        svg.rect(class(it.contender), bar);
        svg.text("value", Point { x: bar.right() + 4.0, y: base }, &thousands(per_s(it)));
    }
    svg.finish()
}

fn per_s(it: &RlsMeasurements) -> f64 {
    median(it.requests_per_s.iter().copied())
}

const fn class(contender: RlsContender) -> &'static str {
    match contender {
        RlsContender::Null => "ceiling",
        RlsContender::Ours => "ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_bar() {
        let it = |contender| RlsMeasurements {
            requests_per_s: vec![45_678.0; 3],
            ..RlsMeasurements::new(contender)
        };
        let svg = draw(&RlsContender::ALL.map(it));
        assert_eq!(svg.matches(">45,678</text>").count(), 2);
        for class in ["ours", "ceiling"] {
            assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), 1);
        }
    }
}
