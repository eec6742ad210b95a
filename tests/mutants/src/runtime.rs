//! The switches. This file becomes a module of the instrumented library.
//!
//! - `MUTANT=7`: mutant 7 is on.
//! - `MUTANTS_REACHED=file`: none is on; the number of each mutant that is reached goes to the
//!   file.

#![allow(clippy::all, missing_docs, unreachable_pub)]

use std::{
    env, fs,
    io::Write,
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
};

const UNKNOWN: u32 = u32::MAX;
const RECORDS: u32 = u32::MAX - 1;

static MUTANT: AtomicU32 = AtomicU32::new(UNKNOWN);
static FILE: OnceLock<fs::File> = OnceLock::new();
static REACHED: [AtomicU8; 1 << 16] = [const { AtomicU8::new(0) }; 1 << 16];

pub fn is_on(id: u32) -> bool {
    let mutant = MUTANT.load(Relaxed);
    if mutant < RECORDS {
        mutant == id
    } else {
        is_on_slow(mutant, id)
    }
}

#[cold]
fn is_on_slow(mutant: u32, id: u32) -> bool {
    if mutant == UNKNOWN {
        let mutant = env::var("MUTANT")
            .map_or_else(|_| records(), |id| id.parse().expect("MUTANT: a number"));
        MUTANT.store(mutant, Relaxed);
        return is_on(id);
    }
    if REACHED[id as usize].swap(1, Relaxed) == 0 {
        // Without an allocation, because some tests count them. In one call, because several
        // threads write.
        let mut line = [0; 16];
        let mut rest = &mut line[..];
        writeln!(rest, "{id}").expect("room for a number");
        let length = 16 - rest.len();
        let mut file = FILE.get().expect("it was opened at the start");
        file.write_all(&line[..length])
            .expect("MUTANTS_REACHED: a file");
    }
    false
}

/// Opens the file, if there is to be one.
fn records() -> u32 {
    let Some(path) = env::var_os("MUTANTS_REACHED") else {
        return 0;
    };
    let open = || fs::OpenOptions::new().append(true).create(true).open(path);
    FILE.get_or_init(|| open().expect("MUTANTS_REACHED: a file"));
    RECORDS
}
