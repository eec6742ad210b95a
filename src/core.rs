//! What a timer's handles, its timeouts and its worker share, and the callers' side of it.

use std::fmt;
use std::panic::RefUnwindSafe;
use std::time::Duration;

use crate::clock::{Clock, Time};
use crate::counters::Counters;
use crate::driver::Waker;
use crate::error::NewTimeoutError;
use crate::lanes::Door;
use crate::life::{Life, MOST_PENDING, Refusal, Word};
use crate::local::{self, Desk};
use crate::node::{Arena, Claim, Credits, Handle, Live, Message, Node, Reset};
use crate::report;
use crate::stats::Stats;
use crate::sync::{Arc, AtomicUsize, CachePadded, Fault, Ordering, is_broken, unmodelled};
use crate::task::{ExpiredTask, Task, TaskExecutor};
use crate::thread::Thread;
use crate::ticks::{self, NEVER, Ticks};
use crate::timeout::Timeout;
use crate::wheel::EitherWheel;
use crate::worker::Post;

pub(crate) struct Core {
    pub(crate) life: CachePadded<Life>,
    /// To the worker, by way of lanes: new timeouts, and what became of those in the wheel.
    pub(crate) door: Door,
    /// All timeouts, wherever they are.
    pub(crate) arena: Arena,
    /// What their handles have of this.
    pub(crate) credits: Credits,
    /// The timer is stopped: nobody keeps anything of it for later.
    closed: unmodelled::AtomicBool,
    pub(crate) post: Post,
    pub(crate) thread: Thread,
    /// Who ends the sleep of a driver's loop.
    pub(crate) waker: Option<Waker>,
    /// How many `HashedWheelTimer`s there are. The one that makes it zero stops the timer.
    ///
    /// | operation | on the count | order | pairs with |
    /// |---|---|---|---|
    /// | `clone` | + 1 | `Relaxed` | nothing: who clones holds one, so it is not zero |
    /// | `Timeout::timer` | + 1 unless zero | `AcqRel` | nothing (`Relaxed` would do): by compare-exchange, so zero is for ever |
    /// | [`drop_handle`](Self::drop_handle) | − 1 | `AcqRel` | itself: the last one sees what was done before the others |
    pub(crate) handles: AtomicUsize,
    pub(crate) counters: Counters,
    pub(crate) ticks: Ticks,
    pub(crate) ticks_per_wheel: usize,
    /// The most that may be pending: the user's limit, or what can be counted.
    pub(crate) limit: u64,
    /// In nanoseconds: what the worker runs itself is reported if it takes longer. `NEVER` is none.
    slow_task_threshold: u64,
    pub(crate) time: Time,
    /// For `Debug`.
    wheel: &'static str,
    is_driven: bool,
}

// User code runs only where everything is consistent, so a panic that comes out of it leaves nothing half done.
impl RefUnwindSafe for Core {}

/// What a timer is built from, all of it checked.
pub(crate) struct Settings {
    pub(crate) tick: Duration,
    pub(crate) wheel: EitherWheel,
    /// 0 is none.
    pub(crate) limit: usize,
    pub(crate) thread_name: String,
    pub(crate) is_driven: bool,
    pub(crate) executor: Option<Box<dyn TaskExecutor>>,
    /// In nanoseconds; `NEVER` is none.
    pub(crate) slow_task_threshold: u64,
    pub(crate) waker: Option<Waker>,
    /// `None` is the operating system's.
    pub(crate) clock: Option<Box<dyn Clock>>,
}

/// How many timers are built and not stopped.
static LIVE: unmodelled::AtomicUsize = unmodelled::AtomicUsize::new(0);

/// More live timers than this are warned of, once, as in Netty.
const MANY: usize = 64;

impl Core {
    pub(crate) fn new(settings: Settings) -> Arc<Self> {
        static WARNED: unmodelled::AtomicBool = unmodelled::AtomicBool::new(false);

        // First, for it is the user's and may panic.
        let time = Time::of(settings.clock);
        let live = LIVE.fetch_add(1, Ordering::Relaxed) + 1;
        if live > MANY && !WARNED.swap(true, Ordering::Relaxed) {
            report::too_many_timers(live);
        }
        Arc::new(Self {
            life: CachePadded::new(Life::new()),
            door: Door::new(),
            arena: Arena::new(),
            credits: Credits::new(),
            closed: unmodelled::AtomicBool::new(false),
            ticks_per_wheel: settings.wheel.ticks_per_wheel(),
            wheel: settings.wheel.name(),
            post: Post::new(settings.wheel, settings.executor),
            thread: Thread::new(settings.thread_name),
            waker: settings.waker,
            handles: AtomicUsize::new(0),
            counters: Counters::default(),
            ticks: Ticks::new(settings.tick),
            limit: match settings.limit {
                0 => MOST_PENDING,
                limit => MOST_PENDING.min(limit as u64),
            },
            slow_task_threshold: settings.slow_task_threshold,
            time,
            is_driven: settings.is_driven,
        })
    }

    // There is a call for each type of task: where it is, the timeout stays in registers.
    #[inline(always)]
    pub(crate) fn schedule<T: Task>(
        self: &Arc<Self>,
        task: T,
        delay: Duration,
    ) -> Result<Timeout, NewTimeoutError> {
        self.schedule_by(task, ticks::deadline(self.time.now_or_soon(), delay))
    }

    /// `deadline` is in nanoseconds since the timer was built, and at most [`NEVER`].
    #[inline(always)]
    pub(crate) fn schedule_by<T: Task>(
        self: &Arc<Self>,
        task: T,
        deadline: u64,
    ) -> Result<Timeout, NewTimeoutError> {
        let admitted = match self.life.admit(self.limit) {
            Ok(word) => word,
            Err(refusal) => match self.admit_after(refusal) {
                Ok(word) => word,
                Err(error) => {
                    self.guard("when it was dropped", T::name, || drop(task));
                    self.count_refusal(&error);
                    return Err(error);
                }
            },
        };
        // From here to the push nothing of the user's runs: `stop` may be waiting for it.
        let handle = local::with(self, |desk| self.push_new(desk, task, deadline));
        self.tell(admitted, deadline);
        Ok(Timeout { handle })
    }

    /// Of a timeout that has been admitted.
    #[inline(always)]
    fn push_new<T: Task>(self: &Arc<Self>, desk: &mut Desk, task: T, deadline: u64) -> Handle {
        let credit = desk.credit(self);
        let (handle, entry) = desk.vacant(self).fill(task, deadline, desk.lane.ticket(), credit);
        desk.lane.push(Message::New(entry).into_bits());
        handle
    }

    /// Sees to it that who turns the timer does so in time for what has been pushed.
    #[inline(always)]
    fn tell(&self, admitted: Word, deadline: u64) {
        let looks = self.waker.is_some() && !is_broken(Fault::PushWithoutLook);
        let word = if looks { self.life.look() } else { admitted };
        self.wake_for(word, if admitted.fills_a_lot() { 0 } else { deadline });
    }

    /// Counts a timeout in that was refused at first, if it was because the timer is not started; says how life was before.
    #[cold]
    fn admit_after(self: &Arc<Self>, mut refusal: Refusal) -> Result<Word, NewTimeoutError> {
        loop {
            match refusal {
                Refusal::Stopped => return Err(NewTimeoutError::Stopped),
                Refusal::NotStarted => self.start()?,
                Refusal::Full => {
                    let limit = usize::try_from(self.limit).unwrap_or(usize::MAX);
                    return Err(NewTimeoutError::TooManyPending { limit });
                }
            }
            match self.life.admit(self.limit) {
                Ok(word) => return Ok(word),
                Err(again) => refusal = again,
            }
        }
    }

    /// Who goes on with a timer that is stopped is told so, and nobody else needs to know.
    #[cold]
    fn count_refusal(&self, error: &NewTimeoutError) {
        let refused = self.counters.rejected.add_one();
        if !matches!(error, NewTimeoutError::Stopped) {
            report::refused(self.thread.name(), error, refused);
        }
    }

    pub(crate) fn cancel(&self, timeout: &Timeout) -> bool {
        let Some(claim) = self.end(timeout) else { return false };
        timeout.cancelled(claim);
        true
    }

    /// The same without a word to the task, which is dropped.
    #[cfg(feature = "async")]
    pub(crate) fn forget(&self, timeout: &Timeout) {
        if let Some(Some(claim)) = self.end(timeout) {
            self.discard(&timeout.handle, claim);
        }
    }

    /// Ends a timeout as cancelled, if it has not ended. The task is the caller's, unless it runs.
    #[inline]
    fn end(&self, timeout: &Timeout) -> Option<Option<Claim>> {
        let node = &timeout.handle;
        // Who comes too late needs no lane, and to a stopped timer there would be nobody at its other end.
        let live = node.live()?;
        let (claim, placed, word) = local::with_handle(node, |desk| {
            let (claim, placed) = withdraw(desk, node, live)?;
            // After the push: `stop` waits for the count, and then finds this in the lane.
            let word = (!is_broken(Fault::CancelWithoutLeave)).then(|| self.life.leave());
            Some((claim, placed, word))
        })?;
        if let Some(word) = word.filter(|_| placed) {
            self.wake_to_reclaim(word);
        }
        Some(claim)
    }

    /// Wakes the worker, if it was asleep, for what has ended in the wheel. (A driver's loop is not to turn before it has
    /// something to run.)
    #[inline]
    fn wake_to_reclaim(&self, word: Word) {
        if word.is_asleep() && self.waker.is_none() && !is_broken(Fault::CancelWithoutWake) {
            self.wake();
        }
    }

    /// Puts another timeout in the place of one that has not ended, with the same deadline; the old task is dropped, and so
    /// is the new one, with `None`, if it has ended. All the while there is one of them to `stop` and to the limit.
    #[cfg(feature = "async")]
    pub(crate) fn replace<T: Task>(self: &Arc<Self>, timeout: &Timeout, task: T) -> Option<Timeout> {
        let node = &timeout.handle;
        let replaced = match node.live() {
            None => Err(task),
            Some(live) => local::with(self, |desk| {
                let Some((claim, _)) = withdraw(desk, node, live) else { return Err(task) };
                let admitted = self.life.readmit();
                // Nobody moves the deadline of what has ended.
                let handle = self.push_new(desk, task, node.deadline());
                Ok((claim, admitted, Timeout { handle }))
            }),
        };
        let (claim, admitted, new) = match replaced {
            Ok(replaced) => replaced,
            Err(task) => {
                self.guard("when it was dropped", T::name, || drop(task));
                return None;
            }
        };
        self.tell(admitted, node.deadline());
        if let Some(claim) = claim {
            self.discard(node, claim);
        }
        Some(new)
    }

    pub(crate) fn reset(&self, timeout: &Timeout, delay: Duration) -> bool {
        self.reset_to(timeout, ticks::deadline(self.time.now_or_soon(), delay))
    }

    /// `deadline` is as for [`schedule_by`](Self::schedule_by).
    #[inline]
    pub(crate) fn reset_to(&self, timeout: &Timeout, deadline: u64) -> bool {
        let node = &timeout.handle;
        // Before, for there is time while the node comes from wherever it lies, and none while its word is being changed.
        // (But who comes too late to a stopped timer needs no desk.)
        let is_counted = !self.is_closed();
        if is_counted {
            local::count_resets(node, 1);
        }
        let reset = node.reset(deadline);
        let has_ended = reset == Reset::Ended;
        if is_counted == has_ended {
            local::count_resets(node, if has_ended { -1 } else { 1 });
        }
        if has_ended {
            return false;
        }
        match reset {
            Reset::Ended | Reset::Later => {}
            // The worker thread has been told of it, or will be, with whatever deadline.
            Reset::Earlier if self.waker.is_none() || is_broken(Fault::EarlierWithoutLook) => {}
            Reset::Earlier => self.tell_earlier(node),
            Reset::Requeue => self.tell_again(node),
        }
        true
    }

    /// What was in the wheel is QUEUED.
    #[inline]
    pub(crate) fn tell_again(&self, node: &Handle) {
        if is_broken(Fault::ResetWithoutPush) {
            return;
        }
        let again = Message::Again(node.number()).into_bits();
        local::with_handle(node, |desk| desk.lane.push(again));
        self.tell_earlier(node);
    }

    /// What is in a lane is due earlier than before.
    #[inline]
    fn tell_earlier(&self, node: &Handle) {
        let word = self.life.look();
        // As it is now: of two at once, the one who looks last has to see to both.
        self.wake_for(word, node.deadline());
    }

    /// What is in the wheel has ended, and was not cancelled.
    pub(crate) fn tell_ended(&self, node: &Handle) {
        local::with_handle(node, |desk| desk.lane.push(Message::Cancelled(node.number()).into_bits()));
        // After the push, as in `end`.
        self.wake_to_reclaim(self.life.leave());
    }

    /// How long it is until then.
    pub(crate) fn remaining(&self, deadline: u64) -> Duration {
        match deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(self.time.now_or_later())),
        }
    }

    /// Wakes the worker, if it was asleep and would miss this deadline of a node in a lane.
    #[inline]
    fn wake_for(&self, word: Word, deadline: u64) {
        if word.is_asleep() {
            self.wake_sleeper_for(deadline);
        }
    }

    #[cold]
    fn wake_sleeper_for(&self, deadline: u64) {
        let misses = |waker: &Waker| waker.is_needed_for(self.ticks.of(deadline));
        if self.waker.as_ref().is_none_or(misses) {
            self.wake();
        }
    }

    /// Wakes the worker, if no one else has since it was seen asleep.
    pub(crate) fn wake(&self) {
        if self.life.wake() || is_broken(Fault::WakeWithoutCompare) {
            self.rouse();
        }
    }

    /// Ends the sleep of whoever turns the timer.
    pub(crate) fn rouse(&self) {
        match &self.waker {
            None => self.thread.unpark(),
            Some(waker) => {
                let mut has_panicked = true;
                self.guard(
                    "when it was called",
                    || "(the waker)",
                    || {
                        waker.wake();
                        has_panicked = false;
                    },
                );
                if has_panicked {
                    // The loop sleeps on: the next one who needs it is to try again.
                    self.life.promise();
                }
            }
        }
    }

    /// Hands an expired task to whoever runs it. Returns its handle, if that is still here.
    #[inline]
    pub(crate) fn execute(
        &self,
        executor: Option<&dyn TaskExecutor>,
        handle: Handle,
        claim: Claim,
    ) -> Option<Handle> {
        let timeout = Timeout { handle };
        match executor {
            None => {
                self.watch(&timeout.handle, || timeout.run(claim));
                Some(timeout.handle)
            }
            Some(executor) => self.execute_elsewhere(executor, timeout, claim),
        }
    }

    // Not in the worker's loop: most often there is no executor.
    #[inline(never)]
    fn execute_elsewhere(
        &self,
        executor: &dyn TaskExecutor,
        timeout: Timeout,
        claim: Claim,
    ) -> Option<Handle> {
        if claim.runs_on_worker(&timeout) {
            self.watch(&timeout.handle, || timeout.run(claim));
            return Some(timeout.handle);
        }
        let name = timeout.handle.name();
        let task = ExpiredTask::new(timeout, claim);
        self.guard("in the executor", || name, || executor.execute(task));
        None
    }

    /// Runs a task of the worker's, or once one that repeats. Its time is taken only where somebody wants to know.
    #[inline]
    pub(crate) fn watch<R>(&self, node: &Node, run: impl FnOnce() -> R) -> R {
        if self.slow_task_threshold == NEVER { run() } else { self.watch_the_clock(node, run) }
    }

    fn watch_the_clock<R>(&self, node: &Node, run: impl FnOnce() -> R) -> R {
        let begun = self.now_in_turn();
        let result = run();
        let ended = begun.and_then(|_| self.now_in_turn());
        let took = ended.unwrap_or(0).saturating_sub(begun.unwrap_or(0));
        if took > self.slow_task_threshold {
            self.counters.worker.slow_tasks.add_one_alone();
            let [took, threshold] = [took, self.slow_task_threshold].map(Duration::from_nanos);
            report::slow_task(node.name(), took, threshold);
        }
        result
    }

    /// The time, for sight alone. A clock that panics stops the turn that begins with it, and none in the middle.
    pub(crate) fn now_in_turn(&self) -> Option<u64> {
        let mut now = None;
        self.guard("when it was asked for the time", || "(the clock)", || now = Some(self.time.now()));
        now
    }

    /// Takes note of a turn that has had something to do, and of what it took. With nothing locked.
    pub(crate) fn note_turn(&self, begun: u64) {
        let Some(ended) = self.now_in_turn() else { return };
        let took = ended.saturating_sub(begun);
        self.counters.worker.longest_turn.raise(took);
        self.counters.worker.busy_time.add(took);
        if took > self.ticks.nanos() {
            let long_turns = self.counters.worker.long_turns.add_one();
            report::long_turn(
                self.thread.name(),
                Duration::from_nanos(took),
                self.ticks.duration(),
                long_turns,
            );
        }
    }

    /// Runs user code on behalf of a task; a panic is reported and counted.
    #[inline]
    pub(crate) fn guard<'a>(&self, doing: &str, task: impl FnOnce() -> &'a str, code: impl FnOnce()) {
        report::guard(code, |panic| {
            self.counters.panics.add_one();
            report::task_panicked(doing, task(), panic);
        });
    }

    /// Drops a task; `node` is that of the claim.
    pub(crate) fn discard(&self, node: &Node, claim: Claim) {
        self.guard("when it was dropped", || node.name(), || claim.discard(node));
    }

    pub(crate) fn task_dropped(&self, node: &Node) {
        self.counters.dropped_tasks.add_one();
        report::task_dropped(node.name());
    }

    pub(crate) fn stats(&self) -> Stats {
        let counters = &self.counters;
        // One word says how many were admitted and how many of these are pending; who ends a timeout counts that before it
        // leaves, so what ends in between is counted as expired and not as cancelled.
        let worker = &counters.worker;
        let (taken, placed_or_expired) = (worker.taken.get(), worker.in_wheel_or_expired.get());
        let word = self.life.word();
        let (scheduled, pending) = (word.admitted(taken), word.pending());
        let expired = worker.expired.get();
        let kept = placed_or_expired.saturating_sub(expired) + (scheduled - taken);
        let expired = expired + counters.ended_elsewhere.get();
        Stats {
            scheduled,
            expired,
            cancelled: scheduled.saturating_sub(pending + expired),
            pending,
            cancelled_not_reclaimed: kept.saturating_sub(pending),
            rejected: counters.rejected.get(),
            periodic_runs: counters.periodic_runs.get(),
            resets: counters.resets.get(),
            panics: counters.panics.get(),
            dropped_tasks: counters.dropped_tasks.get(),
            slow_tasks: worker.slow_tasks.get(),
            turns: worker.turns.get(),
            wake_ups: worker.wake_ups.get(),
            long_turns: worker.long_turns.get(),
            longest_turn: Duration::from_nanos(worker.longest_turn.get()),
            busy_time: Duration::from_nanos(worker.busy_time.get()),
            lateness: worker.lateness.get(self.ticks.nanos()),
        }
    }

    /// From now on nothing is admitted. Says whether this is what stopped the timer: only one caller is told so, and
    /// has to let go of the executor.
    pub(crate) fn set_stopped(&self) -> bool {
        let is_first = !self.life.stop().is_stopped();
        if is_first {
            LIVE.fetch_sub(1, Ordering::Relaxed);
            self.closed.store(true, Ordering::Relaxed);
        }
        is_first
    }

    /// Whether the timer is stopped, as far as this thread knows: nothing that many write is looked at.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Stops the timer, and waits for the end if that is not to wait for oneself.
    pub(crate) fn stop_from_anywhere(self: &Arc<Self>) {
        if self.post.is_mine() && !is_broken(Fault::DropWithoutAsking) {
            // The worker sees it before the next task, and ends the rest when its turn is over.
            self.abandon();
        } else {
            self.stop();
        }
    }

    /// One handle fewer; says whether it was the last.
    pub(crate) fn drop_handle(&self) -> bool {
        if is_broken(Fault::DropWithoutCompare) {
            let handles = self.handles.load(Ordering::SeqCst);
            self.handles.store(handles.saturating_sub(1), Ordering::SeqCst);
            return handles == 1;
        }
        self.handles.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn debug(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stats = self.stats();
        let mut debug = f.debug_struct(name);
        debug.field("life", &self.life.word()).field("pending", &stats.pending);
        if self.limit < MOST_PENDING {
            debug.field("limit", &self.limit);
        }
        debug
            .field("scheduled", &stats.scheduled)
            .field("expired", &stats.expired)
            .field("cancelled", &stats.cancelled)
            .field("tick", &self.ticks.duration())
            .field("ticks_per_wheel", &self.ticks_per_wheel)
            .field("wheel", &format_args!("{}", self.wheel));
        if self.is_driven {
            debug.field("worker", &format_args!("driven"));
        } else {
            debug.field("worker", &format_args!("thread {:?}", self.thread.name()));
        }
        debug.finish_non_exhaustive()
    }
}

/// Ends a timeout as cancelled, if it has not ended, and tells the worker if that has to know; says whether it has. The
/// claim is as of [`cancel`](Node::cancel).
#[inline]
fn withdraw(desk: &mut Desk, node: &Handle, live: Live) -> Option<(Option<Claim>, bool)> {
    // Most often the worker has not seen it yet, and never will.
    let take_back = || desk.lane.take_back(node.ticket(), Message::new_bits(node));
    let (claim, placed) = node.cancel_with(live, take_back)?;
    // What is still under way the worker drops when it meets it.
    if placed && !is_broken(Fault::CancelWithoutPush) {
        desk.lane.push(Message::Cancelled(node.number()).into_bits());
    }
    Some((claim, placed))
}
