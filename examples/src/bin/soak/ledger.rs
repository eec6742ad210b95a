//! What became of each timeout.

use std::mem;
use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Stats, Timeout, TimerTask};
use hashed_wheel_examples::Lateness;

use crate::machine::Provoked;

/// So many descriptions of what went wrong are kept.
const WRONGS: usize = 10;

/// One lateness in so many is recorded, and each that is the greatest so far.
const RECORDED: u64 = 64;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sum of all ledgers that are closed.
#[derive(Debug, Default)]
pub(crate) struct Total {
    pub(crate) opened: u64,
    pub(crate) ran: u64,
    pub(crate) cancelled: u64,
    pub(crate) swept: u64,
    pub(crate) refused: u64,
    pub(crate) discarded: u64,
    pub(crate) rearmed: u64,
    pub(crate) provoked: u64,
    pub(crate) turns: u64,
    pub(crate) wake_ups: u64,
    pub(crate) lateness: Lateness,
    pub(crate) wrongs: u64,
    pub(crate) wrong: Vec<String>,
}

impl Total {
    /// Takes over what is in a ledger.
    pub(crate) fn add(&mut self, ledger: &Ledger) {
        for (sum, part) in [
            (&mut self.opened, &ledger.opened),
            (&mut self.ran, &ledger.ran),
            (&mut self.cancelled, &ledger.cancelled),
            (&mut self.swept, &ledger.swept),
            (&mut self.refused, &ledger.refused),
            (&mut self.discarded, &ledger.discarded),
            (&mut self.rearmed, &ledger.rearmed),
            (&mut self.provoked, &ledger.provoked),
            (&mut self.turns, &ledger.turns),
            (&mut self.wake_ups, &ledger.wake_ups),
            (&mut self.wrongs, &ledger.wrongs),
        ] {
            *sum += part.load(SeqCst);
        }
        self.lateness.add(&lock(&ledger.lateness));
        self.wrong.append(&mut lock(&ledger.wrong));
        self.wrong.truncate(WRONGS);
    }
}

/// All timeouts of one timer.
#[derive(Debug)]
pub(crate) struct Ledger {
    name: String,
    max_late: Duration,
    opened: AtomicU64,
    // The ends: each timeout that was opened adds one to one of these.
    ran: AtomicU64,
    cancelled: AtomicU64,
    swept: AtomicU64,
    refused: AtomicU64,
    discarded: AtomicU64,

    rearmed: AtomicU64,
    /// Panics of tasks and executors.
    pub(crate) provoked: AtomicU64,
    /// Tasks that an executor did not take.
    pub(crate) turned_away: AtomicU64,
    turns: AtomicU64,
    wake_ups: AtomicU64,
    lateness: Mutex<Lateness>,
    latest: AtomicU64,
    wrongs: AtomicU64,
    wrong: Mutex<Vec<String>>,
    /// Timeouts for whoever takes them: those that tasks have scheduled, and some that two threads are to know of.
    pub(crate) shared: Mutex<Vec<Entry>>,
}

impl Ledger {
    pub(crate) fn new(name: String, max_late: Duration) -> Arc<Self> {
        Arc::new(Self {
            name,
            max_late,
            opened: AtomicU64::default(),
            ran: AtomicU64::default(),
            cancelled: AtomicU64::default(),
            swept: AtomicU64::default(),
            refused: AtomicU64::default(),
            discarded: AtomicU64::default(),
            rearmed: AtomicU64::default(),
            provoked: AtomicU64::default(),
            turned_away: AtomicU64::default(),
            turns: AtomicU64::default(),
            wake_ups: AtomicU64::default(),
            lateness: Mutex::default(),
            latest: AtomicU64::default(),
            wrongs: AtomicU64::default(),
            wrong: Mutex::default(),
            shared: Mutex::default(),
        })
    }

    pub(crate) fn opened(&self) -> u64 {
        self.opened.load(SeqCst)
    }

    pub(crate) fn expect(&self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds && self.wrongs.fetch_add(1, SeqCst) < WRONGS as u64 {
            lock(&self.wrong).push(format!("{}: {}", self.name, otherwise()));
        }
    }

    /// For a panic that is part of the trial.
    pub(crate) fn provoke(&self) -> ! {
        self.provoked.fetch_add(1, SeqCst);
        panic_any(Provoked)
    }

    fn fired(&self, due: Instant) {
        self.expect(Instant::now() >= due, || "one fired early".into());
        let late = due.elapsed();
        let nanos = late.as_nanos() as u64;
        let is_the_latest = self.latest.fetch_max(nanos, SeqCst) < nanos;
        if is_the_latest || self.ran.load(SeqCst) % RECORDED == 0 {
            lock(&self.lateness).record(late);
        }
        self.expect(late <= self.max_late, || format!("one fired {late:.1?} late"));
    }

    /// Everything has ended and is gone: what the timer says has to agree.
    pub(crate) fn close(&self, stats: &Stats) {
        let get = |count: &AtomicU64| count.load(SeqCst);
        self.turns.store(stats.turns, SeqCst);
        self.wake_ups.store(stats.wake_ups, SeqCst);
        let (ran, discarded) = (get(&self.ran), get(&self.discarded));
        let (cancelled, swept, refused) = (get(&self.cancelled), get(&self.swept), get(&self.refused));
        let ended = ran + discarded + cancelled + swept + refused;
        for (what, here, there) in [
            ("opened and ended", self.opened(), ended),
            ("not taken by the executor and dropped", get(&self.turned_away), discarded),
            ("expired", ran + discarded, stats.expired),
            ("cancelled", cancelled + swept, stats.cancelled),
            ("refused", refused, stats.rejected),
            ("dropped", discarded, stats.dropped_tasks),
            ("pending", 0, stats.pending),
            ("panicked", get(&self.provoked), stats.panics),
        ] {
            self.expect(here == there, || format!("{what}: {here} and {there}"));
        }
    }
}

/// What became of one timeout.
pub(crate) struct Fate {
    ledger: Arc<Ledger>,
    /// When it was to fire at the earliest, and nearly at the latest, if it was never re-armed. `None` is never.
    due: Option<Instant>,
    rearmed: AtomicBool,
    runs: AtomicU8,
    hooks: AtomicU8,
    drops: AtomicU8,
    cancels: AtomicU8,
    sweeps: AtomicU8,
    refusals: AtomicU8,
    turned_away: AtomicU8,
}

impl Fate {
    pub(crate) fn new(ledger: &Arc<Ledger>, delay: Duration) -> Arc<Self> {
        ledger.opened.fetch_add(1, SeqCst);
        Arc::new(Self {
            ledger: Arc::clone(ledger),
            due: Instant::now().checked_add(delay),
            rearmed: AtomicBool::default(),
            runs: AtomicU8::default(),
            hooks: AtomicU8::default(),
            drops: AtomicU8::default(),
            cancels: AtomicU8::default(),
            sweeps: AtomicU8::default(),
            refusals: AtomicU8::default(),
            turned_away: AtomicU8::default(),
        })
    }

    pub(crate) fn was_refused(&self) {
        self.refusals.fetch_add(1, SeqCst);
    }

    /// When it had to fire, if that is known.
    fn known_due(&self) -> Option<Instant> {
        self.due.filter(|_| !self.rearmed.load(SeqCst))
    }

    pub(crate) fn task_is_gone(&self) -> bool {
        self.drops.load(SeqCst) > 0
    }
}

/// The last of it is gone.
impl Drop for Fate {
    fn drop(&mut self) {
        let get = |count: &AtomicU8| count.load(SeqCst);
        let (runs, cancels, sweeps) = (get(&self.runs), get(&self.cancels), get(&self.sweeps));
        let (refusals, turned_away) = (get(&self.refusals), get(&self.turned_away));
        let (hooks, drops) = (get(&self.hooks), get(&self.drops));
        let ends = runs + cancels + sweeps + refusals + turned_away;
        let ledger = &self.ledger;
        ledger.expect(ends == 1 && hooks == cancels + sweeps && drops == 1, || {
            format!(
                "one that ended {ends} times: {runs} runs, {cancels} cancels, {sweeps} in stop, {refusals} refusals, \
                 {turned_away} not run by the executor; {hooks} hooks, {drops} drops of the task"
            )
        });
        for (end, count) in [
            (runs, &ledger.ran),
            (cancels, &ledger.cancelled),
            (sweeps, &ledger.swept),
            (refusals, &ledger.refused),
            (turned_away, &ledger.discarded),
        ] {
            if end > 0 {
                count.fetch_add(1, SeqCst);
            }
        }
    }
}

/// What a task does beside keeping count.
pub(crate) enum Deed {
    Nothing,
    Stall(Duration),
    PanicInRun,
    PanicInHook,
    PanicInDrop,
    /// Schedules another one.
    Again(Duration),
    /// Lets go of a handle, which may be the last.
    Holds(#[expect(dead_code, reason = "only dropped")] HashedWheelTimer),
}

pub(crate) struct Task {
    pub(crate) fate: Arc<Fate>,
    pub(crate) deed: Deed,
}

impl TimerTask for Task {
    fn run(mut self, timeout: &Timeout) {
        let fate = &self.fate;
        fate.runs.fetch_add(1, SeqCst);
        let ledger = &fate.ledger;
        ledger.expect(timeout.is_expired(), || "one runs that is not expired".into());
        if let Some(due) = fate.known_due() {
            ledger.fired(due);
        }
        match mem::replace(&mut self.deed, Deed::Nothing) {
            Deed::Stall(time) => thread::sleep(time),
            Deed::PanicInRun => ledger.provoke(),
            Deed::Again(delay) => {
                if let Some(entry) = schedule(&timeout.timer(), ledger, delay, Deed::Nothing) {
                    lock(&ledger.shared).push(entry);
                }
            }
            deed => self.deed = deed,
        }
    }

    fn cancelled(self, timeout: &Timeout) {
        let fate = &self.fate;
        fate.hooks.fetch_add(1, SeqCst);
        fate.ledger.expect(timeout.is_cancelled(), || "a hook for one that is not cancelled".into());
        if let Deed::PanicInHook = self.deed {
            fate.ledger.provoke();
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        let get = |count: &AtomicU8| count.load(SeqCst);
        let fate = &self.fate;
        // Neither run, nor cancelled, nor refused: an executor has dropped it.
        if get(&fate.runs) + get(&fate.hooks) == 0 && IS_TURNED_AWAY.get() {
            fate.turned_away.fetch_add(1, SeqCst);
        }
        fate.drops.fetch_add(1, SeqCst);
        if matches!(self.deed, Deed::PanicInDrop) && !thread::panicking() {
            fate.ledger.provoke();
        }
    }
}

thread_local! {
    /// Whether this thread is in an executor that does not run what it was given.
    pub(crate) static IS_TURNED_AWAY: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// A timeout and what became of it.
#[derive(Clone)]
pub(crate) struct Entry {
    pub(crate) timeout: Timeout,
    pub(crate) fate: Arc<Fate>,
}

impl std::fmt::Debug for Entry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.timeout.fmt(f)
    }
}

/// `None` if the timer refuses.
pub(crate) fn schedule(
    timer: &HashedWheelTimer,
    ledger: &Arc<Ledger>,
    delay: Duration,
    deed: Deed,
) -> Option<Entry> {
    let fate = Fate::new(ledger, delay);
    let task = Task { fate: Arc::clone(&fate), deed };
    match timer.new_timeout_task(task, delay) {
        Ok(timeout) => Some(Entry { timeout, fate }),
        Err(_) => {
            fate.was_refused();
            None
        }
    }
}

impl Entry {
    pub(crate) fn cancel(&self) -> bool {
        let won = self.timeout.cancel();
        if won {
            self.fate.cancels.fetch_add(1, SeqCst);
        }
        won
    }

    pub(crate) fn reset(&self, delay: Duration) {
        self.fate.rearmed.store(true, SeqCst);
        if self.timeout.reset(delay) {
            self.fate.ledger.rearmed.fetch_add(1, SeqCst);
        }
    }

    /// `stop`, or the drop of the last handle, has ended it.
    pub(crate) fn was_swept(&self, when: Instant) {
        self.fate.sweeps.fetch_add(1, SeqCst);
        self.expect_not_overdue(when);
    }

    /// Whether someone knows how it ended.
    pub(crate) fn is_settled(&self) -> bool {
        self.timeout.is_expired() || self.fate.cancels.load(SeqCst) + self.fate.sweeps.load(SeqCst) > 0
    }

    /// For one that has not fired at this time.
    pub(crate) fn expect_not_overdue(&self, when: Instant) {
        if let Some(late) = self.fate.known_due().and_then(|due| when.checked_duration_since(due)) {
            let ledger = &self.fate.ledger;
            ledger.expect(late <= ledger.max_late, || format!("one has not fired after {late:.1?}"));
        }
    }
}
