//! Mutation testing in one build.
//!
//!     cargo run --release --manifest-path tests/mutants/Cargo.toml -- [OPTIONS] [TEXT...]
//!
//! `cargo mutants` builds the tests once per mutant: a few thousand builds of all test programs,
//! which take days. This program takes the list of mutants from `cargo mutants --list`, and builds
//! all of them at once: beside each expression that a mutant replaces it puts the replacement,
//! behind a switch that an environment variable sets. Then
//!
//! 1. it runs each test once, and records which mutants the test reaches, and how long it takes;
//! 2. it runs, for each mutant, the tests that reach it, short ones first, until one of them fails;
//! 3. it runs each mutant again whose outcome `survivors.txt` does not permit, now one at a time,
//!    because tests that run beside those of another mutant may be too slow. Now tests have so much
//!    time that those with a limit of their own fail instead of hanging.
//!
//! A mutant *survives* if no test fails among those that take S seconds together (default 20; 4 S
//! in step 3). It is a *hang* if no test fails, but some do not end in many times their usual time;
//! after six groups of tests with such a test, no others run. Whether a mutant is killed or hangs
//! depends on which tests run first, so a hang counts as killed, if it hangs in step 3 too. A
//! process that ends without a result, also for lack of memory, counts as a test that fails.
//! `survivors.txt` lists the survivors that are known, each with the reason, and hangs, which get
//! less time and do not run again. The program fails if there is another survivor.
//!
//! TEXT: only the mutants whose names contain one of these texts, such as `src/engine/`.
//! `--part K/N`: only each N-th mutant. `--seconds S`: see above. `--test NAME`, any number of
//! times: only these tests, such as `it`; `lib` is the unit tests.
//!
//! Not covered: code in a `const fn` or a constant, which cannot read a switch; functions that
//! return `impl Trait`, whose replacement has another type. The program prints their number.
//! Mutants of code for other platforms or features are among those that no test reaches.

mod build;
mod coverage;
mod instrument;
mod known;
mod list;
mod tests;

use known::Known;
use list::Mutant;
use std::{collections::BTreeMap, env, path::Path, process::ExitCode};

/// The outcome of a mutant.
#[derive(Debug, PartialEq)]
enum Outcome {
    /// This test fails.
    Killed(String),
    /// This test does not end.
    Hang(String),
    Survived,
    /// No test reaches it.
    Unreached,
}

struct Options {
    part: (usize, usize),
    seconds: f64,
    tests: Vec<String>,
    texts: Vec<String>,
}

impl Options {
    fn parse() -> Result<Self, String> {
        let mut options = Self {
            part: (1, 1),
            seconds: 20.0,
            tests: Vec::new(),
            texts: Vec::new(),
        };
        let mut arguments = env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            match argument.as_str() {
                "--part" => options.part = parse_part(&value()?)?,
                "--seconds" => {
                    let seconds = value()?;
                    options.seconds = seconds
                        .parse()
                        .map_err(|_| format!("--seconds: {seconds} is not a number"))?;
                }
                "--test" => options.tests.push(value()?),
                _ if argument.starts_with('-') => {
                    return Err(format!(
                        "unknown option {argument}; known: --part, --seconds, --test"
                    ));
                }
                _ => options.texts.push(argument),
            }
        }
        Ok(options)
    }

    fn selects(&self, mutant: &Mutant) -> bool {
        let (part, parts) = self.part;
        let is_in_part = mutant.id as usize % parts == part - 1;
        is_in_part
            && (self.texts.is_empty() || self.texts.iter().any(|text| mutant.name.contains(text)))
    }
}

/// Parses "K/N".
fn parse_part(part: &str) -> Result<(usize, usize), String> {
    part.split_once('/')
        .and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)))
        .filter(|(k, n)| (1..=*n).contains(k))
        .ok_or(format!(
            "--part: {part} is not of the form K/N with K from 1 to N"
        ))
}

fn main() -> ExitCode {
    let options = match Options::parse() {
        Ok(options) => options,
        Err(error) => {
            eprintln!("mutants: {error}");
            return ExitCode::from(2);
        }
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository");
    let mutants = list::of(&root);
    let build = build::build(&root, &mutants, &options.tests);
    println!(
        "{} mutants: {} do not compile, {} cannot be switched; the names are in {}",
        mutants.len(),
        build.unviable.len(),
        build.unswitched.len(),
        build.write_left_out(&mutants).display()
    );
    let tests = coverage::measure(&build);
    let selected: Vec<&Mutant> = mutants
        .iter()
        .filter(|mutant| build.has(mutant.id) && options.selects(mutant))
        .collect();
    println!("{} mutants are tested", selected.len());
    let known = Known::read(&root);
    let outcomes = tests::run_all(&build, &tests, &known, &selected, options.seconds);
    report(&selected, &outcomes);
    if known.check(&mutants, &selected, &outcomes) {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Prints how many mutants were killed in each part of the source. Hangs count.
fn report(selected: &[&Mutant], outcomes: &[Outcome]) {
    let mut parts: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
    for (mutant, outcome) in selected.iter().zip(outcomes) {
        let column = match outcome {
            Outcome::Killed(_) => 0,
            Outcome::Hang(_) => 1,
            Outcome::Survived | Outcome::Unreached => 2,
        };
        parts.entry(mutant.part()).or_default()[column] += 1;
    }
    println!(
        "{:<24} {:>7} {:>7} {:>7} {:>9} {:>8}",
        "part", "mutants", "killed", "hangs", "survived", "killed %"
    );
    for (part, [killed, hangs, survived]) in parts {
        let all = killed + hangs + survived;
        println!(
            "{part:<24} {all:>7} {killed:>7} {hangs:>7} {survived:>9} {:>8.1}",
            100.0 * (killed + hangs) as f64 / all as f64
        );
    }
}
