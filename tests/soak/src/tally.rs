//! The tally of a timer: everything that was registered, how it ended, and what was wrong.

use std::panic::panic_any;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};

use crate::Sabotage;
use crate::kinds::Kind;
use crate::machine::IntentionalPanic;

/// Something may be cancelled until it has been due for this time, so that the cancel races with
/// its end. After that, only its own end is permitted, so that a lost one is noticed.
const RACE: Duration = Duration::from_millis(20);

/// Longer than anything takes that should be immediate.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The maximum number of error descriptions that a tally keeps.
const MAX_ERRORS: usize = 20;

/// The counts of each kind of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Count {
    // The ends. Everything that is registered has exactly one.
    Expired,
    Cancelled,
    Rejected,
    /// It had not ended before the timer did.
    Left,
    /// An executor has not run it.
    Dropped,
    // Of plain timeouts: the calls of their hooks, before the timer's end and since, and the drops
    // of their tasks.
    Hook,
    HookAtEnd,
    TaskDrop,
    // The faults.
    Early,
    Late,
    Overdue,
    /// It had no end, or several.
    Wrong,
    Registered,
}

use Count::{
    Cancelled, Dropped, Early, Expired, Hook, HookAtEnd, Late, Left, Overdue, Registered, Rejected,
    TaskDrop, Wrong,
};

const ENDS: [Count; 5] = [Expired, Cancelled, Rejected, Left, Dropped];

/// When something is due. A bound is `None` if it is not known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Deadline {
    /// It must not expire before.
    pub(crate) earliest: Option<Instant>,
    /// Its lateness is counted from then. That is not before the deadline, except for the time
    /// between a clock read and the call that follows. The permitted lateness covers that.
    pub(crate) latest: Option<Instant>,
}

impl Deadline {
    pub(crate) fn at(due: Instant) -> Self {
        Self {
            earliest: Some(due),
            latest: Some(due),
        }
    }

    /// Returns the deadline of something that is registered now with this delay.
    pub(crate) fn after(delay: Duration) -> Self {
        Instant::now()
            .checked_add(delay)
            .map_or_else(Self::default, Self::at)
    }

    fn lateness(self, when: Instant) -> Duration {
        self.latest.map_or(Duration::ZERO, |latest| {
            when.saturating_duration_since(latest)
        })
    }

    /// Returns the deadline of the next run at a fixed rate, if the run with this one ends now.
    pub(crate) fn next(self, period: Duration) -> Self {
        let earliest = self.earliest.map(|due| due + period);
        Self {
            earliest,
            latest: Some(Instant::now() + period),
        }
    }

    /// Whether it is certainly due before `when`.
    pub(crate) fn is_before(self, when: Instant) -> bool {
        self.latest.is_some_and(|latest| latest < when)
    }

    /// Whether it has been due for longer than a cancel may race with its end.
    pub(crate) fn is_overdue(self) -> bool {
        self.latest.is_some_and(|latest| latest.elapsed() > RACE)
    }
}

/// One thing that is registered. Its last owner drops it, and then it must have had one end.
#[derive(Debug)]
pub(crate) struct Ticket {
    tally: Arc<Tally>,
    kind: Kind,
    deadline: Mutex<(Deadline, State)>,
    counts: [AtomicU8; TaskDrop as usize + 1],
}

/// Whether a deadline is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Known,
    /// A thread sets it. Another thread may see the deadline before or after that.
    BeingSet,
    /// Two threads have set it at the same time, so it is not known any more.
    Contended,
}

impl Ticket {
    pub(crate) fn new(tally: &Arc<Tally>, kind: Kind, deadline: Deadline) -> Self {
        tally.add(kind, Registered);
        let deadline = Mutex::new((deadline, State::Known));
        Self {
            tally: Arc::clone(tally),
            kind,
            deadline,
            counts: Default::default(),
        }
    }

    pub(crate) fn deadline(&self) -> Deadline {
        lock(&self.deadline).0
    }

    pub(crate) fn set_deadline(&self, deadline: Deadline) {
        lock(&self.deadline).0 = deadline;
    }

    /// Calls `set`, which returns whether the deadline is now after the delay.
    pub(crate) fn set(&self, delay: Duration, set: impl FnOnce() -> bool) -> bool {
        let due = Instant::now() + delay;
        let before = {
            let (deadline, state) = &mut *lock(&self.deadline);
            let before = *deadline;
            *state = if *state == State::Known {
                State::BeingSet
            } else {
                State::Contended
            };
            let earliest = before.earliest.map(|before| before.min(due));
            *deadline = Deadline {
                earliest: earliest.filter(|_| *state == State::BeingSet),
                latest: None,
            };
            before
        };
        let is_set = set();
        let (deadline, state) = &mut *lock(&self.deadline);
        if *state == State::BeingSet {
            let after = Deadline {
                earliest: Some(due),
                latest: Some(Instant::now() + delay),
            };
            (*deadline, *state) = (if is_set { after } else { before }, State::Known);
        }
        is_set
    }

    pub(crate) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, SeqCst);
    }

    pub(crate) fn get(&self, count: Count) -> u8 {
        self.counts[count as usize].load(SeqCst)
    }

    /// It expired at `when`, which is now or shortly before.
    pub(crate) fn expire(&self, when: Instant) {
        self.expect_on_time(self.deadline(), when);
        self.count(Expired);
    }

    /// It was cancelled at `when`.
    pub(crate) fn cancel(&self, when: Instant) {
        self.expect_not_overdue(when);
        self.count(Cancelled);
    }

    /// The timer has not accepted or not completed it.
    pub(crate) fn fail(&self, error: &NewTimeoutError, was_accepted: bool) {
        match error {
            NewTimeoutError::Stopped if was_accepted => self.count(Left),
            NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { .. } => {
                self.count(Rejected)
            }
            error => self
                .tally
                .expect(false, || format!("{:?}: {error}", self.kind)),
        }
    }

    /// Checks that something was neither early nor late at `when`.
    pub(crate) fn expect_on_time(&self, deadline: Deadline, when: Instant) {
        if deadline.earliest.is_some_and(|due| Instant::now() < due) {
            self.tally
                .add_fault(self.kind, Early, || "expired early".into());
        }
        let late = deadline.lateness(when);
        if self.kind == Kind::Plain {
            self.tally
                .lateness
                .fetch_max(late.as_nanos() as u64, SeqCst);
        }
        if late > self.tally.max_late {
            self.tally
                .add_fault(self.kind, Late, || format!("expired {late:.1?} late"));
        }
    }

    /// Checks that something that has not expired at `when` should not have expired long before.
    pub(crate) fn expect_not_overdue(&self, when: Instant) {
        let late = self.deadline().lateness(when);
        if late > self.tally.max_late {
            self.tally.add_fault(self.kind, Overdue, || {
                format!("has not expired {late:.1?} after its deadline")
            });
        }
    }

    /// Waits for the end of something that is due. It is an error if that does not come in time.
    pub(crate) fn await_if_due(&self, is_over: impl Fn() -> bool) {
        let Some(latest) = self
            .deadline()
            .latest
            .filter(|latest| *latest <= Instant::now())
        else {
            return;
        };
        let limit = (latest + self.tally.max_late).saturating_duration_since(Instant::now());
        if !wait_until(limit, is_over) {
            self.expect_not_overdue(Instant::now());
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let (tally, is_plain) = (&self.tally, self.kind == Kind::Plain);
        let hooks = self.get(Hook) + self.get(HookAtEnd);
        let ends = || ENDS.iter().map(|end| self.get(*end)).sum::<u8>();
        // The end of a timer and `cancel_all` drop what a map has.
        let drops_maps = tally.ending.get().is_some() || tally.is_cleared.load(SeqCst);
        let is_left = self.get(HookAtEnd) > 0 || drops_maps && Kind::MAPS.contains(&self.kind);
        if is_left && ends() == 0 {
            self.expect_not_overdue(tally.ending.get().copied().unwrap_or_else(Instant::now));
            self.count(Left);
        }
        let is_right = ends() == 1
            && (!is_plain
                || hooks == self.get(Cancelled) + self.get(Left) && self.get(TaskDrop) == 1);
        tally.expect(is_right, || {
            let (ends, drops) = (ENDS.map(|end| (end, self.get(end))), self.get(TaskDrop));
            format!(
                "{:?}: {ends:?}; {hooks} hook calls, {drops} drops of the task",
                self.kind
            )
        });
        let end = ENDS
            .into_iter()
            .find(|end| self.get(*end) > 0)
            .filter(|_| is_right);
        tally.add(self.kind, end.unwrap_or(Wrong));
    }
}

/// The tally of one timer, or of several.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) name: String,
    pub(crate) max_late: Duration,
    /// Its loads do something wrong.
    sabotage: Option<Sabotage>,
    /// All timeouts were cancelled at once.
    pub(crate) is_cleared: AtomicBool,
    /// When the end of the timer began.
    pub(crate) ending: OnceLock<Instant>,
    counts: [[AtomicU64; Registered as usize + 1]; Kind::ALL.len()],
    /// The longest of plain timeouts, in nanoseconds.
    pub(crate) lateness: AtomicU64,
    pub(crate) resets: AtomicU64,
    /// Intentional panics.
    pub(crate) panics: AtomicU64,
    pub(crate) error_count: AtomicU64,
    pub(crate) errors: Mutex<Vec<String>>,
}

impl Tally {
    pub(crate) fn new(name: String, max_late: Duration, sabotage: Option<Sabotage>) -> Arc<Self> {
        Arc::new(Self {
            name,
            max_late,
            sabotage,
            is_cleared: AtomicBool::new(false),
            ending: OnceLock::new(),
            counts: Default::default(),
            lateness: AtomicU64::new(0),
            resets: AtomicU64::new(0),
            panics: AtomicU64::new(0),
            error_count: AtomicU64::new(0),
            errors: Mutex::default(),
        })
    }

    pub(crate) fn does(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    fn add(&self, kind: Kind, count: Count) {
        self.counts[kind as usize][count as usize].fetch_add(1, SeqCst);
    }

    pub(crate) fn get(&self, kind: Kind, count: Count) -> u64 {
        self.counts[kind as usize][count as usize].load(SeqCst)
    }

    /// Returns the counts of one kind, for people.
    pub(crate) fn line(&self, kind: Kind) -> String {
        let counts = [Registered].into_iter().chain(ENDS);
        let counts =
            counts.map(|count| format!("{} {count:?}", self.get(kind, count)).to_lowercase());
        format!("{kind:?}: {}", counts.collect::<Vec<_>>().join(", "))
    }

    pub(crate) fn expect(&self, holds: bool, failure: impl FnOnce() -> String) {
        if !holds {
            self.error_count.fetch_add(1, SeqCst);
            let mut errors = lock(&self.errors);
            if errors.len() < MAX_ERRORS {
                errors.push(format!("{}: {}", self.name, failure()));
            }
        }
    }

    /// Describes the first fault of each sort: one kind of load would otherwise hide the others.
    fn add_fault(&self, kind: Kind, fault: Count, failure: impl FnOnce() -> String) {
        if self.get(kind, fault) == 0 {
            self.expect(false, || format!("{kind:?}: {}", failure()));
        } else {
            self.error_count.fetch_add(1, SeqCst);
        }
        self.add(kind, fault);
    }

    /// Panics intentionally.
    pub(crate) fn panic_intentionally(&self) -> ! {
        self.panics.fetch_add(1, SeqCst);
        panic_any(IntentionalPanic)
    }

    /// Checks the tally of a timer that has ended. `may_be_left`: threads used it when it ended.
    /// `returned`: how many timeouts `stop` has returned, if it was called. `is_exact`: the timer
    /// had only plain timeouts, so its own counts must be the same.
    pub(crate) fn close(
        &self,
        timer: &HashedWheelTimer,
        may_be_left: bool,
        returned: Option<usize>,
        is_exact: bool,
    ) {
        let ended = |kind| {
            ENDS.iter()
                .chain(&[Wrong])
                .map(|end| self.get(kind, *end))
                .sum::<u64>()
        };
        let has_ended = |kind: &Kind| self.get(*kind, Registered) == ended(*kind);
        // If no caller has waited for the end of the timer, its thread may still drop tasks, and
        // count the panic of one that it has dropped.
        let is_over =
            || Kind::ALL.iter().all(has_ended) && timer.stats().panics == self.panics.load(SeqCst);
        wait_until(TIMEOUT / 10, is_over);
        let stats = timer.stats();
        for kind in Kind::ALL {
            let is_left = kind != Kind::Plain && !may_be_left && self.get(kind, Left) > 0;
            self.expect(has_ended(&kind) && !is_left, || {
                format!("not accounted for: {}", self.line(kind))
            });
        }
        let [expired, cancelled, rejected, left, dropped] =
            ENDS.map(|end| self.get(Kind::Plain, end));
        let returned = returned.map_or(left, |returned| returned as u64);
        for (what, counted, reported, is_exact) in [
            ("expired", expired + dropped, stats.expired, is_exact),
            ("cancelled", cancelled + left, stats.cancelled, is_exact),
            ("rejected", rejected, stats.rejected, is_exact),
            ("left and returned", left, returned, is_exact),
            (
                "accepted and ended",
                stats.scheduled,
                stats.expired + stats.cancelled,
                true,
            ),
            ("dropped by an executor", dropped, stats.dropped_tasks, true),
            ("pending", 0, stats.pending, true),
            ("panics", self.panics.load(SeqCst), stats.panics, true),
        ] {
            let agrees = if is_exact {
                counted == reported
            } else {
                counted <= reported
            };
            self.expect(agrees, || {
                format!("{what}: counted {counted}, reported {reported}")
            });
        }
    }

    /// Adds the tally of a timer that has ended.
    pub(crate) fn add_all(&self, other: &Self) {
        let sums = [&self.resets, &self.panics, &self.error_count].into_iter();
        let sums = sums.chain(self.counts.iter().flatten());
        let parts = [&other.resets, &other.panics, &other.error_count].into_iter();
        for (sum, part) in sums.zip(parts.chain(other.counts.iter().flatten())) {
            sum.fetch_add(part.load(SeqCst), SeqCst);
        }
        self.lateness.fetch_max(other.lateness.load(SeqCst), SeqCst);
        let (mut errors, mut more) = (lock(&self.errors), lock(&other.errors));
        errors.append(&mut more);
        errors.truncate(MAX_ERRORS * 3);
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits until `holds`, at most for this time. Returns whether it holds.
pub(crate) fn wait_until(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let since = Instant::now();
    while !holds() && since.elapsed() < limit {
        thread::sleep(Duration::from_micros(100));
    }
    holds()
}

/// Waits until `holds`, for much longer than that should take.
pub(crate) fn comes(holds: impl Fn() -> bool) -> bool {
    wait_until(TIMEOUT, holds)
}
