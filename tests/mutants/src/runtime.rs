//! The switches. This file becomes a module of the instrumented library.
//!
//! - `MUTANT=7`: mutant 7 is on.
//! - `MUTANTS_REACHED=file`: none is on; the number of each mutant that is reached goes to the
//!   file.

#![allow(clippy::all, missing_docs, unreachable_pub)]

use std::{
    env, fs,
    io::Write,
    sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
};

const UNKNOWN: u32 = u32::MAX;
const RECORDS: u32 = u32::MAX - 1;

static MUTANT: AtomicU32 = AtomicU32::new(UNKNOWN);
static REACHED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

pub fn is_on(id: u32) -> bool {
    let mutant = MUTANT.load(Relaxed);
    if mutant < RECORDS { mutant == id } else { is_on_slow(mutant, id) }
}

#[cold]
fn is_on_slow(mutant: u32, id: u32) -> bool {
    if mutant == UNKNOWN {
        let records = || if env::var_os("MUTANTS_REACHED").is_some() { RECORDS } else { 0 };
        MUTANT.store(env::var("MUTANT").map_or_else(|_| records(), |id| id.parse().expect("MUTANT: a number")), Relaxed);
        return is_on(id);
    }
    if REACHED[id as usize].swap(1, Relaxed) == 0 {
        let path = env::var_os("MUTANTS_REACHED").expect("it was set at the start");
        let mut file = fs::OpenOptions::new().append(true).create(true).open(path).expect("MUTANTS_REACHED: a file");
        // One call per line: several threads write.
        file.write_all(format!("{id}\n").as_bytes()).expect("MUTANTS_REACHED: a file");
    }
    false
}
