//! The accounts of one timer: what each kind of load has begun, and how that ended.
//!
//! The timeouts of the kind that [`ledger`](crate::ledger) records have records of their own.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hashed_wheel::NewTimeoutError;

use crate::ledger::{self, Ledger, lock};

/// Something may be cancelled until it has been due for this time, so that the cancel races with
/// its end. After that, only its own end is permitted, so that a lost one is noticed.
const RACE: Duration = Duration::from_millis(20);

/// Longer than the program runs.
const A_YEAR: Duration = Duration::from_secs(365 * 86_400);

/// The kinds of load, apart from plain timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sleep,
    /// A tick of an interval.
    Interval,
    Periodic,
    Map,
    /// An entry with a key and a value, whose end the handler of a batch receives.
    Batched,
    /// An entry with a key and a value, whose end a receiver receives.
    Received,
    /// A value in a `DelayQueue`.
    Queue,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] =
        [Self::Sleep, Self::Interval, Self::Periodic, Self::Map, Self::Batched, Self::Received, Self::Queue];
}

/// The ways to end. `LeftAtStop`: not before the timer was stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Expired,
    Cancelled,
    Rejected,
    LeftAtStop,
}

/// When something must expire.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    /// It must not expire before, if that is known.
    earliest: Option<Instant>,
    /// Its lateness is counted from then. That is not before the deadline, except for the time
    /// between a clock read and the call that follows. The permitted lateness covers that.
    latest: Instant,
}

impl Deadline {
    pub(crate) fn at(due: Instant) -> Self {
        Self { earliest: Some(due), latest: due }
    }

    /// Of something that is registered now with this delay.
    pub(crate) fn after(delay: Duration) -> Self {
        Self::at(Instant::now() + delay)
    }

    /// Of something that is due at one of these times, or between them.
    pub(crate) fn between(earliest: Instant, latest: Instant) -> Self {
        Self { earliest: Some(earliest), latest }
    }

    /// Of something that is due at the given time or before.
    pub(crate) fn until(latest: Instant) -> Self {
        Self { earliest: None, latest }
    }

    /// Returns the deadline of the next run at a fixed rate, if the run with this deadline ends
    /// now.
    pub(crate) fn next(self, period: Duration) -> Self {
        Self { earliest: self.earliest.map(|due| due + period), latest: Instant::now() + period }
    }

    /// While a call sets it to `due` or a time shortly after. Another thread may see the deadline
    /// before or after that. It is never overdue.
    pub(crate) fn while_set_to(self, due: Instant) -> Self {
        Self { earliest: self.earliest.map(|before| before.min(due)), latest: due.max(self.latest) + A_YEAR }
    }

    /// Whether it is certainly due before `when`.
    pub(crate) fn is_before(self, when: Instant) -> bool {
        self.latest < when
    }

    /// Whether it has been due for longer than a cancel may race with its end.
    pub(crate) fn is_overdue(self) -> bool {
        self.latest.elapsed() > RACE
    }
}

/// When something is due at the latest. Several threads know it.
#[derive(Debug)]
pub(crate) struct Latest(Mutex<Instant>);

impl Latest {
    pub(crate) fn new(due: Instant) -> Self {
        Self(Mutex::new(due))
    }

    /// For a deadline that several threads set at the same time: records the latest of all. Must be
    /// called before the deadline is set.
    pub(crate) fn raise(&self, due: Instant) {
        let mut latest = lock(&self.0);
        *latest = due.max(*latest);
    }

    pub(crate) fn get(&self) -> Instant {
        *lock(&self.0)
    }
}

/// No deadline so far.
impl Default for Latest {
    fn default() -> Self {
        Self::new(Instant::now())
    }
}

/// What can be wrong with the time at which something ends.
#[derive(Debug, Clone, Copy)]
enum Fault {
    ExpiredEarly,
    ExpiredLate,
    NotExpired,
}

/// The counts of one kind.
#[derive(Debug, Default)]
struct Account {
    /// By [`Fault`].
    faults: [AtomicU64; 3],
    registered: AtomicU64,
    /// By [`End`].
    ended: [AtomicU64; 4],
}

/// The counts of all kinds on one timer.
#[derive(Debug)]
pub(crate) struct Accounts {
    ledger: Arc<Ledger>,
    accounts: [Account; Kind::ALL.len()],
}

impl Accounts {
    pub(crate) fn new(ledger: &Arc<Ledger>) -> Arc<Self> {
        Arc::new(Self { ledger: Arc::clone(ledger), accounts: Default::default() })
    }

    pub(crate) fn register(&self, kind: Kind) {
        self.accounts[kind as usize].registered.fetch_add(1, SeqCst);
    }

    pub(crate) fn end(&self, kind: Kind, end: End) {
        self.end_many(kind, end, 1);
    }

    pub(crate) fn end_many(&self, kind: Kind, end: End, count: u64) {
        self.accounts[kind as usize].ended[end as usize].fetch_add(count, SeqCst);
    }

    /// Records that everything of this kind that has not ended otherwise ended like this.
    pub(crate) fn end_rest(&self, kind: Kind, end: End) {
        let counts = self.counts(kind);
        self.end_many(kind, end, counts.registered.saturating_sub(counts.ended()));
    }

    /// Records how something ended that the timer did not accept, or did not complete.
    pub(crate) fn fail(&self, kind: Kind, error: &NewTimeoutError, was_accepted: bool) {
        match error {
            NewTimeoutError::Stopped if was_accepted => self.end(kind, End::LeftAtStop),
            NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { .. } => {
                self.end(kind, End::Rejected)
            }
            error => self.expect(false, || format!("{kind:?}: {error}")),
        }
    }

    pub(crate) fn expect(&self, holds: bool, failure: impl FnOnce() -> String) {
        self.ledger.expect(holds, failure);
    }

    /// Records a fault. The first one of each sort is described: one kind of load would otherwise
    /// hide the others.
    fn add_fault(&self, kind: Kind, fault: Fault, failure: impl FnOnce() -> String) {
        if self.accounts[kind as usize].faults[fault as usize].fetch_add(1, SeqCst) == 0 {
            self.expect(false, || format!("{kind:?}: {}", failure()));
        } else {
            self.ledger.count_error();
        }
    }

    /// Returns how late something is at `when`, if that is later than permitted.
    fn lateness(&self, deadline: Deadline, when: Instant) -> Option<Duration> {
        let late = when.saturating_duration_since(deadline.latest);
        Some(late).filter(|late| *late > self.ledger.max_late)
    }

    /// Something of this kind expired at `when`, which is now or shortly before.
    pub(crate) fn expire(&self, kind: Kind, deadline: Deadline, when: Instant) {
        self.expect_on_time(kind, deadline, when);
        self.end(kind, End::Expired);
    }

    /// Checks that something expired neither early nor late. `when`: as for
    /// [`expire`](Self::expire).
    pub(crate) fn expect_on_time(&self, kind: Kind, deadline: Deadline, when: Instant) {
        if deadline.earliest.is_some_and(|due| Instant::now() < due) {
            self.add_fault(kind, Fault::ExpiredEarly, || "expired early".into());
        }
        if let Some(late) = self.lateness(deadline, when) {
            self.add_fault(kind, Fault::ExpiredLate, || format!("expired {late:.1?} late"));
        }
    }

    /// Checks that something that has not expired at `when` should not have expired long before.
    pub(crate) fn expect_not_overdue(&self, kind: Kind, deadline: Deadline, when: Instant) {
        if let Some(late) = self.lateness(deadline, when) {
            self.add_fault(kind, Fault::NotExpired, || {
                format!("has not expired {late:.1?} after its deadline")
            });
        }
    }

    /// Waits for the end of something that is due. It is an error if that does not come in time.
    pub(crate) fn await_if_due(&self, kind: Kind, deadline: Deadline, is_over: impl Fn() -> bool) {
        let limit = deadline.latest + self.ledger.max_late;
        let is_due = deadline.latest <= Instant::now();
        if is_due && !ledger::wait_until(limit, is_over) {
            self.expect_not_overdue(kind, deadline, Instant::now());
        }
    }

    fn counts(&self, kind: Kind) -> Counts {
        let Account { registered, ended, .. } = &self.accounts[kind as usize];
        let ended = ended.each_ref().map(|count| count.load(SeqCst));
        Counts { registered: registered.load(SeqCst), ended }
    }

    /// Checks that everything has ended once; and before the end of the timer, unless something may
    /// be left. Returns the counts.
    pub(crate) fn close(&self, may_be_left: bool) -> Sum {
        let mut sum = Sum::default();
        for kind in Kind::ALL {
            let counts = self.counts(kind);
            let has_left = counts.ended[End::LeftAtStop as usize] > 0;
            let is_complete = counts.registered == counts.ended() && (may_be_left || !has_left);
            self.expect(is_complete, || format!("not accounted for: {kind:?}: {counts}"));
            sum.add(kind, &counts);
        }
        sum
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Counts {
    registered: u64,
    ended: [u64; 4],
}

impl Counts {
    fn ended(&self) -> u64 {
        self.ended.iter().sum()
    }
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { registered, ended: [expired, cancelled, rejected, left] } = self;
        write!(
            f,
            "{registered} registered: {expired} expired, {cancelled} cancelled, {rejected} rejected, {left} left at stop"
        )
    }
}

/// The counts of all timers.
#[derive(Debug, Default)]
pub(crate) struct Sum([Counts; Kind::ALL.len()]);

impl Sum {
    fn add(&mut self, kind: Kind, counts: &Counts) {
        let sum = &mut self.0[kind as usize];
        sum.registered += counts.registered;
        sum.ended.iter_mut().zip(counts.ended).for_each(|(sum, count)| *sum += count);
    }

    pub(crate) fn add_all(&mut self, other: &Self) {
        Kind::ALL.into_iter().for_each(|kind| self.add(kind, &other.0[kind as usize]));
    }

    /// Returns a line for each kind.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        Kind::ALL.into_iter().map(|kind| format!("  {:<10} {}", format!("{kind:?}"), self.0[kind as usize]))
    }

    /// Returns the kinds of which nothing expired, or nothing was cancelled.
    pub(crate) fn unused(&self) -> Vec<Kind> {
        let is_unused = |kind: &Kind| self.0[*kind as usize].ended[..2].contains(&0);
        Kind::ALL.into_iter().filter(is_unused).collect()
    }
}

/// Waits until `holds`, because the end of a timer may come from another thread.
pub(crate) fn wait_until(limit: Duration, holds: impl Fn() -> bool) -> bool {
    ledger::wait_until(Instant::now() + limit, holds)
}
