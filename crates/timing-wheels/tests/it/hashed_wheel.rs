//! Tests of the hashed wheel: what both wheels must do, and what only this one does.
// The wheels have no unsafe code and use one thread.
#![cfg(not(miri))]

#[path = "wheel/mod.rs"]
mod wheel;

use timing_wheels::HashedWheel as Wheel;

use wheel::{advance_until_empty, in_order, insert_all};

const MIN_SLOTS: u64 = 1;

/// The wheel reports no unnecessary wake-up, however many slots are in use.
#[test]
fn very_many_slots_cause_no_unnecessary_wake_up() {
    const COUNT: usize = 5_000;

    let mut wheel = Wheel::new(1 << 16);
    // Each entry has its own slot, hundreds of rounds away; one entry is due before them.
    let far = (0..COUNT as u64).map(|index| ((500 + index % 10) << 16) + 13 * index);
    let deadlines: Vec<u64> = far.chain([1]).collect();
    insert_all(&mut wheel, &deadlines);
    let (fired, wakes) = advance_until_empty(&mut wheel, deadlines.len());
    assert_eq!(fired, in_order(0, &deadlines));
    assert_eq!(wakes, deadlines.len());
}
