//! The protocol between a service and `wheel-top`: one JSON [`Frame`] per line, from the service
//! only.

use std::thread;
use std::time::Duration;

use hashed_wheel::WeakTimer;
use serde::{Deserialize, Serialize};

/// The interval between two frames.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// The maximum number of timers in a frame.
pub(crate) const MAX_TIMERS: usize = 256;

/// The state of a program and its timers at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Frame {
    pub(crate) program: String,
    /// The time since the program called [`watch`](crate::watch) first.
    pub(crate) age: Duration,
    pub(crate) timers: Vec<Snapshot>,
}

/// The state of a timer at one time: the displayed part of [`Stats`](hashed_wheel::Stats) and
/// [`Occupancy`](hashed_wheel::Occupancy).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Snapshot {
    /// Differs between the timers of a program, whose names need not.
    pub(crate) number: u64,
    pub(crate) name: String,
    /// The timer is stopped and all of its timeouts have ended.
    pub(crate) is_stopped: bool,
    pub(crate) tick: Duration,
    pub(crate) ticks_per_wheel: usize,
    /// `None` if the timer was in the middle of a turn, is stopped, or has [too many
    /// slots](Self::has_too_many_slots).
    pub(crate) wheel: Option<Wheel>,
    pub(crate) pending: u64,
    pub(crate) scheduled: u64,
    pub(crate) expired: u64,
    pub(crate) periodic_runs: u64,
    pub(crate) cancelled: u64,
    pub(crate) refused: u64,
    pub(crate) panicked: u64,
    pub(crate) dropped: u64,
    pub(crate) slow: u64,
    pub(crate) turns: u64,
    pub(crate) wake_ups: u64,
    pub(crate) long_turns: u64,
    pub(crate) longest_turn: Duration,
    pub(crate) busy: Duration,
    pub(crate) worst_lateness: Duration,
    /// A histogram: the upper bound of each bucket and its count. The last bucket has no bound.
    pub(crate) lateness: Vec<(Option<Duration>, u64)>,
}

/// The content of the wheel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Wheel {
    /// The current tick.
    pub(crate) tick: u64,
    pub(crate) on_the_way: usize,
    pub(crate) levels: Vec<Level>,
}

/// One level of the wheel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Level {
    pub(crate) ticks_per_slot: u64,
    /// The number of slots.
    pub(crate) size: usize,
    pub(crate) present: usize,
    /// The number of entries in each slot. If there are very many slots, each number is a sum over
    /// adjacent slots.
    pub(crate) slots: Vec<usize>,
}

/// A level with more slots is sent as sums over adjacent slots.
pub(crate) const MAX_SENT_SLOTS: usize = 1_024;

/// The state of a wheel with more slots is not read: that would block the worker for milliseconds
/// or seconds.
const MAX_READ_SLOTS: usize = 1 << 16;

/// The number of attempts to read the wheel. Most turns are short, so a later attempt usually
/// succeeds.
const TRIES: usize = 5;

impl Snapshot {
    /// Returns the state of the timer, or `None` if it has ended. Holds a handle only while it
    /// reads.
    pub(crate) fn of(number: u64, name: &str, weak: &WeakTimer) -> Option<Self> {
        let timer = weak.upgrade()?;
        let is_closed = timer.is_stopped();
        let stats = timer.stats();
        let mut seen = Self {
            number,
            name: name.to_owned(),
            // `stop` may still be ending the last timeouts.
            is_stopped: is_closed && stats.pending == 0,
            tick: timer.tick_duration(),
            ticks_per_wheel: timer.ticks_per_wheel(),
            wheel: None,
            pending: stats.pending,
            scheduled: stats.scheduled,
            expired: stats.expired,
            periodic_runs: stats.periodic_runs,
            cancelled: stats.cancelled,
            refused: stats.rejected,
            panicked: stats.panics,
            dropped: stats.dropped_tasks,
            slow: stats.slow_tasks,
            turns: stats.turns,
            wake_ups: stats.wake_ups,
            long_turns: stats.long_turns,
            longest_turn: stats.longest_turn,
            busy: stats.busy_time,
            worst_lateness: stats.lateness.max,
            lateness: stats.lateness.buckets().collect(),
        };
        drop(timer);
        if !is_closed && !seen.has_too_many_slots() {
            seen.wheel = Wheel::of(weak);
        }
        Some(seen)
    }

    /// Whether the wheel has too many slots to be read.
    pub(crate) fn has_too_many_slots(&self) -> bool {
        self.ticks_per_wheel > MAX_READ_SLOTS
    }
}

impl Wheel {
    fn of(timer: &WeakTimer) -> Option<Self> {
        let occupancy = (0..TRIES).find_map(|attempt| {
            if attempt > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            timer.upgrade()?.occupancy().ok()
        })?;
        let levels = occupancy.levels.iter().map(|level| Level {
            ticks_per_slot: level.ticks_per_slot,
            size: level.slots.len(),
            present: level.current_slot,
            slots: merge(&level.slots, MAX_SENT_SLOTS),
        });
        Some(Self {
            tick: occupancy.tick,
            on_the_way: occupancy.queued,
            levels: levels.collect(),
        })
    }
}

/// Adds adjacent numbers until there are at most `max` numbers.
pub(crate) fn merge(slots: &[usize], max: usize) -> Vec<usize> {
    let count = slots.len().min(max);
    let begin = |part| part * slots.len() / count;
    (0..count)
        .map(|part| slots[begin(part)..begin(part + 1)].iter().sum())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::merge;

    #[test]
    fn adjacent_slots_are_added() {
        assert_eq!(merge(&[1, 2, 3, 4], 10), [1, 2, 3, 4]);
        assert_eq!(merge(&[1, 2, 3, 4], 2), [3, 7]);
        assert_eq!(merge(&[1, 2, 3, 4, 5], 3), [1, 5, 9]);
        assert_eq!(merge(&[1, 2, 3], 1), [6]);
        assert!(merge(&[1, 2, 3], 0).is_empty() && merge(&[], 3).is_empty());
    }
}
