//! Compares the wheels with the model, under random scripts and under the corpus of the fuzzer. An
//! input of the corpus covers code of its own. `tests/fuzz/run` finds more inputs.

use crate::fuzz;
#[path = "../../../../tests/fuzz/replay.rs"]
mod replay;

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn the_wheels_agree_with_a_model() {
    replay::replay(
        "wheels.hex",
        include_str!("../../../../tests/fuzz/wheels.hex"),
        fuzz::run,
    );
}

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn random_scripts_agree_with_a_model() {
    const MAX_BYTES: usize = 2_500;

    for seed in 0..2_000 {
        // The last one is the one that has failed.
        println!("seed {seed}");
        let mut random = fastrand::Rng::with_seed(seed);
        // Short scripts have few entries, long ones thousands.
        let mut bytes = vec![0; random.usize(1..=MAX_BYTES)];
        random.fill(&mut bytes);
        // The wheel and its size.
        bytes[0] = (seed % 10) as u8;
        fuzz::run(&bytes);
    }
}
