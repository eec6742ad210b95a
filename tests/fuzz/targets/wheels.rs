//! The fuzz target for the wheels.

#![no_main]

#[path = "../bytes.rs"]
mod bytes;
#[path = "../../../crates/timing-wheels/tests/it/fuzz.rs"]
mod wheels;

libfuzzer_sys::fuzz_target!(|input: &[u8]| wheels::run(input));
