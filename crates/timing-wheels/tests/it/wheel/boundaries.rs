use std::collections::BTreeMap;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use super::*;

/// Ticks at which a round begins or another bit is set, and their neighbours.
fn deadlines(slots: usize) -> Vec<u64> {
    let rounds = (0..=5).map(|round| round * slots as u64);
    let powers = (0..64).map(|bit| 1 << bit);
    let edges = rounds
        .chain(powers)
        .chain([u64::MAX - slots as u64, u64::MAX]);
    let mut deadlines: Vec<u64> = edges
        .flat_map(|edge| [edge.saturating_sub(1), edge, edge.saturating_add(1)])
        .collect();
    Rng::with_seed(slots as u64).shuffle(&mut deadlines);
    deadlines
}

/// Each number of slots, with each tick around the end of the first round.
fn wheels() -> impl Iterator<Item = (usize, u64)> {
    SIZES
        .into_iter()
        .flat_map(|slots| [0, 1, slots - 1, slots, slots + 1].map(|tick| (slots, tick as u64)))
}

#[test]
fn rounds_and_powers_of_two_fire_exactly() {
    for (slots, tick) in wheels() {
        check_all(slots, tick, &deadlines(slots));
    }
}

#[test]
fn the_last_tick_works() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, u64::MAX - 1);
        insert_all(&mut wheel, &[u64::MAX, u64::MAX - 1, u64::MAX]);
        assert_eq!(fired(&mut wheel, u64::MAX - 1), [1]);
        check_next(&wheel, Some(u64::MAX));
        assert_eq!(fired(&mut wheel, u64::MAX), [0, 2]);

        let keys = insert_all(&mut wheel, &[u64::MAX, 0, u64::MAX]);
        assert_eq!(wheel.remove(keys[0]), Some(0));
        check_next(&wheel, Some(0));
        assert_eq!(fired(&mut wheel, u64::MAX), [1, 2]);
        assert_eq!(fired(&mut wheel, u64::MAX), []);
    }
}

#[test]
fn an_overdue_entry_comes_out_at_the_current_tick_before_all_others() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, 1_000);
        insert_all(&mut wheel, &[1_001, 1_000, 999, 0, 1_001, 1_000]);
        assert_eq!(fired(&mut wheel, 999), [], "the time does not step back");
        assert_eq!(fired(&mut wheel, 1_000), [1, 2, 3, 5]);
        assert_eq!(fired(&mut wheel, 1_000), []);
        wheel.insert(7, 6);
        assert_eq!(fired(&mut wheel, 2_000), [6, 0, 4]);
    }
}

#[test]
fn next_deadline_is_later_than_now_if_nothing_is_overdue() {
    let mut wheel = wheel_at(8, 10);
    let keys = insert_all(&mut wheel, &[5, 3, 100]);
    assert_eq!(wheel.next_deadline(), Some(10));
    wheel.remove(keys[1]);
    assert_eq!(wheel.next_deadline(), Some(10));
    wheel.remove(keys[0]);
    check_next(&wheel, Some(100));
}

#[test]
fn loop_over_next_deadline_ends_with_overdue_entries() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, 1_000);
        let deadlines = [5, 1_003, 999, 0, 1_000, 1_000_000];
        insert_all(&mut wheel, &deadlines);
        let mut steps = Vec::new();
        while let Some(tick) = wheel.next_deadline() {
            assert!(tick >= wheel.tick());
            steps.push((tick, fired(&mut wheel, tick)));
            assert!(steps.len() <= deadlines.len(), "{steps:?}");
        }
        assert_eq!(
            steps,
            [
                (1_000, vec![0, 2, 3, 4]),
                (1_003, vec![1]),
                (1_000_000, vec![5])
            ]
        );
    }
}

#[test]
fn entries_expire_one_at_a_time() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, 5);
        let keys = insert_all(&mut wheel, &[20, 10, 10, 30, 10, 11]);
        assert_eq!(wheel.pop_expired(9), None);
        assert_eq!(wheel.pop_expired(20), Some((keys[1], 10, 1)));
        let state = (wheel.tick(), wheel.next_deadline(), wheel.len());
        assert_eq!(state, (20, Some(20), 5));
        // Entries that are due can be looked up, removed and reset.
        assert_eq!(wheel.peek(), Some((keys[2], 10, &2)));
        assert_eq!(wheel.deadline(keys[4]), Some(10));
        assert_eq!(wheel.remove(keys[2]), Some(2));
        assert!(wheel.reset(keys[4], 25));
        wheel.insert(12, 6);
        assert_eq!(wheel.pop_expired(19), None, "the time does not step back");
        assert_eq!(wheel.pop_expired(20), Some((keys[5], 11, 5)));
        assert_eq!(fired(&mut wheel, 30), [0, 6, 4, 3]);
        assert_eq!(wheel.pop_expired(100), None);
        assert_eq!(wheel.tick(), 100);
    }
}

/// The array of entries that are due does not grow if it is never empty.
#[test]
fn overdue_entries_inserted_and_popped_in_turn_use_bounded_memory() {
    let mut wheel = wheel_at(8, 10);
    wheel.insert(0, 0);
    for number in 1..100_000 {
        wheel.insert(0, number);
        let popped = wheel.pop_expired(10).map(|(_, _, number)| number);
        assert_eq!(popped, Some(number - 1));
        assert_eq!(wheel.peek().map(|(_, _, value)| *value), Some(number));
    }
}

/// The loop takes amortised constant time per entry, so it ends soon.
#[test]
fn entries_that_are_due_are_reset_one_by_one_under_their_keys() {
    const COUNT: usize = 100_000;

    let mut wheel = Wheel::new(8);
    let keys = insert_all(&mut wheel, &vec![5; COUNT]);
    assert_eq!(wheel.peek_expired(4), None);
    let mut seen = Vec::new();
    while let Some((key, deadline, value)) = wheel.peek_expired(7) {
        assert_eq!((key, deadline), (keys[*value], 5));
        seen.push(*value);
        *value += COUNT;
        assert!(wheel.reset(key, 9));
    }
    assert!(seen.into_iter().eq(0..COUNT));
    let state = (wheel.len(), wheel.tick(), wheel.next_deadline());
    assert_eq!(state, (COUNT, 7, Some(9)));
    assert_eq!(wheel.peek_expired(6), None, "the time does not step back");
    assert!(fired(&mut wheel, 9).into_iter().eq(COUNT..2 * COUNT));
}

#[test]
fn entry_that_is_reset_to_now_is_due_again_after_the_others() {
    let mut wheel = wheel_at(8, 10);
    let keys = insert_all(&mut wheel, &[10, 3, 10]);
    for index in [0, 1, 2, 0] {
        let first = wheel.peek_expired(10).map(|(key, _, _)| key);
        assert_eq!(first, Some(keys[index]));
        assert!(wheel.reset(keys[index], 10));
    }
    assert_eq!(fired(&mut wheel, 10), [1, 2, 0]);
}

#[test]
fn shrunk_wheel_keeps_keys_deadlines_and_order() {
    for slots in SIZES {
        let mut wheel = Wheel::with_capacity(slots, 10_000);
        wheel.advance(1_000, |_| unreachable!());
        let deadlines: Vec<u64> = (0..5_000).map(|index| 900 + index * 7 % 1_200).collect();
        let keys = insert_all(&mut wheel, &deadlines);
        // Some of the overdue entries leave, and some of the others.
        let mut left = in_order(1_000, &deadlines);
        for index in left.drain(..20) {
            let popped = wheel.pop_expired(1_000);
            assert_eq!(popped, Some((keys[index], deadlines[index], index)));
        }
        left.retain(|&index| {
            let is_removed = index % 3 == 0 || index > 3_000;
            assert!(!is_removed || wheel.remove(keys[index]) == Some(index));
            !is_removed
        });
        wheel.shrink_to_fit();
        let is_small = wheel.capacity() <= 3_001 && wheel.len() == left.len();
        assert!(is_small, "{wheel:?}");
        for &index in &left {
            let entry = (wheel.get(keys[index]), wheel.deadline(keys[index]));
            assert_eq!(entry, (Some(&index), Some(deadlines[index])));
        }
        assert_eq!(fired(&mut wheel, u64::MAX), left);
        wheel.shrink_to_fit();
        assert_eq!(wheel.capacity(), 0);
    }
}

#[test]
fn reserved_memory_is_kept_by_clear() {
    // The lowest level of the larger one stays.
    for slots in [64, 1 << 17] {
        let mut wheel = Wheel::with_capacity(slots, 5_000);
        let capacity = wheel.capacity();
        let keys = insert_all(&mut wheel, &(0..5_000).collect::<Vec<_>>());
        wheel.advance(100, |_| ());
        wheel.clear();
        let state = (
            wheel.len(),
            wheel.tick(),
            wheel.next_deadline(),
            wheel.capacity(),
        );
        assert_eq!(state, (0, 100, None, capacity));
        assert!(keys.iter().all(|&key| wheel.get(key).is_none()));
        // So many that some are in the levels.
        insert_all(&mut wheel, &(101..=150).rev().collect::<Vec<_>>());
        let in_order: Vec<_> = (0..50).rev().collect();
        assert_eq!(fired(&mut wheel, 200), in_order);
    }
}

/// The wheel has no entries any more when `clear` drops the values.
#[test]
fn value_that_panics_when_it_is_dropped_by_clear_leaves_an_empty_wheel() {
    struct Value(bool);

    impl Drop for Value {
        fn drop(&mut self) {
            if self.0 {
                // Unwinds without the panic hook, which would print.
                resume_unwind(Box::new("dropped"));
            }
        }
    }

    let mut wheel = Wheel::new(8);
    let keys: Vec<_> = (0..5)
        .map(|index| wheel.insert(index, Value(index == 2)))
        .collect();
    assert!(catch_unwind(AssertUnwindSafe(|| wheel.clear())).is_err());
    assert!(wheel.is_empty() && wheel.next_deadline().is_none() && wheel.iter().next().is_none());
    assert!(keys.iter().all(|&key| wheel.remove(key).is_none()));
}

#[test]
fn iterator_returns_each_entry_once() {
    let mut wheel = wheel_at(8, 10);
    let keys = insert_all(&mut wheel, &[10, 20, 3, 400]);
    wheel.remove(keys[1]);
    let mut entries = (&wheel).into_iter();
    for _ in 0..3 {
        let (key, deadline, value) = entries.next().unwrap();
        let entry = (wheel.deadline(key), wheel.get(key));
        assert_eq!(entry, (Some(deadline), Some(value)));
    }
    assert!(entries.next().is_none() && entries.next().is_none());
}

#[test]
fn option_of_a_key_is_as_large_as_a_key() {
    let sizes = (mem::size_of::<Key>(), mem::size_of::<Option<Key>>());
    assert_eq!(sizes, (8, 8));
}

#[test]
fn size_that_is_not_possible_is_an_error() {
    for size in [0, MAX_TICKS_PER_WHEEL + 1, usize::MAX] {
        let message = Wheel::<()>::try_new(size).unwrap_err().to_string();
        assert_eq!(
            message,
            format!("ticks_per_wheel is {size}, but must be from 1 to {MAX_TICKS_PER_WHEEL}")
        );
    }
    assert!(Wheel::<()>::try_new(1).is_ok() && Wheel::<()>::try_new(1 << 20).is_ok());
}

#[test]
fn entry_that_is_reset_to_its_own_deadline_keeps_its_place() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, 3);
        let keys = insert_all(&mut wheel, &[100, 100, 4, 100, 9_999]);
        for key in &keys {
            let deadline = wheel.deadline(*key).unwrap();
            assert!(wheel.reset(*key, deadline));
            assert_eq!(wheel.deadline(*key), Some(deadline));
        }
        assert_eq!((wheel.len(), wheel.next_deadline()), (5, Some(4)));
        assert_eq!(fired(&mut wheel, 4), [2]);
        assert!(wheel.reset(keys[1], 100) && wheel.reset(keys[0], 101));
        assert!(wheel.reset(keys[0], 100));
        assert_eq!(fired(&mut wheel, 9_999), [1, 3, 0, 4]);
    }
}

#[test]
fn reset_entry_keeps_its_key_and_expires_after_those_of_its_deadline() {
    for slots in SIZES {
        let mut wheel = wheel_at(slots, 3);
        let keys = insert_all(&mut wheel, &[100, 50, 100, 2]);
        assert!(wheel.reset(keys[0], 50));
        assert!(wheel.reset(keys[1], 50)); // the deadline that it has
        assert!(wheel.reset(keys[3], 100));
        let deadlines = keys
            .iter()
            .map(|&key| wheel.deadline(key))
            .collect::<Vec<_>>();
        assert_eq!(deadlines, [50, 50, 100, 100].map(Some));
        *wheel.get_mut(keys[2]).unwrap() = 7;
        assert_eq!(fired(&mut wheel, 50), [1, 0]);
        assert!(!wheel.reset(keys[0], 60));
        let stale = (wheel.deadline(keys[0]), wheel.get_mut(keys[0]));
        assert_eq!(stale, (None, None));
        assert_eq!(fired(&mut wheel, 100), [7, 3]);
    }
}

/// More rounds than a `u32` can hold, in one slot with entries of fewer rounds.
#[test]
fn rounds_beyond_32_bits_are_kept_and_skipped_in_jumps() {
    const ROUNDS: u64 = 1 << 32;

    let edges = [
        1,
        ROUNDS / 2,
        ROUNDS - 2,
        ROUNDS - 1,
        ROUNDS,
        2 * ROUNDS,
        3 * ROUNDS + 7,
        1 << 40,
        1 << 53,
    ];
    let rounds: Vec<u64> = edges
        .iter()
        .flat_map(|edge| [edge - 1, *edge, edge + 1])
        .collect();
    for slots in SIZES {
        let deadlines: Vec<u64> = rounds
            .iter()
            .rev()
            .map(|rounds| rounds * slots as u64 + 1)
            .collect();
        let order = in_order(0, &deadlines);

        let mut wheel = Wheel::new(slots);
        insert_all(&mut wheel, &deadlines);
        assert_eq!(fired(&mut wheel, u64::MAX), order);

        let mut wheel = Wheel::new(slots);
        insert_all(&mut wheel, &deadlines);
        let (fired, _) = advance_until_empty(&mut wheel, 2 * deadlines.len());
        assert_eq!(fired, order);
    }
}

/// An entry has more rounds than a `u32` can hold. After a jump over nearly all of them, few are
/// left.
#[test]
fn a_jump_over_32_bits_of_rounds_leaves_the_next_few() {
    for slots in SIZES {
        let deadlines =
            [5, 1 << 31, (1 << 32) + 10, (1 << 32) + 100].map(|rounds| rounds * slots as u64);
        let mut wheel = Wheel::new(slots);
        insert_all(&mut wheel, &deadlines);
        assert_eq!(fired(&mut wheel, deadlines[2] - slots as u64), [0, 1]);
        assert_eq!(wheel.next_deadline(), Some(deadlines[2]));
        assert_eq!(fired(&mut wheel, deadlines[2]), [2]);
        assert_eq!(fired(&mut wheel, deadlines[3]), [3]);
    }
}

#[test]
fn an_entry_beyond_32_bits_of_rounds_can_be_removed_at_any_time() {
    for slots in SIZES {
        let deadline = (3 << 32) * slots as u64 + 1;
        for now in [0, 1, deadline / 3, deadline / 2, deadline - 1] {
            let mut wheel = Wheel::new(slots);
            let keys = insert_all(&mut wheel, &[deadline, 1, deadline / 3, deadline]);
            wheel.advance(now, |_| ());
            assert_eq!(wheel.remove(keys[0]), Some(0));
            assert_eq!(fired(&mut wheel, u64::MAX).last(), Some(&3));
        }
    }
}

/// One entry in a wheel at `tick`: it comes out at its tick and not before, both by `next_deadline`
/// and in one jump.
fn check_alone(slots: usize, tick: u64, deadline: u64) {
    let mut wheel = wheel_at(slots, tick);
    wheel.insert(deadline, ());
    let next = wheel.next_deadline();
    assert_eq!(next, Some(deadline.max(tick)), "{deadline} from {tick}");
    let (_, wakes) = advance_until_empty(&mut wheel, 1);
    assert_eq!((wakes, wheel.tick()), (1, deadline.max(tick)));

    let mut wheel = wheel_at(slots, tick);
    wheel.insert(deadline, ());
    if deadline > tick {
        let early = fired(&mut wheel, deadline - 1);
        assert_eq!(early, [], "{deadline} from {tick}");
        assert_eq!(wheel.next_deadline(), Some(deadline));
    }
    let due = fired(&mut wheel, deadline.max(tick));
    assert_eq!(due, [()], "{deadline} from {tick}");
    assert_eq!(wheel.next_deadline(), None);
}

/// All entries in one wheel at `tick`: in one jump, and from one deadline to the next.
fn check_together(slots: usize, tick: u64, deadlines: &[u64]) {
    let order = in_order(tick, deadlines);
    let mut wheel = wheel_at(slots, tick);
    insert_all(&mut wheel, deadlines);
    let all = fired(&mut wheel, u64::MAX);
    assert_eq!(all, order, "{slots} slots, from {tick}");

    let mut wheel = wheel_at(slots, tick);
    insert_all(&mut wheel, deadlines);
    // The hashed wheel may visit a slot again after each 2^32 rounds.
    let (fired_in_steps, _) = advance_until_empty(&mut wheel, 2 * deadlines.len());
    assert_eq!(fired_in_steps, order, "{slots} slots, from {tick}");

    let mut wheel = wheel_at(slots, tick);
    insert_all(&mut wheel, deadlines);
    let mut rest = &order[..];
    while let Some(&first) = rest.first() {
        let now = deadlines[first].max(tick);
        let is_due = |index: &&usize| deadlines[**index].max(tick) == now;
        let (due, later) = rest.split_at(rest.iter().take_while(is_due).count());
        rest = later;
        check_next(&wheel, due.iter().map(|&index| deadlines[index]).min());
        if now > tick {
            assert_eq!(fired(&mut wheel, now - 1), [], "{slots} slots, from {tick}");
        }
        assert_eq!(fired(&mut wheel, now), due, "{slots} slots, from {tick}");
    }
    assert!(wheel.is_empty());
}

/// All of these deadlines, each in a wheel of its own and together.
fn check_all(slots: usize, tick: u64, deadlines: &[u64]) {
    for &deadline in deadlines {
        check_alone(slots, tick, deadline);
    }
    check_together(slots, tick, deadlines);
}

/// All powers of the number of slots, and their neighbours.
fn powers(slots: usize) -> Vec<u64> {
    let powers = std::iter::successors(Some(1), |power: &u64| {
        power.checked_mul(slots as u64).filter(|next| next > power)
    });
    powers
        .flat_map(|power| [power - 1, power, power + 1])
        .collect()
}

#[test]
fn powers_of_the_number_of_slots_fire_exactly() {
    for (slots, tick) in wheels() {
        check_all(slots, tick, &powers(slots));
    }
}

#[test]
fn powers_of_the_number_of_slots_from_now_fire_exactly() {
    for (slots, tick) in wheels() {
        let powers = powers(slots).into_iter().rev();
        let deadlines: Vec<_> = powers.map(|power| tick + power).collect();
        check_all(slots, tick, &deadlines);
    }
}

/// The current tick is at each power, and next to it.
#[test]
fn short_timeouts_at_powers_of_the_number_of_slots_fire_exactly() {
    for slots in SIZES {
        for tick in powers(slots) {
            check_short(slots, tick);
        }
    }
}

/// Short timeouts from `tick` on.
fn check_short(slots: usize, tick: u64) {
    let size = slots as u64;
    let (one, two, three) = (size, 2 * size, 3 * size);
    let near = [0, 1, 1, 2, one - 1, one, one + 1, two - 1, two, three + 1];
    let short = near.into_iter().chain([size * size + 1]);
    let deadlines: Vec<_> = short.map(|ticks| tick.saturating_add(ticks)).collect();
    check_all(slots, tick, &deadlines);
}

/// Short timeouts while the time passes `edge` tick by tick.
fn check_passage(slots: usize, edge: u64) {
    let (size, around) = (slots as u64, 40);
    let mut wheel = wheel_at(slots, edge - around - 1);
    let mut expected: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
    let mut inserted = 0;
    for now in edge - around..=edge + around {
        for ticks in [1, 2, 3, size - 1, size, size + 1, 2 * size] {
            let deadline = now.max(now - 1 + ticks);
            wheel.insert(deadline, inserted);
            expected.entry(deadline).or_default().push(inserted);
            inserted += 1;
        }
        let due = Some(fired(&mut wheel, now));
        assert_eq!(due, expected.remove(&now), "{slots} slots, at {now}");
    }
    let rest = fired(&mut wheel, u64::MAX);
    assert!(rest.into_iter().eq(expected.into_values().flatten()));
}

/// `edge` as a far deadline, and as the current time.
fn check_time(edge: u64) {
    for slots in SIZES {
        let neighbours = [edge - 1, edge, edge + 1];
        let size = slots as u64;
        for tick in [0, 1, size - 1, size, size + 1, edge / 3, edge - 2] {
            let deadlines = [edge + 1, edge, edge - 1, edge, tick + 1, edge + 1];
            check_all(slots, tick, &deadlines);
        }
        for tick in neighbours {
            check_short(slots, tick);
        }
        check_passage(slots, edge);
    }
}

/// In milliseconds.
const DAY: u64 = 24 * 60 * 60 * 1_000;

const TIMES: [u64; 7] = [
    12 * DAY,
    1 << 31, // 24.8 days in milliseconds, the limit of an `i32`.
    1 << 32, // 49.7 days, the limit of a `u32`.
    1 << 36,
    1 << 53,      // The limit of integers in a double.
    36_525 * DAY, // A century.
    1 << 63,
];

#[test]
fn long_times_work() {
    TIMES.into_iter().for_each(check_time);
}
