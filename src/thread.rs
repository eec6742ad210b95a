//! The worker thread: started lazily, asleep until there is work, ended by `stop`.

use crate::core::Core;
use crate::error::NewTimeoutError;
use crate::report;
use crate::sync::{Arc, Fault, JoinHandle, Mutex, Parker, TakeCell, Unparker, is_broken, is_current, spawn};
use crate::timeout::Timeout;
use crate::worker::{OnDuty, Rest};

pub(crate) struct Thread {
    name: String,
    /// `None` before it is started, and once it has been waited for. Held while starting and while waiting, so that of
    /// two starts one does it, and of two stops both wait.
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
        // Before the lock: a `stop` holds it while it waits for a task that may be calling this.
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
        self.set_stopped();
        if !is_broken(Fault::StopWithoutUnparking) {
            self.thread.unpark();
        }
        {
            let mut handle = self.thread.handle.lock();
            // The thread itself gets here when it drops a handle after its last turn, and has nothing to wait for.
            if let Some(thread) = handle.take_if(|thread| !is_current(thread)) {
                // It catches its panics.
                let _ = thread.join();
            }
        }
        self.end(self.post.enter())
    }

    /// The last of a stopped timer: ends its timeouts, and lets go of the executor.
    fn end(self: &Arc<Self>, mut worker: OnDuty<'_>) -> Vec<Timeout> {
        let rest = worker.drain(self);
        let executor = worker.executor.take();
        // It may wait, when it is dropped, for tasks that wait for this.
        drop(worker);
        self.guard_named("when it was dropped", "(the task executor)", || drop(executor));
        rest
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
        if self.is_abandoned() {
            self.end(worker);
        }
        expired
    }

    fn rest(&self) -> Rest {
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
        core.set_stopped();
        core.end(core.post.enter());
        report::clock_panicked(panic);
    });
}
