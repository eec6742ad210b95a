//! The hashed wheel: all that both wheels have to do, and what only this one does.

mod wheel;

use hashed_wheel::wheel::HashedWheel as Wheel;

use wheel::{in_order, insert_all, run_out};

const LEAST_SLOTS: u64 = 1;

/// More slots than the wheel looks through after each tick: it may wake in vain now and then.
#[test]
#[cfg_attr(miri, ignore = "takes minutes")]
fn very_many_slots_cost_a_few_wakes_in_vain() {
    const COUNT: usize = 5_000;

    let mut wheel = Wheel::new(1 << 16);
    // All in slots of their own, hundreds of turns away, and one that makes the wheel look for them.
    let far = (0..COUNT as u64).map(|index| ((500 + index % 10) << 16) + 13 * index);
    let deadlines: Vec<u64> = far.chain([1]).collect();
    insert_all(&mut wheel, &deadlines);
    let (fired, _) = run_out(&mut wheel, COUNT + 100);
    assert_eq!(fired, in_order(0, &deadlines));
}
