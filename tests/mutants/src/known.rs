//! `survivors.txt`: the survivors and hangs that are known.

use crate::{Outcome, list::Mutant};
use std::{collections::HashMap, fs, path::Path};

/// Compares outcomes with the list, prints the differences, and returns whether all are known.
pub fn check(root: &Path, all: &[Mutant], mutants: &[&Mutant], outcomes: &[Outcome]) -> bool {
    let path = root.join("tests/mutants/survivors.txt");
    let text = fs::read_to_string(&path).expect("survivors.txt");
    let mut known: HashMap<&str, &str> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty()) {
        let (name, reason) = line.split_once(" -- ").expect("NAME -- REASON");
        assert!(!reason.trim().is_empty(), "survivors.txt: {name} has no reason");
        known.insert(name.trim(), reason);
    }
    let mut all_known = true;
    for name in known.keys().filter(|name| !all.iter().any(|mutant| mutant.name == **name)) {
        all_known = false;
        println!("in survivors.txt, but there is no such mutant: {name}");
    }
    for (mutant, outcome) in mutants.iter().zip(outcomes) {
        let is_known = known.contains_key(mutant.name.as_str());
        match outcome {
            Outcome::Killed(test) if is_known => {
                println!("in survivors.txt, but killed by {test}: {}", mutant.name)
            }
            Outcome::Killed(_) => {}
            _ if is_known => {}
            _ => {
                all_known = false;
                println!("not in survivors.txt: {} {outcome:?}", mutant.name);
            }
        }
    }
    all_known
}
