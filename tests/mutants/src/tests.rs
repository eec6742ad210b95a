//! Runs the tests that reach a mutant, until one fails.

use crate::{
    Outcome,
    build::Build,
    coverage::{self, Coverage, Test},
    known::Known,
    list::Mutant,
};
use mutants::in_parallel;
use std::{collections::HashMap, os::unix::process::CommandExt, sync::Mutex, time::Duration};

/// How often each test has killed a mutant of each file. It is likely to kill the next one too.
type Kills = Mutex<HashMap<(String, String), usize>>;

/// When the tests of a mutant end although none has failed.
#[derive(Clone, Copy)]
struct Limits {
    /// Tests that take so long together have passed.
    budget: Duration,
    /// So many groups hang. Another test may fail, which says more than one that hangs; but each
    /// one that hangs takes long.
    hangs: usize,
    /// A group hangs if it takes so much longer than usual.
    patience: Duration,
}

/// The limits of the first pass, without the budget.
const HANGS: usize = 6;
const PATIENCE: Duration = Duration::from_secs(15);

/// Mutants that `survivors.txt` lists would take most of the time: none of their tests fails. They
/// get so much less of it.
const LISTED: u32 = 4;

/// Longer than the limit of the tests themselves, 30 s, which tells a failure from a hang.
const PATIENCE_ALONE: Duration = Duration::from_secs(45);

pub fn run_all(
    build: &Build,
    coverage: &Coverage,
    known: &Known,
    mutants: &[&Mutant],
    seconds: f64,
) -> Vec<Outcome> {
    let kills = Kills::default();
    let budget = Duration::from_secs_f64(seconds);
    let mut outcomes = in_parallel(mutants.len(), coverage::threads(), |index| {
        let mutant = mutants[index];
        let mut limits = Limits {
            budget,
            hangs: HANGS,
            patience: PATIENCE,
        };
        if known.is_hang(mutant) {
            limits.hangs = 1;
            limits.patience /= LISTED;
        } else if known.has(mutant) {
            limits.budget /= LISTED;
        }
        let outcome = run(build, coverage, mutant, limits, &kills);
        println!("{} {outcome:?}", mutant.name);
        outcome
    });
    // A test that kills a mutant may have been beyond the budget, or too slow beside others.
    let limits = Limits {
        budget: 4 * budget,
        hangs: 1,
        patience: PATIENCE_ALONE,
    };
    for (mutant, outcome) in mutants.iter().zip(&mut outcomes) {
        if *outcome != Outcome::Unreached && !known.expects(mutant, outcome) {
            *outcome = run(build, coverage, mutant, limits, &kills);
            println!("again, alone: {} {outcome:?}", mutant.name);
        }
    }
    outcomes
}

fn run(
    build: &Build,
    coverage: &Coverage,
    mutant: &Mutant,
    limits: Limits,
    kills: &Kills,
) -> Outcome {
    let Some(tests) = coverage.by_mutant.get(&mutant.id) else {
        return Outcome::Unreached;
    };
    // The unit tests of the file are first.
    let file = mutant
        .file
        .trim_start_matches("src/")
        .trim_end_matches(".rs")
        .trim_end_matches("/mod");
    let unit_tests = file.replace('/', "::") + "::tests::";
    let mut tests: Vec<&Test> = tests.iter().map(|test| &coverage.tests[*test]).collect();
    {
        let kills = kills.lock().expect("no panic");
        let kills_of = |test: &Test| {
            kills
                .get(&(mutant.file.clone(), test.name.clone()))
                .copied()
                .unwrap_or(0)
        };
        // Half a second: a test that kills often, and takes long, is not the first choice.
        tests.sort_by_key(|test| {
            let is_of_file = test.name.starts_with(&unit_tests);
            (
                !is_of_file,
                test.time.as_millis() / 500,
                usize::MAX - kills_of(test),
                test.time,
            )
        });
    }
    let mut hangs = Vec::new();
    for mut group in groups(&tests, limits.budget) {
        while !group.is_empty() {
            let (failed, ended) = match run_group(build, mutant.id, &group, limits.patience) {
                Ended::Failed(name) => {
                    let ended = run_again(build, mutant.id, &group, &name, limits.patience);
                    (Some(name), ended)
                }
                ended => (None, ended),
            };
            match ended {
                Ended::Failed(name) => {
                    *kills
                        .lock()
                        .expect("no panic")
                        .entry((mutant.file.clone(), name.clone()))
                        .or_insert(0) += 1;
                    return Outcome::Killed(name);
                }
                Ended::Hung(name) => {
                    hangs.push(name);
                    if hangs.len() == limits.hangs {
                        return Outcome::Hang(hangs.swap_remove(0));
                    }
                }
                Ended::Passed => {}
            }
            match failed {
                // The others again: the process was killed when this one failed.
                Some(name) => remove(&mut group, &name),
                None => break,
            }
        }
    }
    hangs
        .into_iter()
        .next()
        .map_or(Outcome::Survived, Outcome::Hang)
}

/// Divides tests within a budget of time into groups that run in one process each: small ones
/// first, because most mutants are killed soon.
fn groups<'a>(tests: &[&'a Test], budget: Duration) -> Vec<Vec<&'a Test>> {
    let mut groups: Vec<Vec<&Test>> = Vec::new();
    let mut total = Duration::ZERO;
    let mut largest = 4;
    for test in tests {
        if total > budget {
            break;
        }
        total += test.time;
        match groups.last_mut() {
            Some(group) if group[0].binary == test.binary && group.len() < largest => {
                group.push(test)
            }
            _ => {
                groups.push(vec![test]);
                largest = (largest + 1).min(40);
            }
        }
    }
    groups
}

/// All tests of a group of up to eight run at the same time. Otherwise those that hang would keep
/// others from running, and it would depend on their order whether one that fails is found.
const TEST_THREADS: &str = "8";

enum Ended {
    Passed,
    Failed(String),
    Hung(String),
}

/// Removes the test that has failed; all of them, if the process has ended without its name.
fn remove(group: &mut Vec<&Test>, name: &str) {
    let count = group.len();
    group.retain(|test| test.name != name);
    if group.len() == count {
        group.clear();
    }
}

/// Runs a test again that has failed. It passes, unless it is the mutant that makes it fail or
/// hang, and neither a busy machine nor another test in the same process.
fn run_again(build: &Build, id: u32, group: &[&Test], name: &str, patience: Duration) -> Ended {
    let alone: Vec<&Test> = group
        .iter()
        .copied()
        .filter(|test| test.name == name)
        .collect();
    // The process has ended without a name: then all of them.
    let tests = if alone.is_empty() { group } else { &alone };
    match run_group(build, id, tests, patience) {
        ended if matches!(run_group(build, 0, tests, patience), Ended::Passed) => ended,
        _ => Ended::Passed,
    }
}

fn run_group(build: &Build, id: u32, tests: &[&Test], patience: Duration) -> Ended {
    let usual: Duration = tests.iter().map(|test| test.time).sum();
    let mut command = coverage::command(build, &tests[0].binary);
    command
        .args(["--test-threads", TEST_THREADS, "--exact"])
        .args(tests.iter().map(|test| &test.name))
        .env("MUTANT", id.to_string())
        // For what the tests start.
        .process_group(0);
    let ended = mutants::run(&mut command, patience + 8 * usual, |line| {
        failed_test(line).is_some()
    });
    let all = || {
        let names: Vec<_> = tests.iter().map(|test| test.name.as_str()).collect();
        names.join(", ")
    };
    match (ended.line, ended.status) {
        (Some(line), _) => Ended::Failed(failed_test(&line).unwrap_or_else(all)),
        (None, Some(status)) if status.success() => Ended::Passed,
        // The process ended before it could tell a result.
        (None, Some(_)) => Ended::Failed(all()),
        (None, None) => Ended::Hung(all()),
    }
}

/// Parses "test NAME ... FAILED".
fn failed_test(line: &str) -> Option<String> {
    let name = line.strip_prefix("test ")?.strip_suffix("FAILED")?;
    Some(name.split(' ').next()?.to_owned())
}
