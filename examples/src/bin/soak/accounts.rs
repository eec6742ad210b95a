//! The accounts of one timer: what each kind of load has begun, and how that ended.
//!
//! The timeouts of the kind that [`ledger`](crate::ledger) records have records of their own.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use hashed_wheel::NewTimeoutError;

use crate::ledger::Ledger;

/// The kinds of load, apart from plain timeouts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Sleep,
    /// A tick of an interval.
    Interval,
    Periodic,
    Keyed,
    /// A value in a `DelayQueue`.
    Queue,
}

impl Kind {
    pub(crate) const ALL: [Self; 5] = [Self::Sleep, Self::Interval, Self::Periodic, Self::Keyed, Self::Queue];
}

/// The ways to end. `LeftAtStop`: not before the timer was stopped.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Expired,
    Cancelled,
    Rejected,
    LeftAtStop,
}

/// The counts of one kind.
#[derive(Debug, Default)]
struct Account {
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

    /// Something of this kind expired now, and was due then, if that is known.
    pub(crate) fn expire(&self, kind: Kind, due: Option<Instant>) {
        self.expect(due.is_none_or(|due| Instant::now() >= due), || format!("{kind:?}: early"));
        self.end(kind, End::Expired);
    }

    fn counts(&self, kind: Kind) -> Counts {
        let Account { registered, ended } = &self.accounts[kind as usize];
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
    let began = Instant::now();
    while !holds() && began.elapsed() < limit {
        std::thread::sleep(Duration::from_micros(100));
    }
    holds()
}
