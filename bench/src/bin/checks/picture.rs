//! Draws the table as bars: one panel for each workload, and one for the bytes.

use tollgate_pictures::svg::{Area, Caption, Point, Svg};

use crate::report::CompetitorRow;
use crate::timing::Column;
use crate::traffic::Workload;

const WIDTH: u32 = 1010;
const LEFT: f64 = 24.0;
const FIRST_PANEL: f64 = 190.0;
const PANEL_WIDTH: f64 = 182.0;
const PANEL_GAP: f64 = 20.0;
const TOP: f64 = 118.0;
const ROW_PITCH: f64 = 36.0;
const BAR_HEIGHT: f64 = 12.0;
/// The space between our rows and the peers' rows.
const GROUP_GAP: f64 = 16.0;
/// The width of the number at the end of the longest bar.
const NUMBER_WIDTH: f64 = 34.0;

const STYLE: &str = "\
.ours{fill:#0072b2}.ours-2{fill:#86b8d9}.peer{fill:#6e7781}.peer-2{fill:#c2c8cf}\
.value{font-size:11px;paint-order:stroke;stroke:#fff;stroke-width:3px}";

/// A part of the picture that shows one number of each row, or one number for each count of threads.
struct Panel {
    title: &'static str,
    unit: &'static str,
    /// The bars of each row, from the top.
    bars: Vec<Vec<f64>>,
}

pub(crate) fn draw(rows: &[CompetitorRow]) -> String {
    let caption = Caption {
        title: "Time and memory of a check".to_owned(),
        description: rows.iter().map(description_of).collect::<Vec<_>>().join(" "),
    };
    let height = y_of(rows, rows.len()) + 16.0;
    let mut svg = Svg::new(WIDTH, height as u32, &caption);
    svg.style(STYLE);
    svg.text("title", Point { x: LEFT, y: 34.0 }, &caption.title);
    let note = "Shorter is better. Every check is allowed; Zipf and uniform are over 1,000,000 keys. \
                The dashed line is governor with one thread.";
    svg.text("note", Point { x: LEFT, y: 54.0 }, note);
    legend(&mut svg);
    for (nth, row) in rows.iter().enumerate() {
        let y = y_of(rows, nth) + BAR_HEIGHT + 4.0;
        svg.text("heading", Point { x: LEFT, y }, row.competitor.name);
    }
    for (nth, panel) in panels(rows).iter().enumerate() {
        let left = FIRST_PANEL + nth as f64 * (PANEL_WIDTH + PANEL_GAP);
        draw_panel(panel, rows, left, &mut svg);
    }
    svg.finish()
}

fn description_of(row: &CompetitorRow) -> String {
    let ns = |(column, ns): (Column, &f64)| format!("{} {ns:.0} ns", column.title());
    let times: Vec<String> = Column::all().into_iter().zip(&row.ns_per_check).map(ns).collect();
    let bytes = row.growth.bytes_per_key;
    format!("{}: {}; {bytes:.0} bytes per key.", row.competitor.name, times.join(", "))
}

/// Returns the top of a row's bars.
fn y_of(rows: &[CompetitorRow], nth: usize) -> f64 {
    let ours = rows.iter().filter(|row| row.competitor.is_ours()).count();
    let gap = if nth >= ours { GROUP_GAP } else { 0.0 };
    TOP + nth as f64 * ROW_PITCH + gap
}

fn panels(rows: &[CompetitorRow]) -> Vec<Panel> {
    let ns = |row: &CompetitorRow, workload| -> Vec<f64> {
        let of_workload =
            |column| matches!(column, Column::Allowed { workload: it, .. } if it == workload);
        let columns = Column::all().into_iter().zip(&row.ns_per_check);
        columns.filter(|(column, _)| of_workload(*column)).map(|(_, &ns)| ns).collect()
    };
    let times = Workload::ALL.map(|workload| Panel {
        title: workload.name(),
        unit: "ns per check",
        bars: rows.iter().map(|row| ns(row, workload)).collect(),
    });
    let bytes = Panel {
        title: "memory",
        unit: "bytes per key",
        bars: rows.iter().map(|row| vec![row.growth.bytes_per_key]).collect(),
    };
    times.into_iter().chain([bytes]).collect()
}

fn legend(svg: &mut Svg) {
    for (nth, (classes, words)) in
        [(["ours", "peer"], "1 thread"), (["ours-2", "peer-2"], "2 threads, time on each")]
            .into_iter()
            .enumerate()
    {
        let left = LEFT + 90.0 * nth as f64;
        for (class, dx) in classes.into_iter().zip([0.0, 11.0]) {
            svg.rect(class, Area { left: left + dx, top: 66.0, width: 10.0, height: 10.0 });
        }
        svg.text("note", Point { x: left + 27.0, y: 75.0 }, words);
    }
}

fn draw_panel(panel: &Panel, rows: &[CompetitorRow], left: f64, svg: &mut Svg) {
    svg.text("heading", Point { x: left, y: TOP - 16.0 }, panel.title);
    let unit = Point { x: left + PANEL_WIDTH, y: TOP - 16.0 };
    svg.text("tick end", unit, panel.unit);
    let most = panel.bars.iter().flatten().copied().filter(|it| it.is_finite()).fold(1.0, f64::max);
    let width = |value: f64| value / most * (PANEL_WIDTH - NUMBER_WIDTH);
    let [top, bottom] = [TOP - 6.0, y_of(rows, rows.len()) - 6.0];
    svg.line("axis", Point { x: left, y: top }, Point { x: left, y: bottom });
    if let Some(baseline) = baseline(panel, rows) {
        let x = left + width(baseline);
        svg.line("limit", Point { x, y: top }, Point { x, y: bottom });
    }
    for (nth, (row, bars)) in rows.iter().zip(&panel.bars).enumerate() {
        let classes =
            if row.competitor.is_ours() { ["ours", "ours-2"] } else { ["peer", "peer-2"] };
        // A single bar is centred where two bars would be.
        let first = if bars.len() == 1 { BAR_HEIGHT / 2.0 } else { 0.0 };
        for (bar, (&value, class)) in bars.iter().zip(classes).enumerate() {
            let top = y_of(rows, nth) + first + bar as f64 * (BAR_HEIGHT + 1.0);
            if value.is_infinite() {
                continue;
            }
            let area = Area { left, top, width: width(value), height: BAR_HEIGHT };
            svg.rect(class, area);
            let at = Point { x: area.right() + 4.0, y: area.bottom() - 2.0 };
            svg.text("value", at, &format!("{value:.0}"));
        }
    }
}

fn baseline(panel: &Panel, rows: &[CompetitorRow]) -> Option<f64> {
    let nth = rows.iter().position(|row| row.competitor.name == crate::competitors::BASELINE)?;
    panel.bars.get(nth)?.first().copied().filter(|it| it.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::competitors::COMPETITORS;
    use crate::growth::Growth;

    #[test]
    fn every_number_has_a_bar() {
        let growth = Growth { bytes_per_key: 77.0, worst_us: 80.0, p9999_us: 2.0 };
        let row = |competitor| CompetitorRow { competitor, ns_per_check: vec![33.0; 7], growth };
        let rows: Vec<CompetitorRow> = COMPETITORS.iter().map(row).collect();
        let svg = draw(&rows);
        let count = |words: &str| svg.matches(words).count();
        assert_eq!(count(">33</text>"), rows.len() * 6);
        assert_eq!(count(">77</text>"), rows.len());
    }
}
