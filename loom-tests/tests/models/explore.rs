//! Explores a model, and sees it fail over each of its mutants.

use std::cell::Cell;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use loom::thread;

#[path = "../../mutants.rs"]
mod mutants;
#[allow(dead_code, reason = "of the rows only the names matter here")]
#[path = "../../mutate.rs"]
mod mutate;
#[path = "../../process.rs"]
mod process;

use process::{Bounds, Ended};

/// Where the library, compiled for models, looks for what is to be wrong: a mutant's name, or `life.rs:149-153:release`.
const MUTANT: &str = "HASHED_WHEEL_MUTANT";

/// After so many executions that all pass, a mutant counts as not detected.
const MOST_EXECUTIONS: &str = "HASHED_WHEEL_MOST_EXECUTIONS";

/// How the process of a mutant ends when anything panics: the mutant is detected.
const DETECTED: i32 = 90;

/// How it ends after [`MOST_EXECUTIONS`].
const TOO_MANY: i32 = 91;

/// The address space of a mutant's process.
const MEBIBYTES: u64 = 4 << 10;

/// Explores `model` whole, or (mostly for two producers) every interleaving with at most `preemptions` of them; then sees
/// it fail over each of its mutants. Called by the test that gives the model its name.
#[track_caller]
pub(crate) fn explore<const N: usize, M>(preemptions: Option<usize>, mutants: [Mutant; N], model: M)
where
    M: Fn() + Sync + Send + 'static,
{
    const { assert!(N > 0, "a model that cannot fail says nothing") };
    let asked = std::env::var(MUTANT).ok();
    if let Some(name) = &asked {
        assert!(name.contains(':') || is_known(name), "there is no mutant {name}");
    }
    watch_panics(asked.is_some());
    let most = std::env::var(MOST_EXECUTIONS).map_or(usize::MAX, |most| most.parse().unwrap());
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    // None of these may cut a model short, whatever the environment says: it would pass.
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.checkpoint_file = None;
    // More than that is a failure of the model.
    builder.max_branches = 10_000;
    builder.preemption_bound = preemptions;
    let begun = Instant::now();
    builder.check(move || {
        if counter.fetch_add(1, Relaxed) == most {
            std::process::exit(TOO_MANY);
        }
        model();
    });

    let healthy = Healthy { executions: executions.load(Relaxed), took: begun.elapsed() };
    let name = name_of_test::<M>();
    let fails = match asked {
        Some(mutant) => format!("passes with: {mutant}"),
        None => {
            assert!(healthy.executions > 1, "there is something to interleave");
            // A mutant's process ends at the first panic, so without one there may be none.
            assert_eq!(PANICS.get(), 0, "{name} passes, though something panics in it");
            for mutant in &mutants {
                mutant.is_detected_by(name, healthy.bounds()).unwrap_or_else(|why| panic!("{why}"));
            }
            format!("fails with: {}", mutants.map(|mutant| mutant.what).join(", "))
        }
    };
    let bound = preemptions.map_or(String::new(), |bound| format!(" (at most {bound} preemptions)"));
    println!("{name}: {} executions{bound}; {fails}", healthy.executions);
}

/// The name of the test that this closure is written in, as the test harness has it.
fn name_of_test<M>() -> &'static str {
    let name = std::any::type_name::<M>().trim_end_matches("::{{closure}}");
    name.split_once("::").expect("the crate's name comes first").1
}

std::thread_local!(static PANICS: Cell<usize> = const { Cell::new(0) });

/// Counts this thread's panics from now on, those included that are caught; or ends the process at the first one: what has
/// gone wrong by then may do anything when a stack unwinds.
fn watch_panics(ends: bool) {
    static WATCHED: Once = Once::new();
    PANICS.set(0);
    WATCHED.call_once(|| {
        let report = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            report(panic);
            if ends {
                std::process::exit(DETECTED);
            }
            PANICS.set(PANICS.get() + 1);
        }));
    });
}

// --- mutants ----------------------------------------------------------------------------------------------------------

/// A model over code with one thing taken out, in a process of its own, for it may end as it likes.
pub(crate) struct Mutant {
    what: String,
    /// As the library wants it.
    asked: String,
    /// See [`Mutant::never_ends`].
    never_ends: bool,
}

/// The mutant with this name in `mutants.rs`.
#[track_caller]
pub(crate) fn mutant(name: &str) -> Mutant {
    assert!(is_known(name), "there is no mutant {name}");
    Mutant { what: name.to_owned(), asked: name.to_owned(), never_ends: false }
}

/// No atomic operation in this function of this file ("engine/state.rs deregister") releases anything.
pub(crate) fn no_release(of: &str) -> Mutant {
    weak(of, "release")
}

/// None acquires anything.
pub(crate) fn no_acquire(of: &str) -> Mutant {
    weak(of, "acquire")
}

fn weak(of: &str, side: &str) -> Mutant {
    let (file, function) = of.split_once(' ').expect("a file and a function");
    // What is compiled, whose lines the library knows.
    let copy = Path::new(env!("OUT_DIR")).join("src").join(file);
    let source = std::fs::read_to_string(copy).expect(file);
    let begins = |line: &str| {
        [format!("fn {function}("), format!("fn {function}<")].iter().any(|fn_| line.contains(fn_))
    };
    let first = source.lines().position(begins).expect(of) + 1;
    let line = source.lines().nth(first - 1).expect(of);
    let end = format!("{}}}", &line[..line.len() - line.trim_start().len()]);
    let last = first + source.lines().skip(first).position(|line| line == end).expect(of) + 1;
    let (what, asked) = (format!("{of} without {side}"), format!("{file}:{first}-{last}:{side}"));
    Mutant { what, asked, never_ends: false }
}

/// Returns the path and the text of each file of the library.
pub(crate) fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().components();
                let name: Vec<_> = name.map(|part| part.as_os_str().to_str().unwrap()).collect();
                sources.push((name.join("/"), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources
}

fn is_known(name: &str) -> bool {
    mutants::ROWS.iter().any(|row| row.mutant == Some(name)) || OF_THE_HARNESS.contains(&name)
}

/// What a model takes without a mutant.
struct Healthy {
    executions: usize,
    took: Duration,
}

impl Healthy {
    /// What it may take with one: far more than it should.
    fn bounds(&self) -> (usize, Bounds) {
        let time = Duration::from_secs(60) + self.took * 20;
        (1_000 + self.executions * 20, Bounds { time, mebibytes: MEBIBYTES })
    }
}

impl Mutant {
    /// What comes of it is that an execution never ends. With others that is an error, for a model that is too large looks the
    /// same.
    pub(crate) fn never_ends(self) -> Self {
        Self { never_ends: true, ..self }
    }

    /// # Errors
    ///
    /// If the model does not fail, or fails in another way than it should.
    fn is_detected_by(&self, model: &str, (executions, bounds): (usize, Bounds)) -> Result<(), String> {
        let most = executions.to_string();
        let environment = [(MUTANT, self.asked.as_str()), (MOST_EXECUTIONS, &most)];
        let Ended { status, errors } = process::run(model, &environment, bounds);
        let undetected = format!("model {model} does not detect mutant {}", self.what);
        let Some(status) = status else {
            return Err(format!("{undetected}: it was ended after {:?}: {errors}", bounds.time));
        };
        match status.code() {
            Some(DETECTED) if errors.contains("exceeded maximum number of branches") == self.never_ends => {
                Ok(())
            }
            Some(DETECTED) => Err(format!("model {model} with mutant {}: {errors}", self.what)),
            Some(TOO_MANY) => Err(format!("{undetected}: {executions} executions pass")),
            Some(0) => Err(format!("{undetected}: it passes")),
            // It may have wanted more memory than it may have.
            _ => Err(format!("{undetected}: {status}, and nothing panicked: {errors}")),
        }
    }
}

/// Each mutant of the table has a model that detects it.
#[test]
fn each_mutant_has_a_model() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let models: String = std::fs::read_dir(folder)
        .unwrap()
        .map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap())
        .collect();
    for name in mutants::ROWS.iter().filter_map(|row| row.mutant) {
        assert!(models.contains(&format!("\"{name}\"")), "no model has mutant {name}");
    }
}

// --- of the harness itself --------------------------------------------------------------------------------------------

/// Mutants that only `a_model_of_the_harness` knows.
const OF_THE_HARNESS: &[&str] = &["Fails", "Passes", "NeverEnds", "TakesAllMemory", "HasTooManyExecutions"];

/// A model with mutants of all kinds.
#[test]
fn a_model_of_the_harness() {
    explore(None, [mutant("Fails")], || {
        let is = hashed_wheel::inside::mutant;
        let shared = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let steps = if is("HasTooManyExecutions") { 20 } else { 1 };
        let other = Arc::clone(&shared);
        let adds = thread::spawn(move || (0..steps).for_each(|_| _ = other.fetch_add(1, Relaxed)));
        (0..steps).for_each(|_| _ = shared.fetch_add(1, Relaxed));
        adds.join().unwrap();
        let mut taken = Vec::new();
        while is("NeverEnds") || is("TakesAllMemory") {
            if is("TakesAllMemory") {
                taken.push(vec![1_u8; 1 << 20]);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!is("Fails") || shared.load(Relaxed) != 2);
    });
}

/// A mutant that its model does not detect ends all the same, and the test says what it is.
#[test]
fn a_mutant_that_is_not_detected_ends_and_is_named() {
    let model = "explore::a_model_of_the_harness";
    let bounds = Bounds { time: Duration::from_secs(60), mebibytes: 512 };
    let why = |name: &str, bounds| mutant(name).is_detected_by(model, (100, bounds)).unwrap_err();
    mutant("Fails").is_detected_by(model, (100, bounds)).unwrap();
    let passes = why("Passes", bounds);
    assert_eq!(passes, format!("model {model} does not detect mutant Passes: it passes"));
    let too_many = why("HasTooManyExecutions", bounds);
    assert!(
        too_many.ends_with("does not detect mutant HasTooManyExecutions: 100 executions pass"),
        "{too_many}"
    );
    let never = why("NeverEnds", Bounds { time: Duration::from_secs(2), ..bounds });
    assert!(never.contains("does not detect mutant NeverEnds: it was ended after 2s"), "{never}");
    if cfg!(target_os = "linux") {
        let memory = why("TakesAllMemory", bounds);
        assert!(memory.contains("does not detect mutant TakesAllMemory: signal"), "{memory}");
    }
    // One that never ends is not taken for one that fails in another way.
    let other = mutant("Fails").never_ends();
    assert!(other.is_detected_by(model, (100, bounds)).is_err());
}

/// Whatever the environment says, a model is explored to its end.
#[test]
fn nothing_cuts_a_model_short() {
    const PLAIN: (&str, &str) = ("HASHED_WHEEL_PLAIN", "1");
    if std::env::var_os(PLAIN.0).is_some() {
        return a_model_that_can_be_cut_short();
    }
    let explored = |test: &str, environment: &[(&str, &str)]| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{out}");
        let (before, _) = out.split_once(" executions").expect("it says how many");
        before.rsplit(' ').next().and_then(|number| number.parse::<usize>().ok()).expect("a number")
    };
    let cut = [
        // How often loom looks at the others.
        ("LOOM_CHECKPOINT_INTERVAL", "1"),
        ("LOOM_MAX_PERMUTATIONS", "2"),
        ("LOOM_MAX_DURATION", "0"),
        ("LOOM_MAX_PREEMPTIONS", "0"),
        ("LOOM_MAX_BRANCHES", "1"),
        ("LOOM_CHECKPOINT_FILE", "/dev/null"),
    ];
    let model = "ends::one_of_cancel_and_stop_wins";
    assert_eq!(explored(model, &cut), explored(model, &[]));
    // They would cut one that is not explored by `explore`.
    let this = "explore::nothing_cuts_a_model_short";
    assert!(explored(this, &[PLAIN]) > 1);
    assert_eq!(explored(this, &[PLAIN, cut[0], cut[1]]), 1);
}

fn a_model_that_can_be_cut_short() {
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    loom::model(move || {
        counter.fetch_add(1, Relaxed);
        let shared = Arc::new(loom::sync::atomic::AtomicUsize::new(0));
        let other = Arc::clone(&shared);
        let add = thread::spawn(move || other.fetch_add(1, Relaxed));
        shared.fetch_add(1, Relaxed);
        add.join().unwrap();
    });
    println!(" {} executions", executions.load(Relaxed));
}
