//! The stored instruction counts, and the comparison of new counts with them.

use std::error::Error;
use std::process::Command;
use std::{fmt, fs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions/baseline.txt");

const WRITE_COMMAND: &str = "cargo bench -p hashed-wheel-benches --bench instructions -- --write";

/// The largest difference that counts as unchanged, in per cent.
const TOLERANCE: f64 = 1.0;

/// Instructions per operation of each path, and the compiler and C library that they depend on.
pub struct Counts {
    environment: String,
    paths: Vec<(String, f64)>,
}

impl Counts {
    /// Combines the counts with the environment of this process.
    pub fn now(paths: Vec<(String, f64)>) -> Self {
        // `None` if the C library is not glibc.
        let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok();
        let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let libc = libc.filter(|version| !version.is_empty());
        let environment = format!("{}, {}", env!("COMPILER"), libc.as_deref().unwrap_or("no glibc"));
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
        let path = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.into(), count.trim().parse().ok()?))
        };
        let paths = lines.map(|line| path(line).ok_or_else(|| format!("{FILE}: invalid line '{line}'")));
        Ok(Self { environment, paths: paths.collect::<Result<_, _>>()? })
    }

    /// Prints the differences from the baseline and returns whether no path got worse.
    pub fn compare(&self, baseline: &Self) -> bool {
        let mut remarks =
            [("WORSE", Vec::new()), ("Better", Vec::new()), ("Not in the baseline", Vec::new())];
        println!("{:36}{:>12}{:>12}{:>12}", "instructions", "baseline", "now", "%");
        for (name, now) in &self.paths {
            let before = baseline.paths.iter().find(|(known, _)| known == name).map(|(_, before)| *before);
            let change = before.map(|before| (now / before - 1.0) * 100.0);
            let cell = |number: Option<f64>| number.map_or(String::new(), |number| format!("{number:.1}"));
            println!("{name:36}{:>12}{now:>12.1}{:>12}", cell(before), cell(change));
            let remark = match change {
                Some(change) if change > TOLERANCE => 0,
                Some(change) if change < -TOLERANCE => 1,
                Some(_) => continue,
                None => 2,
            };
            remarks[remark].1.push(&**name);
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
            println!("\nThe tolerance is {TOLERANCE} %. Write the baseline again: `{WRITE_COMMAND}`");
        }
        remarks[0].1.is_empty()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions per operation. Written by `{WRITE_COMMAND}` with:")?;
        writeln!(f, "{}", self.environment)?;
        self.paths.iter().try_for_each(|(name, count)| writeln!(f, "{name:36}{count:>8.1}"))
    }
}
