//! The machine's clock, read by the processor's counter where that is cheaper.
//!
//! # Claim
//!
//! The time of [`CounterClock::deadline_base`] is never behind the operating system's clock, and
//! never goes back, on any thread. It is ahead of that clock by less than a microsecond, unless a
//! program slews the clock.
//!
//! # The words
//!
//! | word | operation | order | pairs with |
//! |---|---|---|---|
//! | `floor` | maximum, in `synchronise` | `Relaxed` | the stores of the other words publish it |
//! | | load | `Relaxed` | comes after the load of `offset`, which acquires it |
//! | `valid_until` | load | `Acquire` | the store of the next value: the offset is at least as new |
//! | | expired → [`UPDATING`], by compare-exchange | `AcqRel` | itself: one thread at a time stores the offset. It publishes the floor to threads that find `UPDATING` |
//! | | `UPDATING` → end of the new offset | `Release` | its load |
//! | `offset` | store, by the thread that has set `UPDATING` | `Release` | its loads: publishes the floor |
//! | | load | `Acquire` | its store: the floor that belongs to the offset is seen |
//!
//! # Proof
//!
//! **Not behind.** An offset is made from a reading of the counter and a later one of the clock,
//! and has [`MAX_DRIFT`] added. The counter falls behind by at most `MAX_DRIFT` while the offset is
//! used.
//!
//! **Not far ahead.** The two readings are less than [`MAX_READING_GAP`] apart, `MAX_DRIFT` is
//! added, and the counter runs ahead by at most `MAX_DRIFT`: together less than 750 ns.
//!
//! **Not back.** A time that `synchronise` returns is in the floor before it is returned. Any other
//! time is of an offset, and at most that at its end. Before an offset is replaced, its time at its
//! end is in the floor. It is replaced only after that end: an offset that another thread has set
//! meanwhile is found to be valid. A thread that uses an offset sees the floor as it was when the
//! offset was stored.
//!
//! The models `clocks::…` explore this, with a clock that drifts as far as is assumed.

use super::{Clock, MonotonicClock};
use crate::platform::{self, Counter};
use crate::sync::Ordering;
use crate::sync::unmodelled::AtomicU64;
use crate::ticks;

/// The operating system's monotonic clock (`std::time::Instant`), and the processor's counter,
/// which is cheaper to read.
///
/// `quanta` calibrates the counter's frequency once, to within a few parts per million, and never
/// adjusts it. So the counter only measures the time since the last reading of the operating
/// system's clock, and only for [`COUNTER_VALIDITY`]. Then both are read again.
///
/// Delays begin at the time of the counter. Whether a deadline has been reached is decided by the
/// operating system's clock. The counter's time is therefore never behind that clock, so that no
/// timeout is early.
///
/// If the processor has no counter, or none that runs at a constant rate on all cores and in all
/// sleep states, `quanta` reads the operating system's clock too.
///
/// An offset that one core has computed serves all cores. If the counter of another core lags, a
/// deadline that is made there is early by the lag, or by [`COUNTER_VALIDITY`] if the lag is
/// greater. So the counter is used only if the counters of all cores
/// [agree](platform::counters_agree), as far as the kernel knows when the timer is built. What
/// remains is the error of the kernel's own clock, which it then computes from the same counter.
pub(crate) struct CounterClock {
    pub(super) clock: MonotonicClock,
    /// `None` if it is not used.
    counter: Option<Counter>,
    /// The difference between the time and the counter.
    offset: AtomicU64,
    /// The counter's value at which `offset` expires. [`UPDATING`] while a thread sets both.
    valid_until: AtomicU64,
    /// The time never goes back before it. No time that was returned is later, except for those of
    /// the current offset.
    floor: AtomicU64,
}

/// The time for which an offset between counter and clock is used, in nanoseconds.
const COUNTER_VALIDITY: u64 = 250_000;

/// The most by which the counter can fall behind the clock within [`COUNTER_VALIDITY`], in
/// nanoseconds.
///
/// Each of the two can be wrong by 500 parts per million, which is the limit for NTP in the kernel.
/// A program can slew the clock faster: chrony by 83 333 parts per million, by default. Meanwhile
/// the counter is up to 21 µs behind or ahead of the clock. The time does not go back then, either.
const MAX_DRIFT: u64 = COUNTER_VALIDITY / 1_000;

/// The longest time between two readings that belong together, in nanoseconds. After a longer time
/// the thread was interrupted between them.
const MAX_READING_GAP: u64 = 250;

/// The value of [`CounterClock::valid_until`] while a thread updates the offset.
const UPDATING: u64 = u64::MAX;

impl CounterClock {
    pub(super) fn new() -> Self {
        Self::with_counter(platform::counters_agree(), Counter::new)
    }

    /// `counter` is called only if the counter is used, because this may take long.
    fn with_counter(is_used: bool, counter: impl FnOnce() -> Counter) -> Self {
        Self {
            // Before the clock, whose time is zero when the timer is built.
            counter: is_used.then(counter),
            clock: MonotonicClock::new(),
            offset: AtomicU64::new(0),
            valid_until: AtomicU64::new(0),
            floor: AtomicU64::new(0),
        }
    }

    pub(super) fn now(&self) -> u64 {
        ticks::nanos(self.clock.now())
    }

    #[inline]
    pub(super) fn deadline_base(&self) -> u64 {
        let Some(counter) = &self.counter else {
            return self.now();
        };
        // Acquire pairs with the Release store in `synchronise`: the offset is at least as new as
        // this value.
        let (counted, valid_until) = (counter.nanos(), self.valid_until.load(Ordering::Acquire));
        if is_valid(valid_until, counted) {
            // Acquire pairs with the Release store in `synchronise`: this thread may have read the
            // old `valid_until` and then the new offset. Then it sees the floor that belongs to it.
            let now = counted.wrapping_add(self.offset.load(Ordering::Acquire));
            return now.max(self.floor.load(Ordering::Relaxed));
        }
        self.synchronise(counter, counted, valid_until)
    }

    /// Reads the operating system's clock, updates the offset if possible, and returns the time.
    ///
    /// `counted` was read from the counter before the clock. The time between the two readings
    /// makes the offset greater, so that the counter's time is ahead of the clock and not behind
    /// it.
    #[cold]
    fn synchronise(&self, counter: &Counter, counted: u64, valid_until: u64) -> u64 {
        let now = self.now() + MAX_DRIFT;
        let counted_again = counter.nanos();
        let gap = counted_again.wrapping_sub(counted);
        let mut latest = now;
        if counted >= valid_until {
            // The latest time of the offset, which has expired. Acquire: as in `deadline_base`.
            let of_offset = valid_until.wrapping_add(self.offset.load(Ordering::Acquire));
            // Otherwise it is a newer offset, which does not belong to this `valid_until`.
            if of_offset <= now + COUNTER_VALIDITY {
                latest = latest.max(of_offset);
            }
        }
        // Before the offset is set: another thread may use the new offset with the old
        // `valid_until`, up to the time `now`. And before the time is returned: an offset that
        // another thread sets may be less far ahead of the clock.
        let latest = latest.max(self.floor.fetch_max(latest, Ordering::Relaxed));
        // Acquire keeps the store of the offset after the exchange: one thread at a time stores it.
        // Release publishes the floor to threads that find `UPDATING`.
        let try_begin_update = || {
            self.valid_until
                .compare_exchange(valid_until, UPDATING, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        // `counted` may have been read before another thread set the offset. Then the offset is
        // valid, and times that are not in the floor may have been returned.
        let may_update = valid_until != UPDATING && !is_valid(valid_until, counted_again);
        // A counter that has gone back to before its origin reads zero, and stays at zero: it
        // cannot be used.
        if may_update && counted > 0 && gap < MAX_READING_GAP && try_begin_update() {
            // Release pairs with the Acquire loads of the offset: it publishes the floor.
            self.offset
                .store(now.wrapping_sub(counted), Ordering::Release);
            // Release pairs with the Acquire load in `deadline_base`: it publishes the offset.
            self.valid_until
                .store(counted + COUNTER_VALIDITY, Ordering::Release);
        }
        latest
    }
}

/// Whether the counter's value is in the time of an offset: from [`COUNTER_VALIDITY`] before
/// `valid_until` up to it.
///
/// It is not if the counter is before this time, because it went backwards (suspend, VM migration),
/// or if `valid_until` is [`UPDATING`].
#[inline]
fn is_valid(valid_until: u64, counted: u64) -> bool {
    valid_until.wrapping_sub(counted).wrapping_sub(1) < COUNTER_VALIDITY
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::clock::TimerClock;
    use crate::sync::Arc;
    use crate::sync::thread::sleep;
    use crate::ticks::{DEADLINE_NEVER, DEADLINE_RUNNING};

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn counter_that_goes_backwards_is_not_used() {
        for step in [0, 1_000_000] {
            let (counter, mock) = Counter::mock();
            let time = CounterClock::with_counter(true, || counter);
            mock.increment(1_000_000_000);
            time.deadline_base();
            mock.decrement(3_000_000_000);
            for _ in 0..3 {
                let (before, now) = (time.now(), time.deadline_base());
                assert!(
                    (before..before + 1_000_000_000).contains(&now),
                    "{now} at {before}"
                );
                mock.increment(step);
            }
        }
    }

    #[test]
    fn counter_of_cores_that_do_not_agree_is_not_made() {
        let time = CounterClock::with_counter(false, || panic!("it may take long to make it"));
        let before = time.deadline_base();
        sleep(Duration::from_millis(1));
        assert!(time.deadline_base() >= before + 1_000_000);
        assert_eq!(
            time.floor.load(Ordering::Relaxed),
            0,
            "no shared word is written"
        );
    }

    #[test]
    fn counter_time_is_never_behind_the_clock_and_never_goes_back() {
        let time = CounterClock::new();
        let mut last = 0;
        for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
            let (before, now) = (time.now(), time.deadline_base());
            assert!(now >= before.max(last), "{now} at {before}, after {last}");
            last = now;
        }
    }

    #[test]
    fn bounds_of_the_time_contain_it_and_do_not_go_back() {
        let clock = TimerClock::of(None);
        let mut last = (0, 0);
        for _ in 0..if cfg!(miri) { 100 } else { 200_000 } {
            let before = clock.now();
            let (earliest, latest) = clock.now_bounds();
            assert!(earliest <= clock.now() && before <= latest);
            assert!(earliest >= last.0 && latest >= last.1);
            last = (earliest, latest);
        }
    }

    /// Makes a clock whose counter stands still unless the test moves it.
    fn counted() -> (CounterClock, impl Fn(u64), impl Fn(u64)) {
        let (counter, mock) = Counter::mock();
        mock.increment(1_000_000);
        let back = Arc::clone(&mock);
        let time = CounterClock::with_counter(true, || counter);
        (
            time,
            move |nanos| mock.increment(nanos),
            move |nanos| back.decrement(nanos),
        )
    }

    fn counted_by(time: &CounterClock) -> u64 {
        time.counter.as_ref().expect("a counter").nanos()
    }

    fn synchronise(time: &CounterClock, counted: u64, valid_until: u64) -> u64 {
        time.synchronise(
            time.counter.as_ref().expect("a counter"),
            counted,
            valid_until,
        )
    }

    fn valid_until(time: &CounterClock) -> u64 {
        time.valid_until.load(Ordering::Relaxed)
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn counter_measures_the_time_for_as_long_as_it_is_valid() {
        let (time, advance, step_back) = counted();
        let first = time.deadline_base();
        let end = valid_until(&time);
        assert_eq!(end, counted_by(&time) + COUNTER_VALIDITY);
        advance(COUNTER_VALIDITY - 1);
        assert_eq!(time.deadline_base(), first + COUNTER_VALIDITY - 1);
        assert_eq!(valid_until(&time), end);
        advance(1);
        time.deadline_base();
        assert_eq!(valid_until(&time), end + COUNTER_VALIDITY);
        step_back(1);
        time.deadline_base();
        assert_eq!(
            valid_until(&time),
            end + COUNTER_VALIDITY - 1,
            "the counter went backwards"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn readings_that_are_far_apart_do_not_set_the_offset() {
        let (time, ..) = counted();
        let counted = counted_by(&time);
        synchronise(&time, counted - MAX_READING_GAP, 0);
        assert_eq!(valid_until(&time), 0);
        synchronise(&time, counted - (MAX_READING_GAP - 1), 0);
        assert_eq!(
            valid_until(&time),
            counted - (MAX_READING_GAP - 1) + COUNTER_VALIDITY
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn offset_is_set_by_one_thread_and_only_with_a_counter_that_counts() {
        let (time, _, step_back) = counted();
        time.valid_until.store(UPDATING, Ordering::Relaxed);
        synchronise(&time, counted_by(&time), UPDATING);
        assert_eq!(valid_until(&time), UPDATING, "another thread sets it");
        time.valid_until.store(0, Ordering::Relaxed);
        step_back(counted_by(&time));
        synchronise(&time, counted_by(&time), 0);
        assert_eq!(
            valid_until(&time),
            0,
            "the counter has gone back to its origin"
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn time_never_goes_back_before_the_end_of_an_offset() {
        let hour = 3_600_000_000_000;
        // So that the time is not near zero.
        let origin = Instant::now().checked_sub(Duration::from_nanos(hour));
        let synchronised = |latest: fn(u64) -> u64| {
            let (mut time, ..) = counted();
            time.clock.origin = origin.unwrap_or(time.clock.origin);
            let latest = latest(time.now());
            let valid_until = 1_000;
            time.offset
                .store(latest.wrapping_sub(valid_until), Ordering::Relaxed);
            let returned = synchronise(&time, counted_by(&time), valid_until);
            let floor = time.floor.load(Ordering::Relaxed);
            assert_eq!(floor, returned);
            // On a slow machine, the time may have passed `latest` meanwhile.
            assert!(
                floor <= latest.max(time.now() + MAX_DRIFT),
                "{floor}, {latest}"
            );
            (latest, floor)
        };
        // The clock has stood still while the counter was used.
        let (latest, floor) = synchronised(|now| now + MAX_DRIFT + COUNTER_VALIDITY);
        assert!(floor >= latest, "{floor}, {latest}");
        let (latest, floor) = synchronised(|now| now + 1_000_000_000_000);
        assert!(floor < latest, "the offset of another thread");
    }

    /// The thread was interrupted between its readings of the counter and of `valid_until`, and
    /// another thread has set the offset meanwhile.
    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn offset_that_is_valid_is_not_replaced() {
        let (time, advance, _) = counted();
        let counted = counted_by(&time);
        advance(1);
        time.deadline_base();
        let (end, offset) = (valid_until(&time), time.offset.load(Ordering::Relaxed));
        synchronise(&time, counted, end);
        assert_eq!(
            (valid_until(&time), time.offset.load(Ordering::Relaxed)),
            (end, offset)
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn time_of_the_counter_stops_before_the_sentinel_deadline() {
        let (monotonic, ..) = counted();
        monotonic.floor.store(DEADLINE_NEVER, Ordering::Relaxed);
        assert_eq!(
            TimerClock::Counter(monotonic).deadline_base(),
            DEADLINE_RUNNING - 1
        );
    }

    #[test]
    #[cfg(feature = "async")]
    #[cfg_attr(miri, ignore = "Miri has no counter")]
    fn deadline_is_reached_by_the_time_of_the_clock() {
        let hour = 3_600_000_000_000;
        let (monotonic, ..) = counted();
        // The time of the counter is ahead of the clock.
        monotonic.floor.store(hour, Ordering::Relaxed);
        let time = TimerClock::Counter(monotonic);
        assert_eq!(time.deadline_base(), hour);
        assert!(!time.has_reached(hour));
        assert!(time.has_reached(0));
    }
}
