//! Replays the corpus of the timer's fuzzer without a fuzzer. Each input covers code that no other
//! input covers. `tests/fuzz/run` finds more inputs.

#[path = "../../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../../tests/it/common/mod.rs"]
mod common;
#[path = "../../../tests/fuzz/replay.rs"]
mod replay;
#[path = "../../../tests/fuzz/timer.rs"]
mod timer;

#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn a_driven_timer_agrees_with_a_model() {
    replay::replay(
        "timer.hex",
        include_str!("../../../tests/fuzz/timer.hex"),
        timer::run,
    );
}

/// Longer scripts than those of the corpus.
#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn random_scripts_agree_with_a_model() {
    for seed in 0..500 {
        // The last one is the one that has failed.
        println!("seed {seed}");
        let mut bytes = [0; 2_500];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        timer::run(&bytes);
    }
}
