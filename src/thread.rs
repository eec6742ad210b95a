//! The worker thread: started lazily, asleep until there is work, ended by `stop`.

use crate::core::Core;
use crate::error::NewTimeoutError;
use crate::report;
use crate::sync::{Arc, Fault, JoinHandle, Mutex, Parker, TakeCell, Unparker, is_broken, is_current, spawn};
use crate::timeout::Timeout;
use crate::worker::Rest;

pub(crate) struct Thread {
    name: String,
    /// `None` before it is started, and once somebody waits for it, or nobody will. Held while starting, so that of two
    /// starts one does it; never while waiting.
    ///
    /// | who | with the lock | pairs with |
    /// |---|---|---|
    /// | `start` | looks again at the life, spawns, sets STARTED | another `start`, which sees STARTED; `stop`, which has set STOPPED before it takes the lock: either `start` sees that and spawns nothing, or `stop` finds the thread |
    /// | `stop` | takes the thread, to wait for it without the lock | of two, one finds it; the other waits for the worker's lock |
    /// | `abandon` | sets STOPPED, lets go of the thread | a `stop` that comes after finds no thread to wait for |
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

    pub(crate) fn unpark(&self) {
        self.unparker.unpark();
    }
}

impl Core {
    /// Starts the worker thread, if it is not started. (A driven timer has been from the beginning.)
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), NewTimeoutError> {
        if let Some(known) = self.is_started() {
            return known;
        }
        let mut handle = self.thread.handle.lock();
        if let Some(known) = self.is_started().filter(|_| !is_broken(Fault::StartWithoutSecondLook)) {
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
        match word.is_stopped() {
            true => Some(Err(NewTimeoutError::Stopped)),
            false => word.is_started().then_some(Ok(())),
        }
    }

    /// Ends the worker, waits for a task that is running there, and ends all timeouts. Not to be called by the worker.
    pub(crate) fn stop(self: &Arc<Self>) -> Vec<Timeout> {
        let is_first = self.set_stopped();
        if !is_first && is_broken(Fault::SecondStopWithoutWaiting) {
            return Vec::new();
        }
        if is_first && !is_broken(Fault::StopWithoutUnparking) {
            self.rouse();
        }
        // Not the thread itself, which gets here if it drops a handle after its last turn.
        let thread = self.thread.handle.lock().take_if(|thread| !is_current(thread));
        if let Some(thread) = thread {
            // It catches its panics.
            let _ = thread.join();
        }
        let rest = self.post.enter().drain(self);
        if is_first {
            self.drop_executor();
        }
        rest
    }

    /// Stops the timer from the worker, which then sees to the rest itself, unless a `stop` was first.
    pub(crate) fn abandon(&self) {
        // Both under the lock: a `stop` that comes after this finds no thread to wait for.
        let mut handle = self.thread.handle.lock();
        if self.set_stopped() {
            self.post.abandon();
            drop(handle.take());
        }
    }

    /// Lets go of the executor of a stopped timer; with nothing locked, for it may wait for tasks that wait for the timer.
    pub(crate) fn drop_executor(&self) {
        let executor = self.post.enter().executor.take();
        self.guard_named("when it was dropped", "(the task executor)", || drop(executor));
    }

    /// A turn of the worker, by its thread or by a driver.
    pub(crate) fn turn(self: &Arc<Self>) -> usize {
        // Also in a hook that `stop` calls on this thread, which would wait for itself.
        if self.life.word().is_stopped() {
            return 0;
        }
        let now = self.now();
        let mut worker = self.post.enter();
        let expired = worker.turn(self, now);
        if self.post.is_abandoned() {
            worker.drain(self);
        }
        expired
    }

    pub(crate) fn rest(&self) -> Rest {
        let now = self.now();
        self.post.enter().rest(self, now)
    }
}

fn work(core: &Arc<Core>) {
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
        core.abandon();
        if core.post.is_abandoned() {
            core.post.enter().drain(core);
        }
        report::clock_panicked(panic);
    });
    if core.post.is_abandoned() {
        core.drop_executor();
    }
}
