//! `survivors.txt`: the survivors that are known, and hangs.

use crate::{Outcome, list::Mutant};
use std::{collections::HashMap, fs, path::Path};

/// How the reason of a hang begins.
const HANG: &str = "a hang:";

/// The reason of each known survivor and hang, by the name of the mutant.
pub struct Known(HashMap<String, String>);

impl Known {
    pub fn read(root: &Path) -> Self {
        let path = root.join("tests/mutants/survivors.txt");
        let text = fs::read_to_string(&path).expect("survivors.txt");
        let mut known = HashMap::new();
        for line in text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty())
        {
            let (name, reason) = line.split_once(" -- ").expect("NAME -- REASON");
            assert!(
                !reason.trim().is_empty(),
                "survivors.txt: {name} has no reason"
            );
            known.insert(name.trim().to_owned(), reason.to_owned());
        }
        Self(known)
    }

    pub fn has(&self, mutant: &Mutant) -> bool {
        self.0.contains_key(&mutant.name)
    }

    /// Whether the list has the mutant as a hang.
    pub fn is_hang(&self, mutant: &Mutant) -> bool {
        self.0
            .get(&mutant.name)
            .is_some_and(|reason| reason.starts_with(HANG))
    }

    /// Whether the mutant need not run again. Each mutant may be killed. On a busy machine one that
    /// only makes the timer slower may look like a hang, so a hang may have any reason. A survivor
    /// must not have the reason of a hang.
    pub fn expects(&self, mutant: &Mutant, outcome: &Outcome) -> bool {
        match outcome {
            Outcome::Killed(_) => true,
            Outcome::Hang(_) => self.has(mutant),
            Outcome::Survived | Outcome::Unreached => self.has(mutant) && !self.is_hang(mutant),
        }
    }

    /// Compares outcomes with the list, prints the differences, and returns whether all survivors
    /// are known.
    pub fn check(&self, all: &[Mutant], mutants: &[&Mutant], outcomes: &[Outcome]) -> bool {
        let mut all_known = true;
        for name in self
            .0
            .keys()
            .filter(|name| !all.iter().any(|mutant| mutant.name == **name))
        {
            all_known = false;
            println!("in survivors.txt, but there is no such mutant: {name}");
        }
        for (mutant, outcome) in mutants.iter().zip(outcomes) {
            match outcome {
                Outcome::Killed(test) if self.has(mutant) => {
                    println!("in survivors.txt, but killed by {test}: {}", mutant.name)
                }
                _ if self.expects(mutant, outcome) => {}
                Outcome::Hang(test) => {
                    println!(
                        "a hang that is not in survivors.txt, in {test}: {}",
                        mutant.name
                    )
                }
                _ => {
                    all_known = false;
                    println!("not in survivors.txt as that: {} {outcome:?}", mutant.name);
                }
            }
        }
        all_known
    }
}
