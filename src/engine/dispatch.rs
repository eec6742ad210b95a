//! From an expired timeout to its task: on the worker, or through the task executor.
//!
//! Tasks, hooks, executors and wakers run only in [`Counters::guard`] and [`guard`], which catch
//! panics, report and count them. A clock does not: its panic reaches the caller, or ends the timer
//! on the worker thread.
//!
//! # The end of a run
//!
//! `cancel_and_wait` waits for it. A timeout can expire and its task not be over for two reasons.
//!
//! | the task | is over when |
//! |---|---|
//! | runs on the worker | the worker lock is free: the worker has held it since before the timeout expired. Nothing is recorded, so the runs on the worker cost no more for it |
//! | was handed to the task executor | its node has the mark `RUN_OVER` (`node/refs.rs`) |
//!
//! A waiter lists itself in `run_waiters` and then changes the mark. The thread that ends the run
//! changes the mark and then, if it was awaited, wakes all that are listed:
//!
//! | the first change of the mark | |
//! |---|---|
//! | of the waiter | the end of the run finds the mark awaited, and the waiter in the list |
//! | of the end of the run | the waiter finds the mark, and does not wait |
//!
//! A waiter that is woken by the end of another run lists itself again. The mark of a run of an
//! alarm is in the alarm's own state (`alarm/`).
//!
//! No thread waits for a task that it has itself. Each thread notes which one that is: the task
//! that it runs, or, on the worker, the one that it hands to the executor at this moment.
//!
//! [`Counters::guard`]: super::counters::Counters::guard

use std::cell::Cell;
use std::time::Duration;

use super::counters::Running;
use super::inner::{Execute, ExpiredTask, Inner, Timeout};
use super::thread_cache;
use crate::node::{ClaimedTask, End, Message, NextRun, RunOutcome, TaskClaim};
use crate::report;
use crate::sync::local;
use crate::ticks::DEADLINE_RUNNING;

local!(static CURRENT: Cell<usize> = Cell::new(0));

/// Added to the address of a node whose task is being handed to the executor.
const HANDED_OVER: usize = 1;

/// Calls `run` while this is the task that the thread has: the address of its node, for a task that
/// the thread runs for a task executor.
fn while_current<R>(task: usize, run: impl FnOnce() -> R) -> R {
    // (A thread that is ending has no cell.)
    let before = CURRENT.try_with(|current| current.replace(task));
    let result = run();
    if let Ok(before) = before {
        let _ = CURRENT.try_with(|current| current.set(before));
    }
    result
}

/// Whether this is the task that the thread has.
fn is_current(task: usize) -> bool {
    CURRENT
        .try_with(Cell::get)
        .is_ok_and(|current| current == task)
}

/// A task that was handed to the executor is over.
fn end_run(timeout: &Timeout) {
    if timeout.handle.end_run() {
        timeout.handle.timer().run_waiters.wake_all();
    }
}

/// User code: tasks, hooks and the clock, whose panics are caught.
impl Inner {
    /// A timeout has expired: runs its task on this thread, which is the worker, or hands it to the
    /// executor. Returns the timeout if the task ran here.
    #[inline(always)]
    pub(super) fn run_or_dispatch(
        &self,
        claimed: ClaimedTask<Inner>,
        executor: Option<&Execute>,
    ) -> Option<Timeout> {
        self.counters.worker.expired.add_single_writer(1);
        // Before the task runs: a task that schedules another one finds its place free.
        self.pending_counts.release_places(1);
        match executor {
            None => Some(self.run(claimed)),
            Some(executor) => self.dispatch(executor, claimed),
        }
    }

    /// Runs the task of an expired timeout on this thread, which is the worker.
    #[inline(always)]
    fn run(&self, claimed: ClaimedTask<Inner>) -> Timeout {
        claimed.with(|claim, timeout| {
            self.watch(|| timeout.handle.name(), || run_claimed(claim, timeout));
        })
    }

    /// Hands a task to the executor; or runs it here, if it must not be refused. Returns the
    /// timeout if the task ran on this thread.
    // Not in the worker's loop, because most timers have no executor.
    #[inline(never)]
    pub(super) fn dispatch(
        &self,
        execute: &Execute,
        claimed: ClaimedTask<Inner>,
    ) -> Option<Timeout> {
        let node = claimed.timeout().handle.as_ptr().addr();
        if claimed.runs_on_worker() {
            let timeout = while_current(node, || self.run(claimed));
            end_run(&timeout);
            return Some(timeout);
        }
        let name = claimed.timeout().handle.name();
        let task = ExpiredTask {
            claimed: Some(claimed),
        };
        let doing = "in the executor";
        let execute = || self.counters.guard(doing, || name, || execute(task));
        self.watch(|| name, || while_current(node + HANDED_OVER, execute));
        None
    }

    /// Calls the hook of a cancelled task that this thread has.
    pub(super) fn call_hook(&self, claimed: ClaimedTask<Inner>) -> Timeout {
        claimed.with(call_cancelled)
    }

    /// Waits until the task of a timeout that has ended is over. Waits for nothing if this thread
    /// runs that task; on the worker, only for tasks that were handed to an executor.
    pub(crate) fn wait_for_run(&self, timeout: &Timeout) {
        let handle = &timeout.handle;
        // A cancelled timeout has a run only if it was cancelled during that: its task is periodic,
        // or was asked whether it postpones itself.
        let is_expired = handle.end() == Some(End::Expired);
        if !is_expired && handle.deadline() != DEADLINE_RUNNING {
            return;
        }
        // In a child process no task runs, and the worker's lock may never be released.
        if self.thread.is_in_parent_process() || is_current(handle.as_ptr().addr()) {
            return;
        }
        // The worker itself asks.
        if self.has_executor && (is_expired || handle.is_periodic()) {
            self.run_waiters.wait_until(|| {
                let is_over = !handle.await_run();
                assert!(
                    is_over || !is_current(handle.as_ptr().addr() + HANDED_OVER),
                    "cancel_and_wait was called by a task executor for the task that it was given, and would wait for \
                     itself: run or drop the task, or hand it to another thread and return"
                );
                is_over
            });
        } else if !self.worker.is_held_by_this_thread() {
            drop(self.worker.lock());
        }
    }

    /// Runs a task on the worker, and reports it if it is slow. The clock is read, and the task's
    /// name asked for, only if there is a threshold.
    #[inline]
    pub(crate) fn watch<R>(
        &self,
        task: impl FnOnce() -> &'static str,
        run: impl FnOnce() -> R,
    ) -> R {
        match self.options.slow_task_threshold {
            None => run(),
            Some(threshold) => self.time_task(task(), threshold, run),
        }
    }

    // Not in the worker's loop, because most timers have no threshold.
    #[inline(never)]
    fn time_task<R>(&self, task: &'static str, threshold: u64, run: impl FnOnce() -> R) -> R {
        let began = self.try_now();
        *self.running.lock() = began.map(|began| Running { task, began });
        let result = run();
        *self.running.lock() = None;
        let ended = began.and_then(|_| self.try_now());
        let took = ended.unwrap_or(0).saturating_sub(began.unwrap_or(0));
        if took > threshold {
            self.counters.worker.slow_tasks.add_single_writer(1);
            let [took, threshold] = [took, threshold].map(Duration::from_nanos);
            report::slow_task(task, took, threshold);
        }
        result
    }

    /// Reads the time for statistics. The clock is user code: if it panics here, that is reported,
    /// and the turn goes on. (A panic at the beginning of a turn ends it.)
    pub(super) fn try_now(&self) -> Option<u64> {
        let (doing, clock) = ("when it was asked for the time", || "(the clock)");
        self.counters.guard(doing, clock, || self.clock.now())
    }

    /// Counts a turn that had something to do, and the time that it took. Called without any lock.
    pub(super) fn count_turn(&self, began: u64) {
        let Some(ended) = self.try_now() else { return };
        let took = ended.saturating_sub(began);
        let counters = &self.counters.worker;
        counters.longest_turn.raise(took);
        counters.busy_time.add(took);
        if took > self.ticks.nanos() {
            let long_turns = counters.long_turns.add(1);
            let took = Duration::from_nanos(took);
            report::long_turn(self.thread.name(), took, self.ticks.duration(), long_turns);
        }
    }
}

/// Calls the hook of a cancelled task, which drops it.
#[inline]
pub(super) fn call_cancelled(claim: TaskClaim<'_, Inner>, timeout: &Timeout) {
    if !claim.is_plain() {
        guard(|| "in cancelled", timeout, || claim.cancelled(timeout));
    }
}

/// Drops a task that does not run. A panic is reported and counted.
pub(super) fn drop_claimed(claim: TaskClaim<'_, Inner>, timeout: &Timeout) {
    guard(|| "when it was dropped", timeout, || claim.drop_task());
}

/// The same as [`Counters::guard`](super::counters::Counters::guard), for the task of a timeout.
// Only `timeout` is stored for a panic: this is in the worker's loop.
#[inline]
fn guard(doing: impl FnOnce() -> &'static str, timeout: &Timeout, code: impl FnOnce()) {
    report::guard(code, |panic| {
        let Timeout { handle } = timeout;
        handle.timer().counters.panics.add(1);
        report::task_panicked(doing(), handle.name(), panic);
    });
}

/// Runs the task of an executor on this thread. A periodic task that makes up for missed runs runs
/// again for those that were due by the end of the first one.
pub(crate) fn run_dispatched(claimed: ClaimedTask<Inner>) {
    let run = |claimed: ClaimedTask<Inner>| end_run(&claimed.with(run_claimed));
    end_dispatched(claimed, run, run_periodic);
}

/// Drops the task of an executor, or leaves out this run of a periodic one.
pub(crate) fn drop_or_skip(claimed: ClaimedTask<Inner>) {
    let drop_task = |claimed: ClaimedTask<Inner>| {
        count_dropped(claimed.timeout());
        drop_dispatched(claimed);
    };
    let skip = |mut claimed: ClaimedTask<Inner>| {
        count_dropped(claimed.timeout());
        let next = claimed.repeat(false);
        finish_run(claimed, next);
    };
    end_dispatched(claimed, drop_task, skip);
}

/// Ends what an executor had, by `once` or `periodic`. A run that was cancelled meanwhile does not
/// begin, so nothing is lost. The task may wait for its own end here, because it is this thread's.
fn end_dispatched(
    claimed: ClaimedTask<Inner>,
    once: impl FnOnce(ClaimedTask<Inner>),
    periodic: impl FnOnce(ClaimedTask<Inner>),
) {
    let handle = &claimed.timeout().handle;
    let (is_periodic, has_ended) = (handle.is_periodic(), handle.end().is_some());
    while_current(handle.as_ptr().addr(), || match is_periodic {
        false => once(claimed),
        true if has_ended => drop_dispatched(claimed),
        true => periodic(claimed),
    });
}

/// Runs the task of an expired timeout.
#[inline(always)]
fn run_claimed(claim: TaskClaim<'_, Inner>, timeout: &Timeout) {
    guard(|| "in run", timeout, || claim.run(timeout));
}

/// Drops the task of a timeout that has ended, which the executor had.
fn drop_dispatched(claimed: ClaimedTask<Inner>) {
    end_run(&claimed.with(drop_claimed));
}

fn count_dropped(timeout: &Timeout) {
    timeout.handle.timer().counters.dropped_tasks.add(1);
    report::task_dropped(timeout.handle.name());
}

/// Runs a periodic task on a thread of the executor: once, or as often as it is behind. Runs that
/// fall due meanwhile do not follow, because other tasks wait for the thread.
fn run_periodic(mut claimed: ClaimedTask<Inner>) {
    let mut next = claimed.repeat(true);
    let first_ended = next.map_or(0, |next| next.tick_began);
    let is_behind = |next: NextRun| next.deadline <= first_ended;
    let goes_on = |timeout: &Timeout| {
        let handle = &timeout.handle;
        // A `stop` cannot end the timeout while the worker runs it for the executor.
        handle.end().is_none() && !handle.timer().state.snapshot().is_stopped()
    };
    while next.is_some_and(is_behind) && goes_on(claimed.timeout()) {
        next = claimed.repeat(true);
    }
    finish_run(claimed, next);
}

fn finish_run(claimed: ClaimedTask<Inner>, next: Option<NextRun>) {
    let is_last = next.is_none();
    let push = |message: Message<'_, Inner>| {
        let timer = message.handle().timer();
        thread_cache::with(timer, |cache| {
            let state = cache.push(message);
            if is_last {
                // As in `cancel`: the end of this pass may call `stop`, which waits for the count.
                timer.counters.ended_on_executor.add(1);
            }
            state
        })
    };
    match claimed.finish_run(next.map(|next| next.deadline), push) {
        RunOutcome::Again((timeout, state)) => {
            timeout
                .handle
                .timer()
                .wake_for_pushed(state, &timeout.handle);
        }
        RunOutcome::LastRun(claimed) => {
            let timer = claimed.timeout().handle.timer();
            timer.pending_counts.release_places(1);
            timer.wake_to_reclaim();
            drop_dispatched(claimed);
        }
        RunOutcome::Cancelled(claimed) => drop_dispatched(claimed),
    }
}
