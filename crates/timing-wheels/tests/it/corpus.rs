//! Replays the corpus of the fuzzer. Each input covers code that no other input covers.
//! `tests/fuzz/run` finds more inputs.

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
