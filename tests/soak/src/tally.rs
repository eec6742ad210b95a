//! The tally of a timer: its ledger, and what only this program counts.

use std::ops::Deref;
use std::panic::panic_any;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_ledger::{Count, KINDS, Kind, Ledger, Ticket, reported};

use crate::Sabotage;
use crate::machine::IntentionalPanic;

pub(crate) use hashed_wheel_ledger::{Deadline, lock};

/// Longer than anything takes that should be immediate.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The origin of the times of all ledgers.
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

pub(crate) fn now() -> Duration {
    START.elapsed()
}

/// Returns an instant as a time of the ledgers.
pub(crate) fn since_start(instant: Instant) -> Duration {
    instant.saturating_duration_since(*START)
}

/// The tally of one timer, or of several.
pub(crate) struct Tally {
    pub(crate) ledger: Arc<Ledger>,
    /// Its loads do something wrong.
    sabotage: Option<Sabotage>,
    /// Intentional panics.
    pub(crate) panics: AtomicU64,
    /// The tasks that its executor has dropped.
    pub(crate) drops: AtomicU64,
}

impl Deref for Tally {
    type Target = Arc<Ledger>;

    fn deref(&self) -> &Arc<Ledger> {
        &self.ledger
    }
}

impl Tally {
    pub(crate) fn new(name: String, max_late: Duration, sabotage: Option<Sabotage>) -> Arc<Self> {
        Arc::new(Self {
            ledger: Ledger::new(name, max_late, now),
            sabotage,
            panics: AtomicU64::new(0),
            drops: AtomicU64::new(0),
        })
    }

    pub(crate) fn does(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Whether a part of its timer, or anything that was registered, has not been dropped.
    pub(crate) fn is_in_use(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) > 1 || Arc::strong_count(&self.ledger) > 1
    }

    /// Panics intentionally.
    pub(crate) fn panic_intentionally(&self) -> ! {
        self.panics.fetch_add(1, SeqCst);
        panic_any(IntentionalPanic)
    }

    /// Checks the tally of a timer that has ended. `may_be_left`: threads used it when it ended.
    /// The others are those of [`Ledger::close`].
    pub(crate) fn close(
        &self,
        timer: &HashedWheelTimer,
        may_be_left: bool,
        returned: Option<usize>,
        is_exact: bool,
    ) {
        // If no caller has waited for the end of the timer, its thread may still drop tasks, and
        // count the panic of one that it has dropped.
        let is_over = || {
            let has_ended = KINDS.iter().all(|kind| self.has_ended(*kind));
            has_ended && timer.stats().panics == self.panics.load(SeqCst)
        };
        wait_until(TIMEOUT / 10, is_over);
        let stats = timer.stats();
        self.ledger.close(reported!(&stats), returned, is_exact);
        let others = self.total(Count::Left) - self.get(Kind::Plain, Count::Left);
        self.expect(may_be_left || others == 0, || {
            format!("{others} other kinds of use are left")
        });
        for (what, counted, reported) in [
            ("dropped by the executor", &self.drops, stats.dropped_tasks),
            ("panics", &self.panics, stats.panics),
        ] {
            let counted = counted.load(SeqCst);
            self.expect(counted == reported, || {
                format!("{what}: counted {counted}, reported {reported}")
            });
        }
    }

    /// Adds the tally of a timer that has ended.
    pub(crate) fn add_all(&self, other: &Self) {
        self.ledger.add_all(&other.ledger);
        self.panics.fetch_add(other.panics.load(SeqCst), SeqCst);
    }
}

/// The timer has not accepted or not completed it.
pub(crate) fn fail(ticket: &Ticket, error: &NewTimeoutError, was_accepted: bool) {
    match error {
        NewTimeoutError::Stopped if was_accepted => ticket.count(Count::Left),
        NewTimeoutError::Stopped | NewTimeoutError::TooManyPending { .. } => {
            ticket.count(Count::Rejected);
        }
        error => panic!("{error}"),
    }
}

/// Waits for the end of something that is due. It is an error if that does not come in time.
pub(crate) fn await_if_due(ticket: &Ticket, is_over: impl Fn() -> bool) {
    let limit = ticket.limit_if_due();
    if limit.is_some_and(|limit| !wait_until(limit, is_over)) {
        ticket.expect_not_overdue(now());
    }
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
