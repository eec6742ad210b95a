//! Tests of the hierarchical wheel: what both wheels must do, and what only this one does.
// The wheels have no unsafe code and use one thread.
#![cfg(not(miri))]

#[path = "wheel/mod.rs"]
mod wheel;

use std::collections::{BTreeMap, BTreeSet};

use fastrand::Rng;
use timing_wheels::{HierarchicalWheel as Wheel, Key};

use wheel::{SIZES, advance_until_empty, check_next, fired, in_order, insert_all, wheel_at};

const MIN_SLOTS: u64 = 2;

/// The number of bits of one digit, which selects the slot of a level.
fn bits(slots: usize) -> u32 {
    slots.max(MIN_SLOTS as usize).trailing_zeros()
}

/// The width of a slot in ticks, for each level.
fn widths(slots: usize) -> impl Iterator<Item = u64> {
    (0..64)
        .step_by(bits(slots) as usize)
        .map(|shift| 1 << shift)
}

/// The value of the entries of [`wheel_with_list`] whose deadline never comes.
const FILLER: usize = usize::MAX;

/// Makes a wheel at a tick. If its list of the first entries `is_full`, the entries of the tests go
/// to the levels. Otherwise the first ones are in the list.
fn wheel_with_list(slots: usize, tick: u64, is_full: bool) -> Wheel<usize> {
    let mut wheel = wheel_at(slots, tick);
    if is_full {
        (0..32).for_each(|_| _ = wheel.insert(u64::MAX, FILLER));
    }
    wheel
}

/// Returns the values that are left, in order, except the fillers.
fn rest(wheel: &mut Wheel<usize>) -> Vec<usize> {
    let mut rest = fired(wheel, u64::MAX);
    rest.retain(|&value| value != FILLER);
    rest
}

mod order {
    use super::*;

    /// Ticks at which the wheel stops on the way to `deadline`. For each level: the tick at which
    /// that level's slot begins, a tick before it, and a tick within it.
    fn stops(slots: usize, deadline: u64) -> Vec<u64> {
        let around = |width: u64| {
            let begins = deadline / width * width;
            [
                begins.saturating_sub(1),
                begins,
                deadline.saturating_sub(width),
                begins + (deadline - begins) / 2,
            ]
        };
        let stops: BTreeSet<u64> = widths(slots)
            .flat_map(around)
            .filter(|&stop| stop < deadline)
            .collect();
        stops.into_iter().collect()
    }

    /// At each stop, inserts entries for `deadline` and its neighbours, and removes some earlier
    /// entries.
    fn check(slots: usize, deadline: u64, stops: &[u64], random: &mut Rng) {
        for is_full in [false, true] {
            check_wheel(wheel_with_list(slots, 0, is_full), deadline, stops, random);
        }
    }

    fn check_wheel(mut wheel: Wheel<usize>, deadline: u64, stops: &[u64], random: &mut Rng) {
        let mut deadlines = Vec::new();
        let mut live: Vec<(usize, Key)> = Vec::new();
        for &stop in stops {
            wheel.advance(stop, |index| {
                assert_eq!(deadlines[index], stop);
                live.retain(|&(other, _)| other != index);
            });
            let neighbours = [deadline - 1, deadline, deadline + 1, deadline, deadline].into_iter();
            for deadline in neighbours.filter(|&deadline| deadline > stop) {
                live.push((deadlines.len(), wheel.insert(deadline, deadlines.len())));
                deadlines.push(deadline);
            }
            for _ in 0..random.usize(..4) {
                let (index, key) = live.remove(random.usize(..live.len()));
                assert_eq!(wheel.remove(key), Some(index));
            }
        }
        live.sort_by_key(|&(index, _)| (deadlines[index], index));
        let expected: Vec<_> = live.into_iter().map(|(index, _)| index).collect();
        assert_eq!(rest(&mut wheel), expected, "{deadline}: {stops:?}");
    }

    #[test]
    fn entries_of_one_deadline_keep_their_order_across_levels() {
        for slots in SIZES {
            let mut random = Rng::with_seed(slots as u64);
            for deadline in widths(slots)
                .flat_map(|width| [width + 1, width + width / 3 + 1, width + width / 2])
            {
                check(slots, deadline, &stops(slots, deadline), &mut random);
            }
        }
    }

    #[test]
    fn entries_of_one_deadline_keep_their_order_across_times() {
        for slots in SIZES {
            for seed in 0..200 {
                let mut random = Rng::with_seed(seed);
                let deadline = 1 + (random.u64(1..u64::MAX - 1) >> random.u32(..60));
                let stops: BTreeSet<u64> = (0..20)
                    .map(|_| deadline - 1 - (random.u64(..deadline) >> random.u32(..64)))
                    .collect();
                let stops: Vec<_> = stops.into_iter().collect();
                check(slots, deadline, &stops, &mut random);
            }
        }
    }
}

mod levels {
    use super::*;

    /// The far entry shares all digits up to some level with the current tick.
    #[test]
    fn do_not_hide_a_near_entry_behind_a_far_one_in_the_current_slot() {
        for slots in SIZES {
            let size = bits(slots);
            let (round, two_levels, any) = (1 << size, 1 << (2 * size), 0x1234_5678_9abc);
            for tick in [0, round - 1, round, round + 1, 1, two_levels - 1, any] {
                for far in widths(slots).skip(1).map(|width| tick + width) {
                    for near in [1, 2, round - 1, round].map(|ticks| tick + ticks) {
                        for (deadlines, is_full) in [[far, near], [near, far]]
                            .into_iter()
                            .flat_map(|deadlines| [(deadlines, false), (deadlines, true)])
                        {
                            let mut wheel = wheel_with_list(slots, tick, is_full);
                            insert_all(&mut wheel, &deadlines);
                            let (order, first) = (in_order(tick, &deadlines), near.min(far));
                            assert_eq!(wheel.next_deadline(), Some(first));
                            assert_eq!(fired(&mut wheel, first - 1), []);
                            let due = if near == far { 2 } else { 1 };
                            assert_eq!(fired(&mut wheel, first), order[..due]);
                            let next = deadlines.into_iter().max().filter(|_| due == 1);
                            check_next(&wheel, next.or(is_full.then_some(u64::MAX)));
                            assert_eq!(rest(&mut wheel), order[due..]);
                        }
                    }
                }
            }
        }
    }

    /// Inserts and advances around many ends of a round of each level, including the last level.
    #[test]
    fn can_complete_many_rounds() {
        for slots in SIZES {
            let mut random = Rng::with_seed(slots as u64);
            for (width, is_full) in widths(slots).flat_map(|width| [(width, false), (width, true)])
            {
                let mut wheel = wheel_with_list(slots, 0, is_full);
                let mut entries = BTreeSet::new();
                let mut inserted = 0;
                for round in 1..40 {
                    // Slots begin at multiples of their width. The last level has few rounds.
                    let Some(edge) = u64::checked_mul(round, width) else {
                        break;
                    };
                    let before = edge - 1 - random.u64(..width).min(5);
                    let stops = [before, edge - 1, edge, edge + 1];
                    for now in stops
                        .into_iter()
                        .filter(|&now| now >= wheel.tick())
                        .collect::<Vec<_>>()
                    {
                        let due: Vec<_> = entries.range(..=(now, usize::MAX)).copied().collect();
                        let expected: Vec<_> = due.iter().map(|&(_, number)| number).collect();
                        assert_eq!(
                            fired(&mut wheel, now),
                            expected,
                            "{slots} slots, round {round} of {width}"
                        );
                        entries.retain(|&(deadline, _)| deadline > now);
                        let next = entries.first().map(|&(deadline, _)| deadline);
                        check_next(&wheel, next.or(is_full.then_some(u64::MAX)));

                        for from in [now, edge - 1, edge, edge.saturating_add(width)] {
                            let deadline = from.saturating_add(random.u64(..4)).max(now);
                            wheel.insert(deadline, inserted);
                            entries.insert((deadline, inserted));
                            inserted += 1;
                        }
                    }
                }
                assert_eq!(rest(&mut wheel).len(), entries.len());
            }
        }
    }
}

mod next_deadline {
    use super::*;

    #[test]
    fn is_exact_if_nothing_was_removed() {
        for slots in SIZES {
            for seed in 0..20 {
                let mut random = Rng::with_seed(seed);
                let mut wheel = wheel_at(slots, random.u64(..) >> random.u32(1..64));
                let mut deadlines: BTreeMap<u64, usize> = BTreeMap::new();
                for _ in 0..500 {
                    if random.bool() {
                        let deadline = wheel
                            .tick()
                            .saturating_add(random.u64(..) >> random.u32(1..64));
                        wheel.insert(deadline, deadline);
                        *deadlines.entry(deadline).or_default() += 1;
                    } else {
                        let (now, far) = (wheel.tick(), random.u64(..) >> random.u32(8..64));
                        wheel.advance(now.saturating_add(far), |deadline| {
                            let entry = deadlines.first_entry().unwrap();
                            assert_eq!(*entry.key(), deadline);
                            if *entry.get() == 1 {
                                entry.remove();
                            } else {
                                *entry.into_mut() -= 1;
                            }
                        });
                    }
                    let first = wheel.next_deadline();
                    assert_eq!(first, deadlines.keys().next().copied(), "seed {seed}");
                }
            }
        }
    }

    /// A loop sleeps until `next_deadline`, while entries are inserted and removed.
    #[test]
    fn causes_one_wake_up_per_deadline_and_at_most_one_per_removal() {
        for slots in SIZES {
            for seed in 0..20 {
                let mut random = Rng::with_seed(seed);
                let mut wheel = Wheel::new(slots);
                let mut live: BTreeMap<(u64, usize), Key> = BTreeMap::new();
                let (mut inserted, mut removed, mut unnecessary) = (0, 0, 0);
                for _ in 0..200 {
                    for _ in 0..random.usize(..5) {
                        let deadline = wheel.tick() + 1 + (random.u64(..) >> random.u32(14..64));
                        live.insert((deadline, inserted), wheel.insert(deadline, inserted));
                        inserted += 1;
                    }
                    for _ in 0..random.usize(..4) {
                        // The first entry determines `next_deadline`, so it is removed more often.
                        let at = random.usize(..=live.len()) / random.usize(1..9);
                        let Some((&entry, &key)) = live.iter().nth(at) else {
                            continue;
                        };
                        live.remove(&entry);
                        assert_eq!(wheel.remove(key), Some(entry.1));
                        removed += 1;
                    }
                    let Some(next) = wheel.next_deadline() else {
                        continue;
                    };
                    check_next(&wheel, live.keys().next().map(|&(deadline, _)| deadline));
                    assert!(next > wheel.tick());
                    let due = fired(&mut wheel, next);
                    for index in &due {
                        live.remove(&(next, *index)).unwrap();
                    }
                    unnecessary += usize::from(due.is_empty());
                    // All entries of one deadline come out together, so no deadline causes two
                    // wake-ups.
                    assert!(
                        live.keys()
                            .next()
                            .map_or(true, |&(deadline, _)| deadline > next)
                    );
                    assert!(
                        unnecessary <= removed,
                        "{unnecessary} wakes for {removed} removals, seed {seed}"
                    );
                }
                let distinct: BTreeSet<_> = live.keys().map(|&(deadline, _)| deadline).collect();
                let (_, wakes) = advance_until_empty(&mut wheel, inserted);
                let all = unnecessary + wakes <= removed + distinct.len();
                assert!(all, "seed {seed}");
            }
        }
    }

    /// All removals happen first, and then the loop only sleeps.
    #[test]
    fn causes_few_wake_ups_after_the_first_entries_of_many_levels_were_removed() {
        for slots in SIZES {
            let mut wheel = Wheel::new(slots);
            let deadlines: Vec<u64> = widths(slots)
                .flat_map(|width| [width, width + width / 2, width])
                .collect();
            let keys = insert_all(&mut wheel, &deadlines);
            for key in keys.iter().step_by(3).chain(keys.iter().skip(2).step_by(3)) {
                wheel.remove(*key);
            }
            let left = widths(slots).count();
            let (fired, wakes) = advance_until_empty(&mut wheel, 3 * left);
            assert_eq!(
                fired,
                (0..left).map(|level| 3 * level + 1).collect::<Vec<_>>()
            );
            assert!(wakes <= 2 * left, "{wakes}");
        }
    }
}

mod cost {
    use super::*;

    /// The test would not end if each jump visited all ticks in between, or all far entries.
    #[test]
    fn a_far_jump_visits_neither_all_ticks_nor_far_entries() {
        const FAR_ENTRIES: u64 = 100_000;
        const JUMPS: u64 = 50_000;

        for slots in [64, 1 << 16] {
            let mut wheel = Wheel::new(slots);
            // In one slot and in many, all of them beyond the last jump.
            let far_entries: Vec<u64> = (0..FAR_ENTRIES)
                .map(|index| (1 << 63) + (index % 3) * index * (1 << 40))
                .collect();
            insert_all(&mut wheel, &far_entries);
            for jump in 1..=JUMPS {
                let tick = wheel.tick();
                wheel.insert(tick + 1 + jump % 1_000, usize::MAX);
                assert_eq!(fired(&mut wheel, tick + (1 << 46)), [usize::MAX]);
                assert_eq!(wheel.next_deadline(), Some(1 << 63));
            }
            assert_eq!(fired(&mut wheel, u64::MAX), in_order(0, &far_entries));
        }
    }

    #[test]
    fn a_jump_of_2_to_the_50_loses_no_entry_of_any_level() {
        for (slots, is_full) in SIZES
            .into_iter()
            .flat_map(|slots| [(slots, false), (slots, true)])
        {
            let mut wheel = wheel_with_list(slots, 0, is_full);
            let mut deadlines: Vec<u64> = widths(slots).collect();
            deadlines.reverse();
            insert_all(&mut wheel, &deadlines);
            let order = in_order(0, &deadlines);
            let due = deadlines.iter().filter(|&&deadline| deadline <= 1 << 50);
            let due = due.count();
            assert_eq!(fired(&mut wheel, 1 << 50), order[..due]);
            assert_eq!(rest(&mut wheel), order[due..]);
        }
    }
}
