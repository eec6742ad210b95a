//! Compares this timer with Netty's and with other timers in Rust.
//!
//! `cargo run --release --manifest-path benches/compare/Cargo.toml` takes about 25 minutes.
//! Options:
//!
//! - `-- --quick`: approximate values for the most important competitors, in two or three minutes
//! - `-- --write`: writes tables, figures and all repetitions to docs/ and README.md
//! - `-- --draw`: draws the figures from the repetitions in docs/, without a measurement
//! - `-- --test`: runs each workload once with small parameters and checks the answers
//! - `-- --only W1,W3`, `-- --peers ours,netty`: selects workloads or competitors (`all` selects
//!   all competitors)
//! - `-- --repetitions 9`: more or fewer repetitions; longer workloads get a fraction of them
//!
//! `benches/compare/versions REVISION` compares this tree with another version of the library.
//!
//! Each competitor is a separate process. This process starts it (`--serve NAME`) and sends it one
//! command at a time.

mod allocations;
mod child;
mod command;
mod competitors;
mod figure;
mod machine;
mod measure;
mod options;
mod peers;
mod plan;
mod process;
mod random;
mod record;
mod report;
mod rows;
mod serve;
mod session;
mod summary;
mod task;
mod test;
mod workloads;

use std::error::Error;
use std::{env, fs};

use machine::Environment;
use measure::{Measurements, measure};
use options::{Action, Options};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() -> Result<(), Box<dyn Error>> {
    match Options::parse(env::args().skip(1))? {
        Action::Serve(name) => serve::run(&name),
        Action::Test(options) => test::run(&options.plan(), &options.peers),
        Action::Draw => draw(),
        Action::Measure(options) => compare(&options),
    }
}

fn compare(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut environment = Environment::new(options.command());
    let measurements = measure(&options.plan(), &options.peers, |name| eprintln!("{name}"));
    environment.load_after = machine::load();
    println!("{}", report::full(&measurements, &options.peers, &environment));
    if options.writes {
        write(&measurements, options, &environment)?;
    }
    Ok(())
}

fn write(
    measurements: &Measurements,
    options: &Options,
    environment: &Environment,
) -> Result<(), Box<dyn Error>> {
    let docs = format!("{ROOT}/docs");
    fs::create_dir_all(&docs)?;
    fs::write(format!("{docs}/benchmarks.json"), record::json(measurements, environment))?;
    fs::write(format!("{docs}/benchmarks.md"), report::full(measurements, &options.peers, environment))?;
    draw_all(measurements)?;
    replace(&format!("{ROOT}/README.md"), &report::compact(measurements, &options.peers, environment))
}

fn draw() -> Result<(), Box<dyn Error>> {
    draw_all(&record::read(&fs::read_to_string(format!("{ROOT}/docs/benchmarks.json"))?)?)
}

fn draw_all(measurements: &Measurements) -> Result<(), Box<dyn Error>> {
    for (name, svg) in figure::all(measurements)? {
        fs::write(format!("{ROOT}/docs/{name}"), svg)?;
    }
    Ok(())
}

/// Replaces the text between the markers in the file with `text`.
fn replace(path: &str, text: &str) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- compare: begin -->\n";
    const END: &str = "<!-- compare: end -->\n";

    let old = fs::read_to_string(path)?;
    let outside = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = outside.ok_or_else(|| format!("{path}: no markers for the table"))?;
    fs::write(path, format!("{before}{BEGIN}{text}{END}{after}"))?;
    Ok(())
}
