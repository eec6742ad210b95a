//! Builds the tests of a copy of the repository that contains all mutants.

use crate::{
    instrument,
    list::{Mutant, PACKAGES},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, HashSet},
    fs,
    path::{Path, PathBuf},
    process::Command,
};

pub struct Build {
    /// The copy of the repository.
    pub copy: PathBuf,
    pub tests: Vec<PathBuf>,
    /// Mutants that do not compile.
    pub unviable: HashSet<u32>,
    /// Mutants that have no switch.
    pub unswitched: HashSet<u32>,
}

impl Build {
    pub fn has(&self, id: u32) -> bool {
        !self.unviable.contains(&id) && !self.unswitched.contains(&id)
    }

    /// Writes the names of the mutants that are not in the build to a file, and returns its path. A
    /// mutant that does not compile leaves out all mutants on the lines of the error.
    pub fn write_left_out(&self, mutants: &[Mutant]) -> PathBuf {
        let left_out = mutants.iter().filter(|mutant| !self.has(mutant.id));
        let names: Vec<&str> = left_out.map(|mutant| mutant.name.as_str()).collect();
        let path = self.copy.join("left-out.txt");
        fs::write(&path, names.join("\n") + "\n").expect("the names of what is left out");
        path
    }
}

/// Copies the files that git knows to `target/mutants`, with all mutants, and builds the tests.
/// Mutants that the compiler rejects are left out. `names`: of the tests; if empty, all.
pub fn build(root: &Path, mutants: &[Mutant], names: &[String]) -> Build {
    // Absolute, because the tests run in another folder.
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or("target".into(), PathBuf::from);
    let target = root.join(target).join("mutants");
    let copy = target.join("copy");
    let _ = fs::remove_dir_all(&copy);
    let files = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()
        .expect("git");
    let files = String::from_utf8(files.stdout).expect("names in UTF-8");
    for file in files
        .split_terminator('\0')
        .filter(|file| root.join(file).is_file())
    {
        let to = copy.join(file);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder for the copy");
        fs::copy(root.join(file), to).expect("a copy of the file");
    }
    // These tests check the sources, or run cargo.
    fs::remove_dir_all(copy.join("tests/repo")).expect("tests to leave out");
    for (_, folder) in PACKAGES {
        let source = copy.join(folder).join("src");
        fs::write(source.join("mutants.rs"), include_str!("runtime.rs")).expect("the switches");
        let library = source.join("lib.rs");
        let text = fs::read_to_string(&library).expect("lib.rs");
        fs::write(&library, text + "\n#[doc(hidden)]\npub mod mutants;\n").expect("lib.rs");
    }

    let mut by_file: BTreeMap<&str, Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        by_file.entry(&mutant.file).or_default().push(mutant);
    }
    let (mut unviable, mut unswitched) = (HashSet::new(), HashSet::new());
    loop {
        for (file, mutants) in &by_file {
            let text = fs::read_to_string(root.join(file)).expect("a source");
            let (text, missing) = instrument::instrument(&text, mutants, &unviable);
            fs::write(copy.join(file), text).expect("a source");
            unswitched.extend(missing);
        }
        let rejected = rejected(&copy, &target);
        if rejected.is_empty() {
            break;
        }
        unviable.extend(rejected);
    }
    Build {
        tests: tests(&copy, &target, names),
        copy,
        unviable,
        unswitched,
    }
}

fn cargo(copy: &Path, target: &Path, arguments: &[&str]) -> Vec<Value> {
    let output = Command::new("cargo")
        .args(arguments)
        .args(PACKAGES.iter().flat_map(|(name, _)| ["--package", name]))
        .args(["--all-features", "--message-format=json"])
        .current_dir(copy)
        .env("CARGO_TARGET_DIR", target)
        .env("CARGO_INCREMENTAL", "0")
        .env("RUSTFLAGS", "--cap-lints=allow")
        // The tests run thousands of times.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "1")
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .output()
        .expect("cargo");
    let messages: Vec<Value> = String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str(line).ok())
        .collect();
    let has_error = messages
        .iter()
        .any(|message| message["message"]["level"] == "error");
    assert!(
        output.status.success() || has_error,
        "cargo: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    messages
}

/// Returns the mutants that the compiler rejects.
fn rejected(copy: &Path, target: &Path) -> HashSet<u32> {
    let mut rejected = HashSet::new();
    let mut others = Vec::new();
    for message in cargo(copy, target, &["check", "--lib"]) {
        let error = &message["message"];
        if error["level"] != "error" {
            continue;
        }
        let marks = marks(copy, error);
        if marks.is_empty()
            && error["spans"]
                .as_array()
                .is_some_and(|spans| !spans.is_empty())
        {
            others.push(error["rendered"].to_string());
        }
        rejected.extend(marks);
    }
    // Errors that follow from others go away with them.
    assert!(
        !rejected.is_empty() || others.is_empty(),
        "errors without a mutant:\n{}",
        others.join("\n")
    );
    rejected
}

/// Returns the mutants on the lines of an error: those of its main spans, or else of any.
fn marks(copy: &Path, error: &Value) -> HashSet<u32> {
    let children = error["children"].as_array().into_iter().flatten();
    let errors = || [error].into_iter().chain(children.clone());
    let spans: Vec<&Value> = errors()
        .filter_map(|error| error["spans"].as_array())
        .flatten()
        .collect();
    let marks_of = |spans: &mut dyn Iterator<Item = &&Value>| -> HashSet<u32> {
        spans.flat_map(|span| marks_at(copy, span)).collect()
    };
    let primary = marks_of(&mut spans.iter().filter(|span| span["is_primary"] == true));
    if primary.is_empty() {
        marks_of(&mut spans.iter())
    } else {
        primary
    }
}

fn marks_at(copy: &Path, span: &Value) -> Vec<u32> {
    let number = |key: &str| span[key].as_u64().unwrap_or(0) as usize;
    let Some(file) = span["file_name"].as_str() else {
        return Vec::new();
    };
    let Ok(text) = fs::read_to_string(copy.join(file)) else {
        return Vec::new();
    };
    let (first, last) = (number("line_start"), number("line_end"));
    let lines = text
        .lines()
        .skip(first.saturating_sub(1))
        .take(last + 1 - first);
    let mark = |line: &str| {
        line.strip_prefix("/*mutant ")?
            .split_once("*/")?
            .0
            .parse()
            .ok()
    };
    lines.filter_map(mark).collect()
}

/// Builds the tests with these names.
fn tests(copy: &Path, target: &Path, names: &[String]) -> Vec<PathBuf> {
    let executable = |message: &Value| {
        let is_test = message["profile"]["test"] == true;
        is_test
            .then(|| message["executable"].as_str().map(PathBuf::from))
            .flatten()
    };
    let mut arguments = vec!["test", "--no-run"];
    match names {
        [] => arguments.push("--tests"),
        _ => names.iter().for_each(|name| match name.as_str() {
            "lib" => arguments.push("--lib"),
            name => arguments.extend(["--test", name]),
        }),
    }
    cargo(copy, target, &arguments)
        .iter()
        .filter_map(executable)
        .collect()
}
