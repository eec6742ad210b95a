//! Draws a selection of the results as an SVG figure.

#[path = "../compare/src/figure/svg.rs"]
mod svg;

use svg::{Anchor, Chart, LINE, Svg, WIDTH};

use crate::measure::{Each, NAMES};
use crate::table::power_of_ten;
use crate::{BySize, Results};

const HEIGHT: f64 = 800.0;

/// The height of the title above the panels.
const TOP: f64 = 56.0;

const COLUMNS: usize = 2;
const ROWS: usize = 3;

/// The numbers of the colours, in the order of `NAMES`.
const COLOURS: [usize; 4] = [0, 2, 6, 5];

/// One small chart with one line per competitor. Both scales are logarithmic.
struct Panel {
    title: String,
    x: &'static str,
    unit: &'static str,
    /// The values of all competitors at each x.
    points: Vec<(f64, Each)>,
}

pub fn svg(results: &Results) -> String {
    const TITLE: &str = "Two wheels, a heap and a BTreeMap";
    const NOTE: &str =
        "Lower is better. Delays are up to 2 048 rounds of the wheel, of 512 ticks each.";

    let by_size = |title: &str, unit, cost: fn(&BySize) -> Each| Panel {
        title: title.into(),
        x: "pending entries",
        unit,
        points: results
            .by_size
            .iter()
            .map(|by_size| (by_size.pending as f64, cost(by_size)))
            .collect(),
    };
    let panels = [
        by_size("insert", "ns", |results| results.long.insert),
        by_size("cancel", "ns", |results| results.long.cancel),
        by_size("expire", "ns", |results| results.long.expire),
        Panel {
            title: format!("expire, {} pending", power_of_ten(results.pending as f64)),
            x: "mean delay in rounds",
            unit: "ns",
            points: results
                .by_delay
                .iter()
                .map(|(rounds, costs)| (*rounds, costs.expire))
                .collect(),
        },
        by_size("longest step of expiry", "µs", |results| {
            results.long.longest_step
        }),
        by_size("memory per entry", "bytes", |results| results.long.bytes),
    ];

    let mut svg = Svg::new(TITLE, HEIGHT);
    svg.text((16.0, 26.0), Anchor::Start, "title", TITLE);
    svg.text((16.0, 46.0), Anchor::Start, "note", NOTE);
    let (width, height) = (WIDTH / COLUMNS as f64, (HEIGHT - TOP) / ROWS as f64);
    for (index, panel) in panels.iter().enumerate() {
        let at = (
            width * (index % COLUMNS) as f64,
            TOP + height * (index / COLUMNS) as f64,
        );
        // All panels with the same unit have the same scale, so that they can be compared.
        let same = panels
            .iter()
            .filter(|other| other.unit == panel.unit)
            .flat_map(|panel| &panel.points);
        draw(
            &mut svg,
            panel,
            at,
            (width, height),
            &powers(same.flat_map(|(_, each)| *each)),
        );
    }
    svg.end()
}

/// Returns the exponents of the powers of ten that enclose all values.
fn powers(values: impl Iterator<Item = f64>) -> [f64; 2] {
    let (min, max) = values
        .filter(|value| *value > 0.0)
        .fold((f64::MAX, 0.0_f64), |(min, max), value| {
            (min.min(value), max.max(value))
        });
    [min.log10().floor(), max.log10().ceil()]
}

fn draw(
    svg: &mut Svg,
    panel: &Panel,
    (left, top): (f64, f64),
    (width, height): (f64, f64),
    y: &[f64; 2],
) {
    /// The room for the title and for the numbers around the chart, and right of it for the names.
    const BEFORE: f64 = 54.0;
    const NAME: f64 = 106.0;

    let title = format!("{}, {}", panel.title, panel.unit);
    svg.text((left + BEFORE, top + LINE), Anchor::Start, "title", &title);
    let chart = Chart {
        left: left + BEFORE,
        top: top + 30.0,
        width: width - BEFORE - NAME,
        height: height - 30.0 - 3.0 * LINE,
    };
    let (first, last) = (
        panel.points[0].0.log10(),
        panel.points[panel.points.len() - 1].0.log10(),
    );
    let fraction =
        |value: f64, [first, last]: [f64; 2]| ((value.log10() - first) / (last - first)).max(0.0);
    // The powers of ten on a scale, with their names.
    let ticks = |[first, last]: [f64; 2]| -> Vec<_> {
        let powers =
            (first.ceil() as i32..=last.floor() as i32).map(|exponent| 10_f64.powi(exponent));
        powers
            .map(|power| (fraction(power, [first, last]), power_of_ten(power)))
            .collect()
    };
    chart.grid(svg, &ticks([first, last]), &ticks(*y));
    svg.text(
        (chart.left + chart.width / 2.0, top + height - LINE),
        Anchor::Middle,
        "note",
        panel.x,
    );
    let series = NAMES
        .iter()
        .zip(COLOURS)
        .enumerate()
        .map(|(index, (name, colour))| {
            let points = panel
                .points
                .iter()
                .map(|(x, each)| (fraction(*x, [first, last]), fraction(each[index], *y)));
            ((*name).to_owned(), colour, points.collect())
        });
    chart.lines(svg, &series.collect::<Vec<_>>());
}
