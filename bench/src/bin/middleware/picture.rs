//! Draws the time that each layer adds to a request in process, as bars.

use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::compare::added_cost;
use crate::in_process::InProcess;
use crate::variants::Variant;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const BARS: f64 = 252.0;
/// The width of the longest bar, which leaves room for its number.
const BAR_WIDTH: f64 = 640.0;
const TOP: f64 = 84.0;
const ROW_PITCH: f64 = 30.0;
const BAR_HEIGHT: f64 = 16.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.peer{fill:#6e7781}.floor{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

/// The bar of one variant.
struct LayerBar {
    variant: Variant,
    adds_ns: f64,
}

pub(crate) fn draw(measured: &[InProcess]) -> String {
    let rows = rows(measured);
    let caption = Caption {
        title: "Nanoseconds that a layer adds to a request".to_owned(),
        description: rows.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let bottom = TOP + rows.len() as f64 * ROW_PITCH;
    let mut svg = Svg::new(WIDTH, (bottom + 12.0) as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Shorter is better. An axum service that says hello, called in process; one token bucket \
                for each address. The light bars limit nothing: they show the cost of axum and http.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    svg.line("axis", Point { x: BARS, y: TOP - 6.0 }, Point { x: BARS, y: bottom - 6.0 });
    let most = rows.iter().map(|row| row.adds_ns).fold(1.0, f64::max);
    for (nth, row) in rows.iter().enumerate() {
        let top = TOP + nth as f64 * ROW_PITCH;
        let width = row.adds_ns.max(0.0) / most * BAR_WIDTH;
        let bar = Area { left: BARS, top, width, height: BAR_HEIGHT };
        svg.text("heading", Point { x: LEFT, y: bar.bottom() - 4.0 }, row.variant.name());
        svg.rect(class(row.variant), bar);
        let at = Point { x: bar.right() + 4.0, y: bar.bottom() - 4.0 };
        svg.text("value", at, &format!("{:.0}", row.adds_ns));
    }
    svg.finish()
}

fn rows(measured: &[InProcess]) -> Vec<LayerBar> {
    let Some((base, others)) = measured.split_first() else { return Vec::new() };
    let adds_ns = |it: &InProcess| added_cost(&it.times_ns, &base.times_ns).median;
    others.iter().map(|it| LayerBar { variant: it.variant, adds_ns: adds_ns(it) }).collect()
}

fn description_of(row: &LayerBar) -> String {
    format!("{}: {:.0}.", row.variant.name(), row.adds_ns)
}

const fn class(variant: Variant) -> &'static str {
    match variant {
        Variant::NoLayer | Variant::EmptyLayer | Variant::TwoHeaders | Variant::FiveHeaders => {
            "floor"
        }
        Variant::Peer | Variant::PeerWithHeaders => "peer",
        Variant::Ours | Variant::OursIetf | Variant::OursClassic | Variant::OursWithAll => "ours",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_layer_has_a_bar_of_the_time_that_it_adds() {
        let times = [400.0, 450.0, 800.0, 600.0];
        let variants =
            [Variant::NoLayer, Variant::EmptyLayer, Variant::PeerWithHeaders, Variant::OursWithAll];
        let measured: Vec<InProcess> = variants
            .into_iter()
            .zip(times)
            .map(|(variant, time_ns)| InProcess {
                variant,
                times_ns: vec![time_ns; 3],
                instructions: 1,
            })
            .collect();
        let svg = draw(&measured);
        for (class, adds) in [("floor", 50), ("peer", 400), ("ours", 200)] {
            assert_eq!(svg.matches(&format!("class=\"{class}\"")).count(), 1);
            assert!(svg.contains(&format!(">{adds}</text>")), "{svg}");
        }
    }
}
