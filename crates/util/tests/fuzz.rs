//! Replays the corpus of the timer's fuzzer without a fuzzer. Each input covers code that no other
//! input covers. `tests/fuzz/run` finds more inputs.

#[path = "../../../tests/fuzz/bytes.rs"]
mod bytes;
#[path = "../../../tests/it/common/mod.rs"]
mod common;
#[path = "../../../tests/fuzz/map.rs"]
mod map;
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

/// Runs random scripts with the seeds up to this one.
fn run(seeds: u64, length: usize, script: fn(&[u8])) {
    for seed in 0..seeds {
        // The last one is the one that has failed.
        println!("seed {seed}");
        let mut bytes = vec![0; length];
        fastrand::Rng::with_seed(seed).fill(&mut bytes);
        script(&bytes);
    }
}

/// Longer scripts than those of the corpus.
#[test]
#[cfg_attr(miri, ignore = "takes hours")]
fn random_scripts_agree_with_a_model() {
    run(500, 2_500, timer::run);
}

#[test]
fn an_expiring_map_agrees_with_a_plain_map() {
    let (seeds, length) = if cfg!(miri) { (8, 300) } else { (500, 2_500) };
    run(seeds, length, map::run);
}
