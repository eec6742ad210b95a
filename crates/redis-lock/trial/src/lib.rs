//! A copy of the lock in which each safeguard can be omitted: see `build.rs`.

// Where `build.rs` inserts a condition.
#![allow(unused_parens, clippy::all)]

#[path = "../mutants.rs"]
pub mod list;

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));

/// Returns a script with the change of the mutant, if the environment selects one of a script.
fn mutated_script(script: String) -> String {
    let mut of_scripts = list::ROWS.iter().map(|row| &row.mutant);
    let is_on = |mutant: &&mutants::Mutant| {
        mutant.file == list::LUA && mutant.name.is_some_and(mutants::is_on)
    };
    match of_scripts.find(is_on) {
        Some(mutant) => script.replace(mutant.place, mutant.replacement),
        None => script,
    }
}
