//! The worker thread: started lazily, asleep until there is work, ended by `stop`.

use crate::core::Core;
use crate::error::NewTimeoutError;
use crate::report;
use crate::sync::{
    Arc, Backoff, Fault, JoinHandle, Mutex, Parker, TakeCell, ThreadId, Unparker, is_broken, is_current,
    spawn,
};
use crate::timeout::Timeout;
use crate::worker::Rest;

pub(crate) struct Thread {
    name: String,
    /// Held while starting, so that of two starts one does it; never while waiting.
    ///
    /// | who | with the lock | pairs with |
    /// |---|---|---|
    /// | `start` | looks again at the life, spawns, sets STARTED | another `start`, which sees STARTED; `stop`, which has set STOPPED before it takes the lock: either `start` sees that and spawns nothing, or `stop` finds the thread |
    /// | `stop` | looks whether it is called by the thread; if it is the first, takes the thread, to wait for it without the lock | `start` |
    started: Mutex<Option<Started>>,
    /// Taken by the thread when it begins.
    parker: TakeCell<Parker>,
    unparker: Unparker,
}

struct Started {
    id: ThreadId,
    /// `None` once somebody waits for it, or nobody will.
    handle: Option<JoinHandle<()>>,
}

impl Thread {
    pub(crate) fn new(name: String) -> Self {
        let parker = Parker::default();
        let unparker = parker.unparker();
        Self { name, started: Mutex::new(None), parker: TakeCell::new(parker), unparker }
    }

    pub(crate) fn unpark(&self) {
        self.unparker.unpark();
    }

    /// Whether this is the thread that asks, be it after its last turn.
    fn is_current(&self) -> bool {
        self.started.lock().as_ref().is_some_and(|started| is_current(started.id))
    }

    /// Only one caller gets it.
    fn take_handle(&self) -> Option<JoinHandle<()>> {
        self.started.lock().as_mut()?.handle.take()
    }
}

impl Core {
    /// Starts the worker thread, if it is not started. (A driven timer has been from the beginning.)
    pub(crate) fn start(self: &Arc<Self>) -> Result<(), NewTimeoutError> {
        if let Some(known) = self.is_started() {
            return known;
        }
        let mut started = self.thread.started.lock();
        if let Some(known) = self.is_started().filter(|_| !is_broken(Fault::StartWithoutSecondLook)) {
            return known;
        }
        let core = Arc::clone(self);
        let handle = spawn(self.thread.name.clone(), move || work(&core)).map_err(NewTimeoutError::Spawn)?;
        *started = Some(Started { id: handle.thread().id(), handle: Some(handle) });
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

    /// Ends the worker, waits for a task that is running there, and ends all timeouts. Not to be called by the worker in
    /// a turn. The first one of all gets what is left, and the others wait for it: a loop that drops its driver because the
    /// timer is stopped takes nothing away from who stopped it.
    pub(crate) fn stop(self: &Arc<Self>) -> Vec<Timeout> {
        // The worker's thread gets here if it drops a handle after its last turn. It cannot wait for its own end.
        let may_wait = !self.thread.is_current();
        let is_first = self.set_stopped();
        if !is_first && !is_broken(Fault::SecondStopTakes) {
            let backoff = Backoff::new();
            let waits = may_wait && !is_broken(Fault::SecondStopWithoutWaiting);
            while waits && !self.post.enter().is_over() {
                backoff.snooze();
            }
            return Vec::new();
        }
        if !is_broken(Fault::StopWithoutUnparking) {
            self.rouse();
        }
        if let Some(thread) = self.thread.take_handle().filter(|_| may_wait) {
            // It catches its panics.
            let _ = thread.join();
        }
        let rest = self.post.enter().drain(self);
        self.drop_executor();
        rest
    }

    /// Stops the timer from the worker, which then sees to the rest itself, unless a `stop` was first.
    pub(crate) fn abandon(&self) {
        if self.set_stopped() {
            self.post.abandon();
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
