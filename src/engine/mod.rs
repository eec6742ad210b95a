//! One timer: from a caller's thread to the worker, and to the task.
//!
//! ```text
//! callers' threads                                   the worker
//! ----------------                                   ----------
//! caller.rs: schedule, cancel, reset                 worker.rs: a turn
//!   │                                                  drain messages ─► wheel ─► expire
//!   ▼                                                  ▲                            │
//! thread_cache.rs: free nodes, lane ──► timeouts.rs ───┘                            ▼
//!                                       (a lane per thread)               dispatch.rs: task
//! ```
//!
//! The two sides share [`Inner`] (`inner.rs`): the state word (`state.rs`), new lanes, the number
//! of pending timeouts (`pending.rs`), the counters (`counters.rs`) and the memory of the nodes
//! (`node/`). The worker itself is there too, behind its lock (`worker.rs`). A thread becomes
//! the worker by taking that lock: the worker thread (`thread.rs`), a `Driver` in its loop, a
//! `stop` or a `shutdown`.
//!
//! Two protocols have a file each, with word, table and proof: `sleep.rs` (no wake-up is lost) and
//! `end.rs` (no timeout is lost). Both rest on the fences of `state.rs`. How long the worker sleeps
//! is decided in `sleep_policy.rs`. How one timeout ends is in `node/word.rs`, how a thread waits
//! for the end of its run in `dispatch.rs`.
//!
//! # Words
//!
//! | word | meaning |
//! |---|---|
//! | closing | of a timer: new timeouts are rejected |
//! | stopped | of a timer: it is closing, and no other task begins to run on the worker |
//! | ended | of a stopped timer: all timeouts have ended. Of a timeout: it is cancelled or expired |
//! | cancel | end a timeout before it expires; the task does not run |
//! | expire | end a timeout that is due; the task is run, or handed to the executor |
//! | reject | return an error for a new timeout, which is not counted as pending any more |
//! | withdraw | on the caller's thread, end a new timeout that a closing timer does not accept; it is rejected |
//! | refuse | on the worker, leave such a timeout to its caller. Of a task executor: return a task instead of accepting it |
//! | drop | of a task: drop the value without a run |
//! | release | give up a reference to a node, or a place under the limit |
//! | recycle | reuse a node without references for another timeout |
//! | reclaim | on the worker, recycle the nodes of timeouts that have ended |
//! | return | of memory: give pages that are not needed to the operating system |
//! | give back | on a thread that ends, leave nodes, lane and counts to other threads |
//! | retire | of a lane: its thread pushes no more messages |
//! | take back | remove a message from the own lane before the worker has taken it |
//! | carry over | of messages: a later turn takes them, for the tick of a turn that could take no more |
//! | backlog, batch | more messages than a turn takes; the messages of one thread for which it wakes the worker |
//! | borrow | use what this thread caches of a timer, for one operation |
//! | announce | say, before a sleep, which deadlines need an earlier turn |
//! | `now`, `deadline_base` | the time by which timeouts are due; the one from which delays and the rests of delays count |
//!
//! # The import cycle
//!
//! `inner.rs`, `thread.rs` and `worker.rs` import each other: the shared state has the worker and
//! the thread, and their methods take the shared state. It stays because a task receives
//! `&Timeout`, by which it can schedule, cancel and stop: the worker calls into the callers' side.
//! All other imports of the crate lead from the API to the engine, to `node/`, to the wheels and
//! the foundation; `tests/repo/imports.rs` checks that.
//!
//! # The files
//!
//! | file | content |
//! |---|---|
//! | `caller`, `group` | schedule, cancel, reset, replace; many timeouts at once |
//! | `thread_cache` | what a thread caches of a timer |
//! | `timeouts` | the `timeouts` queue, made of one lane per thread |
//! | `worker` | one turn: drain messages, advance the wheel, expire; which thread is the worker |
//! | `dispatch` | from an expired timeout to its task; the end of its run |
//! | `thread`, `return_timer` | start and loop of the worker thread, or what wakes a driver's loop; when memory is returned |
//! | `sleep`, `sleep_policy` | sleep and wake-up; how long the worker sleeps |
//! | `end` | stop, shutdown, last drop |
//! | `inner`, `state`, `pending`, `counters` | what both sides share: the fields; the lifecycle; the number of pending timeouts; statistics |
//!
//! The engine has no `unsafe` code.

mod caller;
mod counters;
mod dispatch;
mod end;
mod group;
mod inner;
mod pending;
mod return_timer;
mod sleep;
mod sleep_policy;
mod state;
mod thread;
mod thread_cache;
mod timeouts;
mod worker;

pub(crate) use counters::{LATENESS_BUCKETS, lateness_bound};
pub(crate) use dispatch::{drop_or_skip, run_dispatched};
pub(crate) use end::Grace;
pub(crate) use group::{cancel_each, reset_each};
pub use inner::{ExpiredTask, Timeout};
pub(crate) use inner::{Inner, Kind, Settings};
pub(crate) use thread::Callback;
pub(crate) use thread_cache::{forks, watch_forks};

#[cfg(test)]
mod tests {
    //! The fixture of the engine's unit tests: a timer whose worker the test is.

    use std::mem::forget;
    use std::time::Duration;

    use super::inner::{Inner, Timeout};
    use super::state::ASLEEP;
    use crate::node::{LocalNodes, OnCancel, Task};
    use crate::sync::{Arc, Ordering, thread};
    use crate::{Builder, Driver, HashedWheelTimer, ManualClock};

    pub(super) const TICK: Duration = Duration::from_millis(10);

    /// A driven timer whose clock moves only when the test moves it.
    pub(super) struct Driven {
        pub(super) timer: HashedWheelTimer,
        driver: Option<Driver>,
        pub(super) clock: ManualClock,
    }

    impl Driven {
        pub(super) fn new() -> Self {
            Self::with(|builder| builder)
        }

        pub(super) fn with(settings: impl FnOnce(Builder) -> Builder) -> Self {
            let clock = ManualClock::new();
            let builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone());
            let (timer, driver) = settings(builder).build_driven().unwrap();
            Self {
                timer,
                driver: Some(driver),
                clock,
            }
        }

        pub(super) fn inner(&self) -> &Arc<Inner> {
            &self.timer.inner
        }

        pub(super) fn now(&self) -> u64 {
            self.inner().clock.now()
        }

        pub(super) fn schedule(&self, delay: Duration) -> Timeout {
            self.timer.new_timeout(|_| (), delay).unwrap()
        }

        pub(super) fn turn(&mut self) -> usize {
            self.driver.as_mut().expect("the driver stays").turn()
        }

        /// Moves the clock and makes one turn.
        pub(super) fn pass(&mut self, time: Duration) -> usize {
            self.clock.advance(time);
            self.turn()
        }

        /// Opens a lane, as another thread would.
        pub(super) fn open_lane(&self) -> LocalNodes<Inner> {
            LocalNodes::<Inner>::new(self.inner(), self.inner().new_lanes.open())
        }

        /// The worker sleeps. `how` is some of the bits that say what wakes it.
        pub(super) fn set_asleep(&self, how: u64) {
            self.inner()
                .state
                .word
                .fetch_or(ASLEEP | how, Ordering::Relaxed);
        }

        pub(super) fn is_asleep(&self) -> bool {
            self.inner().state.snapshot().is_asleep()
        }
    }

    /// A test that fails leaves the timer behind: what it has counted may not add up, and the end
    /// of the timer would wait until it does.
    impl Drop for Driven {
        fn drop(&mut self) {
            if thread::panicking() {
                forget((self.timer.clone(), self.driver.take()));
            }
        }
    }

    /// A task that does nothing.
    pub(super) struct Nothing;

    impl Task<Inner> for Nothing {
        const ON_CANCEL: OnCancel = OnCancel::Nothing;

        fn run(self, _: &Timeout) {}

        fn cancelled(self, _: &Timeout) {}

        fn name() -> &'static str {
            "nothing"
        }
    }
}
