//! Explores a model, and checks that it fails with each of its mutants.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};

use loom::thread;

use mutants::{Ended, VARIABLE, is_deep};

#[path = "../../mutants.rs"]
mod list;

/// After this many executions without a failure, a mutant counts as not detected.
const MAX_EXECUTIONS: &str = "HASHED_WHEEL_MAX_EXECUTIONS";

/// The exit code of a mutant's process when anything panics: the mutant is detected.
const DETECTED: i32 = 90;

/// The exit code after [`MAX_EXECUTIONS`].
const TOO_MANY: i32 = 91;

/// The limit of the address space of a mutant's process.
const MEBIBYTES: u64 = 4 << 10;

/// The largest number of preemptions per execution. `None`: the model explores every execution.
pub(crate) type Bound = Option<usize>;

/// Returns the bound of an expensive model: `deep` where [`is_deep`], otherwise `usual`.
pub(crate) fn bound(usual: usize, deep: Bound) -> Bound {
    assert!(
        deep.is_none_or(|deep| deep > usual),
        "the usual bound is the smaller one"
    );
    if is_deep() { deep } else { Some(usual) }
}

/// Does what [`explore`] does, but has one preemption less and no mutants unless [`is_deep`]. This
/// is for a model whose mutants pass with each smaller bound.
#[track_caller]
pub(crate) fn explore_in_deep<const N: usize, M>(preemptions: usize, mutants: [Mutant; N], model: M)
where
    M: Fn() + Sync + Send + 'static,
{
    let requested = std::env::var_os(VARIABLE).is_some();
    if is_deep() || requested {
        explore(Some(preemptions), mutants, model);
    } else {
        let name = name_of_test::<M>();
        explore_with(name, Some(preemptions - 1), &[], Arc::new(model));
    }
}

/// Explores every execution of `model`, or those with at most `preemptions` preemptions (mostly
/// models with two producers). Then checks that the model fails with each of its mutants. The name
/// of the test that calls this is the name of the model.
#[track_caller]
pub(crate) fn explore<const N: usize, M>(preemptions: Bound, mutants: [Mutant; N], model: M)
where
    M: Fn() + Sync + Send + 'static,
{
    const { assert!(N > 0, "a model without mutants may be unable to fail") };
    let name = name_of_test::<M>();
    explore_with(name, preemptions, &mutants, Arc::new(model));
}

/// Not generic: each instance would contain loom's scheduler.
#[track_caller]
fn explore_with(
    name: &str,
    preemptions: Bound,
    mutants: &[Mutant],
    model: Arc<dyn Fn() + Sync + Send>,
) {
    let requested = mutants::requested();
    if let Some(name) = requested {
        assert!(
            name.contains(':') || is_known(name),
            "there is no mutant {name}"
        );
    }
    watch_panics(requested.is_some());
    let max = std::env::var(MAX_EXECUTIONS).map_or(usize::MAX, |max| max.parse().unwrap());
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&executions);
    let mut builder = loom::model::Builder::new();
    // No variable of the environment may cut a model short, because the model would pass.
    builder.max_permutations = None;
    builder.max_duration = None;
    builder.checkpoint_file = None;
    // An execution with more branches than this fails.
    builder.max_branches = 10_000;
    builder.preemption_bound = preemptions;
    let began = Instant::now();
    builder.check(move || {
        if counter.fetch_add(1, Relaxed) == max {
            std::process::exit(TOO_MANY);
        }
        model();
    });

    let baseline = Baseline {
        executions: executions.load(Relaxed),
        took: began.elapsed(),
    };
    let fails = match requested {
        Some(mutant) => format!("passes with: {mutant}"),
        None => {
            assert!(baseline.executions > 1, "the model has only one execution");
            // A mutant's process ends at the first panic, so the model itself must not panic.
            assert_eq!(PANICS.get(), 0, "{name} passes, although code in it panics");
            for mutant in mutants {
                mutant
                    .is_detected_by(name, baseline.bounds())
                    .unwrap_or_else(|why| panic!("{why}"));
            }
            let names: Vec<_> = mutants.iter().map(|mutant| &*mutant.name).collect();
            if names.is_empty() {
                "no mutants".into()
            } else {
                format!("fails with: {}", names.join(", "))
            }
        }
    };
    let bound = preemptions.map_or(String::new(), |bound| {
        format!(" (at most {bound} preemptions)")
    });
    println!("{name}: {} executions{bound}; {fails}", baseline.executions);
}

/// Returns the name of the test that contains this closure, as the test harness knows it.
fn name_of_test<M>() -> &'static str {
    let name = std::any::type_name::<M>().trim_end_matches("::{{closure}}");
    name.split_once("::")
        .expect("a path starts with the name of the crate")
        .1
}

std::thread_local!(static PANICS: Cell<usize> = const { Cell::new(0) });

/// Counts this thread's panics from now on, including those that are caught. If `ends`, ends the
/// process at the first panic instead, because unwinding may do anything after a mutant has done
/// damage.
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

// --- mutants -------------------------------------------------------------------------------------

/// A mutant of a model. It runs in a process of its own, because it may abort or never end.
pub(crate) struct Mutant {
    /// The name for reports.
    name: String,
    /// The request for the library: the name of a mutant, or an order to weaken, for example
    /// `engine/state.rs:149-153:release`.
    request: String,
    /// See [`Mutant::never_ends`].
    never_ends: bool,
}

/// Returns the mutant with this name in `mutants.rs`.
#[track_caller]
pub(crate) fn mutant(name: &str) -> Mutant {
    assert!(is_known(name), "there is no mutant {name}");
    Mutant {
        name: name.to_owned(),
        request: name.to_owned(),
        never_ends: false,
    }
}

/// No atomic operation in this function of this file ("engine/end.rs stop") releases anything.
pub(crate) fn no_release(of: &str) -> Mutant {
    weak(of, "release")
}

/// No atomic operation in this function of this file acquires anything.
pub(crate) fn no_acquire(of: &str) -> Mutant {
    weak(of, "acquire")
}

fn weak(of: &str, side: &str) -> Mutant {
    let (file, function) = of.split_once(' ').expect("a file and a function");
    // The copy is compiled, and the library knows the line numbers of the copy.
    let copy = Path::new(env!("OUT_DIR")).join("src").join(file);
    let source = std::fs::read_to_string(copy).expect(file);
    let lines = mutants::functions(&source, function);
    let lines = lines.first().expect(of);
    let [first, last] = [lines.start, lines.end].map(|end| source[..end].lines().count());
    let first = first + 1;
    let (name, request) = (
        format!("{of} without {side}"),
        format!("{file}:{first}-{last}:{side}"),
    );
    Mutant {
        name,
        request,
        never_ends: false,
    }
}

/// Returns the path and the text of each file of the library.
pub(crate) fn sources() -> Vec<(String, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../src");
    let mut sources = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        for path in std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path())
        {
            if path.is_dir() {
                folders.push(path);
            } else {
                let name = path.strip_prefix(&root).unwrap().components();
                let name: Vec<_> = name
                    .map(|part| part.as_os_str().to_str().unwrap())
                    .collect();
                sources.push((name.join("/"), std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    sources
}

fn is_known(name: &str) -> bool {
    list::MUTANTS.iter().any(|row| row.name == Some(name)) || HARNESS_MUTANTS.contains(&name)
}

/// The limits of a mutant's process.
#[derive(Clone, Copy)]
struct Bounds {
    time: Duration,
    /// Of its address space.
    mebibytes: u64,
}

/// The cost of a model without a mutant.
struct Baseline {
    executions: usize,
    took: Duration,
}

impl Baseline {
    /// Returns the limits of the model with a mutant, which are generous.
    fn bounds(&self) -> (usize, Bounds) {
        let time = Duration::from_secs(60) + self.took * 20;
        (
            1_000 + self.executions * 20,
            Bounds {
                time,
                mebibytes: MEBIBYTES,
            },
        )
    }
}

impl Mutant {
    /// The mutant is expected to make an execution endless. For other mutants that is an error,
    /// because a model that is too large looks the same.
    pub(crate) fn never_ends(self) -> Self {
        Self {
            never_ends: true,
            ..self
        }
    }

    /// # Errors
    ///
    /// If the model does not fail, or fails in an unexpected way.
    fn is_detected_by(
        &self,
        model: &str,
        (executions, bounds): (usize, Bounds),
    ) -> Result<(), String> {
        let max = executions.to_string();
        let mut test = mutants::test(model, &self.request, bounds.mebibytes);
        let Ended {
            status,
            output: errors,
            ..
        } = mutants::run(test.env(MAX_EXECUTIONS, max), bounds.time, |_| false);
        let undetected = format!("model {model} does not detect mutant {}", self.name);
        let Some(status) = status else {
            return Err(format!(
                "{undetected}: it was killed after {:?}: {errors}",
                bounds.time
            ));
        };
        match status.code() {
            Some(DETECTED)
                if errors.contains("exceeded maximum number of branches") == self.never_ends =>
            {
                Ok(())
            }
            Some(DETECTED) => Err(format!("model {model} with mutant {}: {errors}", self.name)),
            Some(TOO_MANY) => Err(format!("{undetected}: {executions} executions pass")),
            Some(0) => Err(format!("{undetected}: it passes")),
            // The process may have reached its memory limit.
            _ => Err(format!(
                "{undetected}: {status}, and nothing panicked: {errors}"
            )),
        }
    }
}

/// Each mutant of the table is a mutant of some model, or of a scenario of shuttle.
#[test]
fn each_mutant_has_a_model() {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let models = std::fs::read_dir(tests.join("tests/models"))
        .unwrap()
        .map(|file| file.unwrap().path());
    let texts: String = models
        .chain([tests.join("shuttle/tests/schedules.rs")])
        .map(|path| std::fs::read_to_string(path).unwrap())
        .collect();
    for name in list::MUTANTS.iter().filter_map(|row| row.name) {
        assert!(
            texts.contains(&format!("\"{name}\"")),
            "no model has mutant {name}"
        );
    }
}

/// The table in `main.rs` names each model, except those of `orders`, and nothing else.
#[test]
fn table_names_all_models() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models");
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    let table = read(&folder.join("main.rs"));
    let rows = table.lines().filter(|line| line.starts_with("//! |"));
    let names = rows
        .flat_map(|row| row.split('`').skip(1).step_by(2))
        .filter(|name| name.contains("::"));
    let named: BTreeSet<_> = names.map(str::to_owned).collect();
    let mut models = BTreeSet::new();
    for path in std::fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path())
    {
        let module = path.file_stem().unwrap().to_str().unwrap();
        if !["explore", "main", "orders"].contains(&module) {
            let text = read(&path);
            let tests = text
                .split("#[test]\nfn ")
                .skip(1)
                .filter_map(|test| test.split_once('('));
            models.extend(tests.map(|(test, _)| format!("{module}::{test}")));
        }
    }
    assert!(models.len() > 100, "too few models were found: {models:?}");
    let wrong: Vec<_> = named.symmetric_difference(&models).collect();
    assert!(
        wrong.is_empty(),
        "models that are not in the table, or names without a model: {wrong:#?}"
    );
}

// --- tests of the harness ------------------------------------------------------------------------

/// Mutants that only `harness_model` knows.
const HARNESS_MUTANTS: &[&str] = &[
    "Fails",
    "Passes",
    "NeverEnds",
    "TakesAllMemory",
    "HasTooManyExecutions",
];

/// A model with mutants of all kinds.
#[test]
fn harness_model() {
    explore(None, [mutant("Fails")], || {
        let is = mutants::is_on;
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

/// A mutant that its model does not detect is ended, and the error names it.
#[test]
fn undetected_mutant_ends_and_is_named() {
    let model = "explore::harness_model";
    let bounds = Bounds {
        time: Duration::from_secs(60),
        mebibytes: 512,
    };
    let why = |name: &str, bounds| {
        mutant(name)
            .is_detected_by(model, (100, bounds))
            .unwrap_err()
    };
    mutant("Fails")
        .is_detected_by(model, (100, bounds))
        .unwrap();
    let passes = why("Passes", bounds);
    assert_eq!(
        passes,
        format!("model {model} does not detect mutant Passes: it passes")
    );
    let too_many = why("HasTooManyExecutions", bounds);
    assert!(
        too_many.ends_with("does not detect mutant HasTooManyExecutions: 100 executions pass"),
        "{too_many}"
    );
    let never = why(
        "NeverEnds",
        Bounds {
            time: Duration::from_secs(2),
            ..bounds
        },
    );
    assert!(
        never.contains("does not detect mutant NeverEnds: it was killed after 2s"),
        "{never}"
    );
    if cfg!(target_os = "linux") {
        let memory = why("TakesAllMemory", bounds);
        assert!(
            memory.contains("does not detect mutant TakesAllMemory: signal"),
            "{memory}"
        );
    }
    // A mutant that fails does not pass for a mutant that never ends.
    let other = mutant("Fails").never_ends();
    assert!(other.is_detected_by(model, (100, bounds)).is_err());
}

/// loom's variables in the environment do not change how a model is explored.
#[test]
fn environment_does_not_cut_a_model_short() {
    const PLAIN: (&str, &str) = ("HASHED_WHEEL_PLAIN", "1");
    if std::env::var_os(PLAIN.0).is_some() {
        return model_that_can_be_cut_short();
    }
    let explored = |test: &str, environment: &[(&str, &str)]| {
        let output = Command::new(std::env::current_exe().unwrap())
            .args([test, "--exact", "--nocapture"])
            .envs(environment.iter().copied())
            .output()
            .unwrap();
        let out = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{out}");
        let (before, _) = out
            .split_once(" executions")
            .expect("the number of executions is printed");
        before
            .rsplit(' ')
            .next()
            .and_then(|number| number.parse::<usize>().ok())
            .expect("a number")
    };
    let cut = [
        // How often loom checks the other variables.
        ("LOOM_CHECKPOINT_INTERVAL", "1"),
        ("LOOM_MAX_PERMUTATIONS", "2"),
        ("LOOM_MAX_DURATION", "0"),
        ("LOOM_MAX_PREEMPTIONS", "0"),
        ("LOOM_MAX_BRANCHES", "1"),
        ("LOOM_CHECKPOINT_FILE", "/dev/null"),
    ];
    let model = "ends::cancel_or_stop_wins";
    assert_eq!(explored(model, &cut), explored(model, &[]));
    // They cut a model short that is not explored by `explore`.
    let this = "explore::environment_does_not_cut_a_model_short";
    assert!(explored(this, &[PLAIN]) > 1);
    assert_eq!(explored(this, &[PLAIN, cut[0], cut[1]]), 1);
}

fn model_that_can_be_cut_short() {
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
