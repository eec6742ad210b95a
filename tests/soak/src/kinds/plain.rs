//! Plain timeouts with tasks.

use std::cell::Cell;
use std::mem;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};
use hashed_wheel_ledger::{Count, Kind, Ticket};

use super::{A_DAY, Load, take};
use crate::Sabotage;
use crate::tally::{Tally, await_if_due, comes, lock, now};

/// How many pending timeouts a thread has at most that it will cancel, and how many of them it
/// leaves to others when it ends.
const MAX_TO_CANCEL: usize = 2_000;
const MAX_LEFT: usize = 4;

/// The longest delay of timeouts that will fire.
const MAX_DELAY: Duration = Duration::from_secs(2);

/// How many tasks of a timer block for too long, with the sabotage `stall`.
const MAX_STALLS: u64 = 10;

/// How often a thread calls `cancel_and_wait`: once in this many cancels.
const WAITING_CANCELS: u64 = 16;

/// The state that the plain timeouts of one timer share.
pub(crate) struct Plains {
    pub(crate) tally: Arc<Tally>,
    /// The limit of pending timeouts, if there is one.
    limit: Option<usize>,
    /// The longest time for which a task may block the worker.
    stall: Duration,
    /// Timeouts that any thread may take: those that tasks have scheduled, and some that two
    /// threads share.
    shared: Mutex<Vec<Entry>>,
    cancels: AtomicU64,
    stalls: AtomicU64,
}

impl Plains {
    pub(crate) fn new(tally: &Arc<Tally>, limit: Option<usize>, stall: Duration) -> Arc<Self> {
        let (tally, shared) = (Arc::clone(tally), Mutex::default());
        Arc::new(Self {
            tally,
            limit,
            stall,
            shared,
            cancels: AtomicU64::new(0),
            stalls: AtomicU64::new(0),
        })
    }

    pub(crate) fn share(&self, entry: Option<Entry>) {
        lock(&self.shared).extend(entry);
    }

    pub(crate) fn take_shared(&self) -> Vec<Entry> {
        mem::take(&mut *lock(&self.shared))
    }

    fn cancel(&self, Entry { timeout, ticket }: &Entry) {
        let (when, tally) = (now(), &self.tally);
        let cancels = self.cancels.fetch_add(1, SeqCst);
        // Not if a task is lost: the wait would not end.
        let won = if cancels % WAITING_CANCELS == 0 && !tally.does(Sabotage::LostTask) {
            let won = timeout.cancel_and_wait();
            // Another thread that has cancelled it may be in the hook.
            let is_over = !timeout.is_expired() || ticket.get(Count::TaskDrop) > 0;
            tally.expect(is_over, || "a task is left after cancel_and_wait".into());
            won
        } else {
            timeout.cancel()
        };
        if won && !(tally.does(Sabotage::LostCancel) && cancels % 100 == 0) {
            ticket.cancel_at(when);
        }
    }

    /// Schedules many timeouts at once, and returns when all have ended.
    pub(crate) fn burst(
        self: &Arc<Self>,
        timer: &HashedWheelTimer,
        size: u32,
        cancels: fn(u32) -> bool,
    ) {
        let mut entries = Vec::with_capacity(size as usize);
        entries.extend((0..size).map(|n| {
            let delay = match cancels(n) {
                true => A_DAY,
                false => MAX_DELAY * n / size,
            };
            schedule(timer, self, delay, Action::Nothing)
                .expect("the timer has no limit, and is not stopped")
        }));
        let cancelled = (0..).zip(&entries).filter(|(n, _)| cancels(*n));
        cancelled.for_each(|(_, entry)| self.cancel(entry));
        let entries = entries.into_iter();
        let (timeouts, tickets): (Vec<_>, Vec<_>) =
            entries.map(|entry| (entry.timeout, entry.ticket)).unzip();
        if self.tally.does(Sabotage::Hoard) {
            mem::forget(timeouts);
        } else {
            drop(timeouts);
        }
        let has_ended = |ticket: &Arc<Ticket>| comes(|| ticket.get(Count::TaskDrop) > 0);
        self.tally.expect(tickets.iter().all(has_ended), || {
            "a burst does not end".into()
        });
    }
}

/// The action of a task, in addition to counting.
pub(crate) enum Action {
    Nothing,
    Stall(Duration),
    PanicInRun,
    PanicInHook,
    PanicInDrop,
    /// Schedules another timeout.
    Schedule(Duration),
    /// Drops a handle, which may be the last one.
    DropHandle(#[expect(dead_code, reason = "only dropped")] HashedWheelTimer),
}

struct Task {
    ticket: Arc<Ticket>,
    plains: Arc<Plains>,
    action: Action,
}

impl TimerTask for Task {
    fn run(mut self, timeout: &Timeout) {
        self.ticket.expire();
        let tally = &self.plains.tally;
        tally.expect(timeout.is_expired(), || {
            "a task runs, and its timeout is not expired".into()
        });
        match mem::replace(&mut self.action, Action::Nothing) {
            Action::Stall(time) => thread::sleep(time),
            Action::PanicInRun => tally.panic_intentionally(),
            Action::Schedule(delay) => {
                let timer = timeout.timer();
                let next = schedule(&timer, &self.plains, delay, Action::Nothing);
                self.plains.share(next);
            }
            action => self.action = action,
        }
    }

    fn cancelled(self, timeout: &Timeout) {
        let (ticket, tally) = (&self.ticket, &self.plains.tally);
        ticket.call_hook();
        if let Some(count) = CANCELLED_AT_ONCE.get() {
            CANCELLED_AT_ONCE.set(Some(count + 1));
            ticket.cancel();
        }
        tally.expect(timeout.is_cancelled(), || {
            "a hook, and its timeout is not cancelled".into()
        });
        if let Action::PanicInHook = self.action {
            tally.panic_intentionally();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let (ticket, tally) = (&self.ticket, &self.plains.tally);
        ticket.count(Count::TaskDrop);
        if matches!(self.action, Action::PanicInDrop) && !thread::panicking() {
            tally.panic_intentionally();
        }
    }
}

thread_local! {
    /// How many hooks `cancel_all` has called, if this thread is in it.
    static CANCELLED_AT_ONCE: Cell<Option<u64>> = const { Cell::new(None) };
}

#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) timeout: Timeout,
    pub(crate) ticket: Arc<Ticket>,
}

/// Returns `None` if the timer rejects the timeout.
pub(crate) fn schedule(
    timer: &HashedWheelTimer,
    plains: &Arc<Plains>,
    delay: Duration,
    action: Action,
) -> Option<Entry> {
    let deadline = plains.tally.after(delay);
    let ticket = Arc::new(Ticket::new(&plains.tally, Kind::Plain, deadline));
    let task = Task {
        ticket: Arc::clone(&ticket),
        plains: Arc::clone(plains),
        action,
    };
    match timer.new_timeout_task(task, delay) {
        Ok(timeout) => Some(Entry { timeout, ticket }),
        Err(_) => {
            ticket.count(Count::Rejected);
            None
        }
    }
}

/// Cancels all that is pending, with other kinds of use too if `is_mixed`.
pub(crate) fn cancel_all(timer: &HashedWheelTimer, tally: &Tally, is_mixed: bool) {
    tally.clear();
    CANCELLED_AT_ONCE.set(Some(0));
    let cancelled = timer.cancel_all() as u64;
    let hooks = CANCELLED_AT_ONCE.take().unwrap_or_default();
    let agrees = if is_mixed {
        hooks <= cancelled
    } else {
        hooks == cancelled
    };
    tally.expect(agrees, || {
        format!("cancel_all returned {cancelled}, and called {hooks} hooks")
    });
}

impl Entry {
    fn has_ended(&self) -> bool {
        self.timeout.is_expired() || self.timeout.is_cancelled()
    }
}

/// A thread that schedules, cancels and resets timeouts.
pub(super) struct Producer {
    timer: HashedWheelTimer,
    plains: Arc<Plains>,
    to_cancel: Vec<Entry>,
    /// Timeouts that will fire.
    waiting: Vec<Entry>,
}

impl Producer {
    pub(super) fn new(timer: &HashedWheelTimer, plains: &Arc<Plains>) -> Self {
        let (timer, plains) = (timer.clone(), Arc::clone(plains));
        Self {
            timer,
            plains,
            to_cancel: Vec::new(),
            waiting: Vec::new(),
        }
    }

    fn action(&self, will_cancel: bool, random: &mut Rng) -> Action {
        let Plains {
            tally,
            stall,
            stalls,
            ..
        } = &*self.plains;
        if tally.does(Sabotage::Stall) && !will_cancel && stalls.fetch_add(1, SeqCst) < MAX_STALLS {
            return Action::Stall(tally.max_late * 2);
        }
        match random.u32(0..100_000) {
            0..100 => Action::PanicInRun,
            100..200 => Action::PanicInHook,
            200..300 => Action::PanicInDrop,
            300..2_300 => Action::Schedule(Duration::from_micros(random.u64(0..10_000))),
            2_300..2_310 => Action::Stall(stall.mul_f64(random.f64())),
            _ => Action::Nothing,
        }
    }

    /// Resets a timeout to a delay after which it does fire.
    fn reset_one(&self, random: &mut Rng) {
        let list = match random.bool() {
            true => &self.to_cancel,
            false => &self.waiting,
        };
        let Some(Entry { timeout, ticket }) = random.choice(list) else {
            return;
        };
        let delay = MAX_DELAY.mul_f64(random.f64());
        ticket.reset(delay, || timeout.reset(delay));
    }

    fn cancel_one(&mut self, random: &mut Rng) {
        match take(&mut self.to_cancel, random) {
            Some(entry) => self.plains.cancel(&entry),
            None => thread::yield_now(),
        }
    }

    /// Removes a timeout that has ended, or checks that it is not overdue.
    fn look_at_one(&mut self, random: &mut Rng) {
        let now = now();
        if let Some(entry) = take(&mut self.waiting, random).filter(|entry| !entry.has_ended()) {
            entry.ticket.expect_not_overdue(now);
            self.waiting.push(entry);
        }
    }
}

fn delay(will_cancel: bool, random: &mut Rng) -> Duration {
    match random.u8(0..100) {
        // These timeouts race with the operations on them.
        0..3 => Duration::ZERO,
        3..10 => Duration::from_micros(random.u64(0..5_000)),
        10.. if !will_cancel => MAX_DELAY.mul_f64(random.f64()),
        10..80 => Duration::from_micros(random.u64(1_000_000..30_000_000)),
        80..99 => Duration::from_micros(1 << random.u32(20..45)),
        _ => Duration::MAX,
    }
}

impl Load for Producer {
    fn work(&mut self, random: &mut Rng) {
        if self.timer.is_stopped() {
            return;
        }
        let will_cancel = random.u8(0..10) != 0;
        let action = self.action(will_cancel, random);
        let delay = delay(will_cancel, random);
        let scheduled = schedule(&self.timer, &self.plains, delay, action);
        if let Some(limit) = self.plains.limit {
            let pending = self.timer.pending_timeouts();
            self.plains.tally.expect(pending <= limit, || {
                format!("{pending} timeouts are pending")
            });
        }
        let Some(entry) = scheduled else {
            return self.cancel_one(random);
        };
        match random.u8(0..100) {
            // Another thread may cancel it at the same time.
            0 => self.plains.share(Some(entry.clone())),
            1..4 => self.to_cancel.extend(lock(&self.plains.shared).pop()),
            4..6 => self.reset_one(random),
            _ => {}
        }
        if !will_cancel {
            self.waiting.push(entry);
            (0..3).for_each(|_| self.look_at_one(random));
        } else if random.bool() {
            self.to_cancel.push(entry);
            if self.to_cancel.len() > MAX_TO_CANCEL {
                self.cancel_one(random);
            }
        } else {
            // Usually before the worker has processed the message.
            self.plains.cancel(&entry);
        }
    }

    /// Leaves some timeouts to other threads.
    fn leave(&mut self) {
        let first = self.to_cancel.len().saturating_sub(MAX_LEFT);
        let left = self.to_cancel.split_off(first);
        for entry in mem::take(&mut self.to_cancel) {
            self.plains.cancel(&entry);
        }
        lock(&self.plains.shared).extend(left.into_iter().chain(mem::take(&mut self.waiting)));
    }

    /// Those that are due fire first, so that a lost one is noticed.
    fn rest(&mut self) {
        let waiting = mem::take(&mut self.waiting);
        for entry in &waiting {
            await_if_due(&entry.ticket, || entry.has_ended());
        }
        let (shared, to_cancel) = (self.plains.take_shared(), mem::take(&mut self.to_cancel));
        for entry in [waiting, shared, to_cancel].iter().flatten() {
            self.plains.cancel(entry);
        }
    }

    fn settle(&mut self) {
        self.plains.take_shared();
        (self.to_cancel, self.waiting) = (Vec::new(), Vec::new());
    }
}
