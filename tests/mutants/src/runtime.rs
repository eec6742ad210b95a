//! The switches. This file becomes a module of the instrumented library.
//!
//! - `MUTANT=7`: mutant 7 is on.
//! - `MUTANTS_REACHED=file`: none is on; the number of each mutant that is reached goes to the
//!   file.

#![allow(clippy::all, missing_docs, unreachable_pub)]

use std::{
    env,
    ffi::OsStr,
    fs,
    io::Write,
    os::unix::ffi::OsStrExt,
    sync::{
        OnceLock,
        atomic::{AtomicU8, AtomicU32, Ordering::Relaxed},
    },
};

const UNKNOWN: u32 = u32::MAX;
const RECORDS: u32 = u32::MAX - 1;

static MUTANT: AtomicU32 = AtomicU32::new(UNKNOWN);
/// The path of the file, and its length: some tests count the allocations, and the descriptors.
static FILE: OnceLock<([u8; 256], usize)> = OnceLock::new();
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
        let rest = rest.len();
        let written = &line[..16 - rest];
        let (path, length) = FILE.get().expect("it was set at the start");
        fs::OpenOptions::new()
            .append(true)
            .create(true)
            .open(OsStr::from_bytes(&path[..*length]))
            .and_then(|mut file| file.write_all(written))
            .expect("MUTANTS_REACHED: a file");
    }
    false
}

/// Notes the file, if there is to be one.
fn records() -> u32 {
    match env::var_os("MUTANTS_REACHED") {
        Some(path) => {
            let mut bytes = [0; 256];
            let length = path.len();
            bytes[..length].copy_from_slice(path.as_bytes());
            FILE.get_or_init(|| (bytes, length));
            RECORDS
        }
        None => 0,
    }
}
