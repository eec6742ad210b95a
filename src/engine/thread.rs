//! The worker thread: lazily started, once; parked until there is work; ended by `stop`. The user's
//! functions that it calls, or that wake a driver's loop in its place.

use std::mem;

use super::inner::Inner;
use super::sleep_policy::Sleep;
use crate::error::NewTimeoutError;
use crate::platform::limit_timer_slack;
use crate::report;
use crate::sync::{JoinHandle, Mutex, Ordering, Parker, Unparker, nap, spawn, unmodelled};

/// The thread's timer slack is at most a tick divided by this. By default Linux may wake it 50 µs
/// late, which matters for a tick of 1 ms, and not for a long one.
const SLACKS_PER_TICK: u64 = 1_000;

/// The user's settings of the worker thread.
#[derive(Default)]
pub(crate) struct ThreadSettings {
    pub(crate) name: Option<String>,
    /// In bytes; `None` is the default of std.
    pub(crate) stack_size: Option<usize>,
    pub(crate) on_start: Option<Callback>,
    pub(crate) on_stop: Option<Callback>,
}

pub(crate) struct Thread {
    settings: ThreadSettings,
    /// The process in which the thread was started; 0 if it was not. A child process that this one
    /// forks has the value and not the thread. No other thread depends on it, so it is `Relaxed`.
    process: unmodelled::AtomicU32,
    /// `None` before the thread is started, and once a call joins it, or no call will. Locked while
    /// starting, so that of two calls of `start` one starts it. Never locked while waiting.
    ///
    /// | operation | under the lock | pairs with |
    /// |---|---|---|
    /// | `start` | reads the state again, spawns, sets `STARTED` | another `start`, which sees `STARTED`; `stop` or `shutdown`, which has set `CLOSING` before it takes the lock: either `start` sees that and spawns nothing, or `stop` finds the thread |
    /// | `shutdown` | looks whether there is a thread | `start` |
    /// | the first `stop` | takes the thread, to join it without the lock | `start` |
    /// | `stop_on_worker`, if it is the first | drops the handle of the thread | `start`, which has spawned it and still has the lock |
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Locked by the thread as long as it runs, and by no other.
    parker: unmodelled::Mutex<Parker>,
    pub(super) unparker: Unparker,
}

impl Thread {
    pub(super) fn new(settings: ThreadSettings) -> Self {
        let parker = Parker::default();
        let unparker = parker.unparker().clone();
        Self {
            settings,
            process: unmodelled::AtomicU32::new(0),
            handle: Mutex::new(None),
            parker: unmodelled::Mutex::new(parker),
            unparker,
        }
    }

    pub(crate) fn name(&self) -> &str {
        self.settings.name.as_deref().unwrap_or_default()
    }

    /// Whether the thread was started, and no `stop` has taken its handle. (A driven timer has no
    /// thread.)
    pub(super) fn is_started(&self) -> bool {
        self.handle.lock().is_some()
    }

    /// Whether this process was forked from the one that has the thread. Locks that the thread held
    /// at that moment are never released here, and it cannot be joined.
    pub(crate) fn is_in_parent_process(&self) -> bool {
        let process = self.process.load(Ordering::Relaxed);
        process != 0 && process != std::process::id()
    }

    /// Why a timer that closes, or whose thread is in the parent process, rejects a timeout.
    #[cold]
    pub(crate) fn closed_error(&self) -> NewTimeoutError {
        match self.is_in_parent_process() {
            true => NewTimeoutError::Forked,
            false => NewTimeoutError::Stopped,
        }
    }

    /// Takes the handle, to join the thread or to let it go.
    pub(super) fn take_handle(&self) -> Option<JoinHandle<()>> {
        self.handle.lock().take()
    }
}

/// The start of the worker thread.
impl Inner {
    /// Starts the worker thread, unless it is started. (A driven timer is from the beginning.)
    pub(crate) fn start(&self) -> Result<(), NewTimeoutError> {
        if let Some(known) = self.start_result() {
            return known;
        }
        let mut handle = self.thread.handle.lock();
        // Another thread may have started or stopped the timer before this one had the lock.
        if let Some(known) = self.start_result() {
            return known;
        }
        let (inner, thread) = (self.pool.timer(), &self.thread);
        let (name, stack_size) = (thread.name().to_owned(), thread.settings.stack_size);
        let spawned = spawn(name, stack_size, move || run_worker(&inner));
        *handle = Some(spawned.map_err(|error| NewTimeoutError::Spawn {
            kind: error.kind(),
            os_error: error.raw_os_error(),
        })?);
        thread.process.store(std::process::id(), Ordering::Relaxed);
        self.state.set_started();
        Ok(())
    }

    /// The result of `start` if it has nothing to do.
    fn start_result(&self) -> Option<Result<(), NewTimeoutError>> {
        let state = self.state.snapshot();
        if state.is_closing() || self.thread.is_in_parent_process() {
            return Some(Err(self.thread.closed_error()));
        }
        state.is_started().then_some(Ok(()))
    }
}

/// The worker thread.
fn run_worker(inner: &Inner) {
    report::thread_started(inner.thread.name());
    limit_timer_slack(inner.ticks.nanos() / SLACKS_PER_TICK);
    let settings = &inner.thread.settings;
    if let Some(hook) = &settings.on_start {
        hook.call(inner);
    }
    let turns = || {
        let parker = inner.thread.parker.try_lock();
        let parker = parker.expect("the thread is started once");
        loop {
            inner.turn(inner.max_tasks_per_turn);
            match inner.after_turn() {
                None => return,
                Some(Sleep::UntilNextTick(time)) if time.is_zero() => continue,
                Some(Sleep::UntilNextTick(time)) => nap(&parker, time),
                Some(Sleep::Parked(time)) => {
                    parker.park_timeout(time);
                    inner.state.wake();
                }
            }
            inner.counters.worker.wake_ups.add_single_writer(1);
        }
    };
    report::guard(turns, |panic| {
        // Only the user's clock can panic here. No other thread would turn the timer, so it stops.
        inner.counters.panics.add(1);
        inner.stop_on_worker();
        let worker = inner.worker.lock();
        if inner.worker.is_stopped_by_worker() {
            inner.end_on_worker(worker);
        }
        report::clock_panicked(panic);
    });
    if let Some(hook) = &settings.on_stop {
        hook.call(inner);
    }
    report::thread_ended(inner.thread.name());
}

/// A function that the user has given to the builder: what the worker thread calls, or what wakes
/// the loop that turns a driver.
pub(crate) struct Callback {
    name: &'static str,
    function: Box<dyn Fn() + Send + Sync>,
}

impl Callback {
    /// `name` is for reports.
    pub(crate) fn new(name: &'static str, function: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            name,
            function: Box::new(function),
        }
    }

    /// Calls it. Returns whether it has returned: a panic is reported and counted.
    pub(super) fn call(&self, timer: &Inner) -> bool {
        let (counters, doing) = (&timer.counters, "when it was called");
        let returned = counters.guard(doing, || self.name, &self.function);
        returned.is_some()
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        report::guard_drop(self.name, mem::replace(&mut self.function, Box::new(|| ())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HashedWheelTimer;
    use crate::sync::mpsc;
    use std::time::Duration;

    fn settings(on_start: Option<Callback>) -> ThreadSettings {
        ThreadSettings {
            name: None,
            stack_size: None,
            on_start,
            on_stop: None,
        }
    }

    #[test]
    fn a_hook_whose_drop_panics_does_not_unwind_out_of_the_drop_of_the_settings() {
        struct Panics;

        impl Drop for Panics {
            fn drop(&mut self) {
                panic!("a hook is dropped");
            }
        }

        let panics = Panics;
        let hook = Callback::new("(a hook)", move || _ = &panics);
        drop(settings(Some(hook)));
    }

    #[test]
    fn a_child_process_does_not_have_the_thread() {
        let thread = Thread::new(settings(None));
        assert!(!thread.is_in_parent_process(), "it was not started");
        thread.process.store(std::process::id(), Ordering::Relaxed);
        assert!(!thread.is_in_parent_process());
        thread
            .process
            .store(std::process::id() ^ 1, Ordering::Relaxed);
        assert!(thread.is_in_parent_process());
    }

    #[test]
    #[cfg_attr(miri, ignore = "real time")]
    fn the_thread_sleeps_until_a_tick_that_is_near() {
        let timer = HashedWheelTimer::builder()
            .tick(Duration::from_millis(40))
            .build()
            .unwrap();
        let (fired, fires) = mpsc::channel();
        timer
            .new_timeout(move |_| fired.send(()).unwrap(), Duration::from_millis(1))
            .unwrap();
        fires.recv().unwrap();
        let turns = timer.stats().turns;
        assert!(turns < 100, "{turns} turns");
    }
}
