//! A lock on Redis that several processes share: the part to copy.
//!
//! Redis keeps a lock for the length of a *lease*. As long as its holder lives, a watchdog renews the lease each time a third of
//! it is over; when the holder dies, nobody does, and the lock falls free. Redisson, the Redis client for Java, made this
//! known, with Netty's wheel as the watchdog's clock.
//!
//! - **Who renews.** One periodic task on the wheel for each lock that is held, from its first [`Guard`] to its last. It only
//!   says that the lock is due; a thread of the [`LockManager`] takes all that are due together and asks Redis once for up to
//!   256 of them. The wheel's worker never waits for Redis. What falls into one tick comes together, so a coarse tick
//!   makes large batches.
//! - **When that ends.** With the last `Guard`; when Redis says that the lock is somebody else's, or nobody's; when the
//!   lease is over by this process's own clock. A renewal never starts another one: whatever races with an unlock, there is
//!   one task a lock, and who unlocks cancels it.
//! - **Who owns.** A [`RedisLock`]: who has it may enter again, and leaves as often. (In Java that is a thread. Here a
//!   `RedisLock` is not `Sync`, so one thread at a time it is.) Once it has left, it enters under a name that was never used
//!   before, so nothing that was late on its way can touch what came after it.
//! - **Who waits** asks again, after 2 ms at first and 50 ms in the end, or when the holder's lease is over. There is no queue:
//!   who asks first gets it.
//!
//! # What it promises
//!
//! That the lock is handed to one at a time, as long as Redis keeps its data and its clock goes evenly. Not that the holder
//! knows at each moment whether it still is the holder. Where a process stands still for longer than the lease (a page that
//! comes from disk, a virtual machine that is moved, a stopped process), the lock has gone to somebody else when it goes on,
//! in the middle of whatever it was doing. [`Guard::check`] finds out, before a step; no check can find out during one. (Nor
//! where the whole machine was asleep: on Linux an `Instant` does not count that.)
//!
//! So what must not be harmed has to look for itself. Each time the lock is taken, there is a *fencing token*, greater than all
//! before it. Send it with each access; what is guarded refuses a token less than the greatest it has seen. Where it cannot do
//! that, the lock saves work that would be done twice now and then, and does not make it impossible.
//!
//! One Redis is one Redis. Where a replica takes over, what was not copied is forgotten, locks among it, and so is all after a
//! restart without `appendonly`: then somebody else may have the lock before its holder is told. To ask several servers at
//! once (Redlock) is against that, and not against what is said above; it needs the tokens too. The argument is in Martin
//! Kleppmann's "How to do distributed locking" and Salvatore Sanfilippo's "Is Redlock safe?".
//!
//! Tried with Redis 7.0. On Redis Cluster a batch would have to be one for each slot.

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

/// Takes a lock that is free, or takes it again for its owner. As with Redisson it is a hash with one field, the owner, which
/// says how often it has entered. That is set and not added to: a call that is made twice, for its answer was lost, counts once.
///
/// KEYS: the lock, its last token. ARGV: the owner, how often it has entered now, the lease in milliseconds.
/// Returns the token; or a token of 0, and what is left of somebody else's lease (-2: the owner has lost it, and nobody has it).
///
/// Tokens are the server's clock in microseconds, or one more than the last where that is behind: so they grow even if Redis
/// has lost its data. (Numbers in Lua have 53 bits: 285 years of microseconds, since 1970.) The last one is forgotten after a
/// day; who enters again then knows its own.
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

/// Renews many leases. `pcall`: a key of which somebody has made something else is lost, and takes no other with it.
///
/// KEYS: the locks. ARGV: the lease in milliseconds, then the owner of each lock. Returns 1 for each that is still its owner's.
const RENEW: &str = r"
    local renewed = {}
    for i, lock in ipairs(KEYS) do
        local is_owner = redis.pcall('hexists', lock, ARGV[i + 1]) == 1
        if is_owner then redis.call('pexpire', lock, ARGV[1]) end
        renewed[i] = is_owner and 1 or 0
    end
    return renewed
";

/// Leaves once, and gives the lock back where that was the last time.
///
/// KEYS: the lock. ARGV: the owner, how often it is still in, the lease in milliseconds. Returns 0 if it is not the owner.
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

/// So many leases are renewed at a time: Redis does nothing else meanwhile.
const BATCH: usize = 256;

/// How long who waits waits before it asks again: at first, and in the end.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Under what a lock is in Redis. (On a cluster, its last token is in the same slot.)
pub(crate) fn key(name: &str) -> String {
    format!("lock:{{{name}}}")
}

/// Why there is no lock, or no more.
#[derive(Debug)]
pub(crate) enum LockError {
    /// Redis could not be asked. Whether it has done what it was asked to is not known; a lock that it has given out so, or has
    /// not taken back, falls free after a lease. This comes also of a connection that Redis has closed because it was idle
    /// (its option `timeout`, which is off unless it is set); the next call makes a new one.
    Redis(RedisError),
    /// Somebody else has the lock, or may have.
    Lost(Lost),
    /// The timer does not take the renewal: it is stopped, or full. The lock was given back.
    Timer(NewTimeoutError),
}

/// How a lock was lost.
#[derive(Debug, Clone)]
pub(crate) enum Lost {
    /// The lease was over before it was renewed. If Redis was asked in vain, this is what came of it.
    RanOut(Option<String>),
    /// Redis had it no more for this owner before the lease was over: it has lost its data, or somebody has deleted the lock.
    Gone,
}

impl fmt::Display for LockError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Redis(error) if error.is_timeout() => f.write_str("Redis does not answer"),
            Self::Redis(error) => write!(f, "Redis could not be asked: {error}"),
            Self::Lost(Lost::RanOut(None)) => {
                f.write_str("the lock is lost: its lease was over before it was renewed")
            }
            Self::Lost(Lost::RanOut(Some(error))) => {
                write!(f, "the lock is lost: its lease could not be renewed: {error}")
            }
            Self::Lost(Lost::Gone) => {
                f.write_str("the lock is lost: Redis has it for somebody else, or for nobody")
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

/// Locks on one Redis, and the thread that renews their leases.
pub(crate) struct LockManager {
    shared: Arc<Shared>,
}

struct Shared {
    redis: Arc<Redis>,
    timer: HashedWheelTimer,
    lock: Script,
    unlock: Script,
    due: Sender<Arc<Hold>>,
    /// Nobody else's.
    name: String,
    owners: AtomicU64,
}

impl LockManager {
    /// Connects when the first lock is asked for. A call waits at most a third of the lease for each answer of Redis, and as long
    /// again for a new connection. As a rule there is one answer; where Redis does not know the script yet there are three.
    /// The lease is of whole milliseconds; what is beyond is cut off.
    ///
    /// # Errors
    ///
    /// If the URL is none, or there is no thread to be had.
    ///
    /// # Panics
    ///
    /// If the lease is less than 100 ms or more than a day.
    pub(crate) fn new(
        url: impl IntoConnectionInfo,
        lease: Duration,
        timer: &HashedWheelTimer,
    ) -> Result<Self, LockError> {
        let can_be = Duration::from_millis(100)..=Duration::from_secs(86_400);
        assert!(can_be.contains(&lease), "a lease of {lease:?}");
        // As Redis counts it: nobody here is to think that it is longer.
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

    /// The lock of this name, for one more owner.
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

/// A lock, and an owner of it. See [`LockManager::get`].
pub(crate) struct RedisLock {
    shared: Arc<Shared>,
    key: Arc<str>,
    token_key: String,
    /// A new one once the lock has been given back.
    owner: RefCell<Arc<str>>,
    entered: Cell<u32>,
    /// As long as it has entered.
    hold: RefCell<Option<Arc<Hold>>>,
}

/// What came of asking once.
enum Asked<'a> {
    Entered(Guard<'a>),
    /// Somebody else has it, and keeps it for so long unless it is renewed.
    Busy(Duration),
}

impl RedisLock {
    /// Takes the lock, or waits for it for so long. `None` if somebody else had it all the time. Enters again where it is held
    /// already.
    ///
    /// # Errors
    ///
    /// [`Redis`](LockError::Redis), at once: to try again is the caller's decision. [`Lost`](LockError::Lost), where it was to
    /// enter again. [`Timer`](LockError::Timer).
    pub(crate) fn try_lock_for(&self, wait: Duration) -> Result<Option<Guard<'_>>, LockError> {
        let (begin, [mut pause, longest]) = (Instant::now(), PAUSES);
        loop {
            let busy = match self.ask()? {
                Asked::Entered(guard) => return Ok(Some(guard)),
                Asked::Busy(busy) => busy,
            };
            let rest = wait.saturating_sub(begin.elapsed());
            if rest.is_zero() {
                return Ok(None);
            }
            thread::sleep(pause.min(busy).min(rest));
            pause = longest.min(pause * 2);
        }
    }

    /// As [`try_lock_for`](Self::try_lock_for), without waiting.
    pub(crate) fn try_lock(&self) -> Result<Option<Guard<'_>>, LockError> {
        self.try_lock_for(Duration::ZERO)
    }

    fn ask(&self) -> Result<Asked<'_>, LockError> {
        let Shared { redis, lock, .. } = &*self.shared;
        let hold = self.hold.borrow().clone();
        if let Some(hold) = &hold {
            hold.check()?;
        }
        let (owner, entered, asked) = (self.owner.borrow().clone(), self.entered.get() + 1, Instant::now());
        let (token, left): (u64, i64) = redis.ask(|connection| {
            let mut lock = lock.key(&*self.key);
            lock.key(&self.token_key).arg(&*owner).arg(entered).arg(redis.lease_ms()).invoke(connection)
        })?;
        match hold {
            None if token == 0 => {
                // Negative: it is not ours, and has no end.
                let left = u64::try_from(left).map_or(Duration::MAX, |left| Duration::from_millis(left + 1));
                return Ok(Asked::Busy(left));
            }
            None => self.begin(Hold::new(&self.key, owner, token, asked + redis.lease))?,
            Some(hold) if token == 0 => return Err(hold.lose()),
            Some(hold) => hold.renewed(asked + redis.lease),
        }
        self.entered.set(entered);
        Ok(Asked::Entered(Guard { lock: self }))
    }

    /// From here on it is renewed.
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
                // If that fails, the lease is not renewed, and will be over.
                let _ = self.tell_left(0);
                Err(LockError::Timer(error))
            }
        }
    }

    /// Leaves once.
    fn leave(&self) -> Result<(), LockError> {
        let hold = self.hold.borrow().clone().expect("it has entered");
        self.entered.set(self.entered.get() - 1);
        if self.entered.get() == 0 {
            // First of all: whatever becomes of the rest, there is no renewal any more, and the lock falls free.
            hold.end();
            self.hold.replace(None);
        }
        if self.tell_left(self.entered.get())? { Ok(()) } else { Err(hold.lose()) }
    }

    /// Says whether Redis had it as the owner's.
    fn tell_left(&self, entered: u32) -> RedisResult<bool> {
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

/// A guard that was forgotten is not renewed for ever.
impl Drop for RedisLock {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.get_mut() {
            hold.end();
        }
    }
}

/// The lock is held until this is dropped, or lost; and again as often as there are guards of one [`RedisLock`].
///
/// To drop it is to [`unlock`](Self::unlock) it where nobody wants to know what came of that. Either way Redis is asked, and waited
/// for.
#[must_use = "the lock is given back when this is dropped"]
pub(crate) struct Guard<'a> {
    lock: &'a RedisLock,
}

impl Guard<'_> {
    /// The fencing token: greater than that of all who had the lock before.
    pub(crate) fn token(&self) -> u64 {
        self.hold().token
    }

    /// Whether the lock was held until now, as far as is known here: the lease is not over, and Redis has not said otherwise.
    /// Asks nobody, so it costs nothing: once before each step that would do harm.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost); from then on for good.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        self.hold().check()
    }

    /// Leaves; the last guard gives the lock back. Then there is no renewal any more, whatever this says, so at worst the lock
    /// falls free when the lease is over.
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost), if it was not held to the end: Redis had it no more, or for somebody else, who keeps it.
    /// [`Redis`](LockError::Redis).
    pub(crate) fn unlock(self) -> Result<(), LockError> {
        let left = self.lock.leave();
        mem::forget(self);
        left
    }

    fn hold(&self) -> Arc<Hold> {
        self.lock.hold.borrow().clone().expect("it has entered")
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        let _ = self.lock.leave();
    }
}

/// From entering to leaving.
struct Hold {
    key: Arc<str>,
    owner: Arc<str>,
    token: u64,
    /// Set at once, before the first renewal is due.
    renewal: OnceLock<Periodic>,
    /// Whether it waits for the renewer: where that one is slow, it need not wait there twice.
    is_due: AtomicBool,
    lease: Mutex<Lease>,
}

struct Lease {
    /// Counted from when Redis was asked; Redis counts from when it answered, and so a little longer.
    until: Instant,
    /// Why the last renewal failed.
    trouble: Option<String>,
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
            lease: Mutex::new(Lease { until, trouble: None, lost: None }),
        })
    }

    /// On the timer's worker.
    fn is_due(self: &Arc<Self>, due: &Sender<Arc<Self>>) {
        if !self.is_due.swap(true, Relaxed) {
            // The renewer goes with the last of those who could send.
            let _ = due.send(Arc::clone(self));
        }
    }

    fn renewed(&self, until: Instant) {
        let mut lease = locked(&self.lease);
        lease.until = until;
        lease.trouble = None;
    }

    /// Redis could not be asked. After another third of the lease it is asked again, unless that is over.
    fn failed(&self, trouble: &str) {
        locked(&self.lease).trouble = Some(trouble.to_owned());
        self.judge(false);
    }

    /// Whether the lease is not over, and it was not lost before.
    fn check(&self) -> Result<(), LockError> {
        match self.judge(false) {
            None => Ok(()),
            Some(how) => Err(LockError::Lost(how)),
        }
    }

    /// Redis says that it is not the owner.
    fn lose(&self) -> LockError {
        LockError::Lost(self.judge(true).expect("it is gone"))
    }

    /// Whether it is lost, which is so for good, and how.
    fn judge(&self, is_gone: bool) -> Option<Lost> {
        let Lease { until, trouble, lost } = &mut *locked(&self.lease);
        let is_over = Instant::now() >= *until;
        if lost.is_none() && (is_over || is_gone) {
            *lost = Some(if is_over { Lost::RanOut(trouble.take()) } else { Lost::Gone });
        }
        if lost.is_some() {
            self.end();
        }
        lost.clone()
    }

    /// There is no more renewal, but for one that is with Redis at this moment.
    fn end(&self) {
        if let Some(renewal) = self.renewal.get() {
            renewal.cancel();
        }
    }

    /// On the renewer, which takes it up.
    fn is_still_due(&self) -> bool {
        self.is_due.store(false, Relaxed);
        !self.renewal.get().is_some_and(Periodic::is_cancelled)
    }
}

/// A thread of its own, until there is neither a manager nor a lock of it.
fn renew(redis: &Redis, due: &Receiver<Arc<Hold>>) {
    let renew = Script::new(RENEW);
    while let Ok(first) = due.recv() {
        let batch = iter::once(first).chain(due.try_iter()).take(BATCH);
        let batch: Vec<_> = batch.filter(|hold| hold.is_still_due()).collect();
        if batch.is_empty() {
            continue;
        }
        let mut script = renew.arg(redis.lease_ms());
        for hold in &batch {
            script.key(&*hold.key).arg(&*hold.owner);
        }
        let asked = Instant::now();
        match redis.ask(|connection| script.invoke::<Vec<bool>>(connection)) {
            Ok(answers) => iter::zip(&batch, answers).for_each(|(hold, is_owner)| match is_owner {
                true => hold.renewed(asked + redis.lease),
                false => drop(hold.lose()),
            }),
            Err(error) => {
                let trouble = LockError::from(error).to_string();
                batch.iter().for_each(|hold| hold.failed(&trouble));
            }
        }
    }
}

/// As many connections as there are calls at a time.
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
            // The others have probably come to the same end.
            Err(_) => idle.clear(),
        }
        answer
    }

    fn connect(&self) -> RedisResult<Connection> {
        let patience = self.lease / 3;
        let connection = self.client.get_connection_with_timeout(patience)?;
        connection.set_read_timeout(Some(patience))?;
        connection.set_write_timeout(Some(patience))?;
        Ok(connection)
    }

    fn lease_ms(&self) -> u64 {
        self.lease.as_millis() as u64
    }
}

/// No lock is held while something may panic.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
