//! The answer as a Markdown table.

use std::fmt::Write;

use hashed_wheel_benches::wheel::{BTreeQueue, Wheel};

use crate::measure::{Each, NAMES};
use crate::{BySize, Found};

/// Who is within a tenth of the best is as good.
const AS_GOOD: f64 = 1.1;

pub fn markdown(found: &Found) -> String {
    // The text is in the crate's docs too, where a type's name is to look like code.
    let names = NAMES.map(|name| if name == BTreeQueue::NAME { format!("`{name}`") } else { name.into() });
    let mut table = format!("| | pending | delays in turns | {} |\n", names.join(" | "));
    table += "|---|---|---|--:|--:|--:|--:|\n";
    let mut row = |what: &str, pending: usize, delays: &str, figures: Each| {
        let best = figures.into_iter().fold(f64::MAX, f64::min);
        let cells = figures.map(|figure| {
            let digits = if figure < 9.95 { 1 } else { 0 };
            let mark = if figure <= best * AS_GOOD { "**" } else { "" };
            format!("{mark}{figure:.digits$}{mark}")
        });
        let pending = power_of_ten(pending as f64);
        writeln!(table, "| {what} | {pending} | {delays} | {} |", cells.join(" | "))
            .expect("a string takes all");
    };

    const SHORT: &str = "up to 1";
    const LONG: &str = "up to 2 048";
    let sizes = [&found.by_size[1], &found.by_size[3]];
    for BySize { pending, long, .. } in sizes {
        row("insert, ns", *pending, LONG, long.insert);
    }
    for BySize { pending, long, .. } in sizes {
        row("cancel, ns", *pending, LONG, long.cancel);
    }
    for BySize { pending, long, .. } in sizes {
        row("cancel one and insert another, ns", *pending, LONG, long.replace);
    }
    for BySize { pending, short, long } in sizes {
        row("expire, ns", *pending, SHORT, short.expire);
        row("expire, ns", *pending, LONG, long.expire);
    }
    for (turns, costs) in found.by_delay.iter().filter(|(turns, _)| [1.0, 100.0, 10_000.0].contains(turns)) {
        row("expire, ns", found.pending, &format!("{} on average", power_of_ten(*turns)), costs.expire);
    }
    let BySize { pending, long, .. } = sizes[1];
    row("a tick with nothing due, ns", *pending, LONG, long.still);
    row("memory of an entry, bytes", *pending, LONG, long.bytes);
    row("the same at most, when all are replaced", *pending, LONG, long.peak);
    table
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
