//! A lock on Redis that several processes share. This is the part to copy.
//!
//! Redis keeps a lock for the duration of a *lease*. While its holder lives, a watchdog renews the
//! lease after each third of it. If the holder dies, the lease ends and the lock becomes free.
//! Redisson, the Redis client for Java, made this scheme popular. Its watchdog uses Netty's wheel.
//!
//! - **Renewal.** Each held lock has one periodic task on the wheel, from its first [`Guard`] to
//!   its last. The task only reports that the lock is due. A thread of the [`LockManager`] collects
//!   all locks that are due and renews up to 256 of them with one call to Redis. The worker of the
//!   wheel never waits for Redis. Locks that are due in the same tick form one batch, so a coarse
//!   tick makes large batches.
//! - **End of the renewal.** It ends with the last `Guard`; when Redis reports that the lock is
//!   free or has another owner; or when the lease has ended by this process's own clock. A renewal
//!   never starts another renewal. Therefore a race with an unlock is harmless: there is one task
//!   per lock, and the unlock cancels it.
//! - **Ownership.** The owner is a [`RedisLock`]. It may take its lock again, and must release it
//!   equally often. (In Java the owner is a thread. Here a `RedisLock` is not `Sync`, so it belongs
//!   to one thread at a time.) After the last release it gets a new owner name that was never used
//!   before. Therefore delayed calls cannot affect a later hold.
//! - **Waiting.** A waiting caller tries again, after 2 ms at first and after up to 50 ms later, or
//!   when the lease of the holder ends. There is no queue: the first caller that tries gets the
//!   lock.
//!
//! # Guarantees
//!
//! Only one owner at a time gets the lock, as long as Redis keeps its data and its clock runs
//! evenly. It is not guaranteed that the holder always knows whether it still holds the lock. A
//! process may stall for longer than the lease: a page fault, a migrated virtual machine, a stopped
//! process. When it continues, in the middle of its work, the lock has another owner.
//! [`Guard::check`] detects that before a step. No check can detect it during a step, or after a
//! suspend of the whole machine: on Linux an `Instant` does not count that time.
//!
//! So a protected resource has to check for itself. Each acquisition returns a *fencing token* that
//! is greater than all earlier ones. Send it with each access. The resource rejects a token that is
//! less than the greatest one it has seen. If a resource cannot do that, the lock only makes
//! duplicate work rare. It does not make it impossible.
//!
//! A single Redis server has limits. If a replica takes over, everything that was not replicated is
//! lost, including locks. The same holds after a restart without `appendonly`. Then another process
//! may get the lock before its holder is told. The Redlock algorithm, which uses several servers,
//! solves that problem but not the ones above: it needs the tokens too. The discussion is in Martin
//! Kleppmann's "How to do distributed locking" and Salvatore Sanfilippo's "Is Redlock safe?".
//!
//! Tested with Redis 7.0. On Redis Cluster, a batch may contain only the locks of one slot.

use std::cell::{Cell, RefCell};
use std::error::Error;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::iter;
use std::mem;
use std::process;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Periodic};
use redis::{Client, Connection, IntoConnectionInfo, RedisError, RedisResult, Script};

/// Takes a free lock, or takes it again for its owner. Like in Redisson, the lock is a hash with
/// one field: the owner and how often it holds the lock. The script sets that number instead of
/// incrementing it. Therefore a call that is repeated after a lost answer counts once.
///
/// KEYS: the lock, its last token. ARGV: the owner, how often it holds the lock now, the lease in
/// milliseconds. Returns the token. Or it returns a token of 0 and the rest of another owner's
/// lease (-2: the owner has lost the lock, and it is free).
///
/// A token is the server's clock in microseconds, or the last token plus one if the clock is
/// behind. Therefore tokens increase even if Redis has lost its data. (Numbers in Lua have 53 bits:
/// 285 years of microseconds since 1970.) The last token expires after a day. An owner that takes
/// its lock again knows its own token.
const LOCK: &str = r"
    if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then
        if redis.call('exists', KEYS[1]) == 1 or ARGV[2] ~= '1' then
            return {0, redis.call('pttl', KEYS[1])}
        end
        local now = redis.call('time')
        local token = math.max(now[1] * 1000000 + now[2], (redis.call('get', KEYS[2]) or 0) + 1)
        redis.call('set', KEYS[2], string.format('%.0f', token), 'ex', 86400)
    end
    redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
    redis.call('pexpire', KEYS[1], ARGV[3])
    return {tonumber(redis.call('get', KEYS[2]) or 1), 0}
";

/// Renews several leases. It uses `pcall`: a key whose type another client has changed counts as
/// lost and does not affect the others.
///
/// KEYS: the locks. ARGV: the lease in milliseconds, then the owner of each lock. Returns 1 for
/// each lock that still has its owner.
const RENEW: &str = r"
    local renewed = {}
    for i, lock in ipairs(KEYS) do
        local is_owner = redis.pcall('hexists', lock, ARGV[i + 1]) == 1
        if is_owner then redis.call('pexpire', lock, ARGV[1]) end
        renewed[i] = is_owner and 1 or 0
    end
    return renewed
";

/// Releases the lock once, and deletes it if that was the last time.
///
/// KEYS: the lock. ARGV: the owner, how often it still holds the lock, the lease in milliseconds.
/// Returns 0 if the caller is not the owner.
const UNLOCK: &str = r"
    if redis.call('hexists', KEYS[1], ARGV[1]) == 0 then return 0 end
    if ARGV[2] == '0' then
        redis.call('del', KEYS[1])
    else
        redis.call('hset', KEYS[1], ARGV[1], ARGV[2])
        redis.call('pexpire', KEYS[1], ARGV[3])
    end
    return 1
";

/// The maximum number of leases per call. Redis processes nothing else during a call.
const BATCH: usize = 256;

/// The pause of a waiting caller before it tries again: at first, and at most.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Returns the key of a lock in Redis. (On a cluster, its last token is in the same slot.)
pub(crate) fn key(name: &str) -> String {
    format!("lock:{{{name}}}")
}

/// Why there is no lock, or why it was lost.
#[derive(Debug)]
pub(crate) enum LockError {
    /// The call to Redis failed. It is unknown whether Redis has executed it. If so, a lock that it
    /// has granted, or has not released, becomes free after a lease. This error also occurs if
    /// Redis has closed an idle connection (option `timeout`, off by default). The next call opens
    /// a new connection.
    Redis(RedisError),
    /// Another owner has the lock, or may have it.
    Lost(Lost),
    /// The timer rejects the renewal: it is stopped, or its limit is reached. The lock was
    /// released.
    Timer(NewTimeoutError),
}

/// How a lock was lost.
#[derive(Debug, Clone)]
pub(crate) enum Lost {
    /// The lease ended before it was renewed. Contains the error if the call to Redis failed.
    RanOut(Option<String>),
    /// Redis reported another owner, or none, before the lease ended: it has lost its data, or
    /// another client has deleted the lock.
    Gone,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) if error.is_timeout() => f.write_str("Redis does not answer"),
            Self::Redis(error) => write!(f, "the call to Redis failed: {error}"),
            Self::Lost(Lost::RanOut(None)) => {
                f.write_str("the lock is lost: its lease ended before it was renewed")
            }
            Self::Lost(Lost::RanOut(Some(error))) => {
                write!(f, "the lock is lost: its lease could not be renewed: {error}")
            }
            Self::Lost(Lost::Gone) => {
                f.write_str("the lock is lost: Redis has another owner for it, or none")
            }
            Self::Timer(error) => write!(f, "the lock cannot be kept: {error}"),
        }
    }
}

impl Error for LockError {}

impl From<RedisError> for LockError {
    fn from(error: RedisError) -> Self {
        Self::Redis(error)
    }
}

/// The locks on one Redis server, and the thread that renews their leases.
pub(crate) struct LockManager {
    shared: Arc<Shared>,
}

struct Shared {
    redis: Arc<Redis>,
    timer: HashedWheelTimer,
    lock: Script,
    unlock: Script,
    due: Sender<Arc<Hold>>,
    /// Unique to this manager.
    name: String,
    owners: AtomicU64,
}

impl LockManager {
    /// Creates a manager. It connects when the first lock is requested. A call waits for at most a
    /// third of the lease for each answer of Redis, and for the same time for a new connection.
    /// Usually there is one answer. If Redis does not know the script yet, there are three. The
    /// lease is truncated to milliseconds.
    ///
    /// # Errors
    ///
    /// If the URL is invalid, or the thread cannot be started.
    ///
    /// # Panics
    ///
    /// If the lease is less than 100 ms or more than a day.
    pub(crate) fn new(
        url: impl IntoConnectionInfo,
        lease: Duration,
        timer: &HashedWheelTimer,
    ) -> Result<Self, LockError> {
        let permitted = Duration::from_millis(100)..=Duration::from_secs(86_400);
        assert!(permitted.contains(&lease), "a lease of {lease:?}");
        // Truncated like in Redis, so that this process never assumes a longer lease.
        let lease = Duration::from_millis(lease.as_millis() as u64);
        let redis = Arc::new(Redis { client: Client::open(url)?, lease, idle: Mutex::default() });
        let (due, take) = mpsc::channel();
        let renewer = Arc::clone(&redis);
        thread::Builder::new()
            .name("lock-renewer".into())
            .spawn(move || renew(&renewer, &take))
            .map_err(RedisError::from)?;
        let random = RandomState::new().build_hasher().finish();
        Ok(Self {
            shared: Arc::new(Shared {
                redis,
                timer: timer.clone(),
                lock: Script::new(LOCK),
                unlock: Script::new(UNLOCK),
                due,
                name: format!("{}:{random:016x}", process::id()),
                owners: AtomicU64::new(0),
            }),
        })
    }

    /// Returns the lock with this name and a new owner.
    pub(crate) fn get(&self, name: &str) -> RedisLock {
        let key = key(name);
        RedisLock {
            token_key: format!("{key}:token"),
            key: key.into(),
            owner: RefCell::new(self.shared.new_owner()),
            shared: Arc::clone(&self.shared),
            entered: Cell::new(0),
            hold: RefCell::new(None),
        }
    }
}

impl Shared {
    fn new_owner(&self) -> Arc<str> {
        format!("{}:{}", self.name, self.owners.fetch_add(1, Relaxed)).into()
    }
}

/// A lock and an owner of it. See [`LockManager::get`].
pub(crate) struct RedisLock {
    shared: Arc<Shared>,
    key: Arc<str>,
    token_key: String,
    /// Replaced by a new name after the lock has been released.
    owner: RefCell<Arc<str>>,
    entered: Cell<u32>,
    /// `Some` while the lock is held.
    hold: RefCell<Option<Arc<Hold>>>,
}

/// The result of one attempt.
enum Attempt<'a> {
    Entered(Guard<'a>),
    /// Another owner has it. Its lease has this rest.
    Busy(Duration),
}

impl RedisLock {
    /// Takes the lock, or waits for it for at most `wait`. Returns `None` if it had another owner
    /// for the whole time. If this owner already holds the lock, it takes it once more.
    ///
    /// # Errors
    ///
    /// [`Redis`](LockError::Redis), immediately: the caller decides whether to try again.
    /// [`Lost`](LockError::Lost), if the owner had lost the lock that it wanted to take again.
    /// [`Timer`](LockError::Timer).
    pub(crate) fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard<'_>>, LockError> {
        let (begin, [mut pause, longest]) = (Instant::now(), PAUSES);
        loop {
            let busy = match self.ask()? {
                Attempt::Entered(guard) => return Ok(Some(guard)),
                Attempt::Busy(busy) => busy,
            };
            let rest = wait.saturating_sub(begin.elapsed());
            if rest.is_zero() {
                return Ok(None);
            }
            thread::sleep(pause.min(busy).min(rest));
            pause = longest.min(pause * 2);
        }
    }

    /// Like [`try_lock_for`](Self::try_lock_for), without waiting.
    pub(crate) fn try_lock(&self) -> Result<Option<Guard<'_>>, LockError> {
        self.try_lock_for(Duration::ZERO)
    }

    fn ask(&self) -> Result<Attempt<'_>, LockError> {
        let Shared { redis, lock, .. } = &*self.shared;
        let hold = self.hold.borrow().clone();
        if let Some(hold) = &hold {
            hold.check()?;
        }
        let (owner, entered, start) = (self.owner.borrow().clone(), self.entered.get() + 1, Instant::now());
        let (token, left): (u64, i64) = redis.ask(|connection| {
            let mut lock = lock.key(&*self.key);
            lock.key(&self.token_key).arg(&*owner).arg(entered).arg(redis.lease_ms()).invoke(connection)
        })?;
        match hold {
            None if token == 0 => {
                // Negative: the key exists, has no expiry and is not a lock of this kind.
                let left = u64::try_from(left).map_or(Duration::MAX, |left| Duration::from_millis(left + 1));
                return Ok(Attempt::Busy(left));
            }
            None => self.begin(Hold::new(&self.key, owner, token, start + redis.lease))?,
            Some(hold) if token == 0 => return Err(hold.lose()),
            Some(hold) => hold.renewed(start + redis.lease),
        }
        self.entered.set(entered);
        Ok(Attempt::Entered(Guard { lock: self }))
    }

    /// Starts the renewal.
    fn begin(&self, hold: Arc<Hold>) -> Result<(), LockError> {
        let Shared { redis, timer, due, .. } = &*self.shared;
        let (third, renewed, due) = (redis.lease / 3, Arc::clone(&hold), due.clone());
        match timer.schedule_with_fixed_delay(move || renewed.is_due(&due), third, third) {
            Ok(renewal) => {
                hold.renewal.get_or_init(|| renewal);
                self.hold.replace(Some(hold));
                Ok(())
            }
            Err(error) => {
                // If that fails, the lease is not renewed and ends.
                let _ = self.unlock_in_redis(0);
                Err(LockError::Timer(error))
            }
        }
    }

    /// Releases the lock once.
    fn release(&self) -> Result<(), LockError> {
        let hold = self.hold.borrow().clone().expect("the lock is held");
        self.entered.set(self.entered.get() - 1);
        if self.entered.get() == 0 {
            // Ends the renewal first. Even if the rest fails, the lock then becomes free.
            hold.end();
            self.hold.replace(None);
        }
        if self.unlock_in_redis(self.entered.get())? { Ok(()) } else { Err(hold.lose()) }
    }

    /// Returns whether Redis had this owner.
    fn unlock_in_redis(&self, entered: u32) -> RedisResult<bool> {
        let Shared { redis, unlock, .. } = &*self.shared;
        let owner = self.owner.borrow().clone();
        if entered == 0 {
            self.owner.replace(self.shared.new_owner());
        }
        redis.ask(|connection| {
            unlock.key(&*self.key).arg(&*owner).arg(entered).arg(redis.lease_ms()).invoke(connection)
        })
    }
}

/// A leaked guard is not renewed forever.
impl Drop for RedisLock {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.get_mut() {
            hold.end();
        }
    }
}

/// Holds the lock until it is dropped or lost. There may be several guards of one [`RedisLock`].
///
/// Dropping it is like [`unlock`](Self::unlock) without the result. Both call Redis and wait for
/// it.
#[must_use = "dropping the guard releases the lock"]
pub(crate) struct Guard<'a> {
    lock: &'a RedisLock,
}

impl Guard<'_> {
    /// Returns the fencing token. It is greater than the tokens of all earlier holders.
    pub(crate) fn token(&self) -> u64 {
        self.hold().token
    }

    /// Checks whether the lock was held until now, as far as this process knows: the lease has not
    /// ended, and Redis has not reported a loss. It does not call Redis, so it is cheap. Call it
    /// before each step that could do harm.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost). All later calls return it too.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.hold().check()
    }

    /// Releases the lock once. The last guard deletes the lock. After that there is no renewal,
    /// whatever this returns. In the worst case the lock becomes free when the lease ends.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost), if the lock was not held to the end: Redis reported another
    /// owner, which keeps the lock, or none. [`Redis`](LockError::Redis).
    pub(crate) fn unlock(self) -> Result<(), LockError> {
        let released = self.lock.release();
        mem::forget(self);
        released
    }

    fn hold(&self) -> Arc<Hold> {
        self.lock.hold.borrow().clone().expect("the lock is held")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = self.lock.release();
    }
}

/// One hold of the lock, from taking it to releasing it.
struct Hold {
    key: Arc<str>,
    owner: Arc<str>,
    token: u64,
    /// Set before the first renewal is due.
    renewal: OnceLock<Periodic>,
    /// Whether the hold is in the queue of the renewal thread. A slow thread need not find it there
    /// twice.
    is_due: AtomicBool,
    lease: Mutex<Lease>,
}

struct Lease {
    /// Counted from before the call to Redis. Redis counts from its answer, so its lease ends a
    /// little later.
    until: Instant,
    /// Why the last renewal failed.
    error_text: Option<String>,
    lost: Option<Lost>,
}

impl Hold {
    fn new(key: &Arc<str>, owner: Arc<str>, token: u64, until: Instant) -> Arc<Self> {
        Arc::new(Self {
            key: Arc::clone(key),
            owner,
            token,
            renewal: OnceLock::new(),
            is_due: AtomicBool::new(false),
            lease: Mutex::new(Lease { until, error_text: None, lost: None }),
        })
    }

    /// Runs on the timer's worker.
    fn is_due(self: &Arc<Self>, due: &Sender<Arc<Self>>) {
        if !self.is_due.swap(true, Relaxed) {
            // This cannot fail: the renewal thread lives as long as any sender.
            let _ = due.send(Arc::clone(self));
        }
    }

    fn renewed(&self, until: Instant) {
        let mut lease = locked(&self.lease);
        lease.until = until;
        lease.error_text = None;
    }

    /// Redis could not be called. The next attempt is after another third of the lease, unless the
    /// lease ends before.
    fn failed(&self, error_text: &str) {
        locked(&self.lease).error_text = Some(error_text.to_owned());
        self.update_loss(false);
    }

    /// Checks that the lease has not ended and the lock was not lost before.
    fn check(&self) -> Result<(), LockError> {
        match self.update_loss(false) {
            None => Ok(()),
            Some(how) => Err(LockError::Lost(how)),
        }
    }

    /// Records that Redis reported another owner.
    fn lose(&self) -> LockError {
        LockError::Lost(self.update_loss(true).expect("the lock is lost"))
    }

    /// Returns whether and how the lock is lost. A loss is permanent.
    fn update_loss(&self, is_gone: bool) -> Option<Lost> {
        let Lease { until, error_text, lost } = &mut *locked(&self.lease);
        let is_over = Instant::now() >= *until;
        if lost.is_none() && (is_over || is_gone) {
            *lost = Some(if is_over { Lost::RanOut(error_text.take()) } else { Lost::Gone });
        }
        if lost.is_some() {
            self.end();
        }
        lost.clone()
    }

    /// Ends the renewals. A renewal that was already sent to Redis may still be executed.
    fn end(&self) {
        if let Some(renewal) = self.renewal.get() {
            renewal.cancel();
        }
    }

    /// Called by the renewal thread when it takes the hold from its queue.
    fn take_due(&self) -> bool {
        self.is_due.store(false, Relaxed);
        !self.renewal.get().is_some_and(Periodic::is_cancelled)
    }
}

/// The renewal thread. It runs until the manager and all of its locks have been dropped.
fn renew(redis: &Redis, due: &Receiver<Arc<Hold>>) {
    let renew = Script::new(RENEW);
    while let Ok(first) = due.recv() {
        let batch = iter::once(first).chain(due.try_iter()).take(BATCH);
        let batch: Vec<_> = batch.filter(|hold| hold.take_due()).collect();
        if batch.is_empty() {
            continue;
        }
        let mut script = renew.arg(redis.lease_ms());
        for hold in &batch {
            script.key(&*hold.key).arg(&*hold.owner);
        }
        let start = Instant::now();
        match redis.ask(|connection| script.invoke::<Vec<bool>>(connection)) {
            Ok(answers) => iter::zip(&batch, answers).for_each(|(hold, is_owner)| match is_owner {
                true => hold.renewed(start + redis.lease),
                false => drop(hold.lose()),
            }),
            Err(error) => {
                let error_text = LockError::from(error).to_string();
                batch.iter().for_each(|hold| hold.failed(&error_text));
            }
        }
    }
}

/// A pool of connections. It has as many connections as there are concurrent calls.
struct Redis {
    client: Client,
    lease: Duration,
    idle: Mutex<Vec<Connection>>,
}

impl Redis {
    fn ask<T>(&self, call: impl FnOnce(&mut Connection) -> RedisResult<T>) -> RedisResult<T> {
        let idle = locked(&self.idle).pop();
        let mut connection = idle.map_or_else(|| self.connect(), Ok)?;
        let answer = call(&mut connection);
        let mut idle = locked(&self.idle);
        match answer {
            Ok(_) => idle.push(connection),
            // The other connections have probably failed too.
            Err(_) => idle.clear(),
        }
        answer
    }

    fn connect(&self) -> RedisResult<Connection> {
        let timeout = self.lease / 3;
        let connection = self.client.get_connection_with_timeout(timeout)?;
        connection.set_read_timeout(Some(timeout))?;
        connection.set_write_timeout(Some(timeout))?;
        Ok(connection)
    }

    fn lease_ms(&self) -> u64 {
        self.lease.as_millis() as u64
    }
}

/// Locks a mutex. It is never poisoned, because nothing panics while it is locked.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
