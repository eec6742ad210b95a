//! What a timer's wheel looks like from outside.

use crate::core::Core;

/// How full each slot of a timer's wheel is: [`HashedWheelTimer::occupancy`](crate::HashedWheelTimer::occupancy).
///
/// It counts entries, which is not quite [`pending_timeouts`](crate::HashedWheelTimer::pending_timeouts): what was cancelled
/// is in its slot until the next turn, and what was re-armed to a later deadline until the worker meets it there.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::time::Duration;
///
/// let timer = HashedWheelTimer::builder().hierarchical().build()?;
/// timer.new_timeout(|_| (), Duration::from_secs(3_600))?;
/// if let Some(wheel) = timer.occupancy() {
///     for level in &wheel.levels {
///         let fullest = level.slots.iter().max().unwrap();
///         println!("slots of {} ticks: now at {}, at most {fullest} in one", level.ticks_per_slot, level.present);
///     }
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Occupancy {
    /// The tick that it is, by the timer's clock. The worker, which sleeps while nothing is due, may have come less far.
    pub tick: u64,
    /// The one level of the hashed wheel; of the hierarchical one, from the lowest up, the levels that something has needed
    /// so far.
    pub levels: Vec<LevelOccupancy>,
    /// New timeouts that the worker has not seen yet, those included that were cancelled meanwhile.
    pub on_the_way: usize,
}

/// One ring of slots: part of an [`Occupancy`].
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LevelOccupancy {
    /// How many ticks a slot stands for: one, or in a higher level all that the slots of the level below do.
    pub ticks_per_slot: u64,
    /// How many entries each slot has. (Of all rounds: what is further off than a turn of the hashed wheel has its slot too.)
    pub slots: Vec<usize>,
    /// The slot that it is now: the time goes from here to the end, and on from the beginning.
    pub present: usize,
}

impl Core {
    pub(crate) fn occupancy(&self) -> Option<Occupancy> {
        // With nothing locked, for the clock may be the user's.
        let now = self.ticks.reached(self.time.now());
        let worker = self.post.try_enter()?;
        // After that, for who stops the timer sets the bit and then, with the lock, empties the wheel.
        let word = self.life.word();
        (!word.is_stopped()).then(|| worker.occupancy(word, now))
    }
}
