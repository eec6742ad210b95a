//! The worker: a state machine that owns the wheel and does one turn at a time.
//!
//! A turn takes cancelled timeouts out of the wheel, puts new ones in, and expires what is due. The worker thread, a
//! [`Driver`](crate::Driver) and loom's models all call the same [`turn`](Worker::turn).

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

use crate::core::Core;
use crate::lanes::{Inbox, Taken};
use crate::life::Word;
use crate::node::{Claim, Entry, Expiry, Message, Over, PLACED, Placed, Purse, Spare};
use crate::stats::Occupancy;
use crate::sync::unmodelled::{AtomicBool, AtomicUsize};
use crate::sync::{Arc, Backoff, Fault, Mutex, MutexGuard, Ordering, is_broken, thread_number};
use crate::task::TaskExecutor;
use crate::ticks::{NEVER, RUNNING};
use crate::timeout::Timeout;
use crate::wheel::EitherWheel;

/// The most messages that a turn takes, Netty's number: a caller in a tight loop cannot hold the wheel up.
const MOST_TAKEN: usize = if cfg!(hashed_wheel_loom) { 2 } else { 100_000 };

pub(crate) struct Worker {
    /// `None`: the worker runs the tasks itself. Here and not in `Core`, so that it goes when the timer is stopped: it may
    /// hold tasks, and these hold the `Core`.
    pub(crate) executor: Option<Box<dyn TaskExecutor>>,
    wheel: Placed,
    spare: Spare,
    purse: Purse,
    inbox: Inbox,
    /// Taken out of the wheel to be expired, in another order than the wheel's. Empty between turns, unless a `stop` came in
    /// the middle: then it is for that, and nothing is taken in before.
    due: VecDeque<Entry>,
    /// How many new timeouts were taken over, ever.
    taken: u64,
    late: Late,
    /// How many messages the last turn took.
    traffic: usize,
    /// More are waiting than may be taken at a time.
    backlog: bool,
    /// All have ended, and been told so.
    over: bool,
}

/// What the worker thread does after a turn.
pub(crate) enum Rest {
    /// Sleep for so long: till the next tick. Callers rely on it and wake nobody.
    Nap(Duration),
    /// Sleep for so long, or for ever, unless a caller ends it; they have been told.
    Sleep(Option<Duration>),
    /// The timer is stopped.
    End,
}

impl Worker {
    fn new(wheel: EitherWheel, executor: Option<Box<dyn TaskExecutor>>) -> Self {
        Self {
            executor,
            wheel: Placed::new(wheel),
            spare: Spare::default(),
            purse: Purse::default(),
            inbox: Inbox::default(),
            due: VecDeque::new(),
            taken: 0,
            late: Late::default(),
            traffic: 0,
            backlog: false,
            over: false,
        }
    }

    /// A turn at time `now`. Returns whether anything was due in the wheel.
    pub(crate) fn turn(&mut self, core: &Arc<Core>, now: u64) -> bool {
        core.counters.worker.turns.add_one_alone();
        self.absorb(core);
        self.late.now = now;
        let now = core.ticks.reached(now);
        if now > self.wheel.tick() {
            // What was there before the wheel came to where it is now is not to be a tick late for having had to wait.
            self.inbox.owe(self.backlog);
        }
        let mut had_due = false;
        while let Some(tick) = self.wheel.next_deadline().filter(|&tick| tick <= now) {
            had_due = true;
            let tick = tick.max(self.wheel.tick());
            // All of a tick first, so that no task runs while the wheel changes; then decided one by one, so that each
            // can be cancelled until its own turn comes.
            let is_owed = tick == self.wheel.tick();
            self.wheel.advance(&core.arena, tick);
            if is_owed {
                // In the order in which they would have fired. (Each deadline looked at once: a `reset` may change it.)
                self.due.extend(std::iter::from_fn(|| self.wheel.pop_due(&core.arena)));
                self.due.make_contiguous().sort_by_cached_key(|entry| core.ticks.of(entry.deadline()));
            }
            loop {
                if core.life.word().is_stopped() {
                    // The rest is for `stop` to return.
                    self.late.count(core, tick);
                    return true;
                }
                let next = self.due.pop_front().or_else(|| self.wheel.pop_due(&core.arena));
                let Some(entry) = next else { break };
                match entry.expire(|| self.purse.take(core), |deadline| core.ticks.of(deadline) <= tick) {
                    Expiry::Expired(handle, claim) => {
                        core.counters.worker.expired.add_one_alone();
                        core.life.leave();
                        if let Some(handle) = core.execute(self.executor.as_deref(), handle, claim) {
                            let (credit, vacant) = handle.into_parts();
                            vacant.into_iter().for_each(|vacant| self.spare.put(&core.arena, vacant));
                            self.purse.put(credit);
                        }
                        self.late.look_now_and_then(core, tick);
                    }
                    Expiry::Runs(entry, claim) => {
                        core.counters.worker.runs.add_one_alone();
                        self.fire(core, entry, claim);
                        self.late.look_now_and_then(core, tick);
                    }
                    Expiry::Later(entry, deadline) => {
                        self.wheel.insert(&core.arena, core.ticks.of(deadline), entry);
                    }
                    Expiry::Gone => {}
                }
            }
            self.late.count(core, tick);
        }
        if now > self.wheel.tick() {
            self.wheel.advance(&core.arena, now);
        }
        had_due
    }

    /// A run of a task that repeats.
    // Not in the loop.
    #[inline(never)]
    fn fire(&mut self, core: &Arc<Core>, entry: Entry, mut claim: Claim) {
        if let Some(executor) = self.executor.as_deref() {
            let handle = entry.another_handle(self.purse.take(core));
            // Until a message comes at the end of the run: here `stop` finds it.
            self.wheel.insert(&core.arena, core.ticks.of(RUNNING), entry);
            core.execute(Some(executor), handle, claim);
            return;
        }
        let next = core.watch(&entry, || claim.repeat(&entry, core, true));
        match entry.run_is_over(claim, next, PLACED) {
            Over::Again(deadline) => {
                let tick = core.ticks.of(deadline).max(self.wheel.tick());
                self.wheel.insert(&core.arena, tick, entry);
            }
            Over::Ended(claim) => {
                let counters = &core.counters.worker;
                counters.runs.set_alone(counters.runs.get() - 1);
                counters.expired.add_one_alone();
                core.life.leave();
                core.discard(&entry, claim);
                if let Some(vacant) = entry.release() {
                    self.spare.put(&core.arena, vacant);
                }
            }
            // A message about it is under way, to which the entry is left.
            Over::Cancelled(claim) => core.discard(&entry, claim),
        }
    }

    /// Does what messages say: at most `MOST_TAKEN` of them.
    fn absorb(&mut self, core: &Arc<Core>) {
        // Who looked whether the timer is stopped did so before it was. A message could be about one that is in `due`.
        if self.over || !self.due.is_empty() && !is_broken(Fault::TakeInBesideDue) {
            return;
        }
        let Self { inbox, wheel, spare, taken, .. } = self;
        spare.collect(&core.arena);
        let before = *taken;
        (self.traffic, self.backlog) = inbox.take(&core.door, MOST_TAKEN, |messages| {
            messages.iter().for_each(|taken| Message::prefetch(taken.message, &core.arena));
            for &Taken { message, is_owed } in messages {
                heed(core, wheel, spare, taken, message, is_owed);
            }
        });
        if self.traffic > 0 {
            let counters = &core.counters.worker;
            counters.in_wheel_or_expired.set_alone(wheel.len() as u64 + counters.expired.get());
            counters.taken.add_alone(*taken - before);
        }
    }

    /// Whether the last turn took any messages.
    pub(crate) fn has_traffic(&self) -> bool {
        self.traffic > 0
    }

    #[cfg(hashed_wheel_loom)]
    pub(crate) fn could_sleep(&self, core: &Core) -> bool {
        core.life.word().has_admitted(self.taken)
    }

    #[cfg(hashed_wheel_loom)]
    pub(crate) fn anything_waits(&self, core: &Core) -> bool {
        !self.inbox.is_empty(&core.door)
    }

    /// The tick at which `turn` has work.
    pub(crate) fn next_turn(&mut self, core: &Arc<Core>) -> Option<u64> {
        // What is never due needs no turn, and nobody has to wake the loop for it.
        let never = core.ticks.of(NEVER);
        let mut next = self.next_tick(core).min(never);
        if let Some(waker) = &core.waker {
            // Nothing that comes from now on is for an earlier tick than the next.
            let beyond_doubt = self.wheel.tick() + 1;
            waker.promise(if next <= beyond_doubt { 0 } else { next });
            core.life.promise();
            // Not later than promised, for somebody may have relied on it.
            let earliest = if is_broken(Fault::PromiseBroken) { never } else { next };
            if !is_broken(Fault::PromiseWithoutSecondLook) {
                next = self.next_tick(core).min(earliest);
            }
        }
        (next < never).then_some(next)
    }

    /// The tick at which `turn` has work; `u64::MAX` is none. Takes in what has come since the last turn, so that the
    /// answer is exact.
    fn next_tick(&mut self, core: &Arc<Core>) -> u64 {
        if !self.backlog {
            self.absorb(core);
        }
        if self.backlog { 0 } else { self.wheel.next_deadline().unwrap_or(u64::MAX) }
    }

    /// The tick at which the first timeout fires that falls due up to the tick `last`, once no more are admitted. Zero if that
    /// is not known yet: somebody is about to push.
    pub(crate) fn next_due(&mut self, core: &Arc<Core>, last: u64) -> Option<u64> {
        if !self.backlog {
            self.absorb(core);
        }
        if self.backlog {
            // A turn is due at once.
            return Some(self.wheel.tick().max(1));
        }
        let word = core.life.word();
        let (first, live) = self.wheel.first_due(&core.arena, core.ticks, last);
        // Else one is about to be pushed, perhaps in the place of another one, or to be counted out.
        let has_all = live == word.pending() || is_broken(Fault::ShutdownWithoutThoseAdmitted);
        if has_all { first } else { Some(0) }
    }

    /// What the worker thread does after a turn. While there is traffic it goes on ticking, so that no caller has to
    /// wake it; after a whole tick without, it sleeps until there is work. [`Life`](crate::life::Life) has the proof that
    /// no wake-up is lost.
    pub(crate) fn rest(&self, core: &Core, now: u64) -> Rest {
        let word = core.life.word();
        if word.is_stopped() {
            return Rest::End;
        }
        if self.backlog {
            return Rest::Nap(Duration::ZERO);
        }
        let nothing_waits = || self.inbox.is_empty(&core.door);
        if self.traffic == 0 && word.has_admitted(self.taken) && nothing_waits() && core.life.sleep(word) {
            if nothing_waits() || is_broken(Fault::SleepWithoutSecondLook) {
                return Rest::Sleep(self.wheel.next_deadline().map(|tick| core.ticks.until(tick, now)));
            }
            core.life.wake();
        }
        Rest::Nap(core.ticks.until(self.wheel.tick() + 1, now))
    }

    /// What is where at tick `now`, of a timer whose life is `word`. Between two turns, when nothing that is due is left.
    pub(crate) fn occupancy(&self, word: Word, now: u64) -> Occupancy {
        let tick = now.max(self.wheel.tick());
        let queued = (word.admitted(self.taken) - self.taken) as usize;
        Occupancy { tick, levels: self.wheel.levels(tick), queued }
    }

    /// Whether [`drain`](Self::drain) has done its work.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Ends every timeout that has not ended, once the timer is stopped; returns those, with their hooks called. Waits
    /// for callers that were admitted before and are about to push.
    pub(crate) fn drain(&mut self, core: &Arc<Core>) -> Vec<Timeout> {
        let mut rest = Vec::new();
        let backoff = Backoff::new();
        if is_broken(Fault::StopWithoutDue) {
            self.due.clear();
            while self.wheel.pop_due(&core.arena).is_some() {}
        }
        let mut end = |entry: Entry, is_told| {
            if let Some((handle, claim)) = entry.stop(core, is_told) {
                core.life.leave();
                rest.push((Timeout { handle }, claim));
            }
        };
        for entry in self.due.drain(..).chain(self.wheel.take_all(&core.arena)) {
            end(entry, false);
        }
        loop {
            self.inbox.take(&core.door, usize::MAX, |messages| {
                for message in messages.iter().filter(|taken| taken.message != 0) {
                    end(Message::from_bits(message.message, &core.arena).into_entry(&core.arena), true);
                }
            });
            let gives_up = is_broken(Fault::StopWithoutWaiting) || is_broken(Fault::StopWithoutDue);
            if core.life.word().pending() == 0 || gives_up {
                break;
            }
            backoff.snooze();
        }
        // All that was admitted has ended. What may be left in a lane was taken back.
        self.taken = core.life.word().admitted(self.taken);
        let counters = &core.counters.worker;
        counters.in_wheel_or_expired.set_alone(counters.expired.get());
        counters.taken.set_alone(self.taken);
        core.post.draining.store(true, Ordering::Relaxed);
        let rest = rest.into_iter().map(|(timeout, claim)| {
            timeout.cancelled(claim);
            timeout
        });
        let rest = rest.collect();
        self.purse.empty(core);
        self.over = true;
        rest
    }
}

/// Counts how late a turn is with what it expires.
#[derive(Default)]
struct Late {
    /// When the clock was looked at last.
    now: u64,
    /// How many were counted, ever.
    counted: u64,
}

/// After so many tasks the clock is looked at again.
const A_WHILE: u64 = 64;

impl Late {
    /// Counts what has expired and is not counted yet, all of it at this tick.
    // Not in the loop, which needs its registers.
    #[inline(never)]
    fn count(&mut self, core: &Core, tick: u64) {
        let counters = &core.counters.worker;
        let handed = counters.handed_over();
        if handed > self.counted {
            let late = core.ticks.since(tick, self.now);
            counters.lateness.add_alone(late, core.ticks.nanos(), handed - self.counted);
            self.counted = handed;
        }
    }

    #[inline]
    fn look_now_and_then(&mut self, core: &Core, tick: u64) {
        if core.counters.worker.handed_over() % A_WHILE == 0 {
            self.look(core, tick);
        }
    }

    #[cold]
    fn look(&mut self, core: &Core, tick: u64) {
        self.count(core, tick);
        self.now = core.now_in_turn().unwrap_or(self.now);
    }
}

/// Does what one message says.
fn heed(core: &Core, wheel: &mut Placed, spare: &mut Spare, taken: &mut u64, message: u64, is_owed: bool) {
    if message == 0 {
        // A new timeout that was cancelled before anybody saw it.
        *taken += 1;
        return;
    }
    let message = Message::from_bits(message, &core.arena);
    if matches!(message, Message::New(_)) || is_broken(Fault::ResetTakenForNew) {
        *taken += 1;
    }
    let entry = match message {
        Message::New(entry) => entry,
        Message::Again(number) | Message::Cancelled(number) => wheel.take(&core.arena, number),
    };
    if let Some(deadline) = entry.place() {
        // What is owed comes out of the wheel at the very tick where it is.
        let earliest = wheel.tick() + u64::from(!is_owed);
        wheel.insert(&core.arena, core.ticks.of(deadline).max(earliest), entry);
    } else if let Some(vacant) = entry.release() {
        spare.put(&core.arena, vacant);
    }
}

/// Where the worker works: whoever holds this lock is the worker.
///
/// Tasks run under it, for they run on the worker. What of the public face would wait for it (`stop`, and dropping the
/// last handle) asks [`is_mine`](Self::is_mine) first.
///
/// | word | written | read | why `Relaxed` is enough |
/// |---|---|---|---|
/// | `holder` | own number with the lock taken, 0 before it is given back | by anyone, to compare with their own number | a thread sees its own writes in order; no other writes its number |
/// | `draining` | true by `drain`, false before the lock is given back | by who has found itself to be the holder | the same thread wrote it |
/// | `abandoned` | true, once, by the worker, in its turn | by the worker, after its turn, or when the driver is dropped | the same thread wrote it, or another one under the lock, which the reader has taken since |
///
/// The lock itself orders everything else. loom need not know these three: each is read for its value only by who wrote it.
pub(crate) struct Post {
    worker: Mutex<Worker>,
    /// The number of the thread that holds the lock; 0 is none. A thread that finds its own number put it there itself.
    holder: AtomicUsize,
    /// Whether it is there to call the hooks of a stopped timer.
    draining: AtomicBool,
    /// Whether the timer was stopped by the worker itself: no `stop` comes to end what is left.
    abandoned: AtomicBool,
}

pub(crate) struct OnDuty<'a> {
    post: &'a Post,
    worker: MutexGuard<'a, Worker>,
}

impl Post {
    pub(crate) fn new(wheel: EitherWheel, executor: Option<Box<dyn TaskExecutor>>) -> Self {
        Self {
            worker: Mutex::new(Worker::new(wheel, executor)),
            holder: AtomicUsize::new(0),
            draining: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    pub(crate) fn enter(&self) -> OnDuty<'_> {
        let worker = self.worker.lock();
        self.holder.store(thread_number(), Ordering::Relaxed);
        OnDuty { post: self, worker }
    }

    /// For a look, in which nothing of the user's runs: who looks is not the worker, and nobody asks. (Whoever works here
    /// waits for the lock, and never goes by that it is taken.)
    pub(crate) fn try_enter(&self) -> Option<MutexGuard<'_, Worker>> {
        self.worker.try_lock()
    }

    /// Whether the calling thread is the worker.
    pub(crate) fn is_mine(&self) -> bool {
        self.holder.load(Ordering::Relaxed) == thread_number()
    }

    /// The worker has stopped the timer, and is the one to see to the rest.
    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    /// For the worker: whether it has stopped the timer.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// For the worker: whether it is calling the hooks of a stopped timer.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

impl Drop for OnDuty<'_> {
    fn drop(&mut self) {
        self.post.draining.store(false, Ordering::Relaxed);
        self.post.holder.store(0, Ordering::Relaxed);
    }
}

impl Deref for OnDuty<'_> {
    type Target = Worker;

    fn deref(&self) -> &Worker {
        &self.worker
    }
}

impl DerefMut for OnDuty<'_> {
    fn deref_mut(&mut self) -> &mut Worker {
        &mut self.worker
    }
}
