//! The model of a timer that the fuzzer, the schedules of shuttle and the soak share: a ledger of
//! everything that a test gives to a timer.
//!
//! Each thing has a [`Ticket`], with its deadline and the ends that the test has seen. When its
//! last owner drops the ticket, the thing must have had exactly one end. The task of a timeout must
//! also have been dropped once, and its hook called if the timeout was cancelled. Nothing expires
//! early, or later than the test permits. The timer's own counts must be those of the [`Ledger`].
//!
//! A test only chooses operations, and tells the tickets what it sees. Faults are collected,
//! because a timer catches the panics of its tasks.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Something may be cancelled until it has been due for this time, so that the cancel races with
/// its end. After that, only its own end is permitted, so that a lost one is noticed.
const RACE: Duration = Duration::from_millis(20);

/// The maximum number of error descriptions that a ledger keeps.
const MAX_ERRORS: usize = 20;

/// A kind of use of a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A timeout with a task.
    Plain,
    Sleep,
    /// A tick of an interval.
    Interval,
    Periodic,
    /// An entry of a map, whose end a handler receives.
    Map,
    /// The same, and a receiver of batches.
    Batched,
    /// The same, and a receiver of single entries.
    Received,
    /// A value in a `DelayQueue`.
    Queue,
}

use Kind::{Batched, Interval, Map, Periodic, Plain, Queue, Received, Sleep};

pub const KINDS: [Kind; 8] = [
    Plain, Sleep, Interval, Periodic, Map, Batched, Received, Queue,
];

impl Kind {
    pub const MAPS: [Self; 3] = [Map, Batched, Received];
}

/// The counts of each ticket, and of each kind of use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    // The ends. Everything that is registered has exactly one.
    Expired,
    Cancelled,
    Rejected,
    /// It had not ended before the timer did.
    Left,
    /// The executor has not run the task of a timeout, which had expired.
    Dropped,
    // Of timeouts: the calls of their hooks, before the timer's end and since, and the drops of
    // their tasks.
    Hook,
    HookAtEnd,
    TaskDrop,
    /// A reset that succeeded.
    Reset,
    // The faults.
    Early,
    Late,
    Overdue,
    // The tickets: all, and those that were dropped.
    Registered,
    Closed,
}

use Count::{
    Cancelled, Closed, Dropped, Early, Expired, Hook, HookAtEnd, Late, Left, Overdue, Registered,
    Rejected, Reset, TaskDrop,
};

pub const ENDS: [Count; 5] = [Expired, Cancelled, Rejected, Left, Dropped];

/// When something is due, by the clock of the ledger. A bound is `None` if it is not known.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Deadline {
    /// It must not expire before.
    pub earliest: Option<Duration>,
    /// Its lateness is counted from then. That is not before the deadline, except for the time
    /// between a clock read and the call that follows. The permitted lateness covers that.
    pub latest: Option<Duration>,
}

impl Deadline {
    pub fn at(due: Duration) -> Self {
        Self {
            earliest: Some(due),
            latest: Some(due),
        }
    }

    /// Whether it is certainly due before `when`.
    pub fn is_before(self, when: Duration) -> bool {
        self.latest.is_some_and(|latest| latest < when)
    }

    fn lateness(self, when: Duration) -> Duration {
        self.latest
            .map_or(Duration::ZERO, |latest| when.saturating_sub(latest))
    }
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

/// One thing that is registered. Its last owner drops it, and then it must have had one end.
pub struct Ticket {
    ledger: Arc<Ledger>,
    kind: Kind,
    deadline: Mutex<(Deadline, State)>,
    counts: [AtomicU8; Reset as usize + 1],
}

impl Ticket {
    pub fn new(ledger: &Arc<Ledger>, kind: Kind, deadline: Deadline) -> Self {
        ledger.add(kind, Registered);
        Self {
            ledger: Arc::clone(ledger),
            kind,
            deadline: Mutex::new((deadline, State::Known)),
            counts: Default::default(),
        }
    }

    pub fn deadline(&self) -> Deadline {
        lock(&self.deadline).0
    }

    pub fn set_deadline(&self, deadline: Deadline) {
        lock(&self.deadline).0 = deadline;
    }

    /// Calls `set`, which returns whether the deadline is now after the delay.
    pub fn set(&self, delay: Duration, set: impl FnOnce() -> bool) -> bool {
        let due = self.ledger.now() + delay;
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
        let after = Deadline {
            earliest: Some(due),
            latest: Some(self.ledger.now() + delay),
        };
        let (deadline, state) = &mut *lock(&self.deadline);
        if *state == State::BeingSet {
            (*deadline, *state) = (if is_set { after } else { before }, State::Known);
        }
        is_set
    }

    /// The same for a reset that is counted.
    pub fn reset(&self, delay: Duration, reset: impl FnOnce() -> bool) {
        if self.set(delay, reset) {
            self.count(Reset);
        }
    }

    pub fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, SeqCst);
        self.ledger.add(self.kind, count);
    }

    pub fn get(&self, count: Count) -> u8 {
        self.counts[count as usize].load(SeqCst)
    }

    fn ends(&self) -> u8 {
        ENDS.iter().map(|end| self.get(*end)).sum()
    }

    pub fn expire(&self) {
        self.expire_at(self.ledger.now());
    }

    /// It expired at `when`, which is now or shortly before.
    pub fn expire_at(&self, when: Duration) {
        self.expect_on_time(self.deadline(), when);
        self.count(Expired);
    }

    pub fn cancel(&self) {
        self.cancel_at(self.ledger.now());
    }

    /// It was cancelled at `when`.
    pub fn cancel_at(&self, when: Duration) {
        self.expect_not_overdue(when);
        self.count(Cancelled);
    }

    /// The hook of the timeout is called.
    pub fn call_hook(&self) {
        self.count(if self.ledger.ending.get().is_some() {
            HookAtEnd
        } else {
            Hook
        });
    }

    /// Checks that something was neither early nor late at `when`.
    pub fn expect_on_time(&self, deadline: Deadline, when: Duration) {
        let is_early = |due| when < due && self.ledger.now() < due;
        if deadline.earliest.is_some_and(is_early) {
            self.add_fault(Early, || "expired early".into());
        }
        let late = deadline.lateness(when);
        if self.kind == Plain {
            let nanos = late.as_nanos() as u64;
            self.ledger.lateness.fetch_max(nanos, SeqCst);
        }
        if late > self.ledger.max_late {
            self.add_fault(Late, || format!("expired {late:.1?} late"));
        }
    }

    /// Checks that something that has not expired at `when` should not have expired long before.
    pub fn expect_not_overdue(&self, when: Duration) {
        let late = self.deadline().lateness(when);
        if late > self.ledger.max_late {
            let failure = || format!("has not expired {late:.1?} after its deadline");
            self.add_fault(Overdue, failure);
        }
    }

    /// Whether it has been due for longer than a cancel may race with its end.
    pub fn is_overdue(&self) -> bool {
        self.deadline().lateness(self.ledger.now()) > RACE
    }

    /// How long its end may still take, if it is due.
    pub fn limit_if_due(&self) -> Option<Duration> {
        let now = self.ledger.now();
        let latest = self.deadline().latest.filter(|latest| *latest <= now)?;
        Some((latest + self.ledger.max_late).saturating_sub(now))
    }

    /// Describes the first fault of each sort: one kind of use would otherwise hide the others.
    fn add_fault(&self, fault: Count, failure: impl FnOnce() -> String) {
        let Self { ledger, kind, .. } = self;
        if ledger.get(*kind, fault) == 0 {
            ledger.expect(false, || format!("{kind:?}: {}", failure()));
        } else {
            ledger.error_count.fetch_add(1, SeqCst);
        }
        ledger.add(*kind, fault);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let Self { ledger, kind, .. } = &*self;
        let (is_plain, ending) = (*kind == Plain, ledger.ending.get().copied());
        let hooks = self.get(Hook) + self.get(HookAtEnd);
        // The end of a timer and `cancel_all` drop what a map has.
        let drops_maps = ending.is_some() || ledger.is_cleared.get().is_some();
        if self.ends() == 0 && (self.get(HookAtEnd) > 0 || drops_maps && Kind::MAPS.contains(kind))
        {
            self.expect_not_overdue(ending.unwrap_or_else(|| ledger.now()));
            self.count(Left);
        } else if self.ends() == 0 && hooks == 0 && self.get(TaskDrop) > 0 && is_plain {
            self.count(Dropped);
        }
        let is_right = self.ends() == 1
            && (!is_plain
                || hooks == self.get(Cancelled) + self.get(Left) && self.get(TaskDrop) == 1);
        ledger.expect(is_right, || {
            let (ends, drops) = (ENDS.map(|end| (end, self.get(end))), self.get(TaskDrop));
            format!("{kind:?}: {ends:?}; {hooks} hook calls, {drops} drops of the task")
        });
        ledger.add(*kind, Closed);
    }
}

/// The counts that a timer reports. [`reported`] makes them from its statistics.
pub type Reported = [u64; 6];

/// Returns the [`Reported`] of a timer's statistics, which have another type in the models.
#[macro_export]
macro_rules! reported {
    ($stats:expr) => {{
        let stats = $stats;
        let ended = [stats.expired, stats.cancelled, stats.rejected];
        let [expired, cancelled, rejected] = ended;
        let (dropped, scheduled) = (stats.dropped_tasks, stats.scheduled);
        [
            expired,
            cancelled,
            rejected,
            dropped,
            scheduled,
            stats.pending,
        ]
    }};
}

type Clock = dyn Fn() -> Duration + Send + Sync;

/// The ledger of one timer, or of several.
pub struct Ledger {
    pub name: String,
    clock: Box<Clock>,
    pub max_late: Duration,
    /// All timeouts were cancelled at once.
    is_cleared: OnceLock<()>,
    /// When the end of the timer began.
    ending: OnceLock<Duration>,
    counts: [[AtomicU64; Closed as usize + 1]; KINDS.len()],
    /// The longest of timeouts with tasks, in nanoseconds.
    lateness: AtomicU64,
    error_count: AtomicU64,
    errors: Mutex<Vec<String>>,
}

impl Ledger {
    pub fn new(
        name: String,
        max_late: Duration,
        clock: impl Fn() -> Duration + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            name,
            clock: Box::new(clock),
            max_late,
            is_cleared: OnceLock::new(),
            ending: OnceLock::new(),
            counts: Default::default(),
            lateness: AtomicU64::new(0),
            error_count: AtomicU64::new(0),
            errors: Mutex::default(),
        })
    }

    pub fn now(&self) -> Duration {
        (self.clock)()
    }

    /// Returns the deadline of something that is registered now with this delay.
    pub fn after(&self, delay: Duration) -> Deadline {
        let due = self.now().checked_add(delay);
        due.map_or_else(Deadline::default, Deadline::at)
    }

    /// From now on timeouts may end because the timer does.
    pub fn begin_end(&self) {
        self.ending.set(self.now()).expect("a timer ends once");
    }

    /// From now on entries of maps may end because all timeouts are cancelled.
    pub fn clear(&self) {
        let _ = self.is_cleared.set(());
    }

    pub fn add(&self, kind: Kind, count: Count) {
        self.counts[kind as usize][count as usize].fetch_add(1, SeqCst);
    }

    pub fn get(&self, kind: Kind, count: Count) -> u64 {
        self.counts[kind as usize][count as usize].load(SeqCst)
    }

    /// The same for all kinds.
    pub fn total(&self, count: Count) -> u64 {
        KINDS.iter().map(|kind| self.get(*kind, count)).sum()
    }

    pub fn lateness(&self) -> Duration {
        Duration::from_nanos(self.lateness.load(SeqCst))
    }

    /// Returns the counts of one kind, for people.
    pub fn line(&self, kind: Kind) -> String {
        let counts = [Registered].into_iter().chain(ENDS);
        let counts =
            counts.map(|count| format!("{} {count:?}", self.get(kind, count)).to_lowercase());
        format!("{kind:?}: {}", counts.collect::<Vec<_>>().join(", "))
    }

    pub fn expect(&self, holds: bool, failure: impl FnOnce() -> String) {
        if !holds {
            self.error_count.fetch_add(1, SeqCst);
            let mut errors = lock(&self.errors);
            if errors.len() < MAX_ERRORS {
                errors.push(format!("{}: {}", self.name, failure()));
            }
        }
    }

    /// Returns the descriptions of the faults, and the number of all.
    pub fn errors(&self) -> (Vec<String>, u64) {
        (lock(&self.errors).clone(), self.error_count.load(SeqCst))
    }

    /// Returns how many things of this kind have not ended.
    pub fn pending(&self, kind: Kind) -> u64 {
        let ended: u64 = ENDS.iter().map(|end| self.get(kind, *end)).sum();
        self.get(kind, Registered) - ended
    }

    /// Whether the tickets of this kind were dropped.
    pub fn has_ended(&self, kind: Kind) -> bool {
        self.get(kind, Registered) == self.get(kind, Closed)
    }

    /// Checks the ledger of a timer that has ended. `returned`: how many timeouts `stop` has
    /// returned, if it was called. `is_exact`: the timer had only plain timeouts, so its own counts
    /// must be the same.
    pub fn close(&self, reported: Reported, returned: Option<usize>, is_exact: bool) {
        for kind in KINDS {
            self.expect(self.has_ended(kind), || {
                format!("not accounted for: {}", self.line(kind))
            });
        }
        let [expired, cancelled, rejected, dropped, scheduled, pending] = reported;
        let of = |count| self.get(Plain, count);
        let returned = returned.map_or(of(Left), |returned| returned as u64);
        for (what, counted, reported, is_exact) in [
            ("expired", of(Expired) + of(Dropped), expired, is_exact),
            ("cancelled", of(Cancelled) + of(Left), cancelled, is_exact),
            ("rejected", of(Rejected), rejected, is_exact),
            ("left and returned", of(Left), returned, is_exact),
            ("dropped", of(Dropped), dropped, is_exact),
            ("ended and accepted", expired + cancelled, scheduled, true),
            ("pending", 0, pending, true),
        ] {
            let agrees = counted == reported || !is_exact && counted < reported;
            self.expect(agrees, || {
                format!("{what}: counted {counted}, reported {reported}")
            });
        }
    }

    /// Adds the ledger of a timer that has ended.
    pub fn add_all(&self, other: &Self) {
        let parts = other.counts.iter().flatten().chain([&other.error_count]);
        let sums = self.counts.iter().flatten().chain([&self.error_count]);
        for (sum, part) in sums.zip(parts) {
            sum.fetch_add(part.load(SeqCst), SeqCst);
        }
        self.lateness.fetch_max(other.lateness.load(SeqCst), SeqCst);
        let (mut errors, mut more) = (lock(&self.errors), lock(&other.errors));
        errors.append(&mut more);
        errors.truncate(MAX_ERRORS * 3);
    }
}

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
