//! All synchronisation primitives. No other module names `std::sync`, `std::thread`, crossbeam,
//! loom or shuttle.
//!
//! There are two backends with the same interface:
//!
//! - `real`: std and crossbeam.
//! - `model`: loom, if the crate is compiled with the cfg `hashed_wheel_loom`, which only
//!   `loom-tests/` sets. With the cfg `hashed_wheel_shuttle` in addition, shuttle's types of the
//!   same names replace loom's. loom explores all executions of a small model; shuttle runs random
//!   executions of a whole timer.

#[cfg(hashed_wheel_loom)]
mod model;
#[cfg(hashed_wheel_loom)]
#[allow(unreachable_pub, reason = "loom-tests names some of it")]
pub use model::*;

#[cfg(not(hashed_wheel_loom))]
mod real;
#[cfg(not(hashed_wheel_loom))]
pub(crate) use real::*;

// Both backends use std's `Arc`. loom's does not support unsized types, and it would only check
// std's own code: that the last owner drops the value.
pub(crate) use std::sync::atomic::Ordering;
pub(crate) use std::sync::{Arc, Weak};

/// Primitives that are part of no protocol, such as counters for statistics and the clocks. loom
/// does not explore them.
pub(crate) mod unmodelled {
    pub(crate) use std::sync::OnceLock;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};
}

/// Stores a value until it is taken.
///
/// A caller of [`take`](Self::take) has the exclusive right to the value, which it has won by a
/// compare-exchange elsewhere. So the lock is never contended, and loom does not have to explore
/// it.
pub(crate) struct TakeCell<T>(std::sync::Mutex<Option<T>>);

impl<T> TakeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(Some(value)))
    }

    /// Returns the value; `None` if it was taken before.
    pub(crate) fn take(&self) -> Option<T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    }
}

/// Ways to break the protocols, each for the negative twin of a model: it shows that the model can fail.
#[allow(unreachable_pub, reason = "loom-tests names them")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// A node's word changes by a load and a store, with a gap in between.
    ChangeWithoutCompare,
    /// A timeout is counted in by a look and an addition, with a gap in between.
    AdmitWithoutCompare,
    /// A timeout is counted in by an addition and a look, and out again if it is refused: Netty's way.
    AdmitBeforeLook,
    /// `stop` does not wait for those who were counted in.
    StopWithoutWaiting,
    /// Whoever starts the worker thread does not look again once it has the lock.
    StartWithoutSecondLook,
    /// A second `stop` does not wait for the first.
    SecondStopWithoutWaiting,
    /// `stop` leaves out what a turn had taken out of the wheel to expire it.
    StopWithoutDue,
    /// A worker that was stopped in a turn takes messages in, beside what that has left to `stop`.
    TakeInBesideDue,
    /// Dropping the last handle does not ask whether it is the worker that does.
    DropWithoutAsking,
    /// `stop` does not wake the worker.
    StopWithoutUnparking,
    /// A handle is counted out by a look and a store, with a gap in between.
    DropWithoutCompare,
    /// `cancel` does not tell the worker of a timeout that is in the wheel.
    CancelWithoutPush,
    /// Nor does it wake the worker.
    CancelWithoutWake,
    /// `cancel` leaves it to the worker to count the timeout out: Netty's way.
    CancelWithoutLeave,
    /// `reset` to an earlier deadline does not tell the worker, nor does a run that is over elsewhere.
    ResetWithoutPush,
    /// The worker counts what `reset` has pushed again as a new timeout.
    ResetTakenForNew,
    /// The worker falls asleep whatever has happened since it looked at the lanes.
    SleepWithoutCompare,
    /// The worker does not look at the lanes again once it has said that it sleeps.
    SleepWithoutSecondLook,
    /// A driver does not look at the lanes again once its promise can be seen.
    PromiseWithoutSecondLook,
    /// A driver that looks again goes by that alone, whatever could be seen of its promise.
    PromiseBroken,
    /// A caller does not look whether a driver sleeps once it has pushed.
    PushWithoutLook,
    /// Nor once it has made the deadline of what is in a lane earlier.
    EarlierWithoutLook,
    /// A caller calls the waker whether or not another one has.
    WakeWithoutCompare,
    /// A message is taken back by a look and a store, with a gap in between.
    TakeBackWithoutCompare,
    /// A node's references are counted down by a look and a store, with a gap in between.
    ReleaseWithoutCompare,
    /// Whether the entry is merged is looked at when the reference is counted down already, and the node perhaps used again.
    LookAfterRelease,
    /// The worker gives up the entry of what has ended when the wheel gives it out, though a message about it is under way.
    GoneWithItsEntry,
    /// Nor does it leave the entry to the message when it expires what is due.
    ExpiryTakesTheEntry,
    /// Nor does `stop`.
    StopTakesTheEntry,
    /// A lane gives out its messages in another order than they were pushed in.
    LaneOutOfOrder,
    /// A thread's lane goes when the thread has gone, whatever is in it.
    RetiredLaneGoes,
    /// Who takes a message back counts down, with a gap in between, as if a handle could not be lent to another thread.
    TakeBackAsIfAlone,
    /// A `stop` that is not the first takes what is left as well.
    SecondStopTakes,
    /// A timeout that is replaced is counted out first, and the new one in.
    #[cfg(feature = "async")]
    ReplaceLeavesFirst,
    /// A future that is polled again keeps to the waker that it has.
    #[cfg(feature = "async")]
    RepollKeepsTheWaker,
    /// Who cancels a task that repeats while it runs takes the task as well.
    CancelTakesWhatRuns,
    /// The end of a run gives a task that repeats its next deadline whatever has become of it.
    RearmBringsBack,
    /// `shutdown` does not wait for those who were counted in.
    ShutdownWithoutThoseAdmitted,
    /// Nor for anything else: it stops at once.
    ShutdownWithoutGrace,
    /// A keyed timeout is put under its key though it has ended meanwhile.
    PlacedForEver,
    /// It does not run its task if it is faster than the call that is to put it there.
    BeginOnlyPlaced,
    /// It takes the place of another one in two steps, with a gap in between.
    ReplaceInTwoSteps,
    /// It runs its task whatever has become of its key.
    BeginWithoutLook,
    /// Who asks what is in the wheel looks whether the timer is stopped before it has the worker's lock, and not again.
    OccupancyBeforeLock,
}
