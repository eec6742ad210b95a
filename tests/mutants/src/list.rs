//! The mutants, from `cargo mutants --list`.

use serde_json::Value;
use std::{collections::HashMap, path::Path, process::Command};

/// The packages whose sources are changed: the name of each, and its folder.
pub const PACKAGES: [(&str, &str); 2] = [
    ("hashed-wheel", ""),
    ("timing-wheels", "crates/timing-wheels/"),
];

/// A change of the source that a test should detect.
pub struct Mutant {
    /// From 1, in the order of the list.
    pub id: u32,
    /// The file and the change, such as "src/ticks.rs: replace + with - in Ticks::after". A change
    /// that a file has more than once has its number at the end: " #2".
    pub name: String,
    pub file: String,
    pub genre: String,
    pub replacement: String,
    /// The line and the column where the replaced text begins, from 1.
    pub start: (usize, usize),
    /// The return type of the function around it; empty if there is none.
    pub return_type: String,
}

impl Mutant {
    /// Returns the module of the library that the mutant is in, or the package of the wheels.
    pub fn part(&self) -> &str {
        let path = self.file.strip_prefix("src/").unwrap_or(&self.file);
        match path {
            path if path.starts_with("crates/") => "wheels",
            "periodic/schedule.rs" => "schedule",
            _ => path
                .split('/')
                .next()
                .map_or(path, |part| part.trim_end_matches(".rs")),
        }
    }
}

/// Lists the mutants of the library.
pub fn of(root: &Path) -> Vec<Mutant> {
    let list = Command::new("cargo")
        .args(["mutants", "--list", "--json"])
        .args(PACKAGES.iter().flat_map(|(name, _)| ["--package", name]))
        .args(["--file", "src/**", "--file", "crates/timing-wheels/src/**"])
        // Linux does not compile it.
        .args(["--exclude", "src/platform/other.rs"])
        .current_dir(root)
        .output()
        .expect("cargo mutants");
    assert!(
        list.status.success(),
        "cargo mutants --list: {}",
        String::from_utf8_lossy(&list.stderr)
    );
    let list: Value = serde_json::from_slice(&list.stdout).expect("a list in JSON");
    let mut numbers = HashMap::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let position = |value: &Value| {
        let number = |key| value[key].as_u64().expect("a number") as usize;
        (number("line"), number("column"))
    };
    let mutant = |(index, item): (usize, &Value)| {
        let file = text(&item["file"]);
        // "file:line:column: change".
        let change = text(&item["name"])
            .split_once(": ")
            .expect("a change")
            .1
            .to_owned();
        let mut name = format!("{file}: {change}");
        let number = numbers.entry(name.clone()).or_insert(0);
        *number += 1;
        if *number > 1 {
            name += &format!(" #{number}");
        }
        Mutant {
            id: index as u32 + 1,
            name,
            file,
            genre: text(&item["genre"]),
            replacement: text(&item["replacement"]),
            start: position(&item["span"]["start"]),
            return_type: text(&item["function"]["return_type"]),
        }
    };
    list.as_array()
        .expect("an array")
        .iter()
        .enumerate()
        .map(mutant)
        .collect()
}
