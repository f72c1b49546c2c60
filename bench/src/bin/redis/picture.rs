//! Draws the throughput as bars. Pipelines are omitted, because all other bars would be too short beside them.

use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::contenders::RedisContender;
use crate::throughput::Throughput;
use tollgate_bench::table::thousands;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const BARS: f64 = 372.0;
/// The width of the longest bar, which leaves room for its number.
const BAR_WIDTH: f64 = 540.0;
const TOP: f64 = 84.0;
const ROW_PITCH: f64 = 30.0;
const BAR_HEIGHT: f64 = 16.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.peer{fill:#6e7781}.ceiling{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

pub(crate) fn draw(measured: &[Throughput]) -> String {
    let is_drawn = |row: &&Throughput| row.contender != RedisContender::IncrInPipelines;
    let rows: Vec<&Throughput> = measured.iter().filter(is_drawn).collect();
    let caption = Caption {
        title: "Checks per second on one Redis".to_owned(),
        description: rows.iter().copied().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let bottom = TOP + rows.len() as f64 * ROW_PITCH;
    let mut svg = Svg::new(WIDTH, (bottom + 12.0) as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Longer is better. 64 callers on 2 cores, which they share with Redis; token buckets \
                over 10,000 keys. INCR limits nothing: it shows the cost of one command.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    svg.line("axis", Point { x: BARS, y: TOP - 6.0 }, Point { x: BARS, y: bottom - 6.0 });
    let most = rows.iter().map(|row| row.checks_per_s).fold(1.0, f64::max);
    for (nth, row) in rows.iter().enumerate() {
        let top = TOP + nth as f64 * ROW_PITCH;
        let width = row.checks_per_s / most * BAR_WIDTH;
        let bar = Area { left: BARS, top, width, height: BAR_HEIGHT };
        svg.text("heading", Point { x: LEFT, y: bar.bottom() - 4.0 }, row.contender.name());
        svg.rect(class(row.contender), bar);
        let at = Point { x: bar.right() + 4.0, y: bar.bottom() - 4.0 };
        svg.text("value", at, &thousands(row.checks_per_s));
    }
    svg.finish()
}

fn description_of(row: &Throughput) -> String {
    format!("{}: {} per second.", row.contender.name(), thousands(row.checks_per_s))
}

const fn class(contender: RedisContender) -> &'static str {
    match contender {
        RedisContender::Ours => "ours",
        RedisContender::Script | RedisContender::ScriptOnManyConnections => "peer",
        RedisContender::EmptyScript | RedisContender::Incr | RedisContender::IncrInPipelines => {
            "ceiling"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_bar() {
        let row = |contender| Throughput {
            contender,
            checks_per_s: 45_678.0,
            redis_us: 10.0,
            to_ours: 1.0,
        };
        let svg =
            draw(&[RedisContender::Ours, RedisContender::Script, RedisContender::Incr].map(row));
        assert_eq!(svg.matches(">45,678</text>").count(), 3);
        for class in ["ours", "peer", "ceiling"] {
            assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), 1);
        }
    }
}
