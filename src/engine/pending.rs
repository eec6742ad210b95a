//! How many timeouts are pending: a sum over counts that each thread keeps for itself. Under a
//! limit, one count that all threads share.
//!
//! A thread counts what it registers and what it ends in [`ThreadCounts`], which only it writes. So
//! counting costs two plain instructions, and no thread waits for a cache line of another. What the
//! worker ends is in its own counters ([`Counters`]).
//!
//! | word | written by | when | order | pairs with |
//! |---|---|---|---|---|
//! | `first`, `next`: the list of all counts | the thread that makes counts | before it uses them | that of [`OnceLock`] | `get` in `all`: a thread that finds counts sees them as they were made |
//! | `registered` | its thread | before the push of a new timeout | `Relaxed` | the push and the fence after it publish it |
//! | `cancelled` | its thread | after the compare-exchange that cancels a timeout or takes its message back, and after the push of what the worker has to know | `Release` | the `Acquire` of [`ended`](PendingCounts::ended): a thread that sees the end sees the registration |
//! | `withdrawn` | its thread | after it has taken a new timeout back, because the timer closes | `Release` | the same |
//! | `stopped` | the worker, for `stop` | after the change of the timeout's word | `Release` | the `Acquire` of [`ended`](PendingCounts::ended) |
//! | `expired` (`counters.rs`) | the worker | after the change of the timeout's word | `Release` | the `Acquire` of `Counter::get`: a thread that sees the end sees the registration |
//! | `ended_on_executor` (`counters.rs`) | a thread of the executor | after the change of the timeout's word, and after the push of what the worker has to know | `Release` | the same |
//!
//! Each count only grows.
//!
//! # The sum is never negative, and a sum of zero is exact
//!
//! The ends are read first, then the registrations. A timeout is registered before it ends, by the
//! same thread or by one that the ending thread has learnt of it from. So for each end that was
//! read, the registration is read too, and the difference is not negative.
//!
//! This thread takes part in the order of the counts only by what it has learnt of them: `stop`
//! reads them after its fence. Take the moment between the two sums. Until then at least as many
//! timeouts had ended as the first sum says, and at most as many were registered as the second one
//! says. So the difference is at least the number of timeouts that were pending at that moment. If
//! it is zero, none was. `stop` relies on this ([`end`](super::end)).
//!
//! A timeout that is registered and ended while a thread reads counts may be in the second sum and
//! not in the first. So a difference may be too large, but only if some end was counted meanwhile:
//! [`balance`](PendingCounts::balance) reads the ends again, and tries again if they have changed.
//!
//! # With a limit
//!
//! A caller takes a place before it registers, and gives it back after the end was counted. The
//! number of taken places is one word ([`Limit`]), so it is exact at every moment: no reader sees
//! more than the limit, and no caller is rejected while a place is free. Only timers with a limit
//! have this word. All operations on it are `Relaxed` read-modify-write operations: it publishes
//! nothing but itself.

use super::counters::Counters;
use crate::sync::unmodelled::OnceLock;
use crate::sync::{Arc, AtomicU64, CachePadded, Ordering, SegQueue, drop_list};

/// How often [`PendingCounts::balance`] counts, if timeouts end meanwhile.
const ATTEMPTS: usize = 4;

/// The counts of one thread.
#[derive(Default)]
pub(super) struct ThreadCounts {
    registered: AtomicU64,
    cancelled: AtomicU64,
    withdrawn: AtomicU64,
    next: OnceLock<Listed>,
}

/// The counts of one thread in the list of all.
type Listed = Arc<CachePadded<ThreadCounts>>;

impl Drop for ThreadCounts {
    fn drop(&mut self) {
        drop_list(self.next.take(), |counts| counts.next.take());
    }
}

/// The counts of a thread, with that thread.
#[derive(Clone)]
pub(super) struct OwnCounts {
    inner: Listed,
    registered: u64,
    cancelled: u64,
    withdrawn: u64,
}

impl OwnCounts {
    /// Counts a timeout whose message is about to be pushed.
    #[inline]
    pub(super) fn register(&mut self) {
        self.registered += 1;
        let count = &self.inner.registered;
        count.store(self.registered, Ordering::Relaxed);
    }

    /// Counts timeouts that were cancelled.
    #[inline]
    pub(super) fn cancel(&mut self, count: u64) {
        self.cancelled += count;
        let count = &self.inner.cancelled;
        count.store(self.cancelled, Ordering::Release);
    }

    /// Counts a new timeout that was taken back, because the timer closes.
    pub(super) fn withdraw(&mut self) {
        self.withdrawn += 1;
        let count = &self.inner.withdrawn;
        count.store(self.withdrawn, Ordering::Release);
    }
}

/// The counts of all threads: as many as ever used the timer at a time. A thread that ends gives
/// its counts back, and the next thread goes on counting there.
pub(crate) struct PendingCounts {
    /// The first counts, their `next` and so on are all. None ever leaves this list.
    first: OnceLock<Listed>,
    /// Those that no thread has.
    free: SegQueue<OwnCounts>,
    /// Timeouts that the end of the timer has cancelled.
    stopped: AtomicU64,
    /// The places of pending timeouts, if the user has set a limit.
    limit: Option<Limit>,
}

impl PendingCounts {
    pub(super) fn new(limit: Option<usize>) -> Self {
        Self {
            first: OnceLock::new(),
            free: SegQueue::new(),
            stopped: AtomicU64::new(0),
            limit: limit.map(|most| Limit {
                most: most as u64,
                taken: CachePadded::default(),
            }),
        }
    }

    pub(crate) fn limit(&self) -> Option<usize> {
        self.limit.as_ref().map(|limit| limit.most as usize)
    }

    /// Takes a place for a new timeout. The error is the limit: none is free.
    pub(super) fn take_place(&self) -> Result<(), usize> {
        match &self.limit {
            Some(limit) if !limit.take() => Err(limit.most as usize),
            _ => Ok(()),
        }
    }

    /// Timeouts have ended, and their ends were counted: their places are free.
    #[inline]
    pub(super) fn release_places(&self, count: u64) {
        if let Some(limit) = &self.limit {
            limit.release(count);
        }
    }

    /// The timeouts that have not ended: exact if no call is in progress; never negative; includes
    /// everything that the calling thread did; zero once all have ended. With a limit it is exact
    /// at every moment. `counters` are those of the same timer. `is_ended`: all have ended.
    pub(crate) fn pending(&self, counters: &Counters, is_ended: bool) -> u64 {
        match &self.limit {
            Some(_) if is_ended => 0,
            Some(limit) => limit.taken.load(Ordering::Relaxed),
            None => self.balance(counters, is_ended).pending,
        }
    }

    /// Takes counts, which no other thread writes until they are given back.
    pub(super) fn take(&self) -> OwnCounts {
        self.free.pop().unwrap_or_else(|| {
            let counts = Listed::default();
            let mut place = &self.first;
            while place.set(Arc::clone(&counts)).is_err() {
                place = &place.get().expect("another thread has set it").next;
            }
            OwnCounts {
                inner: counts,
                registered: 0,
                cancelled: 0,
                withdrawn: 0,
            }
        })
    }

    /// Gives counts back. Another thread goes on with them.
    pub(super) fn give_back(&self, counts: &OwnCounts) {
        self.free.push(counts.clone());
    }

    /// The worker counts a timeout that the end of the timer has cancelled.
    pub(super) fn count_stopped(&self) {
        self.stopped.fetch_add(1, Ordering::Release);
    }

    fn all(&self) -> impl Iterator<Item = &Listed> {
        std::iter::successors(self.first.get(), |counts| counts.next.get())
    }

    /// All timeouts that were ever registered, those that were withdrawn included.
    pub(super) fn ever_registered(&self) -> u64 {
        self.all()
            .map(|counts| counts.registered.load(Ordering::Relaxed))
            .sum()
    }
}

/// The places under a limit.
struct Limit {
    most: u64,
    taken: CachePadded<AtomicU64>,
}

impl Limit {
    /// Takes a place. Returns false if none is free.
    fn take(&self) -> bool {
        let more = |taken| (taken < self.most).then(|| taken + 1);
        self.taken
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
            .is_ok()
    }

    /// Gives places back.
    fn release(&self, count: u64) {
        let before = self.taken.fetch_sub(count, Ordering::Relaxed);
        debug_assert!(before >= count, "only taken places are given back");
    }
}

/// The counts of timeouts at one moment. `registered` is the sum of all others.
#[derive(Default)]
pub(crate) struct Balance {
    /// Without those that were withdrawn.
    pub(crate) registered: u64,
    /// New timeouts that were taken back, because the timer closed.
    pub(crate) withdrawn: u64,
    pub(crate) expired: u64,
    pub(crate) cancelled: u64,
    pub(crate) pending: u64,
}

impl PendingCounts {
    /// Counts timeouts. `counters` are those of the same timer. `is_ended`: all have ended.
    pub(crate) fn balance(&self, counters: &Counters, is_ended: bool) -> Balance {
        let mut balance = self.since(self.ended(counters));
        for _ in 1..ATTEMPTS {
            let ended = self.ended(counters);
            if ended.total_ended() == balance.total_ended() {
                break;
            }
            balance = self.since(ended);
        }
        if is_ended {
            // A caller that comes too late has registered a timeout, and is about to withdraw it.
            balance.pending = 0;
            balance.registered = balance.expired + balance.cancelled;
        }
        balance
    }

    /// [`balance`](Self::balance), and the number of ended timeouts whose entries the worker has
    /// not removed yet.
    pub(crate) fn balance_and_unreclaimed(
        &self,
        counters: &Counters,
        is_ended: bool,
    ) -> (Balance, u64) {
        let worker = &counters.worker;
        // Read before the balance: what is taken in meanwhile counts as queued, and as pending.
        let (taken, in_wheel_or_expired) = (worker.taken.get(), worker.in_wheel_or_expired.get());
        let balance = self.balance(counters, is_ended);
        let in_wheel = in_wheel_or_expired.saturating_sub(worker.expired.get());
        let queued = (balance.registered + balance.withdrawn).saturating_sub(taken);
        let entries = if is_ended { 0 } else { in_wheel + queued };
        let unreclaimed = entries.saturating_sub(balance.pending);
        (balance, unreclaimed)
    }

    /// The timeouts that had not ended at one moment in this call, and some of those that were
    /// registered and ended in it. Zero means that none was pending at that moment.
    pub(super) fn at_most(&self, counters: &Counters) -> u64 {
        self.since(self.ended(counters)).pending
    }

    /// Adds to the ends, which were read before, the registrations and what is pending.
    fn since(&self, ended: Balance) -> Balance {
        let registered = self.ever_registered() - ended.withdrawn;
        Balance {
            registered,
            pending: registered - ended.expired - ended.cancelled,
            ..ended
        }
    }

    /// The ends, without what is pending.
    fn ended(&self, counters: &Counters) -> Balance {
        let of = |count: &AtomicU64| count.load(Ordering::Acquire);
        let mut ended = Balance {
            expired: counters.worker.expired.get() + counters.ended_on_executor.get(),
            cancelled: of(&self.stopped),
            ..Balance::default()
        };
        for counts in self.all() {
            ended.cancelled += of(&counts.cancelled);
            ended.withdrawn += of(&counts.withdrawn);
        }
        ended
    }
}

impl Balance {
    fn total_ended(&self) -> u64 {
        self.expired + self.cancelled + self.withdrawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::{Driven, TICK};
    use crate::sync::thread;

    #[test]
    fn the_counts_of_all_threads_add_up() {
        let (pending, counters) = (PendingCounts::new(None), Counters::default());
        for (registered, cancelled, withdrawn) in [(6, 2, 1), (9, 3, 4)] {
            let mut counts = pending.take();
            (0..registered).for_each(|_| counts.register());
            (0..cancelled).for_each(|_| counts.cancel(1));
            (0..withdrawn).for_each(|_| counts.withdraw());
        }
        (0..2).for_each(|_| pending.count_stopped());
        counters.worker.expired.set_single_writer(1);
        let balance = pending.balance(&counters, false);
        assert_eq!((balance.registered, balance.withdrawn), (10, 5));
        assert_eq!(
            (balance.expired, balance.cancelled, balance.pending),
            (1, 7, 2)
        );
        assert_eq!(balance.total_ended(), 1 + 7 + 5);
        assert_eq!(pending.at_most(&counters), 2);
    }

    #[test]
    fn a_thread_goes_on_with_the_counts_of_one_that_has_ended() {
        let t = Driven::new();
        let timer = &t.timer;
        for _ in 0..3 {
            thread::scope(|scope| {
                scope
                    .spawn(|| _ = timer.new_timeout(|_| (), TICK))
                    .join()
                    .unwrap();
            });
        }
        assert_eq!(t.inner().pending_counts.all().count(), 1);
        assert_eq!(timer.pending_timeouts(), 3);
    }

    #[test]
    fn messages_of_withdrawn_timeouts_are_unreclaimed() {
        let t = Driven::new();
        let mut counts = t.inner().pending_counts.take();
        (0..3).for_each(|_| counts.register());
        (0..2).for_each(|_| counts.withdraw());
        let inner = t.inner();
        let (balance, unreclaimed) = inner
            .pending_counts
            .balance_and_unreclaimed(&inner.counters, false);
        assert_eq!((balance.pending, unreclaimed), (1, 2));
        counts.withdraw();
    }

    #[test]
    fn the_largest_limit_can_be_full() {
        let limit = Limit {
            most: u64::MAX,
            taken: CachePadded::new(AtomicU64::new(u64::MAX - 1)),
        };
        assert!(limit.take());
        assert!(!limit.take());
        limit.release(1);
        assert!(limit.take());
    }

    /// Each of them has the next one.
    #[test]
    fn any_number_of_counts_can_be_dropped() {
        let mut first = Listed::default();
        for _ in 0..if cfg!(miri) { 1_000 } else { 100_000 } {
            let counts = Listed::default();
            assert!(counts.next.set(first).is_ok());
            first = counts;
        }
        drop(first);
    }
}
