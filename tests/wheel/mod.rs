//! A plain wheel from outside: against a model, at every boundary, and after a panic at every position. Whoever includes
//! it says in `crate::Wheel` which of the two wheels it is.

mod boundaries;
#[path = "../fuzz/bytes.rs"]
mod bytes;
mod model;
mod random;
mod steps;

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use hashed_wheel::wheel::{Key, MAX_TICKS_PER_WHEEL};

use crate::{LEAST_SLOTS, Wheel};

pub(crate) use steps::{check_next, fired, fired_until_panic};

const SIZES: [usize; 5] = [1, 2, 4, 64, 512];

/// For what would take Miri minutes with each of them.
pub(crate) fn sizes() -> impl Iterator<Item = usize> {
    let sizes = if cfg!(miri) { &SIZES[2..3] } else { &SIZES[..] };
    sizes.iter().copied()
}

/// Advances from one `next_deadline` to the next until the wheel is empty; returns what came out and in how many steps.
pub(crate) fn run_out<T>(wheel: &mut Wheel<T>, most: usize) -> (Vec<T>, usize) {
    let (mut fired, mut steps) = (Vec::new(), 0);
    while let Some(next) = wheel.next_deadline() {
        // What is overdue comes out now.
        wheel.advance(next.max(wheel.tick()), |value| fired.push(value));
        steps += 1;
        assert!(steps <= most, "{steps} steps, and still {wheel:?}");
    }
    (fired, steps)
}

/// A wheel that holds nothing yet.
pub(crate) fn wheel_at<T>(slots: usize, tick: u64) -> Wheel<T> {
    let mut wheel = Wheel::new(slots);
    wheel.advance(tick, |_| unreachable!());
    wheel
}

/// Inserts each deadline with its index as the value.
pub(crate) fn insert_all(wheel: &mut Wheel<usize>, deadlines: &[u64]) -> Vec<Key> {
    deadlines.iter().enumerate().map(|(index, &deadline)| wheel.insert(deadline, index)).collect()
}

/// The indices in the order in which entries with these deadlines come out of a wheel that is at `tick`.
pub(crate) fn in_order(tick: u64, deadlines: &[u64]) -> Vec<usize> {
    let mut order: Vec<_> = (0..deadlines.len()).collect();
    // Stable. What is overdue comes first, and among itself not by its deadline.
    order.sort_by_key(|&index| deadlines[index].max(tick));
    order
}

mod order {
    use super::*;

    const COUNT: usize = if cfg!(miri) { 12 } else { 3_000 };

    /// Which of `COUNT` entries are removed. Some leave few holes, some many, some only at one end.
    const PATTERNS: [fn(usize) -> bool; 8] = [
        |_| false,
        |index| index % 2 == 0,
        |index| index % 2 == 1,
        |index| index % 7 != 3,
        |index| index % 7 == 3,
        |index| index < COUNT * 3 / 4,
        |index| index > COUNT / 4,
        |index| index != COUNT / 2,
    ];

    /// In a wheel at `tick`: inserts, removes, and inserts and removes once more; then all come out as they were put in.
    fn check(tick: u64, deadline: impl Fn(usize) -> u64) {
        let patterns = PATTERNS.iter().step_by(if cfg!(miri) { 3 } else { 1 });
        for (removed, backwards) in patterns.flat_map(|pattern| [(pattern, false), (pattern, true)]) {
            let mut wheel = wheel_at(8, tick);
            let deadlines: Vec<_> = (0..2 * COUNT).map(&deadline).collect();
            let mut keys = insert_all(&mut wheel, &deadlines[..COUNT]);
            let mut gone: Vec<usize> = (0..COUNT).filter(|&index| removed(index)).collect();
            if backwards {
                gone.reverse();
            }
            for &index in &gone {
                assert_eq!(wheel.remove(keys[index]), Some(index));
            }
            for (index, &deadline) in deadlines.iter().enumerate().skip(COUNT) {
                keys.push(wheel.insert(deadline, index));
            }
            let gone = |index: usize| removed(index % COUNT);
            for index in (COUNT..2 * COUNT).filter(|&index| gone(index)) {
                assert_eq!(wheel.remove(keys[index]), Some(index));
            }
            for (index, &key) in keys.iter().enumerate() {
                assert_eq!(wheel.get(key), Some(&index).filter(|_| !gone(index)));
            }
            let left: Vec<_> = in_order(tick, &deadlines).into_iter().filter(|&index| !gone(index)).collect();
            assert_eq!(fired(&mut wheel, 1_000), left);
        }
    }

    #[test]
    fn of_insertion_survives_removals_at_one_deadline() {
        check(0, |_| 3);
    }

    #[test]
    fn of_insertion_survives_removals_where_a_slot_has_several_deadlines() {
        check(0, |index| 3 + 8 * (index as u64 % 5));
    }

    #[test]
    fn of_insertion_survives_removals_of_what_is_overdue() {
        check(100, |index| index as u64 % 90);
    }

    #[test]
    fn of_insertion_is_kept_when_entries_come_before_and_after_other_turns() {
        let mut wheel = Wheel::new(4);
        let mut deadlines = Vec::new();
        // Each round some entries for the same far tick, some that go before it, and a turn of the wheel.
        for round in 0..if cfg!(miri) { 10 } else { 50 } {
            for deadline in [403, 4 * round + 3, 403, 4 * round + 7] {
                wheel.insert(deadline, deadlines.len());
                deadlines.push(deadline);
            }
            let next = fired(&mut wheel, 4 * round + 3);
            assert!(next.iter().all(|&index| deadlines[index] == 4 * round + 3));
            assert!(next.is_sorted());
        }
        let last = fired(&mut wheel, 403);
        let expected = (0..deadlines.len()).filter(|&index| deadlines[index] == 403);
        assert!(last.iter().copied().filter(|&index| deadlines[index] == 403).eq(expected));
    }
}

mod stale_keys {
    use super::*;

    /// More than any part of the wheel keeps room for once it is empty.
    const MANY: usize = if cfg!(miri) { 20 } else { 5_000 };

    /// Fills the wheel with others: none of them is one of the `stale`.
    fn check(wheel: &mut Wheel<usize>, stale: &[Key]) {
        assert!(wheel.is_empty());
        for _ in 0..2 {
            let tick = wheel.tick();
            let live: Vec<_> =
                (0..MANY).map(|index| wheel.insert(tick + index as u64 % 100, index)).collect();
            for &key in stale {
                assert_eq!(wheel.get(key), None);
                assert_eq!(wheel.remove(key), None);
            }
            assert_eq!(wheel.len(), MANY);
            for (index, &key) in live.iter().enumerate() {
                assert_eq!(wheel.get(key), Some(&index));
                assert_eq!(wheel.remove(key), Some(index));
                assert_eq!(wheel.remove(key), None);
            }
        }
    }

    fn filled(count: usize) -> (Wheel<usize>, Vec<Key>) {
        let mut wheel = wheel_at(64, 50);
        let deadlines: Vec<_> = (0..count).map(|index| index as u64 % 200).collect();
        let keys = insert_all(&mut wheel, &deadlines);
        (wheel, keys)
    }

    #[test]
    fn never_find_another_entry_after_a_removal() {
        for count in [1, 10, MANY] {
            let (mut wheel, keys) = filled(count);
            for (index, &key) in keys.iter().enumerate() {
                assert_eq!(wheel.remove(key), Some(index));
            }
            check(&mut wheel, &keys);
        }
    }

    #[test]
    fn never_find_another_entry_after_expiry() {
        for count in [1, 10, MANY] {
            let (mut wheel, keys) = filled(count);
            assert_eq!(fired(&mut wheel, 200).len(), count);
            check(&mut wheel, &keys);
        }
    }

    #[test]
    fn never_find_another_entry_after_a_drain() {
        for count in [1, 10, MANY] {
            let (mut wheel, keys) = filled(count);
            assert_eq!(wheel.drain().count(), count);
            check(&mut wheel, &keys);
        }
    }

    #[test]
    fn never_find_another_entry_in_a_place_that_is_used_again_and_again() {
        let mut wheel = Wheel::new(4);
        wheel.insert(1_000, 0);
        let mut stale = Vec::new();
        for value in 1..if cfg!(miri) { 20 } else { 200 } {
            let key = wheel.insert(value as u64 % 7, value);
            assert!(stale.iter().all(|&old| old != key && wheel.get(old).is_none()));
            assert!(stale.iter().all(|&old| wheel.remove(old).is_none()));
            assert_eq!(wheel.remove(key), Some(value));
            stale.push(key);
        }
        assert_eq!(wheel.len(), 1);
    }
}

mod panics {
    use super::*;

    const SLOTS: usize = 8;
    const TICK: u64 = 10;
    const NOW: u64 = 45;

    /// Overdue ones, ticks with several entries, slots with several ticks; some that are due after `NOW`.
    const DEADLINES: [u64; 16] = [20, 3, 28, 20, 10, 46, 20, 21, 12, 45, 5, 36, 20 + 8 * 1_000, 20, 45, 12];

    /// What is done between the panic and the next `advance`.
    #[derive(Clone, Copy)]
    enum Then {
        Nothing,
        Remove(fn(usize) -> bool),
        Insert(&'static [u64]),
    }

    const THEN: [Then; 9] = [
        Then::Nothing,
        Then::Remove(|index| index % 2 == 0),
        Then::Remove(|index| index % 2 == 1),
        Then::Remove(|index| DEADLINES[index] == 20),
        Then::Remove(|_| true),
        Then::Insert(&[0]),
        Then::Insert(&[20]),
        Then::Insert(&[60, 20 + 8 * 900]),
        Then::Insert(&[10, 11, 12, 13, 19, 20, 21, 27, 28, 29, 35, 36, 37, 44, 45, 46, 4, 20, 12]),
    ];

    fn check(position: usize, then: Then, again: usize, ends: &[u64]) {
        // In a few turns; or in very many, or on a dozen levels.
        for slots in [SLOTS, 2].into_iter().take(if cfg!(miri) { 1 } else { 2 }) {
            check_with(slots, position, then, again, ends);
        }
    }

    /// Panics at `position`, does something with the wheel, and panics again `again` entries later.
    fn check_with(slots: usize, position: usize, then: Then, again: usize, ends: &[u64]) {
        let mut wheel = wheel_at(slots, TICK);
        let mut keys = insert_all(&mut wheel, &DEADLINES);
        // The order is that of the deadline or, if that had passed, of the tick at insertion; then that of insertion.
        let mut turns: Vec<_> = DEADLINES.iter().map(|&deadline| deadline.max(TICK)).collect();
        let mut deadlines = DEADLINES.to_vec();
        let order = in_order(TICK, &DEADLINES);

        let fired = fired_until_panic(&mut wheel, NOW, position);
        assert_eq!(fired, order[..=position]);
        let mut left = order[position + 1..].to_vec();
        assert_eq!(wheel.len(), left.len());
        assert!((TICK..=NOW).contains(&wheel.tick()));
        assert!(fired.iter().all(|&index| wheel.get(keys[index]).is_none()));
        assert!(left.iter().all(|&index| wheel.get(keys[index]) == Some(&index)));

        match then {
            Then::Nothing => {}
            Then::Remove(which) => left.retain(|&index| {
                if which(index) {
                    assert_eq!(wheel.remove(keys[index]), Some(index));
                }
                !which(index)
            }),
            Then::Insert(more) => {
                for &deadline in more {
                    left.push(deadlines.len());
                    keys.push(wheel.insert(deadline, deadlines.len()));
                    turns.push(deadline.max(wheel.tick()));
                    deadlines.push(deadline);
                }
                left.sort_by_key(|&index| turns[index]);
            }
        }
        check_next(&wheel, left.iter().map(|&index| deadlines[index]).min());

        for (round, &now) in ends.iter().enumerate() {
            let (tick, calls) = (wheel.tick(), if round == 0 { again } else { usize::MAX });
            let mut due = left.partition_point(|&index| now >= tick && turns[index] <= now);
            due = due.min(calls.saturating_add(1));
            assert_eq!(fired_until_panic(&mut wheel, now, calls), left[..due]);
            left.drain(..due);
            check_next(&wheel, left.iter().map(|&index| deadlines[index]).min());
            assert!(left.iter().all(|&index| wheel.get(keys[index]) == Some(&index)));
        }
        assert_eq!(left, []);
        assert!(wheel.is_empty());
    }

    /// Of the entries that are due, in the order in which they come out.
    fn positions() -> impl Iterator<Item = usize> {
        let due = DEADLINES.iter().filter(|&&deadline| deadline <= NOW).count();
        (0..due).step_by(if cfg!(miri) { 7 } else { 1 })
    }

    #[test]
    fn lose_nothing_else_at_any_position() {
        for position in positions() {
            for then in THEN.into_iter().step_by(if cfg!(miri) { 4 } else { 1 }) {
                check(position, then, usize::MAX, &[u64::MAX]);
                check(position, then, usize::MAX, &[NOW, u64::MAX]);
            }
        }
    }

    #[test]
    fn leave_a_wheel_that_goes_on_tick_by_tick() {
        let ticks: Vec<u64> =
            (0..=NOW + 20).step_by(if cfg!(miri) { 5 } else { 1 }).chain([u64::MAX / 2, u64::MAX]).collect();
        for position in positions() {
            for then in THEN.into_iter().step_by(if cfg!(miri) { 4 } else { 1 }) {
                check(position, then, usize::MAX, &ticks);
            }
        }
    }

    #[test]
    fn lose_nothing_else_when_one_follows_another() {
        for position in positions() {
            for then in THEN.into_iter().step_by(if cfg!(miri) { 4 } else { 1 }) {
                for again in 0..if cfg!(miri) { 1 } else { 25 } {
                    check(position, then, again, &[NOW, NOW, u64::MAX]);
                    check(position, then, again, &[u64::MAX, u64::MAX]);
                }
            }
        }
    }

    #[test]
    fn of_every_call_let_every_entry_out_once() {
        for slots in SIZES {
            let mut wheel = wheel_at(slots, TICK);
            insert_all(&mut wheel, &DEADLINES);
            let mut all = Vec::new();
            while !wheel.is_empty() {
                let fired = fired_until_panic(&mut wheel, u64::MAX, 0);
                assert_eq!(fired.len(), 1);
                all.extend(fired);
            }
            assert_eq!(all, in_order(TICK, &DEADLINES));
        }
    }

    #[test]
    fn leave_a_wheel_that_can_be_drained() {
        for position in positions() {
            let mut wheel = wheel_at(SLOTS, TICK);
            insert_all(&mut wheel, &DEADLINES);
            let mut all = fired_until_panic(&mut wheel, NOW, position);
            all.extend(wheel.drain());
            all.sort_unstable();
            assert!(all.into_iter().eq(0..DEADLINES.len()));

            let tick = wheel.tick();
            insert_all(&mut wheel, &[tick + 9, tick, tick + 1, tick + 9]);
            check_next(&wheel, Some(tick));
            assert_eq!(fired(&mut wheel, u64::MAX), [1, 2, 0, 3]);
        }
    }

    #[test]
    fn at_the_last_entry_of_a_slot_leave_the_slot_usable() {
        for deadline in [5, 8, 9, 16, 17] {
            let mut wheel = Wheel::new(SLOTS);
            wheel.insert(deadline, 0);
            assert_eq!(fired_until_panic(&mut wheel, 100, 0), [0]);
            check_next(&wheel, None);
            let tick = wheel.tick();
            let later: Vec<_> = (0..40).map(|ticks| tick + 40 - ticks).collect();
            insert_all(&mut wheel, &later);
            let (fired, _) = run_out(&mut wheel, 50);
            assert_eq!(fired, in_order(tick, &later));
        }
    }
}

mod cost {
    use super::*;

    /// These would not end if the cost were that of the ticks or of the rounds.
    #[test]
    fn of_a_jump_is_that_of_the_entries() {
        for slots in [1, 2, 512, 1 << 20] {
            let mut wheel = Wheel::new(if cfg!(miri) { slots.min(512) } else { slots });
            let deadlines = [5, 6, 1 << 20, 1 << 40, u64::MAX / 2, u64::MAX / 2 + 1, u64::MAX];
            insert_all(&mut wheel, &deadlines);
            assert_eq!(fired(&mut wheel, u64::MAX / 2), [0, 1, 2, 3, 4]);
            assert_eq!(fired(&mut wheel, u64::MAX), [5, 6]);
        }
    }

    /// Each entry has a slot of its own, and all but a whole turn lies between one and the next.
    #[test]
    fn of_a_jump_is_not_that_of_the_entries_squared() {
        const COUNT: u64 = if cfg!(miri) { 40 } else { 5_000 };
        const SLOTS: usize = if cfg!(miri) { 1 << 8 } else { 1 << 14 };

        let mut wheel = Wheel::new(SLOTS);
        let deadlines: Vec<_> = (1..=COUNT).rev().map(|turn| turn * (SLOTS as u64 + 1)).collect();
        insert_all(&mut wheel, &deadlines);
        let fired = fired(&mut wheel, u64::MAX);
        assert!(fired.into_iter().eq((0..deadlines.len()).rev()));
    }

    #[test]
    fn of_sleeping_until_the_next_deadline_is_one_wake_for_each() {
        let mut random = Rng::with_seed(1);
        for slots in SIZES {
            let count = if cfg!(miri) { 20 } else { 1_000 };
            let mut deadlines: Vec<_> = (0..count).map(|_| random.u64(1..1 << 30)).collect();
            let mut wheel = Wheel::new(slots);
            insert_all(&mut wheel, &deadlines);
            let (fired, wakes) = run_out(&mut wheel, count);
            assert_eq!(fired, in_order(0, &deadlines));
            deadlines.sort_unstable();
            deadlines.dedup();
            assert_eq!(wakes, deadlines.len());
        }
    }

    #[test]
    fn of_removals_is_no_more_than_one_wake_for_each() {
        let count = if cfg!(miri) { 20 } else { 1_000 };
        for slots in SIZES {
            let mut random = Rng::with_seed(slots as u64);
            let deadlines: Vec<_> = (0..count).map(|_| random.u64(1..1 << 20)).collect();
            let mut wheel = Wheel::new(slots);
            let keys = insert_all(&mut wheel, &deadlines);
            for key in keys.iter().step_by(2) {
                wheel.remove(*key);
            }
            run_out(&mut wheel, count);
        }
    }

    #[test]
    fn of_turns_in_which_nothing_is_due_is_nothing() {
        const COUNT: u64 = if cfg!(miri) { 100 } else { 100_000 };

        let mut random = Rng::with_seed(1);
        let mut wheel = Wheel::new(512);
        let far: Vec<u64> = (0..COUNT).map(|_| random.u64(1 << 30..1 << 40)).collect();
        insert_all(&mut wheel, &far);
        let first = far.iter().copied().min();
        assert_eq!(wheel.next_deadline(), first);
        for turn in 1..=if cfg!(miri) { 10 } else { 1_000 } {
            assert_eq!(fired(&mut wheel, 512 * turn), []);
            assert_eq!(wheel.next_deadline(), first);
        }
        // Now what is next has to be found among all of them.
        let now = wheel.tick() + 1;
        wheel.insert(now, usize::MAX);
        assert_eq!(fired(&mut wheel, now), [usize::MAX]);
        assert_eq!(wheel.next_deadline(), first);
        assert_eq!(wheel.len(), far.len());
    }
}

mod size {
    use super::*;

    #[test]
    #[should_panic(expected = "ticks_per_wheel is 0, but must be from 1 to ")]
    fn must_not_be_zero() {
        let _ = Wheel::<()>::new(0);
    }

    #[test]
    #[should_panic(expected = "but must be from 1 to ")]
    fn must_not_be_more_than_the_maximum() {
        let _ = Wheel::<()>::new(MAX_TICKS_PER_WHEEL + 1);
    }

    /// Four gigabytes of zeros, which nobody reads.
    #[test]
    #[cfg(target_pointer_width = "64")]
    #[cfg_attr(miri, ignore = "Miri does make all of that memory")]
    fn can_be_the_maximum() {
        for slots in [1 << 30, (1 << 29) + 1] {
            let mut wheel = Wheel::new(slots);
            let deadlines = [1 << 29, 1, (1 << 30) - 1, 1 << 30, 5 << 30, (1 << 30) + 1, u64::MAX];
            let keys = insert_all(&mut wheel, &deadlines);
            assert_eq!(wheel.remove(keys[3]), Some(3));
            assert_eq!(fired(&mut wheel, 1 << 30), [1, 0, 2]);
            assert_eq!(wheel.next_deadline(), Some((1 << 30) + 1));
            assert_eq!(fired(&mut wheel, u64::MAX), [5, 4, 6]);
        }
    }

    #[test]
    fn is_rounded_up_to_a_power_of_two() {
        let sizes = [(1, 1), (2, 2), (3, 4), (5, 8), (63, 64), (64, 64), (65, 128), (1_000, 1_024)];
        for (asked, slots) in sizes.into_iter().take(if cfg!(miri) { 4 } else { sizes.len() }) {
            let slots = slots.max(LEAST_SLOTS);
            let mut wheel = Wheel::new(asked);
            assert!(format!("{wheel:?}").contains(&format!("ticks_per_wheel: {slots},")), "{wheel:?}");

            // With another number than the mask's, some of these would be in each other's slots.
            let deadlines: Vec<u64> = (1..=3 * slots).collect();
            insert_all(&mut wheel, &deadlines);
            for (index, &deadline) in deadlines.iter().enumerate() {
                assert_eq!(wheel.next_deadline(), Some(deadline));
                assert_eq!(fired(&mut wheel, deadline), [index]);
            }
        }
    }
}

mod values {
    use super::*;

    /// Neither `Clone` nor `Send`. Counts how often each is dropped.
    struct Counted {
        drops: Rc<[Cell<u32>]>,
        index: usize,
    }

    impl Drop for Counted {
        fn drop(&mut self) {
            let drops = &self.drops[self.index];
            drops.set(drops.get() + 1);
        }
    }

    /// A wheel with one that is overdue, one in each slot, and some in further turns; and what counts their drops.
    fn filled(count: usize) -> (Wheel<Counted>, Vec<Key>, Rc<[Cell<u32>]>) {
        let drops: Rc<[_]> = vec![Cell::new(0); count].into();
        let mut wheel = wheel_at(16, 1);
        let insert = |index| wheel.insert(1 + index as u64, Counted { drops: Rc::clone(&drops), index });
        let keys = (0..count).map(insert).collect();
        (wheel, keys, drops)
    }

    /// What the timer relies on, and an owner on another thread.
    #[test]
    fn may_be_of_any_kind_and_go_anywhere() {
        fn check<W: Send + Sync + Unpin>(_: W) {}
        check(Wheel::<()>::new(2));
        check(Wheel::<Box<dyn FnOnce() + Send + Sync>>::new(2));

        let mut none = Wheel::<std::convert::Infallible>::new(2);
        none.advance(5, |never| match never {});
        assert_eq!(none.next_deadline(), None);
    }

    fn all_dropped_once(drops: &[Cell<u32>]) -> bool {
        drops.iter().all(|drops| drops.get() == 1)
    }

    #[test]
    fn are_dropped_once_with_the_wheel() {
        let (mut wheel, keys, drops) = filled(50);
        drop(wheel.remove(keys[5]));
        drop(wheel.remove(keys[30]));
        drop(wheel.remove(keys[30]));
        wheel.advance(20, drop);
        assert_eq!(drops.iter().map(Cell::get).sum::<u32>(), 21);
        drop(wheel);
        assert!(all_dropped_once(&drops));
    }

    #[test]
    fn are_dropped_once_by_a_drain_that_is_read_in_part() {
        for read in [0, 1, 25, 50] {
            let (mut wheel, keys, drops) = filled(50);
            let taken: Vec<_> = wheel.drain().take(read).collect();
            assert_eq!(taken.len(), read);
            assert_eq!(drops.iter().map(Cell::get).sum::<u32>(), 50 - read as u32);
            assert!(wheel.is_empty());
            assert_eq!(wheel.next_deadline(), None);
            assert_eq!(wheel.tick(), 1, "the time stays");
            assert!(keys.iter().all(|&key| wheel.remove(key).is_none()));
            drop(taken);
            assert!(all_dropped_once(&drops));
        }
    }

    #[test]
    fn are_dropped_once_when_expired_panics() {
        for calls in [0, 1, 7, 49] {
            let (mut wheel, _, drops) = filled(50);
            let fired = fired_until_panic(&mut wheel, 100, calls);
            assert_eq!(fired.len(), calls + 1);
            drop(fired);
            assert_eq!(drops.iter().map(Cell::get).sum::<u32>(), calls as u32 + 1);
            drop(wheel);
            assert!(all_dropped_once(&drops));
        }
    }
}
