//! The answer as a Markdown table, and all of it as comma-separated values.

use hashed_wheel_benches::wheel::{BTreeQueue, Wheel};

use crate::measure::{Costs, Each, NAMES};
use crate::{BySize, Found};

/// Who is within a tenth of the best is as good.
const AS_GOOD: f64 = 1.1;

const SHORT: &str = "up to 1";
const LONG: &str = "up to 2 048";

struct Row {
    what: &'static str,
    pending: usize,
    delays: String,
    figures: Each,
    /// Whether the table has it too, which is to be short.
    is_in_table: bool,
}

type What = (&'static str, fn(&Costs<Each>) -> Each);

const WHAT: [What; 8] = [
    ("insert, ns", |costs| costs.insert),
    ("cancel, ns", |costs| costs.cancel),
    ("cancel one and insert another, ns", |costs| costs.replace),
    (EXPIRE, |costs| costs.expire),
    ("the longest step of expiry, µs", |costs| costs.longest),
    ("a tick with nothing due, ns", |costs| costs.still),
    ("memory of an entry, bytes", |costs| costs.bytes),
    ("the same at most, when all are replaced", |costs| costs.peak),
];

const EXPIRE: &str = "expire, ns";

fn rows(found: &Found) -> Vec<Row> {
    let mut rows = Vec::new();
    for (index, (what, of)) in WHAT.into_iter().enumerate() {
        for (at, BySize { pending, short, long }) in found.by_size.iter().enumerate() {
            for (delays, costs) in [(SHORT, short), (LONG, long)] {
                // Those behind expiry are much the same for all numbers and delays, or grow with both.
                let is_in_table = if index < 4 { at == 1 || at == 3 } else { at == 3 && delays == LONG };
                let (pending, delays, figures) = (*pending, delays.into(), of(costs));
                rows.push(Row { what, pending, delays, figures, is_in_table });
            }
        }
        if what == EXPIRE {
            rows.extend(found.by_delay.iter().map(|(turns, costs)| Row {
                what,
                pending: found.pending,
                delays: format!("{} on average", power_of_ten(*turns)),
                figures: costs.expire,
                is_in_table: [1.0, 100.0, 10_000.0].contains(turns),
            }));
        }
    }
    rows
}

/// The figures for ten thousand and for a million entries, and of expiry some by delay.
pub fn markdown(found: &Found) -> String {
    // The text is in the crate's docs too, where a type's name is to look like code.
    let names = NAMES.map(|name| if name == BTreeQueue::NAME { format!("`{name}`") } else { name.into() });
    let mut table = format!("| | pending | delays in turns | {} |\n", names.join(" | "));
    table += "|---|---|---|--:|--:|--:|--:|\n";
    for Row { what, pending, delays, figures, .. } in rows(found).iter().filter(|row| row.is_in_table) {
        let best = figures.iter().copied().fold(f64::MAX, f64::min);
        let cells = figures.map(|figure| {
            let digits = if figure < 9.95 { 1 } else { 0 };
            let mark = if figure <= best * AS_GOOD { "**" } else { "" };
            format!("{mark}{figure:.digits$}{mark}")
        });
        let pending = power_of_ten(*pending as f64);
        table += &format!("| {what} | {pending} | {delays} | {} |\n", cells.join(" | "));
    }
    table
}

/// All figures.
pub fn csv(found: &Found) -> String {
    let mut csv = format!("what,pending,delays in turns,{}\n", NAMES.join(","));
    for Row { what, pending, delays, figures, .. } in rows(found) {
        let figures = figures.map(|figure| format!("{figure:.2}"));
        csv += &format!("\"{what}\",{pending},{delays},{}\n", figures.join(","));
    }
    csv
}

/// 10⁶, say; a number that is no power of ten as it is.
pub fn power_of_ten(number: f64) -> String {
    let exponent = number.log10();
    if exponent.fract().abs() > 1e-9 || !(3.0..10.0).contains(&exponent) {
        return number.to_string();
    }
    let digit = "⁰¹²³⁴⁵⁶⁷⁸⁹".chars().nth(exponent as usize).expect("below ten");
    format!("10{digit}")
}
