//! Options of a lock: while it is held, and while callers wait for it.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::error::LockError;
use crate::scripts::Kind;

/// The leases that are permitted.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(86_400);

/// The minimum number of the timer's ticks per lease: one for each renewal and for the end.
const TICKS: u32 = 3;

/// The maximum time of a call to Redis, however long the lease is, so that callers learn of a
/// problem.
const CALL: Duration = Duration::from_secs(10);

/// The polls that are permitted.
const POLLS: RangeInclusive<Duration> = Duration::from_millis(10)..=Duration::from_secs(86_400);

/// The time in which the first waiting caller must take what has become free.
const CLAIM: Duration = Duration::from_millis(500);

/// The options of a lock. All clients of one lock should use the same.
///
/// Times are truncated to milliseconds. A time that is not in its range makes the calls that take
/// the lock fail with [`LockError::Options`].
///
/// # Examples
///
/// ```
/// use redis_lock::LockOptions;
/// use std::time::Duration;
///
/// let options = LockOptions::new().lease(Duration::from_secs(10)).fair(true);
/// # let _ = options;
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LockOptions {
    lease: Duration,
    watchdog: bool,
    max_hold: Option<Duration>,
    fair: bool,
    poll: Duration,
    replicas: u8,
}

impl LockOptions {
    /// Makes the default options: a lease of 30 s with a watchdog, no maximum holding time, not
    /// fair, a poll each 10 s, no waiting for replicas.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// assert_eq!(LockOptions::new(), LockOptions::default());
    /// ```
    pub fn new() -> Self {
        Self {
            lease: Duration::from_secs(30),
            watchdog: true,
            max_hold: None,
            fair: false,
            poll: Duration::from_secs(10),
            replicas: 0,
        }
    }

    /// Sets for how long Redis keeps a lock that is not renewed: from 100 ms to a day. It should be
    /// longer than any stall of the process, because a holder that stalls for longer loses its
    /// lock. A shorter lease frees the lock of a dead holder earlier.
    ///
    /// Locks with the same lease are renewed by common calls, so use few different ones.
    ///
    /// A lease is at least three ticks of the timer, and should be thirty. A call to Redis that is
    /// not answered within a sixth of the lease fails, and always after 10 s.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// # use std::time::Duration;
    /// let options = LockOptions::new().lease(Duration::from_secs(10));
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Sets whether the lease is renewed after each third of it, until the lock is released. If
    /// not, the lock is lost when its lease ends. Entering again begins a new lease in any case.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// # use std::time::Duration;
    /// let options = LockOptions::new().lease(Duration::from_secs(60)).watchdog(false);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn watchdog(mut self, watchdog: bool) -> Self {
        self.watchdog = watchdog;
        self
    }

    /// Sets the maximum time for which the lock is held, from its acquisition. The watchdog renews
    /// no lease beyond it. Then the lock is lost with the reason
    /// [`HeldTooLong`](crate::Loss::HeldTooLong). At least 100 ms.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// # use std::time::Duration;
    /// let options = LockOptions::new().max_hold(Duration::from_secs(600));
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = Some(max_hold);
        self
    }

    /// Sets whether callers get the lock in the order in which they began to wait. If not, a caller
    /// that comes while the lock is free gets it before those that wait, which is faster.
    ///
    /// A waiting caller that is told that the lock is free, and does not take it within 500 ms
    /// because its process has died or stalls, loses its place.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// # use std::time::Duration;
    /// let options = LockOptions::new().fair(true);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn fair(mut self, fair: bool) -> Self {
        self.fair = fair;
        self
    }

    /// Sets after which time a waiting caller tries again, although Redis has sent no message that
    /// the lock is free: from 10 ms to a day. Messages are lost only if the connection that
    /// receives them fails. There is none if Redis deletes the lock, or the lease of the holder
    /// ends. A waiting caller tries at that end in any case.
    ///
    /// Readers wait while a writer is the first of the queue. Therefore a waiting writer of a
    /// [`RwLock`](crate::RwLock) tries after each third of a lease, if that is less.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// # use std::time::Duration;
    /// let options = LockOptions::new().poll(Duration::from_secs(2));
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn poll(mut self, poll: Duration) -> Self {
        self.poll = poll;
        self
    }

    /// Sets how many replicas must have the lock before it counts as taken, with the command `WAIT`
    /// of Redis. The default is 0: it counts as taken when the master has it. On a cluster, these
    /// are replicas of the node that has the lock.
    ///
    /// If fewer replicas acknowledge it within 1 s, or a twelfth of the lease if that is less, the
    /// lock is released, and the call fails with [`LockError::Replicas`]. Until it is released,
    /// other callers find it held. Entering again does not wait for replicas.
    ///
    /// The option makes a lost lock less likely if the master fails. If one of the replicas that
    /// have it takes over, the lock is still held for the rest of its lease by the clock of that
    /// replica, and tokens still increase. It does not promise more than that:
    ///
    /// - Another replica may take over, which does not have the lock. Demand all replicas to
    ///   exclude that; then no lock can be taken while one of them is down.
    /// - The master may be cut off from the others, and not know yet that a replica has taken over.
    ///   For that time, both grant the lock. `min-replicas-to-write` limits it, from Redis 7.0 on.
    /// - Renewals and releases are not waited for. A replica without the last renewal ends the
    ///   lease earlier, by a third of it per renewal. The holder is told at its next renewal.
    /// - Replicas have it in memory: if all servers restart, it may be lost.
    ///
    /// So the resource still has to check [tokens](crate::Guard::token). The price is one more
    /// round trip per acquisition, and the replication. `WAIT` has connections of its own, so other
    /// calls do not wait for it.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_lock::LockOptions;
    /// let options = LockOptions::new().replicas(1);
    /// # let _ = options;
    /// ```
    #[must_use]
    pub fn replicas(mut self, replicas: u8) -> Self {
        self.replicas = replicas;
        self
    }

    /// Checks that all times are in their ranges. `tick` is the duration of the timer's ticks.
    pub(crate) fn check(&self, tick: Duration) -> Result<(), LockError> {
        let Self {
            lease,
            max_hold,
            poll,
            ..
        } = self;
        let why = if !LEASES.contains(lease) {
            format!("a lease of {lease:?} is not between 100ms and a day")
        } else if *lease / TICKS < tick {
            format!(
                "a lease of {lease:?} is less than {TICKS} ticks of the timer, which are {tick:?} each"
            )
        } else if !POLLS.contains(poll) {
            format!("a poll of {poll:?} is not between 10ms and a day")
        } else if max_hold.is_some_and(|max_hold| max_hold < *LEASES.start()) {
            "a maximum holding time of less than 100ms".to_owned()
        } else {
            return Ok(());
        };
        Err(LockError::Options(why))
    }

    /// Returns the lease in whole milliseconds, so that this process never assumes a longer lease
    /// than Redis.
    pub(crate) fn lease_time(&self) -> Duration {
        Duration::from_millis(self.lease.as_millis() as u64)
    }

    pub(crate) fn has_watchdog(&self) -> bool {
        self.watchdog
    }

    pub(crate) fn max_hold_time(&self) -> Option<Duration> {
        self.max_hold
    }

    pub(crate) fn is_fair(&self) -> bool {
        self.fair
    }

    /// Returns after which time a waiting owner of this kind tries again. Readers wait for a writer
    /// in the queue, so a writer tries often enough to keep its place for one lease.
    pub(crate) fn poll_time(&self, kind: Kind) -> Duration {
        if kind == Kind::Write {
            self.poll.min(self.lease / 3)
        } else {
            self.poll
        }
    }

    pub(crate) fn replica_count(&self) -> u8 {
        self.replicas
    }

    /// Returns how long a call to Redis may take.
    pub(crate) fn call_timeout(&self) -> Duration {
        (self.lease / 6).min(CALL)
    }

    /// Returns for how long the queue keeps a waiting owner of this kind that does not try again.
    pub(crate) fn keep_ms(&self, kind: Kind) -> u64 {
        let polls = if kind == Kind::Write {
            Duration::ZERO
        } else {
            self.poll * 2
        };
        (polls + self.lease).as_millis() as u64
    }

    /// Returns how long the first of the queue has time to take what has become free.
    pub(crate) fn claim(&self) -> Duration {
        CLAIM
    }
}

impl Default for LockOptions {
    fn default() -> Self {
        Self::new()
    }
}
