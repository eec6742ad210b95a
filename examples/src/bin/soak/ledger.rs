//! Records how each timeout ended.

use std::mem;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Stats, Timeout, TimerTask};
use hashed_wheel_examples::Lateness;

use crate::accounts::Sum;
use crate::machine::IntentionalPanic;
use crate::timers::Closed;

/// The maximum numbers of error descriptions that are kept, of one timer and of all.
const MAX_ERRORS: usize = 20;
const MAX_ERRORS_OF_ALL: usize = 60;
const MAX_LATE_ERRORS: u64 = 3;

/// How often a thread calls `cancel_and_wait`: once in so many cancels.
const WAITING_CANCELS: u64 = 16;

/// One in this many lateness values is recorded, and every new maximum.
const SAMPLE_INTERVAL: u64 = 64;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sum of all closed ledgers.
#[derive(Debug, Default)]
pub(crate) struct Total {
    /// The other kinds of load.
    pub(crate) kinds: Sum,
    pub(crate) scheduled: u64,
    pub(crate) ran: u64,
    pub(crate) cancelled: u64,
    pub(crate) ended_by_stop: u64,
    pub(crate) refused: u64,
    pub(crate) task_dropped: u64,
    pub(crate) rearmed: u64,
    pub(crate) intentional_panics: u64,
    pub(crate) turns: u64,
    pub(crate) wake_ups: u64,
    pub(crate) lateness: Lateness,
    pub(crate) error_count: u64,
    pub(crate) errors: Vec<String>,
}

impl Total {
    /// Adds the accounts of a timer.
    pub(crate) fn add(&mut self, Closed { ledger, kinds }: &Closed) {
        self.kinds.add_all(kinds);
        for (sum, part) in [
            (&mut self.scheduled, &ledger.scheduled),
            (&mut self.ran, &ledger.ran),
            (&mut self.cancelled, &ledger.cancelled),
            (&mut self.ended_by_stop, &ledger.ended_by_stop),
            (&mut self.refused, &ledger.refused),
            (&mut self.task_dropped, &ledger.task_dropped),
            (&mut self.rearmed, &ledger.rearmed),
            (&mut self.intentional_panics, &ledger.intentional_panics),
            (&mut self.turns, &ledger.turns),
            (&mut self.wake_ups, &ledger.wake_ups),
            (&mut self.error_count, &ledger.error_count),
        ] {
            *sum += part.load(SeqCst);
        }
        self.lateness.add(&lock(&ledger.lateness));
        self.add_errors(&mut lock(&ledger.errors));
    }

    pub(crate) fn add_errors(&mut self, errors: &mut Vec<String>) {
        self.errors.append(errors);
        self.errors.truncate(MAX_ERRORS_OF_ALL);
    }
}

/// The timeouts of one timer.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: String,
    /// Deadlines are recorded as times since then.
    began: Instant,
    pub(crate) max_late: Duration,
    /// Whether a thread may wait for the end of a task: not if the program loses tasks.
    may_wait: bool,
    scheduled: AtomicU64,
    // The ways to end. Each scheduled timeout increments exactly one of these.
    ran: AtomicU64,
    cancelled: AtomicU64,
    ended_by_stop: AtomicU64,
    refused: AtomicU64,
    task_dropped: AtomicU64,

    /// How many of the cancelled timeouts `cancel_all` has ended.
    cancelled_at_once: AtomicU64,
    /// The calls that cancel one timeout.
    cancels: AtomicU64,
    rearmed: AtomicU64,
    /// Intentional panics of tasks and executors.
    pub(crate) intentional_panics: AtomicU64,
    /// Tasks that an executor did not accept.
    pub(crate) dropped_by_executor: AtomicU64,
    turns: AtomicU64,
    wake_ups: AtomicU64,
    lateness: Mutex<Lateness>,
    latest: AtomicU64,
    /// Plain timeouts that were late.
    late: AtomicU64,
    error_count: AtomicU64,
    errors: Mutex<Vec<String>>,
    /// Timeouts that any producer may take: those that tasks have scheduled, and some that two
    /// threads share.
    pub(crate) shared: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub(crate) fn new(name: String, max_late: Duration, may_wait: bool) -> Arc<Self> {
        Arc::new(Self {
            name,
            began: Instant::now(),
            max_late,
            may_wait,
            scheduled: AtomicU64::default(),
            ran: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            ended_by_stop: AtomicU64::default(),
            refused: AtomicU64::default(),
            task_dropped: AtomicU64::default(),
            cancelled_at_once: AtomicU64::default(),
            cancels: AtomicU64::default(),
            rearmed: AtomicU64::default(),
            intentional_panics: AtomicU64::default(),
            dropped_by_executor: AtomicU64::default(),
            turns: AtomicU64::default(),
            wake_ups: AtomicU64::default(),
            lateness: Mutex::default(),
            latest: AtomicU64::default(),
            late: AtomicU64::default(),
            error_count: AtomicU64::default(),
            errors: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    pub(crate) fn scheduled(&self) -> u64 {
        self.scheduled.load(SeqCst)
    }

    /// Adds a burst, of whose timeouts so many ran and so many were cancelled.
    pub(crate) fn add_burst(&self, scheduled: u64, ran: u64, cancelled: u64) {
        self.scheduled.fetch_add(scheduled, SeqCst);
        self.ran.fetch_add(ran, SeqCst);
        self.cancelled.fetch_add(cancelled, SeqCst);
    }

    pub(crate) fn expect(&self, holds: bool, failure: impl FnOnce() -> String) {
        if holds {
            return;
        }
        self.count_error();
        let mut errors = lock(&self.errors);
        if errors.len() < MAX_ERRORS {
            errors.push(format!("{}: {}", self.name, failure()));
        }
    }

    /// Counts an error without a description.
    pub(crate) fn count_error(&self) {
        self.error_count.fetch_add(1, SeqCst);
    }

    /// Panics intentionally.
    pub(crate) fn panic_intentionally(&self) -> ! {
        self.intentional_panics.fetch_add(1, SeqCst);
        panic_any(IntentionalPanic)
    }

    /// Returns the deadline of a timeout that is scheduled or reset now, or [`UNKNOWN`].
    fn due_after(&self, delay: Duration) -> u64 {
        let due = self.began.elapsed().checked_add(delay);
        due.and_then(|due| u64::try_from(due.as_nanos()).ok()).unwrap_or(UNKNOWN).min(UNKNOWN)
    }

    /// Cancels all pending timeouts. If there are other kinds of load, it cancels some of them too.
    pub(crate) fn cancel_all(&self, timer: &HashedWheelTimer, is_mixed: bool) {
        IS_CANCELLING_ALL.set(true);
        let cancelled = timer.cancel_all() as u64;
        IS_CANCELLING_ALL.set(false);
        let hooks = self.cancelled_at_once.load(SeqCst);
        let agrees = if is_mixed { hooks <= cancelled } else { hooks == cancelled };
        self.expect(agrees, || format!("cancel_all returned {cancelled}, and called {hooks} hooks"));
    }

    fn fired(&self, due: Instant) {
        self.expect(Instant::now() >= due, || "a timeout fired early".into());
        let late = due.elapsed();
        let nanos = late.as_nanos() as u64;
        let is_the_latest = self.latest.fetch_max(nanos, SeqCst) < nanos;
        if is_the_latest || self.ran.load(SeqCst) % SAMPLE_INTERVAL == 0 {
            lock(&self.lateness).record(late);
        }
        self.expect_not_late(late, || format!("a timeout fired late, by {late:.1?}"));
    }

    /// Describes a few of the late timeouts, so that they do not hide other errors.
    fn expect_not_late(&self, late: Duration, failure: impl FnOnce() -> String) {
        if late <= self.max_late {
            return;
        }
        if self.late.fetch_add(1, SeqCst) < MAX_LATE_ERRORS {
            self.expect(false, failure);
        } else {
            self.count_error();
        }
    }

    /// Compares the counts with those of the timer, after all timeouts have ended and were dropped.
    /// If the timer had other kinds of load as well, it has counted more.
    pub(crate) fn close(&self, stats: &Stats, is_mixed: bool) {
        let get = |count: &AtomicU64| count.load(SeqCst);
        self.turns.store(stats.turns, SeqCst);
        self.wake_ups.store(stats.wake_ups, SeqCst);
        let (ran, task_dropped) = (get(&self.ran), get(&self.task_dropped));
        let (cancelled, ended_by_stop, refused) =
            (get(&self.cancelled), get(&self.ended_by_stop), get(&self.refused));
        let ended = ran + task_dropped + cancelled + ended_by_stop + refused;
        for (what, counted, reported) in [
            ("expired", ran + task_dropped, stats.expired),
            ("cancelled", cancelled + ended_by_stop, stats.cancelled),
            ("refused", refused, stats.rejected),
        ] {
            let agrees = if is_mixed { counted <= reported } else { counted == reported };
            self.expect(agrees, || format!("{what}: counted {counted}, reported {reported}"));
        }
        for (what, counted, reported) in [
            ("scheduled and ended", self.scheduled(), ended),
            ("accepted and ended", stats.scheduled, stats.expired + stats.cancelled),
            ("not taken by the executor and dropped", get(&self.dropped_by_executor), task_dropped),
            ("dropped", task_dropped, stats.dropped_tasks),
            ("pending", 0, stats.pending),
            ("panicked", get(&self.intentional_panics), stats.panics),
        ] {
            self.expect(counted == reported, || format!("{what}: counted {counted}, reported {reported}"));
        }
    }
}

/// A deadline that never comes, or that is not known.
const UNKNOWN: u64 = RESETTING - 1;

/// The deadline is not known while a reset is in progress.
const RESETTING: u64 = u64::MAX;

/// Waits until `holds`, at most until the given time. Returns whether it holds.
pub(crate) fn wait_until(limit: Instant, holds: impl Fn() -> bool) -> bool {
    while !holds() && Instant::now() < limit {
        thread::sleep(Duration::from_micros(100));
    }
    holds()
}

/// Records how one timeout ended.
pub(crate) struct Record {
    ledger: Arc<Ledger>,
    /// The earliest time at which the timeout may fire, in nanoseconds since the ledger began. The
    /// permitted lateness is counted from it. Or [`UNKNOWN`].
    due: AtomicU64,
    /// Two threads have reset it at the same time, so its deadline is not known.
    is_contended: AtomicBool,
    runs: AtomicU8,
    hook_calls: AtomicU8,
    drops: AtomicU8,
    cancels: AtomicU8,
    stops: AtomicU8,
    refusals: AtomicU8,
    dropped_by_executor: AtomicU8,
}

impl Record {
    pub(crate) fn new(ledger: &Arc<Ledger>, delay: Duration) -> Arc<Self> {
        ledger.scheduled.fetch_add(1, SeqCst);
        Arc::new(Self {
            ledger: Arc::clone(ledger),
            due: AtomicU64::new(ledger.due_after(delay)),
            is_contended: AtomicBool::default(),
            runs: AtomicU8::default(),
            hook_calls: AtomicU8::default(),
            drops: AtomicU8::default(),
            cancels: AtomicU8::default(),
            stops: AtomicU8::default(),
            refusals: AtomicU8::default(),
            dropped_by_executor: AtomicU8::default(),
        })
    }

    pub(crate) fn was_refused(&self) {
        self.refusals.fetch_add(1, SeqCst);
    }

    /// Returns the deadline, unless the timeout never fires, or a reset is in progress.
    fn known_due(&self) -> Option<Instant> {
        let due = self.due.load(SeqCst);
        let is_known = due < UNKNOWN && !self.is_contended.load(SeqCst);
        is_known.then(|| self.ledger.began + Duration::from_nanos(due))
    }

    /// Calls `reset`, which returns whether the timeout is now due after `delay`.
    fn reset(&self, delay: Duration, reset: impl FnOnce() -> bool) -> bool {
        let due = self.ledger.due_after(delay);
        let before = self.due.swap(RESETTING, SeqCst);
        if before == RESETTING {
            // Set before the call: whichever deadline the other thread records does not count.
            self.is_contended.store(true, SeqCst);
        }
        let is_reset = reset();
        self.due.store(if is_reset { due } else { before }, SeqCst);
        is_reset
    }

    /// Checks that a timeout that has not fired is not overdue.
    fn expect_not_overdue(&self, when: Instant) {
        if let Some(late) = self.known_due().and_then(|due| when.checked_duration_since(due)) {
            let ledger = &self.ledger;
            ledger.expect_not_late(late, || format!("a timeout has not fired {late:.1?} after its deadline"));
        }
    }

    pub(crate) fn is_task_dropped(&self) -> bool {
        self.drops.load(SeqCst) > 0
    }
}

/// Checks the counts when the last reference is dropped.
impl Drop for Record {
    fn drop(&mut self) {
        let get = |count: &AtomicU8| count.load(SeqCst);
        let (runs, cancels, stops) = (get(&self.runs), get(&self.cancels), get(&self.stops));
        let (refusals, dropped_by_executor) = (get(&self.refusals), get(&self.dropped_by_executor));
        let (hook_calls, drops) = (get(&self.hook_calls), get(&self.drops));
        let ends = runs + cancels + stops + refusals + dropped_by_executor;
        let ledger = &self.ledger;
        ledger.expect(ends == 1 && hook_calls == cancels + stops && drops == 1, || {
            format!(
                "a timeout ended {ends} times: {runs} runs, {cancels} cancels, {stops} in stop, {refusals} rejections, \
                 {dropped_by_executor} not run by the executor; {hook_calls} hook_calls, {drops} drops of the task"
            )
        });
        for (end, count) in [
            (runs, &ledger.ran),
            (cancels, &ledger.cancelled),
            (stops, &ledger.ended_by_stop),
            (refusals, &ledger.refused),
            (dropped_by_executor, &ledger.task_dropped),
        ] {
            if end > 0 {
                count.fetch_add(1, SeqCst);
            }
        }
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

pub(crate) struct Task {
    pub(crate) record: Arc<Record>,
    pub(crate) action: Action,
}

impl TimerTask for Task {
    fn run(mut self, timeout: &Timeout) {
        let record = &self.record;
        record.runs.fetch_add(1, SeqCst);
        let ledger = &record.ledger;
        ledger.expect(timeout.is_expired(), || "a task ran although its timeout is not expired".into());
        if let Some(due) = record.known_due() {
            ledger.fired(due);
        }
        match mem::replace(&mut self.action, Action::Nothing) {
            Action::Stall(time) => thread::sleep(time),
            Action::PanicInRun => ledger.panic_intentionally(),
            Action::Schedule(delay) => {
                if let Some(entry) = schedule(&timeout.timer(), ledger, delay, Action::Nothing) {
                    lock(&ledger.shared).push(entry);
                }
            }
            action => self.action = action,
        }
    }

    fn cancelled(self, timeout: &Timeout) {
        let record = &self.record;
        record.hook_calls.fetch_add(1, SeqCst);
        if IS_CANCELLING_ALL.get() {
            record.expect_not_overdue(Instant::now());
            record.cancels.fetch_add(1, SeqCst);
            record.ledger.cancelled_at_once.fetch_add(1, SeqCst);
        }
        record.ledger.expect(timeout.is_cancelled(), || {
            "a hook was called although its timeout is not cancelled".into()
        });
        if let Action::PanicInHook = self.action {
            record.ledger.panic_intentionally();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let get = |count: &AtomicU8| count.load(SeqCst);
        let record = &self.record;
        // The task was not run, cancelled or rejected: an executor has dropped it.
        if get(&record.runs) + get(&record.hook_calls) == 0 && IS_DROPPING.get() {
            record.dropped_by_executor.fetch_add(1, SeqCst);
        }
        record.drops.fetch_add(1, SeqCst);
        if matches!(self.action, Action::PanicInDrop) && !thread::panicking() {
            record.ledger.panic_intentionally();
        }
    }
}

thread_local! {
    /// Whether this thread is in an executor that does not run its task.
    pub(crate) static IS_DROPPING: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };

    /// Whether this thread is in `cancel_all`, which calls the hooks of what it cancels.
    static IS_CANCELLING_ALL: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A timeout and its record.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) timeout: Timeout,
    pub(crate) record: Arc<Record>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.timeout.fmt(f)
    }
}

/// Returns `None` if the timer rejects the timeout.
pub(crate) fn schedule(
    timer: &HashedWheelTimer,
    ledger: &Arc<Ledger>,
    delay: Duration,
    action: Action,
) -> Option<Entry> {
    let record = Record::new(ledger, delay);
    let task = Task { record: Arc::clone(&record), action };
    match timer.new_timeout_task(task, delay) {
        Ok(timeout) => Some(Entry { timeout, record }),
        Err(_) => {
            record.was_refused();
            None
        }
    }
}

impl Entry {
    pub(crate) fn cancel(&self) -> bool {
        let when = Instant::now();
        let record = &self.record;
        let waits =
            record.ledger.may_wait && record.ledger.cancels.fetch_add(1, SeqCst) % WAITING_CANCELS == 0;
        let won = if waits { self.cancel_and_wait() } else { self.timeout.cancel() };
        if won {
            record.cancels.fetch_add(1, SeqCst);
            record.expect_not_overdue(when);
        }
        won
    }

    fn cancel_and_wait(&self) -> bool {
        let won = self.timeout.cancel_and_wait();
        // Another thread that has cancelled it may be in the hook.
        let is_over = !self.timeout.is_expired() || self.record.is_task_dropped();
        self.record.ledger.expect(is_over, || "a task is left after cancel_and_wait".into());
        won
    }

    pub(crate) fn reset(&self, delay: Duration) {
        if self.record.reset(delay, || self.timeout.reset(delay)) {
            self.record.ledger.rearmed.fetch_add(1, SeqCst);
        }
    }

    /// Records that `stop` or the drop of the last handle has ended the timeout.
    pub(crate) fn record_stop(&self, when: Instant) {
        self.record.stops.fetch_add(1, SeqCst);
        self.expect_not_overdue(when);
    }

    /// Whether the end of the timeout has been recorded.
    pub(crate) fn is_settled(&self) -> bool {
        self.timeout.is_expired() || self.record.cancels.load(SeqCst) + self.record.stops.load(SeqCst) > 0
    }

    /// Checks that a timeout that has not fired is not overdue.
    pub(crate) fn expect_not_overdue(&self, when: Instant) {
        self.record.expect_not_overdue(when);
    }

    /// Waits for the end of a timeout that is due. It is an error if it does not fire in time.
    pub(crate) fn await_if_due(&self) {
        let (now, max_late) = (Instant::now(), self.record.ledger.max_late);
        let Some(due) = self.record.known_due().filter(|due| *due <= now) else { return };
        let has_ended = || self.timeout.is_expired() || self.timeout.is_cancelled();
        if !wait_until(due + max_late, has_ended) {
            self.expect_not_overdue(Instant::now());
        }
    }
}
