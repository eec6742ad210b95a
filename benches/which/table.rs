//! Formats the results as a Markdown table.

use crate::Results;
use crate::measure::{Costs, Each, NAMES};

/// The table marks all values up to this multiple of the best one.
const MARKED_RATIO: f64 = 1.1;

/// The name of a cost with its unit, and the accessor.
type Cost = (&'static str, fn(&Costs<Each>) -> Each);

/// The costs that depend on the delays.
const BY_DELAYS: [Cost; 4] = [
    ("insert, ns", |costs| costs.insert),
    ("cancel, ns", |costs| costs.cancel),
    ("cancel one and insert another, ns", |costs| costs.replace),
    EXPIRE,
];

const EXPIRE: Cost = ("expire, ns", |costs| costs.expire);

/// The costs that are almost equal for all delays, or grow with them: one row is enough.
const OTHERS: [Cost; 4] = [
    ("longest step of expiry, µs", |costs| costs.longest_step),
    ("tick with nothing due, ns", |costs| costs.empty_tick),
    ("memory per entry, bytes", |costs| costs.bytes),
    (
        "peak memory per entry while all are replaced, bytes",
        |costs| costs.peak,
    ),
];

pub fn markdown(results: &Results) -> String {
    const SHORT: &str = "up to 1";
    const LONG: &str = "up to 2 048";

    let mut table = format!("| | pending | delays in rounds | {} |\n", NAMES.join(" | "));
    table += "|---|--:|---|--:|--:|--:|--:|\n";
    let mut add = |(name, get): Cost, pending: usize, delays: &str, costs| {
        let values = get(costs);
        let best = values.iter().copied().fold(f64::MAX, f64::min);
        let cells = values.map(|value| {
            let digits = if value < 9.95 { 1 } else { 0 };
            let is_good = value <= best * MARKED_RATIO;
            let mark = if is_good { "**" } else { "" };
            format!("{mark}{value:.digits$}{mark}")
        });
        let cells = cells.join(" | ");
        table += &format!("| {name} | {pending} | {delays} | {cells} |\n");
    };
    for cost in BY_DELAYS {
        add(cost, results.pending, SHORT, &results.short);
        add(cost, results.pending, LONG, &results.long);
    }
    for (rounds, costs) in &results.by_delay {
        let delays = format!("{rounds} on average");
        add(EXPIRE, results.pending_by_delay, &delays, costs);
    }
    for cost in OTHERS {
        add(cost, results.pending, LONG, &results.long);
    }
    table
}
