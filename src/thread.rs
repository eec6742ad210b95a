//! The worker thread: started lazily, asleep until there is work, ended by `stop`.

use crate::core::Core;
use crate::error::NewTimeoutError;
use crate::local;
use crate::report;
use crate::sync::{Arc, Backoff, JoinHandle, Mutex, Parker, TakeCell, Unparker, is_current, spawn};
use crate::timeout::Timeout;
use crate::worker::Rest;

pub(crate) struct Thread {
    name: String,
    /// `None` before it is started, and once somebody waits for it, or nobody will. Held while starting, so that of two
    /// starts one does it; never while waiting.
    ///
    /// | who | with the lock | pairs with |
    /// |---|---|---|
    /// | `start` | looks again at the life, spawns, sets STARTED | another `start`, which sees STARTED; `stop` or `shutdown`, which has set CLOSING before it takes the lock: either `start` sees that and spawns nothing, or `stop` finds the thread |
    /// | `shutdown` | looks whether there is a thread | `start` |
    /// | the first `stop` | takes the thread, to wait for it without the lock | `start` |
    /// | `abandon`, if it is the first | lets go of the thread | `start`, which has spawned it and still has the lock |
    handle: Mutex<Option<JoinHandle<()>>>,
    /// Taken by the thread when it begins.
    parker: TakeCell<Parker>,
    unparker: Unparker,
}

impl Thread {
    pub(crate) fn new(name: String) -> Self {
        let parker = Parker::default();
        let unparker = parker.unparker();
        Self { name, handle: Mutex::new(None), parker: TakeCell::new(parker), unparker }
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn unpark(&self) {
        self.unparker.unpark();
    }

    /// Whether there is a thread, or was until somebody stopped the timer. (A driven timer has none.)
    pub(crate) fn is_started(&self) -> bool {
        self.handle.lock().is_some()
    }

    /// For who waits for it, or lets go of it.
    fn take_handle(&self) -> Option<JoinHandle<()>> {
        self.handle.lock().take()
    }
}

impl Core {
    /// Starts the worker thread, if it is not started. (A driven timer has been from the beginning.)
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), NewTimeoutError> {
        if let Some(known) = self.is_started() {
            return known;
        }
        let mut handle = self.thread.handle.lock();
        if let Some(known) = self.is_started() {
            return known;
        }
        let core = Arc::clone(self);
        let thread = spawn(self.thread.name.clone(), move || work(&core)).map_err(NewTimeoutError::Spawn)?;
        *handle = Some(thread);
        self.life.set_started();
        Ok(())
    }

    fn is_started(&self) -> Option<Result<(), NewTimeoutError>> {
        let word = self.life.word();
        match word.is_closing() {
            true => Some(Err(NewTimeoutError::Stopped)),
            false => word.is_started().then_some(Ok(())),
        }
    }

    /// Ends all timeouts and then the worker; waits for a task that is running there. Not to be called by the worker in a
    /// turn. The first one of all gets what is left, and the others wait until it has it: a loop that drops its driver
    /// because the timer is stopped takes nothing away from who stopped it.
    pub(crate) fn stop(self: &Arc<Self>) -> Vec<Timeout> {
        let is_first = self.set_stopped();
        if !is_first {
            let backoff = Backoff::new();
            // Not for long: between its setting the bit and its having the lock, the first one waits only for the lock.
            while !self.post.enter().is_over() {
                backoff.snooze();
            }
            return Vec::new();
        }
        // Before the waker is called and the thread is waited for: either may run code of the user's that stops the timer.
        let rest = self.post.enter().drain(self);
        self.rouse();
        // (The clock runs on that thread too, and is the user's.)
        if let Some(thread) = self.thread.take_handle().filter(|thread| !is_current(thread)) {
            // It catches its panics.
            let _ = thread.join();
        }
        self.drop_executor();
        local::clear(self);
        rest
    }

    /// Stops the timer from the worker, which then sees to the rest itself, unless a `stop` was first.
    pub(crate) fn abandon(&self) {
        if self.set_stopped() {
            self.post.abandon();
            // Nobody waits for it, and while it is kept, so is the stack of a thread that has ended.
            drop(self.thread.take_handle());
        }
    }

    /// Lets go of the executor of a stopped timer; with nothing locked, for it may wait for tasks that wait for the timer.
    pub(crate) fn drop_executor(&self) {
        let executor = self.post.enter().executor.take();
        self.guard("when it was dropped", || "(the task executor)", || drop(executor));
    }

    /// Whether there is nothing more to turn for, or this thread is in a turn already and would wait for itself: in a hook
    /// that `stop` calls, or in a task that `shutdown` runs and that has the driver.
    pub(crate) fn turns_no_more(&self) -> bool {
        let word = self.life.word();
        word.is_closing() && (word.is_stopped() || self.post.is_mine())
    }

    /// A turn of the worker, by its thread or by a driver.
    pub(crate) fn turn(self: &Arc<Self>) -> usize {
        if self.turns_no_more() {
            return 0;
        }
        let now = self.time.now();
        let mut worker = self.post.enter();
        let before = self.counters.worker.handed();
        let had_work = worker.turn(self, now) || worker.has_traffic();
        let expired = self.counters.worker.handed() - before;
        if self.post.is_abandoned() {
            worker.drain(self);
        }
        drop(worker);
        if had_work {
            self.note_turn(now);
        }
        expired as usize
    }

    fn rest(&self) -> Rest {
        let now = self.time.now();
        self.post.enter().rest(self, now)
    }
}

fn work(core: &Arc<Core>) {
    report::thread_started(core.thread.name());
    let ticking = || {
        let parker = core.thread.parker.take().expect("the thread is started once");
        loop {
            core.turn();
            match core.rest() {
                Rest::End => return,
                Rest::Nap(time) if time.is_zero() => continue,
                Rest::Nap(time) => parker.nap(time),
                Rest::Sleep(time) => {
                    match time {
                        Some(time) => parker.park_timeout(time),
                        None => parker.park(),
                    }
                    core.life.wake();
                }
            }
            core.counters.worker.wake_ups.add_one_alone();
        }
    };
    report::guard(ticking, |panic| {
        // Only the clock's can get here. Nobody would turn the timer any more: better that it says so.
        core.counters.panicked.add_one();
        core.abandon();
        if core.post.is_abandoned() {
            core.post.enter().drain(core);
        }
        report::clock_panicked(panic);
    });
    if core.post.is_abandoned() {
        core.drop_executor();
    }
    report::thread_ended(core.thread.name());
}
