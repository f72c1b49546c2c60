//! Panels: areas of a picture with a scale of time and a scale of units.

use crate::decisions::LevelStep;
use crate::svg::{Area, Coordinate, Point, Svg};

/// The length of time of a column of requests.
const COLUMN_US: u64 = 500_000;

/// The height of a mark, including the gap above it.
pub(crate) const MARK_HEIGHT: f64 = 5.5;

const TEN_SECONDS_US: u64 = 10_000_000;

/// An area of a picture. Its left edge is 0 us, and its bottom is 0 units.
pub(crate) struct ChartPanel {
    pub(crate) area: Area,
    pub(crate) until_us: u64,
    pub(crate) top_units: u64,
}

impl ChartPanel {
    pub(crate) fn x(&self, at_us: u64) -> f64 {
        self.area.left + self.area.width * at_us as f64 / self.until_us as f64
    }

    pub(crate) fn y(&self, units: u64) -> f64 {
        self.area.bottom() - self.area.height * units as f64 / self.top_units as f64
    }

    pub(crate) fn at(&self, at_us: u64, units: u64) -> Point {
        Point { x: self.x(at_us), y: self.y(units) }
    }

    /// Shades every other window of 10 s.
    pub(crate) fn windows(&self, svg: &mut Svg) {
        let width = self.x(TEN_SECONDS_US) - self.x(0);
        for start_us in (TEN_SECONDS_US..self.until_us).step_by(2 * TEN_SECONDS_US as usize) {
            svg.rect("window", Area { left: self.x(start_us), width, ..self.area });
        }
    }

    /// Draws a vertical line every 10 s, and numbered horizontal lines at `ticks`.
    pub(crate) fn grid(&self, svg: &mut Svg, ticks: &[u64]) {
        for at_us in (0..=self.until_us).step_by(TEN_SECONDS_US as usize) {
            let [from, to] = [self.at(at_us, 0), self.at(at_us, self.top_units)];
            svg.line("grid", from, to);
        }
        for &units in ticks {
            let at = self.at(0, units);
            svg.line("grid", at, self.at(self.until_us, units));
            svg.text("tick end", Point { x: at.x - 8.0, y: at.y + 4.0 }, &units.to_string());
        }
    }

    pub(crate) fn baseline(&self, svg: &mut Svg) {
        svg.line("axis", self.at(0, 0), self.at(self.until_us, 0));
    }

    /// Writes the seconds below the panel.
    pub(crate) fn seconds(&self, svg: &mut Svg, every_us: u64) {
        let y = self.area.bottom() + 16.0;
        for at_us in (0..=self.until_us).step_by(every_us as usize) {
            let seconds = format!("{} s", at_us / 1_000_000);
            svg.text("tick middle", Point { x: self.x(at_us), y }, &seconds);
        }
    }

    /// Returns the outline of the steps as path data. Each value holds until the next step.
    pub(crate) fn outline(&self, steps: &[LevelStep]) -> String {
        let mut d = String::new();
        for &(at_us, units) in steps.iter().filter(|(at_us, _)| *at_us <= self.until_us) {
            let [x, y] = [self.x(at_us), self.y(units)].map(Coordinate);
            d += &if d.is_empty() { format!("M{x} {y}") } else { format!("H{x}V{y}") };
        }
        d + &format!("H{}", Coordinate(self.area.right()))
    }

    /// Returns the area below the outline of the steps, as path data.
    pub(crate) fn filled(&self, steps: &[LevelStep]) -> String {
        let [left, bottom] = [self.area.left, self.area.bottom()].map(Coordinate);
        format!("{}V{bottom}H{left}Z", self.outline(steps))
    }

    /// Returns the position of a mark for each instant. The marks are in columns that begin at `baseline_y`.
    pub(crate) fn columns(
        &self,
        instants: &[u64],
        baseline_y: f64,
        grow: GrowDirection,
    ) -> Vec<Point> {
        let column = |at_us: u64| at_us / COLUMN_US;
        let mut points = Vec::with_capacity(instants.len());
        let (mut last, mut height) = (None, 0.0);
        for &at_us in instants {
            height = if last == Some(column(at_us)) { height + MARK_HEIGHT } else { 0.0 };
            last = Some(column(at_us));
            let x = self.x(column(at_us) * COLUMN_US + COLUMN_US / 2);
            let away = MARK_HEIGHT / 2.0 + 1.0 + height;
            let y = if grow == GrowDirection::Up { baseline_y - away } else { baseline_y + away };
            points.push(Point { x, y });
        }
        points
    }
}

/// The direction in which a column of marks grows.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GrowDirection {
    Up,
    Down,
}

/// The shape of a mark. It has the same meaning as the mark's colour.
#[derive(Clone, Copy)]
pub(crate) enum MarkShape {
    Dot,
    Cross,
    Diamond,
}

/// Returns marks at these points, as path data.
pub(crate) fn marks(mark: MarkShape, points: &[Point]) -> String {
    let shape = |at: &Point| {
        let [x, y] = [at.x, at.y].map(Coordinate);
        match mark {
            // A line of length zero with round ends.
            MarkShape::Dot => format!("M{x} {y}h0"),
            MarkShape::Cross => format!("M{x} {y}m-2-2l4 4m0-4l-4 4"),
            MarkShape::Diamond => format!("M{x} {y}m0-3.2l3.2 3.2-3.2 3.2-3.2-3.2Z"),
        }
    };
    points.iter().map(shape).collect()
}
