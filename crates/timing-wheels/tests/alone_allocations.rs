//! The memory that the wheels allocate and free. A process of its own, because it counts
//! allocations.
// The wheels have no unsafe code and use one thread, so Miri would find nothing in them.
#![cfg(not(miri))]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use fastrand::Rng;
use timing_wheels::{HashedWheel, HierarchicalWheel};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// The bytes that this thread has allocated, less those that it has freed.
    static IN_USE: Cell<isize> = const { Cell::new(0) };
}

struct Counting;

impl Counting {
    fn count(layout: Layout) {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        IN_USE.with(|bytes| bytes.set(bytes.get() + layout.size() as isize));
    }
}

// SAFETY: every call is forwarded to the system's allocator. Counting does not touch the memory.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count(layout);
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's
        // allocator.
        unsafe { System.alloc(layout) }
    }

    /// Not implemented with `alloc`, which would touch all of the memory.
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count(layout);
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for the
        // system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.with(|bytes| bytes.set(bytes.get() - layout.size() as isize));
        // SAFETY: `memory` came from the system's allocator with this layout, because `alloc` and
        // `alloc_zeroed` forward to it.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns how many more bytes are in use after `code` than before.
fn bytes_of(code: impl FnOnce()) -> isize {
    let before = IN_USE.with(Cell::get);
    code();
    IN_USE.with(Cell::get) - before
}

/// More entries than any part of a wheel keeps capacity for.
const BURST: u64 = 30_000;

/// Tests for both wheels.
macro_rules! both {
    ($name:ident, $Wheel:ident) => {
        mod $name {
            use super::*;

            /// Steady traffic keeps at most the memory of its busiest moment.
            #[test]
            fn does_not_grow_in_long_steady_traffic() {
                const LIVE: usize = 1_000;
                const STEPS: usize = 150_000;

                for slots in [2, 64, 512] {
                    let mut random = Rng::with_seed(1);
                    let mut wheel = $Wheel::new(slots);
                    let mut keys = Vec::with_capacity(2 * LIVE);
                    let before = IN_USE.with(Cell::get);
                    let (mut most, mut late) = (0, 0);
                    for step in 0..STEPS {
                        // Like idle timeouts: far deadlines, and nearly all entries are removed.
                        let deadline = wheel.tick() + 1 + (random.u64(..) >> random.u32(30..64));
                        keys.push(wheel.insert(deadline, ()));
                        if wheel.len() > LIVE {
                            while wheel
                                .remove(keys.swap_remove(random.usize(..keys.len())))
                                .is_none()
                            {}
                        }
                        if step % 10 == 0 {
                            wheel.advance(
                                wheel.tick() + 1 + (random.u64(..) >> random.u32(44..64)),
                                |()| (),
                            );
                        }
                        if keys.len() == 2 * LIVE {
                            keys.retain(|&key| wheel.get(key).is_some());
                        }
                        let in_use = IN_USE.with(Cell::get) - before;
                        if step < STEPS / 2 {
                            most = most.max(in_use)
                        } else {
                            late = late.max(in_use)
                        }
                    }
                    let is_steady = late <= most + most / 4;
                    assert!(is_steady, "{late} bytes after {most} with {slots} slots");
                    assert_eq!(wheel.len(), wheel.drain().count());
                }
            }

            #[test]
            fn is_freed_after_a_burst() {
                for spread in [0, 1, 1_000, 1 << 40] {
                    let mut random = Rng::with_seed(1);
                    let mut wheel = $Wheel::new(512);
                    let mut burst = |by_removal: bool| {
                        let tick = wheel.tick();
                        let mut keys = Vec::new();
                        for _ in 0..BURST {
                            keys.push(wheel.insert(tick + 1 + random.u64(..=spread), ()));
                        }
                        if by_removal {
                            keys.into_iter()
                                .for_each(|key| assert_eq!(wheel.remove(key), Some(())));
                        } else {
                            wheel.advance(tick + 1 + spread, |()| ());
                        }
                        assert!(wheel.is_empty());
                    };
                    for by_removal in [true, false] {
                        // A few slots and the tables of the levels keep some capacity.
                        let left = bytes_of(|| burst(by_removal));
                        let is_freed = left <= 1_024 * (64 * 4 + 100);
                        assert!(is_freed, "{left} bytes for {spread} ticks");
                    }
                    let left =
                        bytes_of(|| (0..4).for_each(|burst_number| burst(burst_number % 2 == 0)));
                    assert!(left <= 64 * 1_024, "{left} bytes more for {spread} ticks");
                }
            }

            /// One entry is inserted for each entry that a panic lets out, so that an entry is
            /// always due.
            #[test]
            fn does_not_grow_with_panics() {
                let mut wheel = $Wheel::new(64);
                (0..10).for_each(|value| _ = wheel.insert(0, value));
                let grown = bytes_of(|| {
                    for value in 10..10_000 {
                        wheel.insert(0, value);
                        let mut out = None;
                        let unwound = catch_unwind(AssertUnwindSafe(|| {
                            wheel.advance(1, |value| {
                                out = Some(value);
                                // Unwinds without the panic hook, which would print.
                                resume_unwind(Box::new(()));
                            });
                        }));
                        assert!(unwound.is_err());
                        assert_eq!(out, Some(value - 10));
                    }
                });
                assert!(grown <= 4_096, "{grown} bytes");
            }

            /// Both the memory of the slot and that of the entries.
            #[test]
            fn of_one_slot_is_freed_while_the_slot_is_in_use() {
                for deadline in [0, 1, 1_000, 1 << 40] {
                    let mut wheel = $Wheel::new(64);
                    let keys: Vec<_> = (0..BURST).map(|_| wheel.insert(deadline, ())).collect();
                    let freed = -bytes_of(|| {
                        for &key in &keys[1..] {
                            assert_eq!(wheel.remove(key), Some(()));
                        }
                    });
                    // Four bytes in the slot; deadline, generation, position and value.
                    assert!(freed >= BURST as isize * (4 + 20) - 4_096, "{freed} bytes");
                }
            }

            /// An entry in every slot, of which none or few stay: the first ones.
            #[test]
            fn of_many_slots_is_freed_while_some_are_in_use() {
                for stay in [0, 10] {
                    let mut wheel = $Wheel::new(1 << 16);
                    // As many as need a slot.
                    (0..40).for_each(|_| _ = wheel.insert(1, ()));
                    wheel.advance(1, |()| ());
                    let mut keys = Vec::new();
                    let left = bytes_of(|| {
                        keys.extend((2..BURST).map(|deadline| wheel.insert(deadline, ())));
                        for key in keys.drain(stay..) {
                            assert_eq!(wheel.remove(key), Some(()));
                        }
                        keys.shrink_to_fit();
                    });
                    // Each unused bucket takes up about a hundred bytes; of some, the memory is
                    // kept.
                    assert!(left <= 1_024 * 150, "{left} bytes");
                    let mut expired = 0;
                    wheel.advance(BURST, |()| expired += 1);
                    assert_eq!(expired, stay);
                    assert!(keys.into_iter().all(|key| wheel.get(key).is_none()));
                }
            }

            #[test]
            fn is_completely_freed_with_the_wheel() {
                let left = bytes_of(|| {
                    let mut wheel = $Wheel::new(64);
                    for deadline in 0..10_000 {
                        wheel.insert(deadline * deadline, Box::new(deadline));
                    }
                    wheel.advance(1_000, drop);
                    drop(wheel);
                });
                assert_eq!(left, 0);
            }
        }
    };
}

both!(memory_of_the_hashed_wheel, HashedWheel);
both!(memory_of_the_hierarchical_wheel, HierarchicalWheel);

#[test]
fn the_slots_of_a_hashed_wheel_are_allocated_when_an_entry_needs_one() {
    const SLOTS: usize = 1 << 16;
    /// Four bytes per slot, and the tree: a value per eight slots, and per eight of these.
    const ALL: isize = (SLOTS * 4 + SLOTS * 8 / 7) as isize;

    const WHEEL: HashedWheel<()> = HashedWheel::new(SLOTS);
    let mut wheel = WHEEL;
    let unused = bytes_of(|| {
        wheel.advance(5, |()| ());
        wheel.clear();
        assert!(wheel.next_deadline().is_none() && wheel.peek().is_none());
    });
    assert_eq!(unused, 0);
    let overdue = bytes_of(|| _ = wheel.insert(5, ()));
    assert!(overdue < 1_024, "{overdue} bytes for an overdue entry");
    let first = bytes_of(|| _ = wheel.insert(6, ()));
    assert!((ALL..ALL + 2_048).contains(&first), "{first} bytes");
    let second = bytes_of(|| _ = wheel.insert(7, ()));
    assert!(second < 1_024, "{second} bytes for the second one");
}

#[test]
fn a_level_is_allocated_when_an_entry_needs_it() {
    const SLOTS: usize = 1 << 16;
    /// The words of the bitmap above those that have a bit per slot.
    const WORDS: usize = if usize::BITS < 64 { 1_057 } else { 65 };
    /// Four bytes per slot, and the bitmap.
    const LEVEL: isize = (SLOTS * 4 + SLOTS / 8 + WORDS * usize::BITS as usize / 8) as isize;

    let mut wheel = HierarchicalWheel::new(SLOTS);
    assert!(bytes_of(|| wheel = HierarchicalWheel::try_new(SLOTS).expect("memory")) < 1_024);
    let few = bytes_of(|| (0..32).for_each(|_| _ = wheel.insert(u64::MAX, ())));
    assert!(
        few < 4_096,
        "{few} bytes for 32 entries, which need no level"
    );
    let mut levels = |deadline| {
        let bytes = bytes_of(|| {
            wheel.insert(deadline, ());
        });
        let more = bytes % LEVEL < 1_024;
        assert!(more, "{bytes} bytes for a deadline at {deadline}");
        bytes / LEVEL
    };
    assert_eq!(levels(0), 0, "an overdue entry needs no level");
    assert_eq!(levels(1), 1);
    assert_eq!(levels(SLOTS as u64 - 1), 0);
    let highest = levels(u64::MAX);
    assert_eq!(highest, 1, "the levels in between are not allocated");
    assert_eq!(levels(SLOTS as u64), 1);
    assert_eq!(levels(5 * SLOTS as u64 + 1), 0);
    // The entry's own level. The levels below it are allocated when the entry passes through them.
    assert_eq!(levels((1 << 32) + (1 << 16) + 1), 1);
    assert_eq!(levels((1 << 32) + (1 << 16) + 2), 0);
    assert_eq!(bytes_of(|| wheel.advance(1 << 40, |()| ())) / LEVEL, 0);
    assert_eq!(wheel.len(), 32 + 1);
}

/// Four gigabytes per level, of which a few pages are used.
#[test]
#[cfg(target_pointer_width = "64")]
fn the_largest_wheel_uses_no_memory_until_it_is_used() {
    let before = ALLOCATIONS.with(Cell::get);
    let mut wheel = HierarchicalWheel::new(1 << 30);
    // The arrays of the lowest level, whose memory is tried first.
    assert!(ALLOCATIONS.with(Cell::get) - before < 20);

    let mut near = wheel.insert(5, 5);
    let (round, two_rounds) = (1 << 30, 1 << 60);
    let far = [two_rounds - 1, two_rounds, u64::MAX];
    for deadline in [5, round - 1, round, round + 5].into_iter().chain(far) {
        wheel.insert(deadline, deadline);
    }
    assert_eq!(wheel.remove(near), Some(5));
    let mut fired = Vec::new();
    while let Some(next) = wheel.next_deadline() {
        wheel.advance(next, |deadline| fired.push((next, deadline)));
        near = wheel.insert(next.saturating_add(1 << 29), 0);
        assert_eq!(wheel.remove(near), Some(0));
    }
    assert!(fired.windows(2).all(|pair| pair[0] <= pair[1]));
    assert!(fired.iter().all(|&(next, deadline)| next == deadline));
    assert_eq!(fired.len(), 7);
    assert!(ALLOCATIONS.with(Cell::get) - before < 200);
}
