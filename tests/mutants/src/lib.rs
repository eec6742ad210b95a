//! Mutants: changes of one place of a source, each of which breaks something that a test promises
//! to notice. All mutants of a list are in one build, a copy of the sources that a build script
//! makes. The environment selects one of them when a program of that build runs.
//!
//! [`struct@Copy`] makes the copy, [`is_on`] is the switch in it, and [`run`] runs a program with a
//! mutant.

mod change;
mod copy;
mod mutant;
mod place;
mod run;

pub use change::{Change, apply};
pub use copy::{Copy, files, includable};
pub use mutant::{Mutant, always, mutant};
pub use place::{find, functions};
pub use run::{DEEP, Ended, VARIABLE, command, in_parallel, is_deep, is_on, requested, run, test};
