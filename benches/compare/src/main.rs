//! How does this timer stand beside Netty's, and beside what Rust has?
//!
//! `cargo run --release --manifest-path benches/compare/Cargo.toml` says it in twenty minutes; behind it:
//!
//! - `-- --quick`: rough figures in two or three minutes, of the most important ones
//! - `-- --write`: puts tables, figures and all the rounds behind them into docs/ and README.md
//! - `-- --test`: asks each question once, of little, and checks the answers
//! - `-- --only W1,W3`, `-- --peers ours,netty`: some workloads, some competitors (`all` are all)
//!
//! Each competitor is a process of its own, which this one starts (`--serve NAME`) and asks in turn.

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

use machine::Circumstances;
use measure::{Measured, measure};
use options::{Asked, Options};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

fn main() -> Result<(), Box<dyn Error>> {
    match Options::parse(env::args().skip(1))? {
        Asked::Serve(name) => serve::run(&name),
        Asked::Test(options) => test::run(&options.plan(), &options.peers),
        Asked::Measure(options) => compare(&options),
    }
}

fn compare(options: &Options) -> Result<(), Box<dyn Error>> {
    let mut circumstances = Circumstances::new(options.command());
    let measured = measure(&options.plan(), &options.peers, |name| eprintln!("{name}"));
    circumstances.load_after = machine::load();
    println!("{}", report::full(&measured, &options.peers, &circumstances));
    if options.writes {
        write(&measured, options, &circumstances)?;
    }
    Ok(())
}

fn write(
    measured: &Measured,
    options: &Options,
    circumstances: &Circumstances,
) -> Result<(), Box<dyn Error>> {
    let docs = format!("{ROOT}/docs");
    fs::create_dir_all(&docs)?;
    fs::write(format!("{docs}/compare.json"), record::json(measured, circumstances))?;
    fs::write(format!("{docs}/compare.md"), report::full(measured, &options.peers, circumstances))?;
    for (name, svg) in figure::all(measured)? {
        fs::write(format!("{docs}/{name}"), svg)?;
    }
    replace(&format!("{ROOT}/README.md"), &report::compact(measured, &options.peers, circumstances))
}

/// Puts `text` between the marks in the file.
fn replace(path: &str, text: &str) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- compare: begin -->\n";
    const END: &str = "<!-- compare: end -->\n";

    let old = fs::read_to_string(path)?;
    let marks = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = marks.ok_or("the marks for the table are not there")?;
    fs::write(path, format!("{before}{BEGIN}{text}{END}{after}"))?;
    Ok(())
}
