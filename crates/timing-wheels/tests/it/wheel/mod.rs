//! Black-box tests of a plain wheel: at every boundary, and after a panic at every position. The
//! file that includes this module chooses the wheel as `super::Wheel`. The model is in `fuzz.rs`.

mod boundaries;
mod steps;

use std::cell::Cell;
use std::rc::Rc;

use fastrand::Rng;
use timing_wheels::{Key, MAX_TICKS_PER_WHEEL};

use super::{MIN_SLOTS, Wheel};

pub(crate) use steps::{check_next, fired, fired_until_panic};

pub(crate) const SIZES: [usize; 5] = [1, 2, 4, 64, 512];

/// Advances from one `next_deadline` to the next until the wheel is empty. Returns the values that
/// came out and the number of steps.
pub(crate) fn advance_until_empty<T>(wheel: &mut Wheel<T>, max_steps: usize) -> (Vec<T>, usize) {
    let (mut fired, mut steps) = (Vec::new(), 0);
    while let Some(next) = wheel.next_deadline() {
        wheel.advance(next, |value| fired.push(value));
        steps += 1;
        assert!(steps <= max_steps, "{steps} steps, and still {wheel:?}");
    }
    (fired, steps)
}

/// Returns an empty wheel at this tick.
pub(crate) fn wheel_at<T>(slots: usize, tick: u64) -> Wheel<T> {
    let mut wheel = Wheel::new(slots);
    wheel.advance(tick, |_| unreachable!());
    wheel
}

/// Inserts each deadline with its index as the value.
pub(crate) fn insert_all(wheel: &mut Wheel<usize>, deadlines: &[u64]) -> Vec<Key> {
    deadlines
        .iter()
        .enumerate()
        .map(|(index, &deadline)| wheel.insert(deadline, index))
        .collect()
}

/// Returns the indices in the order in which entries with these deadlines come out of a wheel at
/// `tick`.
pub(crate) fn in_order(tick: u64, deadlines: &[u64]) -> Vec<usize> {
    let mut order: Vec<_> = (0..deadlines.len()).collect();
    // The sort is stable. Overdue entries come first, in the order of insertion.
    order.sort_by_key(|&index| deadlines[index].max(tick));
    order
}

mod order {
    use super::*;

    const COUNT: usize = 3_000;

    /// Chooses which of `COUNT` entries are removed. Some patterns leave few gaps, some many, and
    /// some only at one end.
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

    /// In a wheel at `tick`: inserts and removes twice. Then all entries come out in the order of
    /// insertion.
    fn check(tick: u64, deadline: impl Fn(usize) -> u64) {
        let cases = |pattern| [(pattern, false), (pattern, true)];
        for (removed, backwards) in PATTERNS.iter().flat_map(cases) {
            let mut wheel = wheel_at(8, tick);
            let deadlines: Vec<_> = (0..2 * COUNT).map(&deadline).collect();
            let mut keys = insert_all(&mut wheel, &deadlines[..COUNT]);
            let mut removed_indices: Vec<usize> =
                (0..COUNT).filter(|&index| removed(index)).collect();
            if backwards {
                removed_indices.reverse();
            }
            for &index in &removed_indices {
                assert_eq!(wheel.remove(keys[index]), Some(index));
            }
            for (index, &deadline) in deadlines.iter().enumerate().skip(COUNT) {
                keys.push(wheel.insert(deadline, index));
            }
            let is_removed = |index: usize| removed(index % COUNT);
            for index in (COUNT..2 * COUNT).filter(|&index| is_removed(index)) {
                assert_eq!(wheel.remove(keys[index]), Some(index));
            }
            for (index, &key) in keys.iter().enumerate() {
                assert_eq!(wheel.get(key), Some(&index).filter(|_| !is_removed(index)));
            }
            let left: Vec<_> = in_order(tick, &deadlines)
                .into_iter()
                .filter(|&index| !is_removed(index))
                .collect();
            assert_eq!(fired(&mut wheel, 1_000), left);
        }
    }

    #[test]
    fn insertion_order_is_kept_after_removals_at_one_deadline() {
        check(0, |_| 3);
    }

    #[test]
    fn insertion_order_is_kept_after_removals_in_a_slot_with_several_deadlines() {
        check(0, |index| 3 + 8 * (index as u64 % 5));
    }

    #[test]
    fn insertion_order_is_kept_after_removals_of_overdue_entries() {
        check(100, |index| index as u64 % 90);
    }

    #[test]
    fn insertion_order_is_kept_across_rounds() {
        let mut wheel = Wheel::new(4);
        let mut deadlines = Vec::new();
        // Each iteration inserts entries for the same far tick and some before it, and then
        // advances by one round.
        for round in 0..50 {
            for deadline in [403, 4 * round + 3, 403, 4 * round + 7] {
                wheel.insert(deadline, deadlines.len());
                deadlines.push(deadline);
            }
            let next = fired(&mut wheel, 4 * round + 3);
            assert!(next.iter().all(|&index| deadlines[index] == 4 * round + 3));
            assert!(next.windows(2).all(|pair| pair[0] <= pair[1]));
        }
        let last = fired(&mut wheel, 403);
        let expected = (0..deadlines.len()).filter(|&index| deadlines[index] == 403);
        let of_last = last
            .iter()
            .copied()
            .filter(|&index| deadlines[index] == 403)
            .eq(expected);
        assert!(of_last);
    }
}

mod stale_keys {
    use super::*;

    /// More entries than any part of the wheel keeps capacity for once it is empty.
    const MANY: usize = 5_000;

    /// Fills the wheel with new entries and checks that no stale key finds one of them.
    fn check(wheel: &mut Wheel<usize>, stale: &[Key]) {
        assert!(wheel.is_empty());
        for _ in 0..2 {
            let tick = wheel.tick();
            let live: Vec<_> = (0..MANY)
                .map(|index| wheel.insert(tick + index as u64 % 100, index))
                .collect();
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

    /// Lets all entries leave. Returns how many have.
    type End = fn(&mut Wheel<usize>, &[Key]) -> usize;

    /// Removal, expiry and a drain.
    const ENDS: [End; 3] = [
        |wheel, keys| {
            let removed = keys.iter().map(|&key| wheel.remove(key));
            let right = (0..).zip(removed).filter(|&(index, it)| it == Some(index));
            right.count()
        },
        |wheel, _| fired(wheel, 200).len(),
        |wheel, _| wheel.drain().count(),
    ];

    #[test]
    fn never_find_another_entry() {
        let counts = |end| [1, 10, MANY].map(|count| (end, count));
        for (end, count) in ENDS.iter().flat_map(counts) {
            let (mut wheel, keys) = filled(count);
            assert_eq!(end(&mut wheel, &keys), count);
            check(&mut wheel, &keys);
        }
    }

    #[test]
    fn never_find_another_entry_in_a_slot_that_is_reused_often() {
        let mut wheel = Wheel::new(4);
        wheel.insert(1_000, 0);
        let mut stale = Vec::new();
        for value in 1..200 {
            let key = wheel.insert(value as u64 % 7, value);
            let is_new = stale
                .iter()
                .all(|&old| old != key && wheel.get(old).is_none());
            assert!(is_new);
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

    /// Overdue entries, ticks with several entries, slots with several ticks, and entries due after
    /// `NOW`.
    const DEADLINES: [u64; 16] = [
        20, 3, 28, 20, 10, 46, 20, 21, 12, 45, 5, 36, 8_020, 20, 45, 12,
    ];

    /// The operation between the panic and the next `advance`.
    #[derive(Clone, Copy)]
    enum Between {
        Nothing,
        Remove(fn(usize) -> bool),
        Insert(&'static [u64]),
    }

    const BETWEEN: [Between; 9] = [
        Between::Nothing,
        Between::Remove(|index| index % 2 == 0),
        Between::Remove(|index| index % 2 == 1),
        Between::Remove(|index| DEADLINES[index] == 20),
        Between::Remove(|_| true),
        Between::Insert(&[0]),
        Between::Insert(&[20]),
        Between::Insert(&[60, 20 + 8 * 900]),
        Between::Insert(&[
            10, 11, 12, 13, 19, 20, 21, 27, 28, 29, 35, 36, 37, 44, 45, 46, 4, 20, 12,
        ]),
    ];

    fn check(position: usize, between: Between, second_panic: usize, ends: &[u64]) {
        // With few rounds, and with two slots: very many rounds, or a dozen levels.
        for slots in [SLOTS, 2] {
            check_with(slots, position, between, second_panic, ends);
        }
    }

    /// Panics at `position`, applies `between`, and panics again after `second_panic` more entries.
    fn check_with(
        slots: usize,
        position: usize,
        between: Between,
        second_panic: usize,
        ends: &[u64],
    ) {
        let mut wheel = wheel_at(slots, TICK);
        let mut keys = insert_all(&mut wheel, &DEADLINES);
        // The order is that of the deadline or, if that had passed, of the tick at insertion.
        // Entries with the same key are in the order of insertion.
        let mut due_ticks = DEADLINES.map(|deadline| deadline.max(TICK)).to_vec();
        let mut deadlines = DEADLINES.to_vec();
        let order = in_order(TICK, &DEADLINES);

        let fired = fired_until_panic(&mut wheel, NOW, position);
        assert_eq!(fired, order[..=position]);
        let mut left = order[position + 1..].to_vec();
        assert_eq!(wheel.len(), left.len());
        assert!((TICK..=NOW).contains(&wheel.tick()));
        assert!(fired.iter().all(|&index| wheel.get(keys[index]).is_none()));
        let are_left = left
            .iter()
            .all(|&index| wheel.get(keys[index]) == Some(&index));
        assert!(are_left);

        match between {
            Between::Nothing => {}
            Between::Remove(which) => left.retain(|&index| {
                if which(index) {
                    assert_eq!(wheel.remove(keys[index]), Some(index));
                }
                !which(index)
            }),
            Between::Insert(more) => {
                for &deadline in more {
                    left.push(deadlines.len());
                    keys.push(wheel.insert(deadline, deadlines.len()));
                    due_ticks.push(deadline.max(wheel.tick()));
                    deadlines.push(deadline);
                }
                left.sort_by_key(|&index| due_ticks[index]);
            }
        }
        check_next(&wheel, left.iter().map(|&index| deadlines[index]).min());

        for (round, &now) in ends.iter().enumerate() {
            let (tick, calls) = (
                wheel.tick(),
                if round == 0 { second_panic } else { usize::MAX },
            );
            let mut due = left.partition_point(|&index| now >= tick && due_ticks[index] <= now);
            due = due.min(calls.saturating_add(1));
            assert_eq!(fired_until_panic(&mut wheel, now, calls), left[..due]);
            left.drain(..due);
            check_next(&wheel, left.iter().map(|&index| deadlines[index]).min());
            let are_left = left
                .iter()
                .all(|&index| wheel.get(keys[index]) == Some(&index));
            assert!(are_left);
        }
        assert_eq!(left, []);
        assert!(wheel.is_empty());
    }

    /// The positions of the due entries, in the order in which they come out.
    fn positions() -> impl Iterator<Item = usize> {
        let due = DEADLINES.iter().filter(|&&deadline| deadline <= NOW);
        0..due.count()
    }

    /// A panic at each position, with each operation after it.
    fn cases() -> impl Iterator<Item = (usize, Between)> {
        positions().flat_map(|position| BETWEEN.map(|between| (position, between)))
    }

    #[test]
    fn lose_no_other_entry_at_any_position() {
        for (position, between) in cases() {
            check(position, between, usize::MAX, &[u64::MAX]);
            check(position, between, usize::MAX, &[NOW, u64::MAX]);
        }
    }

    #[test]
    fn leave_a_wheel_that_continues_tick_by_tick() {
        let ticks: Vec<u64> = (0..=NOW + 20).chain([u64::MAX / 2, u64::MAX]).collect();
        for (position, between) in cases() {
            check(position, between, usize::MAX, &ticks);
        }
    }

    #[test]
    fn lose_no_other_entry_when_a_second_panic_follows() {
        for (position, between) in cases() {
            for second_panic in 0..25 {
                check(position, between, second_panic, &[NOW, NOW, u64::MAX]);
                check(position, between, second_panic, &[u64::MAX, u64::MAX]);
            }
        }
    }

    #[test]
    fn at_every_entry_return_each_entry_once() {
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
            let (fired, _) = advance_until_empty(&mut wheel, 50);
            assert_eq!(fired, in_order(tick, &later));
        }
    }
}

mod cost {
    use super::*;

    /// These tests would not end if the cost depended on the number of ticks or rounds.
    #[test]
    fn a_jump_depends_only_on_the_entries() {
        for slots in [1, 2, 512, 1 << 20] {
            let mut wheel = Wheel::new(slots);
            let half = u64::MAX / 2;
            let deadlines = [5, 6, 1 << 20, 1 << 40, half, half + 1, u64::MAX];
            insert_all(&mut wheel, &deadlines);
            assert_eq!(fired(&mut wheel, half), [0, 1, 2, 3, 4]);
            assert_eq!(fired(&mut wheel, u64::MAX), [5, 6]);
        }
    }

    /// Each entry has its own slot, and almost a whole round lies between two consecutive entries.
    #[test]
    fn a_jump_is_not_quadratic_in_the_entries() {
        const COUNT: u64 = 5_000;
        const SLOTS: usize = 1 << 14;

        let mut wheel = Wheel::new(SLOTS);
        let deadlines: Vec<_> = (1..=COUNT)
            .rev()
            .map(|round| round * (SLOTS as u64 + 1))
            .collect();
        insert_all(&mut wheel, &deadlines);
        let fired = fired(&mut wheel, u64::MAX);
        assert!(fired.into_iter().eq((0..deadlines.len()).rev()));
    }

    #[test]
    fn sleeping_until_the_next_deadline_is_one_wake_up_per_deadline() {
        let mut random = Rng::with_seed(1);
        for slots in SIZES {
            let count = 1_000;
            let mut deadlines: Vec<_> = (0..count).map(|_| random.u64(1..1 << 30)).collect();
            let mut wheel = Wheel::new(slots);
            insert_all(&mut wheel, &deadlines);
            let (fired, wakes) = advance_until_empty(&mut wheel, count);
            assert_eq!(fired, in_order(0, &deadlines));
            deadlines.sort_unstable();
            deadlines.dedup();
            assert_eq!(wakes, deadlines.len());
        }
    }

    #[test]
    fn a_removal_is_at_most_one_wake_up() {
        let count = 1_000;
        for slots in SIZES {
            let mut random = Rng::with_seed(slots as u64);
            let deadlines: Vec<_> = (0..count).map(|_| random.u64(1..1 << 20)).collect();
            let mut wheel = Wheel::new(slots);
            let keys = insert_all(&mut wheel, &deadlines);
            for key in keys.iter().step_by(2) {
                wheel.remove(*key);
            }
            advance_until_empty(&mut wheel, count);
        }
    }

    #[test]
    fn rounds_in_which_nothing_is_due_are_cheap() {
        const COUNT: u64 = 100_000;

        let mut random = Rng::with_seed(1);
        let mut wheel = Wheel::new(512);
        let far: Vec<u64> = (0..COUNT).map(|_| random.u64(1 << 30..1 << 40)).collect();
        insert_all(&mut wheel, &far);
        let first = far.iter().copied().min();
        assert_eq!(wheel.next_deadline(), first);
        for round in 1..=1_000 {
            assert_eq!(fired(&mut wheel, 512 * round), []);
            assert_eq!(wheel.next_deadline(), first);
        }
        // The next deadline must now be found among all entries.
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
    #[should_panic(expected = "must be from 1 to ")]
    fn must_not_be_zero() {
        let _ = Wheel::<()>::new(0);
    }

    #[test]
    #[should_panic(expected = "must be from 1 to ")]
    fn must_not_be_more_than_the_maximum() {
        let _ = Wheel::<()>::new(MAX_TICKS_PER_WHEEL + 1);
    }

    /// Four gigabytes of zeros, which are never read.
    #[test]
    #[cfg(target_pointer_width = "64")]
    fn can_be_the_maximum() {
        for slots in [1 << 30, (1 << 29) + 1] {
            let mut wheel = Wheel::new(slots);
            let (end, max) = (1 << 30, u64::MAX);
            let deadlines = [end / 2, 1, end - 1, end, 5 * end, end + 1, max];
            let keys = insert_all(&mut wheel, &deadlines);
            assert_eq!(wheel.remove(keys[3]), Some(3));
            assert_eq!(fired(&mut wheel, end), [1, 0, 2]);
            assert_eq!(wheel.next_deadline(), Some(end + 1));
            assert_eq!(fired(&mut wheel, u64::MAX), [5, 4, 6]);
        }
    }

    #[test]
    fn is_rounded_up_to_a_power_of_two() {
        for requested in [1_u64, 2, 3, 5, 63, 64, 65, 1_000] {
            let slots = requested.next_power_of_two().max(MIN_SLOTS);
            let mut wheel = Wheel::new(requested as usize);
            let text = format!("{wheel:?}");
            let is_rounded = text.contains(&format!("ticks_per_wheel: {slots},"));
            assert!(is_rounded, "{text}");

            // With a mask that does not match the number of slots, some of these would share a
            // slot.
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

    /// A value that is neither `Clone` nor `Send`, and counts its drops.
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

    /// Returns a wheel with one overdue entry, one entry in each slot, and some in further rounds,
    /// and the counters of the drops.
    fn filled(count: usize) -> (Wheel<Counted>, Vec<Key>, Rc<[Cell<u32>]>) {
        let drops: Rc<[_]> = vec![Cell::new(0); count].into();
        let mut wheel = wheel_at(16, 1);
        let insert = |index| {
            wheel.insert(
                1 + index as u64,
                Counted {
                    drops: Rc::clone(&drops),
                    index,
                },
            )
        };
        let keys = (0..count).map(insert).collect();
        (wheel, keys, drops)
    }

    /// The timer relies on this, and so does an owner on another thread.
    #[test]
    fn may_have_any_type_and_the_wheel_is_send_sync_unpin() {
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
            assert_eq!(wheel.tick(), 1, "the drain does not change the time");
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
