//! The stored instruction counts, and the comparison of new counts with them.

use std::error::Error;
use std::process::Command;
use std::{array, fmt, fs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions/baseline.txt");

const WRITE_COMMAND: &str = "cargo bench -p hashed-wheel-benches --bench instructions -- --write";

/// The largest difference of a total that counts as unchanged, in per cent.
const TOLERANCE: f64 = 1.0;

const COLUMNS: [&str; 5] = [
    "total",
    "caller",
    "worker",
    "locked/caller",
    "locked/worker",
];

/// Where the columns of locked instructions begin.
const LOCKED: usize = 3;

/// Decimal places of the columns. The first three vary by a hundredth, with the addresses of a
/// process.
const DECIMALS: [usize; COLUMNS.len()] = [1, 1, 1, 2, 2];

/// The instructions of one operation of a path.
pub struct Cost {
    path: String,
    columns: [f64; COLUMNS.len()],
}

impl Cost {
    /// Rounds the numbers as the baseline does.
    pub fn new(path: &str, mut columns: [f64; COLUMNS.len()]) -> Self {
        for (number, decimals) in columns.iter_mut().zip(DECIMALS) {
            let factor = 10_f64.powi(decimals as i32);
            *number = (*number * factor).round() / factor;
        }
        Self {
            path: path.into(),
            columns,
        }
    }

    /// Formats the numbers.
    fn cells(&self) -> [String; COLUMNS.len()] {
        array::from_fn(|index| format!("{:.*}", DECIMALS[index], self.columns[index]))
    }

    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut cost = Self {
            path: words.next()?.into(),
            columns: Default::default(),
        };
        for column in &mut cost.columns {
            *column = words.next()?.parse().ok()?;
        }
        Some(cost)
    }

    /// Returns the change of the total in per cent.
    fn change(&self, before: &Self) -> f64 {
        (self.columns[0] / before.columns[0] - 1.0) * 100.0
    }

    fn has_more_locked(&self, before: &Self) -> bool {
        (LOCKED..COLUMNS.len()).any(|index| self.columns[index] > before.columns[index])
    }
}

/// The costs of the paths, and the compiler and C library that they depend on.
pub struct Counts {
    environment: String,
    paths: Vec<Cost>,
}

impl Counts {
    /// Combines the costs with the environment of this process.
    pub fn now(paths: Vec<Cost>) -> Self {
        // `None` if the C library is not glibc.
        let libc = Command::new("getconf")
            .arg("GNU_LIBC_VERSION")
            .output()
            .ok();
        let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let libc = libc.filter(|version| !version.is_empty());
        let environment = format!(
            "{}, {}",
            env!("COMPILER"),
            libc.as_deref().unwrap_or("no glibc")
        );
        Self { environment, paths }
    }

    pub fn write(&self) -> Result<(), Box<dyn Error>> {
        Ok(fs::write(FILE, self.to_string())?)
    }

    pub fn read() -> Result<Self, Box<dyn Error>> {
        let text = fs::read_to_string(FILE)
            .map_err(|error| format!("{FILE}: {error}; create it with `{WRITE_COMMAND}`"))?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let environment = lines.next().unwrap_or_default().into();
        let paths = lines
            .map(|line| Cost::parse(line).ok_or_else(|| format!("{FILE}: invalid line '{line}'")));
        Ok(Self {
            environment,
            paths: paths.collect::<Result<_, _>>()?,
        })
    }

    /// Prints both versions of each changed number, and returns whether no path got worse.
    pub fn compare(&self, baseline: &Self) -> bool {
        let mut remarks = [
            ("WORSE", Vec::new()),
            ("Better", Vec::new()),
            ("Not in the baseline", Vec::new()),
        ];
        print_line("instructions: before > now", COLUMNS.map(String::from), "%");
        for now in &self.paths {
            let Some(before) = baseline.paths.iter().find(|before| before.path == now.path) else {
                print_line(&now.path, now.cells(), "");
                remarks[2].1.push(&*now.path);
                continue;
            };
            let (change, mut cells) = (now.change(before), now.cells());
            for (cell, old) in cells
                .iter_mut()
                .zip(before.cells())
                .filter(|(cell, old)| *cell != old)
            {
                *cell = format!("{old} > {cell}");
            }
            print_line(&now.path, cells, &format!("{change:.1}"));
            if change > TOLERANCE || now.has_more_locked(before) {
                remarks[0].1.push(&*now.path);
            } else if change < -TOLERANCE || before.has_more_locked(now) {
                remarks[1].1.push(&*now.path);
            }
        }
        if self.environment != baseline.environment {
            let (theirs, ours) = (&baseline.environment, &self.environment);
            println!("\nNOT COMPARABLE. Baseline: {theirs}\n                This run: {ours}");
            println!(
                "Write it again from a commit that is known to be good, then compare: `{WRITE_COMMAND}`"
            );
            return false;
        }
        for (heading, names) in remarks.iter().filter(|(_, names)| !names.is_empty()) {
            println!("\n{heading}: {}", names.join(", "));
        }
        if remarks.iter().any(|(_, names)| !names.is_empty()) {
            println!("\nThe tolerance of a total is {TOLERANCE} %, and of locked instructions 0.");
            println!("Write the baseline again: `{WRITE_COMMAND}`");
        }
        remarks[0].1.is_empty()
    }
}

fn print_line(path: &str, cells: [String; COLUMNS.len()], change: &str) {
    println!(
        "{path:34}{}{change:>7}",
        cells.map(|cell| format!("{cell:>19}")).concat()
    );
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "# Instructions per operation. Written by `{WRITE_COMMAND}` with:"
        )?;
        writeln!(f, "{}", self.environment)?;
        writeln!(
            f,
            "#{:33}{}",
            "",
            COLUMNS.map(|column| format!("{column:>15}")).concat()
        )?;
        self.paths.iter().try_for_each(|cost| {
            writeln!(
                f,
                "{:34}{}",
                cost.path,
                cost.cells().map(|cell| format!("{cell:>15}")).concat()
            )
        })
    }
}
