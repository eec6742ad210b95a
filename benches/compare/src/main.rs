//! Compares this timer with Netty's and with other timers in Rust.
//!
//! `cargo run --release --manifest-path benches/compare/Cargo.toml` takes about an hour. Options:
//!
//! - `-- --quick`: approximate values in two or three minutes
//! - `-- --write`: writes the page, the figure and all repetitions to docs/, and the table in
//!   README.md
//! - `-- --draw`: writes the same from the repetitions in docs/, without a measurement
//! - `-- --test`: runs each workload once with small parameters and checks the answers
//! - `-- --only W1,W3`, `-- --peers ours,netty`: selects workloads or competitors. With `--write`
//!   it is a part of a measurement: the other workloads and competitors in docs/ stay, if this
//!   source on this machine has measured them. Parts of at most twenty minutes: the first three
//!   with `--peers ours,netty,netty-jar,hierarchical`: `W1,FIRST,W2,W2s,W2b,W9,W3,MIX,W10`;
//!   `W4,W4p,W5,W6,BURST`; `W7,W8,WAKES`; and all with
//!   `--peers tokio-sleep,delay-queue,util-delay-queue,hhwt`
//! - `-- --repetitions 9`: more or fewer repetitions
//!
//! `benches/compare/versions REVISION` compares this tree with another version of the library.
//! `NETTY_JAR` names the class path of another version of Netty, which is measured beside Debian's.
//!
//! Each competitor is a separate process. This process starts it (`--serve NAME`) and sends it one
//! command at a time.

mod child;
mod command;
mod competitors;
mod figure;
mod machine;
mod measure;
mod peers;
mod plan;
mod process;
mod random;
mod record;
mod report;
mod serve;
mod session;
mod summary;
mod task;
mod workloads;

use std::error::Error;
use std::{env, fs, thread};

use machine::Environment;
use measure::{Measurements, measure};
use peers::{PEERS, Peer};
use plan::{FULL, QUICK, TEST, Workload};
use serde_json::Value;
use summary::Summary;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

const COMMAND: &str = "cargo run --release --manifest-path benches/compare/Cargo.toml";

const USAGE: &str = "usage: compare [--quick] [--write] [--draw] [--test] [--repetitions 5] [--only W1,W2] [--peers ours,netty] | --serve NAME";

fn main() -> Result<(), Box<dyn Error>> {
    let all: Vec<_> = env::args().skip(1).collect();
    let mut size = FULL;
    let (mut writes, mut is_test, mut repetitions) = (false, false, None);
    let (mut only, mut names) = (None::<String>, None::<String>);
    let mut words = all.iter();
    while let Some(word) = words.next() {
        let mut next = || words.next().cloned().ok_or_else(|| format!("{word} needs a value; {USAGE}"));
        match &**word {
            "--serve" => return serve::run(&next()?),
            "--draw" => {
                let text = fs::read_to_string(format!("{ROOT}/docs/benchmarks.json"))?;
                let (measurements, environment) = record::read(&text)?;
                return write(&measurements, &environment);
            }
            "--quick" => size = QUICK,
            "--test" => (is_test, size) = (true, TEST),
            "--write" => writes = true,
            "--repetitions" => {
                let number = next()?;
                repetitions = Some(number.parse().map_err(|error| format!("{number}: {error}; {USAGE}"))?);
            }
            "--only" => only = Some(next()?),
            "--peers" => names = Some(next()?),
            _ => return Err(format!("unknown option {word}; {USAGE}").into()),
        }
    }
    size.repetitions = repetitions.unwrap_or(size.repetitions);
    let mut plan = size.plan();
    if let Some(only) = &only {
        plan.retain(|workload| only.split(',').any(|name| workload.name.split(' ').next() == Some(name)));
    }
    // The machine that runs `--test` need not have Java.
    let peers = match &names {
        None => PEERS.iter().filter(|peer| peer.is_available() && !(is_test && peer.is_netty())).collect(),
        Some(names) => choose(names)?,
    };
    if plan.is_empty() {
        return Err(format!("unknown workload; {USAGE}").into());
    }
    if is_test {
        return test(&plan, &peers);
    }
    let mut environment = Environment::of_this_machine(&[COMMAND, "--", &all.join(" ")].join(" "));
    let mut measurements = measure(&plan, &peers, size.warms_up, |name| eprintln!("{name}"));
    environment.end();
    if writes && (only.is_some() || names.is_some()) {
        let text = fs::read_to_string(format!("{ROOT}/docs/benchmarks.json"))?;
        record::add_other_parts(&text, &mut measurements, &mut environment)?;
    }
    println!("{}", report::full(&measurements, &environment));
    if writes {
        fs::write(format!("{ROOT}/docs/benchmarks.json"), record::json(&measurements, &environment))?;
        write(&measurements, &environment)?;
    }
    Ok(())
}

/// Returns the peers with these names, in the order of the tables.
fn choose(names: &str) -> Result<Vec<&'static Peer>, String> {
    let is_chosen = |peer: &&Peer| names.split(',').any(|name| name == peer.name);
    if let Some(name) = names.split(',').find(|name| PEERS.iter().all(|peer| peer.name != *name)) {
        let known = PEERS.each_ref().map(|peer| peer.name).join(",");
        return Err(format!("unknown peer {name}; known peers: {known}"));
    }
    Ok(PEERS.iter().filter(is_chosen).collect())
}

/// Writes the page, the figure and the table of the README.
fn write(measurements: &Measurements, environment: &Environment) -> Result<(), Box<dyn Error>> {
    const BEGIN: &str = "<!-- compare: begin -->\n";
    const END: &str = "<!-- compare: end -->\n";

    fs::write(format!("{ROOT}/docs/benchmarks.md"), report::full(measurements, environment))?;
    let (name, svg) = figure::lateness(measurements)?;
    fs::write(format!("{ROOT}/docs/{name}"), svg)?;
    let path = format!("{ROOT}/README.md");
    let old = fs::read_to_string(&path)?;
    let outside = old.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let (before, after) = outside.ok_or_else(|| format!("{path}: no markers for the table"))?;
    let table = report::compact(measurements, environment);
    Ok(fs::write(path, format!("{before}{BEGIN}{table}{END}{after}"))?)
}

/// `--test`: checks that all children answer all commands, and that each row has a plausible value.
fn test(plan: &[Workload], peers: &[&'static Peer]) -> Result<(), Box<dyn Error>> {
    // All competitors concurrently, because the values do not matter.
    let mut measurements = Measurements::default();
    thread::scope(|scope| {
        let measure_one = |peer| scope.spawn(move || measure(plan, &[peer], false, |_| ()));
        let threads: Vec<_> = peers.iter().copied().map(measure_one).collect();
        for thread in threads {
            let one = thread.join().expect("the thread has not panicked");
            measurements.repetitions.extend(one.repetitions);
            measurements.missing.extend(one.missing);
            measurements.versions.extend(one.versions);
        }
    });
    let summary = Summary { measurements: &measurements };
    let mut errors: Vec<_> = summary.failures().collect();
    for row in plan::rows().filter(|row| plan.iter().any(|workload| workload.name == row.workload)) {
        for peer in peers.iter().filter(|peer| summary.has_answered(row.workload, peer.name)) {
            let value = summary.spread(row.workload, row.key_of(peer.name), peer.name);
            // The lateness may be negative: some timers fire slightly early.
            if !value.is_some_and(|value| (-20.0..1e8).contains(&value.median)) {
                errors.push(format!("{}: {}: {value:?}", peer.name, row.title));
            }
        }
    }
    for peer in ["ours", "hierarchical"] {
        if summary.spread("W8", "wakeups", peer).is_some_and(|wake_ups| wake_ups.max > 0.0) {
            errors.push(format!("{peer} wakes up with nothing pending"));
        }
    }
    let environment = Environment::of_this_machine("test");
    report::full(&measurements, &environment);
    report::compact(&measurements, &environment);
    serde_json::from_str::<Value>(&record::json(&measurements, &environment))?;
    figure::lateness(&measurements)?;
    println!("{} answers of {} competitors", measurements.repetitions.len(), peers.len());
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n").into()) }
}
