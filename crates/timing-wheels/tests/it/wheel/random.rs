//! Random scripts for the model.

use std::thread;

use super::bytes::Bytes;
use super::model::Script;
use super::*;

/// Scripts that failed once: the number of slots and the seed. They run first.
const FAILED_ONCE: &[(usize, u64)] = &[];

/// Prints the script if the test fails.
struct Report {
    slots: usize,
    seed: u64,
    step: usize,
}

impl Drop for Report {
    fn drop(&mut self) {
        if thread::panicking() {
            let Self { slots, seed, step } = self;
            eprintln!(
                "Step {step} of a script of {slots} slots has failed. To run it first, put ({slots}, {seed:#x}) into \
                 FAILED_ONCE in tests/it/wheel/random.rs: cargo test --all-features --test it agree_with_a_model"
            );
        }
    }
}

fn run(slots: usize, seed: u64, max_bytes: usize) {
    let mut report = Report {
        slots,
        seed,
        step: 0,
    };
    let mut random = Rng::with_seed(seed);
    // Short scripts have few entries, long ones thousands.
    let mut bytes = vec![0; random.usize(..=max_bytes)];
    random.fill(&mut bytes);
    Script::new(Wheel::new(slots), slots, Bytes::new(bytes)).run(|| report.step += 1);
}

#[test]
fn random_scripts_agree_with_a_model() {
    const BYTES: usize = 2_500;
    const SEEDS: u64 = 200;

    for &(slots, seed) in FAILED_ONCE {
        run(slots, seed, BYTES);
    }
    for slots in SIZES {
        for seed in 0..SEEDS {
            run(slots, seed, BYTES);
        }
    }
}
