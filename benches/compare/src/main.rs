//! Compares this timer with Netty's and with other timers in Rust.
//!
//! `cargo run --release --manifest-path benches/compare/Cargo.toml` takes about an hour. Options:
//!
//! - `-- --quick`: approximate values in two or three minutes
//! - `-- --write`: writes all repetitions to docs/benchmarks.json, and from them the page, the
//!   figures and the table in README.md
//! - `-- --render`: writes the same from docs/benchmarks.json, without a measurement
//! - `-- --test`: runs each workload once with small parameters and checks the answers
//! - `-- --threads`: the rows by number of threads: 1, 2, 4 and so on, up to the cores
//! - `-- --limit 600`: ends after these seconds, with what it has
//! - `-- --output FILE`: writes all repetitions to a file, which can replace docs/benchmarks.json
//! - `-- --only random-cancel,rearm`, `-- --peers ours,netty`: selects workloads or competitors.
//!   With `--write` it is a part of a measurement: the other workloads and competitors in docs/
//!   stay, if this source on this machine has measured them
//! - `-- --repetitions 9`: more or fewer repetitions
//!
//! With `RUSTFLAGS="--cfg tokio_unstable"`, tokio's alternative timer is measured too: no manifest
//! can set that flag. Go's timers need its toolchain (1.18).
//!
//! `benches/compare/versions REVISION` compares this tree with another version of the library.
//! `NETTY_JAR` names the class path of another version of Netty than Debian's.
//! `benches/compare/bundle DIR` makes a folder that runs on a machine without Rust and Java.
//!
//! Each competitor is a separate process. This process starts it (`--serve NAME`) and sends it one
//! command at a time.

mod child;
mod command;
mod competitors;
mod figure;
mod machine;
mod measure;
mod pages;
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
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use command::Answer;
use machine::Environment;
use measure::{Measurements, measure};
use peers::{PEERS, Peer};
use plan::{FULL, QUICK, ROWS, TEST, Workload};
use serde_json::Value;
use summary::Summary;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// How this program is started.
const COMMAND: &str = if cfg!(tokio_unstable) {
    "RUSTFLAGS='--cfg tokio_unstable' cargo run --release --manifest-path benches/compare/Cargo.toml"
} else {
    "cargo run --release --manifest-path benches/compare/Cargo.toml"
};

const USAGE: &str = "usage: compare [--quick] [--write] [--render] [--test] [--repetitions 5] [--only schedule,rearm] [--peers ours,netty] [--threads] [--limit 600] [--output FILE] | --serve NAME";

fn main() -> Result<(), Box<dyn Error>> {
    let all: Vec<_> = env::args().skip(1).collect();
    let mut size = FULL;
    let (mut writes, mut is_test, mut is_threads, mut repetitions) = (false, false, false, None);
    let (mut only, mut names, mut output) = (None::<String>, None::<String>, None);
    let mut limit = Duration::from_secs(24 * 3_600);
    let begin = Instant::now();
    let mut words = all.iter();
    while let Some(word) = words.next() {
        let mut next = || {
            words
                .next()
                .cloned()
                .ok_or_else(|| format!("{word} needs a value; {USAGE}"))
        };
        match &**word {
            "--serve" => return serve::run(&next()?),
            "--render" => {
                let text = fs::read_to_string(format!("{ROOT}/docs/benchmarks.json"))?;
                let (measurements, environment) = record::read(&text)?;
                return pages::write(&measurements, &environment);
            }
            "--quick" => size = QUICK,
            "--test" => (is_test, size) = (true, TEST),
            "--write" => writes = true,
            "--repetitions" => repetitions = Some(parse(&next()?)? as usize),
            "--threads" => is_threads = true,
            "--limit" => limit = Duration::from_secs(parse(&next()?)?),
            "--output" => output = Some(next()?),
            "--only" => only = Some(next()?),
            "--peers" => names = Some(next()?),
            _ => return Err(format!("unknown option {word}; {USAGE}").into()),
        }
    }
    size.repetitions = repetitions.unwrap_or(size.repetitions);
    let mut plan = if is_threads {
        size.threads_plan()
    } else {
        size.plan()
    };
    if let Some(only) = &only {
        plan.retain(|workload| {
            only.split(',')
                .any(|name| workload.name.split(' ').next() == Some(name))
        });
    }
    let peers = match &names {
        None => available(is_test),
        Some(names) => choose(names)?,
    };
    if plan.is_empty() {
        return Err(format!("unknown workload; {USAGE}").into());
    }
    if is_test {
        return test(&plan, &peers);
    }
    let mut options = all.clone();
    if writes {
        // The parts of a measurement are, together, the whole.
        for (part, words) in [("--only", 2), ("--peers", 2), ("--threads", 1)] {
            while let Some(index) = options.iter().position(|option| option == part) {
                options.drain(index..index + words);
            }
        }
    }
    let mut environment =
        Environment::of_this_machine(&[COMMAND, "--", &options.join(" ")].join(" "));
    let mut measurements = measure(&plan, &peers, size.warms_up, begin + limit, |name| {
        eprintln!("{name}");
    });
    environment.end();
    if writes && (is_threads || only.is_some() || names.is_some()) {
        let text = fs::read_to_string(format!("{ROOT}/docs/benchmarks.json"))?;
        record::add_other_parts(&text, &mut measurements, &mut environment)?;
    }
    if !is_threads {
        println!("{}", report::terminal(&measurements));
    }
    println!(
        "{}",
        report::threads(&Summary {
            measurements: &measurements
        })
    );
    if let Some(file) = output {
        fs::write(file, record::json(&measurements, &environment))?;
    }
    if writes {
        let json = record::json(&measurements, &environment);
        fs::write(format!("{ROOT}/docs/benchmarks.json"), &json)?;
        // From the text, as `--render` does: reading may change the last digit of a number.
        let (measurements, environment) = record::read(&json)?;
        pages::write(&measurements, &environment)?;
    }
    Ok(())
}

fn parse(number: &str) -> Result<u64, String> {
    let parsed = number.parse();
    parsed.map_err(|error| format!("{number}: {error}; {USAGE}"))
}

/// Returns the peers that this machine can measure. One that runs `--test` need not have Java.
fn available(is_test: bool) -> Vec<&'static Peer> {
    let is_available = |peer: &&Peer| match peer.skipped() {
        Some(why) => {
            eprintln!("{}: skipped: {why}", peer.name);
            false
        }
        None => !(is_test && peer.is_netty()),
    };
    PEERS.iter().filter(is_available).collect()
}

/// Returns the peers with these names, in the order of the tables.
fn choose(names: &str) -> Result<Vec<&'static Peer>, String> {
    let is_chosen = |peer: &&Peer| names.split(',').any(|name| name == peer.name);
    if let Some(name) = names
        .split(',')
        .find(|name| PEERS.iter().all(|peer| peer.name != *name))
    {
        let known = PEERS.each_ref().map(|peer| peer.name).join(",");
        return Err(format!("unknown peer {name}; known peers: {known}"));
    }
    Ok(PEERS.iter().filter(is_chosen).collect())
}

/// `--test`: checks that all children answer all commands, and that each row has a plausible value.
fn test(plan: &[Workload], peers: &[&'static Peer]) -> Result<(), Box<dyn Error>> {
    let limit = Instant::now() + Duration::from_secs(600);
    // All competitors concurrently, because the values do not matter.
    let mut measurements = Measurements::default();
    thread::scope(|scope| {
        let measure_one = |peer| scope.spawn(move || measure(plan, &[peer], false, limit, |_| ()));
        let threads: Vec<_> = peers.iter().copied().map(measure_one).collect();
        for thread in threads {
            let one = thread.join().expect("the thread has not panicked");
            measurements.repetitions.extend(one.repetitions);
            measurements.missing.extend(one.missing);
            measurements.versions.extend(one.versions);
        }
    });
    let summary = Summary {
        measurements: &measurements,
    };
    let mut errors: Vec<_> = summary.failures().collect();
    for repetition in &measurements.repetitions {
        let Answer::Figures(figures) = &repetition.answer else {
            continue;
        };
        // The lateness may be negative: some timers fire slightly early.
        let is_plausible = |value: &Value| {
            value
                .as_f64()
                .is_none_or(|value| (-20.0..1e8).contains(&value))
        };
        for (key, value) in figures.iter().filter(|(_, value)| !is_plausible(value)) {
            errors.push(format!(
                "{}, {}: {key} is {value}",
                repetition.peer, repetition.command
            ));
        }
    }
    for row in ROWS
        .iter()
        .filter(|row| plan.iter().any(|workload| workload.name == row.workload))
    {
        for peer in peers
            .iter()
            .filter(|peer| summary.has_answered(&row.workload, peer.name))
        {
            if summary
                .spread(&row.workload, row.key_of(peer.name), peer.name)
                .is_none()
            {
                errors.push(format!("{}: no value for {}", peer.name, row.title));
            }
        }
    }
    for peer in ["ours", "hierarchical"] {
        if summary
            .spread("idle", "wakeups", peer)
            .is_some_and(|wake_ups| wake_ups.max > 0.0)
        {
            errors.push(format!("{peer} wakes up with nothing pending"));
        }
    }
    let environment = Environment::of_this_machine("test");
    report::terminal(&measurements);
    let (read, environment) = record::read(&record::json(&measurements, &environment))?;
    pages::render(&read, &environment)?;
    println!(
        "{} answers of {} competitors",
        measurements.repetitions.len(),
        peers.len()
    );
    if errors.is_empty() {
        Ok(())
    } else {
        Err(errors.join("\n").into())
    }
}
