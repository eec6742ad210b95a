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

/// The maximum number of error descriptions that are kept.
const MAX_ERRORS: usize = 10;

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
        self.errors.append(&mut lock(&ledger.errors));
        self.errors.truncate(MAX_ERRORS);
    }
}

/// The timeouts of one timer.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: String,
    max_late: Duration,
    scheduled: AtomicU64,
    // The ways to end. Each scheduled timeout increments exactly one of these.
    ran: AtomicU64,
    cancelled: AtomicU64,
    ended_by_stop: AtomicU64,
    refused: AtomicU64,
    task_dropped: AtomicU64,

    rearmed: AtomicU64,
    /// Intentional panics of tasks and executors.
    pub(crate) intentional_panics: AtomicU64,
    /// Tasks that an executor did not accept.
    pub(crate) dropped_by_executor: AtomicU64,
    turns: AtomicU64,
    wake_ups: AtomicU64,
    lateness: Mutex<Lateness>,
    latest: AtomicU64,
    error_count: AtomicU64,
    errors: Mutex<Vec<String>>,
    /// Timeouts that any producer may take: those that tasks have scheduled, and some that two
    /// threads share.
    pub(crate) shared: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub(crate) fn new(name: String, max_late: Duration) -> Arc<Self> {
        Arc::new(Self {
            name,
            max_late,
            scheduled: AtomicU64::default(),
            ran: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            ended_by_stop: AtomicU64::default(),
            refused: AtomicU64::default(),
            task_dropped: AtomicU64::default(),
            rearmed: AtomicU64::default(),
            intentional_panics: AtomicU64::default(),
            dropped_by_executor: AtomicU64::default(),
            turns: AtomicU64::default(),
            wake_ups: AtomicU64::default(),
            lateness: Mutex::default(),
            latest: AtomicU64::default(),
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
        if !holds && self.error_count.fetch_add(1, SeqCst) < MAX_ERRORS as u64 {
            lock(&self.errors).push(format!("{}: {}", self.name, failure()));
        }
    }

    /// Panics intentionally.
    pub(crate) fn panic_intentionally(&self) -> ! {
        self.intentional_panics.fetch_add(1, SeqCst);
        panic_any(IntentionalPanic)
    }

    fn fired(&self, due: Instant) {
        self.expect(Instant::now() >= due, || "a timeout fired early".into());
        let late = due.elapsed();
        let nanos = late.as_nanos() as u64;
        let is_the_latest = self.latest.fetch_max(nanos, SeqCst) < nanos;
        if is_the_latest || self.ran.load(SeqCst) % SAMPLE_INTERVAL == 0 {
            lock(&self.lateness).record(late);
        }
        self.expect(late <= self.max_late, || format!("a timeout fired {late:.1?} late"));
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

/// Records how one timeout ended.
pub(crate) struct Record {
    ledger: Arc<Ledger>,
    /// The earliest time at which the timeout may fire, if it is never reset. The permitted
    /// lateness is counted from it. `None` is never.
    due: Option<Instant>,
    rearmed: AtomicBool,
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
            due: Instant::now().checked_add(delay),
            rearmed: AtomicBool::default(),
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

    /// Returns the deadline, unless the timeout was reset.
    fn known_due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.rearmed.load(SeqCst))
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
        let won = self.timeout.cancel();
        if won {
            self.record.cancels.fetch_add(1, SeqCst);
        }
        won
    }

    pub(crate) fn reset(&self, delay: Duration) {
        self.record.rearmed.store(true, SeqCst);
        if self.timeout.reset(delay) {
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
        if let Some(late) = self.record.known_due().and_then(|due| when.checked_duration_since(due)) {
            let ledger = &self.record.ledger;
            ledger.expect(late <= ledger.max_late, || {
                format!("a timeout has not fired {late:.1?} after its deadline")
            });
        }
    }
}
