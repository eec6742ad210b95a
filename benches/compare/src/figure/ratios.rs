//! This crate beside Netty: a point per row of the page.

use super::svg::{Anchor, Chart, LINE, Svg, WIDTH};
use crate::peers::{NETTY, OURS};
use crate::plan::{ROWS, Row};
use crate::report::{self, short};
use crate::summary::{Spread, Summary};

pub(super) fn draw(summary: &Summary<'_>) -> String {
    const TITLE: &str = "hashed-wheel beside Netty";
    const NOTE: &str = "The cost as a multiple of Netty's: the median, and the range of all repetitions. Below 1, hashed-wheel is better.";
    const TOP: f64 = 90.0;
    const ROW: f64 = 27.0;

    let rows = ROWS.into_iter().chain(report::thread_rows(summary));
    let with_ratio = |row| Some((report::ratio(summary, &row, OURS, NETTY)?, row));
    let all: Vec<(Spread, Row)> = rows.filter_map(with_ratio).collect();
    // An end of the axis for each side, at a power of two. Zero against something is beyond it.
    let finite = || {
        all.iter()
            .flat_map(|(ratio, _)| [ratio.min, ratio.max])
            .filter(|end| end.is_normal())
    };
    let first = finite().fold(0.5, f64::min).log2().floor();
    let last = finite().fold(2.0, f64::max).log2().ceil();
    let height = TOP + ROW * all.len() as f64 + LINE + 12.0;
    let chart = Chart {
        left: 330.0,
        top: TOP,
        width: WIDTH - 330.0 - 110.0,
        height: ROW * all.len() as f64,
    };
    let x = |ratio: f64| ((ratio.log2() - first) / (last - first)).clamp(0.0, 1.0);

    let mut svg = Svg::new(TITLE, height);
    svg.text((16.0, 26.0), Anchor::Start, "title", TITLE);
    svg.text((16.0, 48.0), Anchor::Start, "note", NOTE);
    let powers = (first as i32..=last as i32).map(|exponent| {
        let name = if exponent < 0 {
            format!("1/{}", 1 << -exponent)
        } else {
            (1 << exponent).to_string()
        };
        (x(f64::from(exponent).exp2()), name)
    });
    chart.grid(&mut svg, &powers.collect::<Vec<_>>(), &[]);
    let one = chart.at(x(1.0), 1.0);
    svg.path(&[one, chart.at(x(1.0), 0.0)], "axis");
    svg.text(
        (one.0 - 10.0, TOP - 10.0),
        Anchor::End,
        "s0",
        "← hashed-wheel is better",
    );
    svg.text(
        (one.0 + 10.0, TOP - 10.0),
        Anchor::Start,
        "s2",
        "Netty is better →",
    );
    for (index, (ratio, row)) in all.iter().enumerate() {
        let y = 1.0 - (index as f64 + 0.5) / all.len() as f64;
        let (_, line) = chart.at(0.0, y);
        let class = if ratio.median < 1.0 { "s0" } else { "s2" };
        svg.text((chart.left - 12.0, line + 4.0), Anchor::End, "", &row.title);
        svg.path(
            &[chart.at(x(ratio.min), y), chart.at(x(ratio.max), y)],
            &format!("line {class}"),
        );
        svg.dot(chart.at(x(ratio.median), y), class);
        let value = if ratio.median > 0.0 {
            format!("{} ×", short(ratio.median))
        } else {
            let value = |peer| summary.spread(&row.workload, row.key_of(peer), peer);
            let values = value(OURS).zip(value(NETTY));
            values.map_or(String::new(), |(a, b)| {
                format!("{} against {}", short(a.median), short(b.median))
            })
        };
        svg.text(
            (chart.left + chart.width + 12.0, line + 4.0),
            Anchor::Start,
            class,
            &value,
        );
    }
    svg.end()
}
