//! Writes SVG: shapes and texts with classes, and one style for all pictures.

use std::fmt::{self, Write};

/// The style of all pictures. It uses blue, vermilion and green of the Okabe-Ito palette, which colour-blind people can
/// distinguish.
const STYLE: &str = "\
text{font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Helvetica Neue',Arial,sans-serif;fill:#1f2328}\
.title{font-size:18px;font-weight:600}\
.heading{font-weight:600}\
.note{fill:#57606a}\
.tick{fill:#57606a;font-size:11px}\
.end{text-anchor:end}\
.middle{text-anchor:middle}\
.page{fill:#fff;stroke:#d0d7de}\
.window{fill:#f0f3f6}\
.grid{stroke:#d8dee4}\
.axis{stroke:#57606a}\
.asked{stroke:#57606a;stroke-width:4.4;stroke-linecap:round}\
.allowed{stroke:#0072b2;stroke-width:4.4;stroke-linecap:round}\
.refused{stroke:#d55e00;stroke-width:1.3;fill:none}\
.leaves{fill:#00795a}\
.curve{stroke:#0072b2;stroke-width:1.7;fill:none}\
.leaving{stroke:#00795a;stroke-width:1.7;fill:none;stroke-dasharray:3 2}\
.limit{stroke:#57606a;stroke-dasharray:6 4}\
.bound{stroke:#9b1c5a;stroke-width:1.3;fill:none}\
.bound-label{fill:#9b1c5a}\
.area{fill:#b9d8ea}\
.leaving-area{fill:#8fcdb9}";

/// A point in the picture, in pixels from its top left.
#[derive(Clone, Copy, Debug)]
pub struct Point {
    /// Pixels to the right.
    pub x: f64,
    /// Pixels down.
    pub y: f64,
}

/// A rectangle of the picture.
#[derive(Clone, Copy, Debug)]
pub struct Area {
    /// Its left edge.
    pub left: f64,
    /// Its upper edge.
    pub top: f64,
    /// The distance to its right edge.
    pub width: f64,
    /// The distance to its lower edge.
    pub height: f64,
}

impl Area {
    /// Returns the right edge.
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    /// Returns the lower edge.
    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }
}

/// A coordinate, to a tenth of a pixel.
pub(crate) struct Coordinate(pub(crate) f64);

impl fmt::Display for Coordinate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenths = (self.0 * 10.0).round();
        if tenths % 10.0 == 0.0 {
            write!(f, "{:.0}", tenths / 10.0)
        } else {
            write!(f, "{:.1}", tenths / 10.0)
        }
    }
}

/// The title and the description of a picture, which screen readers use.
#[derive(Clone, Debug)]
pub struct Caption {
    /// A few words.
    pub title: String,
    /// A description of the picture in sentences.
    pub description: String,
}

/// A picture that is being drawn. Later shapes cover earlier shapes.
#[derive(Debug)]
pub struct Svg {
    text: String,
}

impl Svg {
    /// Returns an empty page.
    pub fn new(width: u32, height: u32, caption: &Caption) -> Svg {
        let (title, description) = (escaped(&caption.title), escaped(&caption.description));
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
             viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n\
             <title>{title}</title>\n<desc>{description}</desc>\n<style>{STYLE}</style>\n"
        );
        let mut svg = Svg { text };
        svg.push(format_args!(
            "<rect class=\"page\" x=\"0.5\" y=\"0.5\" width=\"{}\" height=\"{}\" rx=\"6\"/>",
            width - 1,
            height - 1
        ));
        svg
    }

    /// Adds styles for a picture's own classes, as CSS.
    pub fn style(&mut self, css: &str) {
        self.push(format_args!("<style>{css}</style>"));
    }

    /// Draws a rectangle.
    pub fn rect(&mut self, class: &str, area: Area) {
        let [x, y] = [area.left, area.top].map(Coordinate);
        let [width, height] = [area.width, area.height].map(Coordinate);
        self.push(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
        ));
    }

    /// Draws a straight line.
    pub fn line(&mut self, class: &str, from: Point, to: Point) {
        let [x1, y1, x2, y2] = [from.x, from.y, to.x, to.y].map(Coordinate);
        self.push(format_args!("<path class=\"{class}\" d=\"M{x1} {y1}L{x2} {y2}\"/>"));
    }

    /// Draws a path with the data `d`; does nothing if `d` is empty.
    pub fn path(&mut self, class: &str, d: &str) {
        if !d.is_empty() {
            self.push(format_args!("<path class=\"{class}\" d=\"{d}\"/>"));
        }
    }

    /// Writes a text that begins at this point.
    pub fn text(&mut self, class: &str, at: Point, words: &str) {
        let [x, y] = [at.x, at.y].map(Coordinate);
        let words = escaped(words);
        self.push(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{words}</text>"));
    }

    /// Returns the finished SVG.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }

    fn push(&mut self, element: fmt::Arguments<'_>) {
        // OK because writing to a `String` cannot fail.
        let _ = writeln!(self.text, "{element}");
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
