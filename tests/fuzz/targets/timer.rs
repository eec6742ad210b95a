//! The fuzz target for a driven timer.

#![no_main]

#[path = "../bytes.rs"]
mod bytes;
#[path = "../../it/common/mod.rs"]
mod common;
#[path = "../timer.rs"]
mod timer;

libfuzzer_sys::fuzz_target!(|input: &[u8]| timer::run(input));
