//! What is kept of a run, and how another one compares with it.

use std::error::Error;
use std::process::Command;
use std::{fmt, fs};

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions/baseline.txt");

const REMAKE: &str = "cargo bench -p hashed-wheel-benches --bench instructions -- --write";

/// In per cent.
const TOLERANCE: f64 = 2.0;

/// Instructions per operation of each path, and what they depend on.
pub struct Counts {
    circumstances: String,
    paths: Vec<(String, f64)>,
}

impl Counts {
    pub fn now(paths: Vec<(String, f64)>) -> Self {
        // `None` where the C library is not GNU's.
        let libc = Command::new("getconf").arg("GNU_LIBC_VERSION").output().ok();
        let libc = libc.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
        let libc = libc.filter(|version| !version.is_empty());
        let circumstances = format!("{}, {}", env!("COMPILER"), libc.as_deref().unwrap_or("no glibc"));
        Self { circumstances, paths }
    }

    pub fn write(&self) -> Result<(), Box<dyn Error>> {
        Ok(fs::write(FILE, self.to_string())?)
    }

    pub fn read() -> Result<Self, Box<dyn Error>> {
        let text =
            fs::read_to_string(FILE).map_err(|error| format!("{FILE}: {error}; made by `{REMAKE}`"))?;
        let mut lines = text.lines().filter(|line| !line.starts_with('#'));
        let circumstances = lines.next().unwrap_or_default().into();
        let path = |line: &str| {
            let (name, count) = line.split_once(' ')?;
            Some((name.into(), count.trim().parse().ok()?))
        };
        let paths = lines.map(|line| path(line).ok_or_else(|| format!("{FILE}: what is '{line}'?")));
        Ok(Self { circumstances, paths: paths.collect::<Result<_, _>>()? })
    }

    /// Says how these differ from the baseline, and whether nothing got worse.
    pub fn compare(&self, baseline: &Self) -> bool {
        let (mut worse, mut better, mut new) = (Vec::new(), Vec::new(), Vec::new());
        println!("{:36}{:>12}{:>12}{:>12}", "instructions", "baseline", "now", "%");
        for (name, now) in &self.paths {
            let Some((_, before)) = baseline.paths.iter().find(|(known, _)| known == name) else {
                println!("{name:36}{:>12}{now:>12.1}", "");
                new.push(&**name);
                continue;
            };
            let change = (now / before - 1.0) * 100.0;
            let remark = if change > TOLERANCE {
                worse.push(&**name);
                "  worse"
            } else if change < -TOLERANCE {
                better.push(&**name);
                "  better"
            } else {
                ""
            };
            println!("{name:36}{before:>12.1}{now:>12.1}{change:>+12.1}{remark}");
        }

        let is_comparable = self.circumstances == baseline.circumstances;
        if !is_comparable {
            let (theirs, ours) = (&baseline.circumstances, &self.circumstances);
            println!("\nNOT COMPARABLE. The baseline: {theirs}\n          What ran now: {ours}");
            println!(
                "Remake the baseline from a commit that is known to be good, then compare again: `{REMAKE}`"
            );
            return false;
        }
        let mut is_the_same = true;
        for (what, names) in [("WORSE", &worse), ("Better", &better), ("Not in the baseline", &new)] {
            if !names.is_empty() {
                println!("\n{what}: {}", names.join(", "));
                is_the_same = false;
            }
        }
        if !is_the_same {
            println!(
                "\nMore than {TOLERANCE} % count. If that is as it should be, remake the baseline: `{REMAKE}`"
            );
        }
        worse.is_empty()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Instructions per operation. Made by `{REMAKE}` with:")?;
        writeln!(f, "{}", self.circumstances)?;
        self.paths.iter().try_for_each(|(name, count)| writeln!(f, "{name:36}{count:>8.1}"))
    }
}
