//! Formats the results: a selection as a Markdown table, and all of them as comma-separated values,
//! which can be read again.

use hashed_wheel_benches::BTreeQueue;
use hashed_wheel_benches::wheel::Wheel;

use crate::measure::{Costs, Each, NAMES};
use crate::{BySize, MEAN_DELAYS, Results};

/// The table marks all values up to this multiple of the best one.
const MARKED_RATIO: f64 = 1.1;

const SHORT: &str = "up to 1";
const LONG: &str = "up to 2 048";

struct Row {
    cost: &'static str,
    pending: usize,
    delays: String,
    values: Each,
    /// Whether the Markdown table contains the row. The CSV file contains all rows.
    is_in_table: bool,
}

/// The name of a cost with its unit, and the accessor.
type Cost = (&'static str, fn(&Costs<Each>) -> Each);

const COSTS: [Cost; 8] = [
    ("insert, ns", |costs| costs.insert),
    ("cancel, ns", |costs| costs.cancel),
    ("cancel one and insert another, ns", |costs| costs.replace),
    (EXPIRE, |costs| costs.expire),
    ("longest step of expiry, µs", |costs| costs.longest_step),
    ("tick with nothing due, ns", |costs| costs.empty_tick),
    ("memory per entry, bytes", |costs| costs.bytes),
    (
        "peak memory per entry while all are replaced, bytes",
        |costs| costs.peak,
    ),
];

const EXPIRE: &str = "expire, ns";

fn rows(results: &Results) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, (cost, get)) in COSTS.into_iter().enumerate() {
        for (
            at,
            BySize {
                pending,
                short,
                long,
            },
        ) in results.by_size.iter().enumerate()
        {
            for (delays, costs) in [(SHORT, short), (LONG, long)] {
                // The figure shows the other sizes. The costs after `EXPIRE` are almost equal for
                // all sizes and delays, or grow with both: one row is enough.
                let is_in_table = at == 3 && (index < 4 || delays == LONG);
                let (pending, delays, values) = (*pending, delays.into(), get(costs));
                rows.push(Row {
                    cost,
                    pending,
                    delays,
                    values,
                    is_in_table,
                });
            }
        }
        if cost == EXPIRE {
            rows.extend(results.by_delay.iter().map(|(rounds, costs)| Row {
                cost,
                pending: results.pending,
                delays: on_average(*rounds),
                values: costs.expire,
                is_in_table: [1.0, 100.0, 10_000.0].contains(rounds),
            }));
        }
    }
    rows
}

/// Returns the values for a million entries, and some costs of expiry by delay.
pub fn markdown(results: &Results) -> String {
    // The README contains this text, so the names of types are formatted as code.
    let names = NAMES.map(|name| {
        if name == BTreeQueue::NAME {
            format!("`{name}`")
        } else {
            name.into()
        }
    });
    let mut table = format!("| | pending | delays in rounds | {} |\n", names.join(" | "));
    table += "|---|---|---|--:|--:|--:|--:|\n";
    for Row {
        cost,
        pending,
        delays,
        values,
        ..
    } in rows(results).iter().filter(|row| row.is_in_table)
    {
        let best = values.iter().copied().fold(f64::MAX, f64::min);
        let cells = values.map(|value| {
            let digits = if value < 9.95 { 1 } else { 0 };
            let mark = if value <= best * MARKED_RATIO {
                "**"
            } else {
                ""
            };
            format!("{mark}{value:.digits$}{mark}")
        });
        let pending = power_of_ten(*pending as f64);
        table += &format!(
            "| {cost} | {pending} | {delays} | {} |\n",
            cells.join(" | ")
        );
    }
    table
}

/// Returns all values.
pub fn csv(results: &Results) -> String {
    let mut csv = format!("cost,pending,delays in rounds,{}\n", NAMES.join(","));
    for Row {
        cost,
        pending,
        delays,
        values,
        ..
    } in rows(results)
    {
        let values = values.map(|value| format!("{value:.2}"));
        csv += &format!("\"{cost}\",{pending},{delays},{}\n", values.join(","));
    }
    csv
}

/// A line of the comma-separated values.
struct Line<'a> {
    cost: &'a str,
    pending: usize,
    delays: &'a str,
    values: Each,
}

/// Returns the results of which `csv` made this text. What `csv` leaves out is NaN.
pub fn read(csv: &str) -> Result<Results, &'static str> {
    let lines: Option<Vec<_>> = csv.lines().skip(1).map(line).collect();
    let lines = lines.ok_or("not the output of this program")?;
    let first = |delays| {
        lines
            .iter()
            .filter(move |line| line.cost == COSTS[0].0 && line.delays == delays)
    };
    let by_size = first(SHORT).map(|&Line { pending, .. }| BySize {
        pending,
        short: costs(&lines, pending, SHORT),
        long: costs(&lines, pending, LONG),
    });
    let by_delay = MEAN_DELAYS.into_iter().filter_map(|rounds| {
        let line = lines
            .iter()
            .find(|line| line.delays == on_average(rounds))?;
        Some((
            line.pending,
            (rounds, costs(&lines, line.pending, line.delays)),
        ))
    });
    let (pending, by_delay): (Vec<_>, Vec<_>) = by_delay.unzip();
    let pending = pending.first().copied().ok_or("no costs by delay")?;
    Ok(Results {
        by_size: by_size.collect(),
        pending,
        by_delay,
    })
}

fn line(line: &str) -> Option<Line<'_>> {
    let (cost, rest) = line.strip_prefix('"')?.split_once("\",")?;
    let cells: Vec<_> = rest.split(',').collect();
    let [pending, delays, values @ ..] = &*cells else {
        return None;
    };
    let values: Option<Vec<_>> = values.iter().map(|value| value.parse().ok()).collect();
    Some(Line {
        cost,
        pending: pending.parse().ok()?,
        delays,
        values: values?.try_into().ok()?,
    })
}

fn costs(lines: &[Line<'_>], pending: usize, delays: &str) -> Costs<Each> {
    let [
        insert,
        cancel,
        replace,
        expire,
        longest_step,
        empty_tick,
        bytes,
        peak,
    ] = COSTS.map(|(cost, _)| {
        let has_key =
            |line: &&Line<'_>| (line.cost, line.pending, line.delays) == (cost, pending, delays);
        lines
            .iter()
            .find(has_key)
            .map_or([f64::NAN; 4], |line| line.values)
    });
    Costs {
        insert,
        cancel,
        replace,
        expire,
        longest_step,
        empty_tick,
        bytes,
        peak,
    }
}

fn on_average(rounds: f64) -> String {
    format!("{} on average", power_of_ten(rounds))
}

/// Formats a power of ten between 10³ and 10⁹ with a superscript, and other numbers in full.
pub fn power_of_ten(number: f64) -> String {
    let exponent = number.log10();
    if exponent.fract().abs() > 1e-9 || !(3.0..10.0).contains(&exponent) {
        return number.to_string();
    }
    let digit = "⁰¹²³⁴⁵⁶⁷⁸⁹"
        .chars()
        .nth(exponent as usize)
        .expect("below ten");
    format!("10{digit}")
}
