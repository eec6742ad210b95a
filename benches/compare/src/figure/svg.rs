//! Writes figures as SVG without a library. Classes give the colours, so that a figure is readable
//! on a light and on a dark page.

use std::fmt::Write;

/// The width of a figure, in the pixels of a page on GitHub: nothing there is scaled down.
pub(crate) const WIDTH: f64 = 840.0;

/// The distance of two lines of text.
pub(crate) const LINE: f64 = 18.0;

/// A series per class `s0`, `s1` and so on: on a light and on a dark page. All are dark or light
/// enough for text.
pub(crate) const COLOURS: [(&str, &str); 9] = [
    ("0072B2", "58B4F0"),
    ("4A3FB5", "A9A3FF"),
    ("C24E00", "FF8F45"),
    ("8A6500", "E3B341"),
    ("007F8C", "4CCFDB"),
    ("A23E7E", "EE9FCE"),
    ("00795A", "48CDA0"),
    ("5F6B00", "C3CF4B"),
    ("4D4D4D", "C4CAD1"),
];

pub(crate) type Point = (f64, f64);

/// Which point of a text is at its position.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

pub(crate) struct Svg {
    text: String,
}

impl Svg {
    pub(crate) fn new(title: &str, height: f64) -> Self {
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" viewBox=\"0 0 {WIDTH} {height}\">\n\
             <title>{title}</title>\n<style>\n\
             text{{font:13px Helvetica,Arial,Liberation Sans,sans-serif;fill:#1f2328}}.title{{font-size:15px;font-weight:bold}}\n\
             .page{{fill:#fff}}.note{{fill:#59636e}}.grid{{stroke:#d8dee4}}.axis{{stroke:#59636e}}.line{{stroke-width:2}}\n"
        );
        let rule = |(number, colour): (usize, &str)| {
            format!(".s{number}{{fill:#{colour};stroke:#{colour}}}text.s{number}{{stroke:none}}")
        };
        let rules = |colour: fn(&(&'static str, &'static str)) -> &'static str| {
            let rules = COLOURS.iter().map(colour).enumerate().map(rule);
            rules.collect::<Vec<_>>().join("\n")
        };
        text += &rules(|(light, _)| light);
        text += "\n@media (prefers-color-scheme:dark){\ntext{fill:#e6edf3}.page{fill:#0d1117}.note{fill:#9aa4af}.grid{stroke:#30363d}.axis{stroke:#9aa4af}\n";
        text += &rules(|(_, dark)| dark);
        // Last, because of two rules of equal weight the later one holds.
        text += "\n}\n.line{fill:none}\n</style>\n";
        let mut svg = Self { text };
        svg.rect((0.0, 0.0), (WIDTH, height), "page");
        svg
    }

    pub(crate) fn text(&mut self, (x, y): Point, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.line_of_text(format_args!(
            "<text x=\"{x:.0}\" y=\"{y:.0}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>"
        ));
    }

    pub(crate) fn rect(&mut self, (x, y): Point, (width, height): Point, class: &str) {
        self.line_of_text(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" class=\"{class}\"/>"
        ));
    }

    pub(crate) fn dot(&mut self, (x, y): Point, class: &str) {
        self.line_of_text(format_args!(
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" class=\"{class}\"/>"
        ));
    }

    pub(crate) fn path(&mut self, points: &[Point], class: &str) {
        let points = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}"));
        let points: Vec<_> = points.collect();
        let points = points.join(" ");
        self.line_of_text(format_args!(
            "<polyline points=\"{points}\" class=\"{class}\"/>"
        ));
    }

    fn line_of_text(&mut self, line: std::fmt::Arguments<'_>) {
        writeln!(self.text, "{line}").expect("a string takes any text");
    }

    pub(crate) fn end(self) -> String {
        self.text + "</svg>\n"
    }
}

/// The area of a chart in a figure. Positions in it are fractions, from the lower left.
#[derive(Clone, Copy)]
pub(crate) struct Chart {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
}

impl Chart {
    pub(crate) fn at(&self, x: f64, y: f64) -> Point {
        let y = self.top + (1.0 - y) * self.height;
        (self.left + x * self.width, y)
    }

    /// Draws the grid. Each line has a position and a name.
    pub(crate) fn grid(&self, svg: &mut Svg, x: &[(f64, String)], y: &[(f64, String)]) {
        for (at, name) in x {
            svg.path(&[self.at(*at, 0.0), self.at(*at, 1.0)], "grid");
            let (x, y) = self.at(*at, 0.0);
            svg.text((x, y + LINE), Anchor::Middle, "note", name);
        }
        for (at, name) in y {
            svg.path(&[self.at(0.0, *at), self.at(1.0, *at)], "grid");
            let (x, y) = self.at(0.0, *at);
            svg.text((x - 6.0, y + 4.0), Anchor::End, "note", name);
        }
        svg.path(
            &[self.at(0.0, 1.0), self.at(0.0, 0.0), self.at(1.0, 0.0)],
            "axis line",
        );
    }

    /// Draws a line per series, and its name right of its end. `points` are fractions.
    pub(crate) fn lines(&self, svg: &mut Svg, series: &[(String, usize, Vec<Point>)]) {
        const LEADER: f64 = 14.0;

        let mut ends = Vec::new();
        // In reverse order, so that the first line is on top.
        for (name, number, points) in series.iter().rev() {
            let points: Vec<_> = points.iter().map(|&(x, y)| self.at(x, y)).collect();
            svg.path(&points, &format!("line s{number}"));
            ends.extend(points.last().map(|&end| (end, name, number)));
        }
        ends.sort_by(|((_, a), ..), ((_, b), ..)| a.total_cmp(b));
        let heights = ends.iter().map(|((_, y), ..)| *y).collect();
        let heights = spread_out(heights, LINE - 2.0, self.top + self.height);
        let left = self.left + self.width + LEADER;
        for ((end, name, number), y) in ends.into_iter().zip(heights) {
            svg.path(&[end, (left, y)], "grid");
            let class = format!("s{number}");
            svg.dot(end, &class);
            svg.text((left + 4.0, y + 4.0), Anchor::Start, &class, name);
        }
    }
}

/// Moves ascending positions apart, so that two are at least `distance` from each other. None is
/// above `max` if there is room.
fn spread_out(mut positions: Vec<f64>, distance: f64, max: f64) -> Vec<f64> {
    for index in 1..positions.len() {
        positions[index] = positions[index].max(positions[index - 1] + distance);
    }
    let mut limit = max;
    for position in positions.iter_mut().rev() {
        *position = limit.min(*position);
        limit = *position - distance;
    }
    positions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_do_not_overlap() {
        let apart = spread_out(vec![10.0, 40.0, 70.0], 15.0, 90.0);
        assert_eq!(apart, [10.0, 40.0, 70.0]);
        let near = spread_out(vec![10.0, 11.0, 12.0], 15.0, 90.0);
        assert_eq!(near, [10.0, 25.0, 40.0]);
        let at_the_end = spread_out(vec![10.0, 88.0, 89.0], 15.0, 90.0);
        assert_eq!(at_the_end, [10.0, 75.0, 90.0]);
        assert!(spread_out(vec![], 15.0, 90.0).is_empty());
    }
}
