//! Locks, read-write locks and semaphores on Redis: with a watchdog that renews leases, fencing
//! tokens, re-entry, an optional fair queue, and a holder that is told when it has lost the lock.
//!
//! Redis keeps a lock for the duration of a *lease*. While its holder lives, a watchdog renews the
//! lease after each third of it. If the holder dies, the lease ends and the lock becomes free.
//! Redisson, the Redis client for Java, made this scheme popular.
//!
//! # Use
//!
//! ```no_run
//! use redis_lock::{LockClient, LockOptions, redis};
//! use std::time::Duration;
//!
//! # async fn pay(invoice: u64, token: u64) {}
//! #[tokio::main]
//! async fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let locks = LockClient::new(redis::Client::open("redis://127.0.0.1/")?)?;
//!
//!     let mut lock = locks.lock_with("invoices", LockOptions::new().lease(Duration::from_secs(10)));
//!     let Some(guard) = lock.lock_timeout(Duration::from_secs(3)).await? else {
//!         return Err("another process pays the invoices".into());
//!     };
//!     // If the lock is lost, the work is cancelled, and this returns an error.
//!     guard.run(async |guard| pay(7, guard.token()).await).await?;
//!     Ok(())
//! }
//! ```
//!
//! - A [`LockClient`] has the connections. A [`Lock`] is a name and an owner. A [`Guard`] holds it.
//! - A [`LockClientBuilder`] makes a client with another timer than that of the process, or a
//!   prefix of the keys.
//! - A [`RwLock`] is a name with owners that read or write. A [`Semaphore`] is a name and a number
//!   of permits. Both give the same guards.
//! - A [`MultiLock`] takes several locks as one, and its [`MultiGuard`] holds them. The example
//!   `leader_election` shows how processes choose a leader.
//! - [`LockOptions`] are the lease, the watchdog, the maximum holding time, the queue and the poll.
//! - [`LockClient::with_lock`], [`Lock::with_lock`] and [`Guard::run`] cancel the work when the
//!   lock is lost, [`MultiLock::with_lock`] and [`MultiGuard::run`] when one of several is.
//!   [`Guard::lost`], [`Guard::on_lost`] and [`Guard::check`] are for other code.
//! - [`LockClient::state`] tells which holder has a lock, and [`LockClient::force_unlock`] ends its
//!   hold. [`RwLock::state`] and [`Semaphore::state`] tell all holders, and
//!   [`RwLock::force_release`] and [`Semaphore::force_release`] end one hold.
//! - `blocking` has the same types for code that is not async.
//!
//! # What is promised
//!
//! As long as Redis keeps its data, and its clock runs evenly:
//!
//! - **One owner at a time.** A lock that is granted is granted to no other owner before it is
//!   released or its lease has ended. If a replica takes over, leases end by its clock: one that is
//!   ahead ends them earlier by that.
//! - **Tokens increase.** Each hold has a [token](Guard::token) that is greater than those of all
//!   earlier holds of the lock. This holds even after Redis has lost its data, unless its clock is
//!   also set back. If a replica takes over without the last token, its clock must not be behind
//!   that of the former master by more than the time that the failover takes.
//! - **The holder is told.** [`Guard::lost`] and [`Guard::on_lost`] report a loss within one tick
//!   of the timer after the end of the lease, by the clock of this process, and at once when a
//!   renewal finds another owner or none. The lease of this process begins before that of Redis, so
//!   it also ends before. [`Guard::check`] reports it even if the timer or the runtime stalls.
//! - **No renewal without a holder.** After the release, or a loss, nothing renews the lock. A
//!   delayed call cannot affect a later hold, because each hold has an owner's name of its own.
//! - **Nothing hangs.** Each call to Redis fails after a sixth of the lease, and at most 10 s. A
//!   future that is dropped leaves neither a lock nor a place in the queue behind. If Redis cannot
//!   be reached for that, more attempts are made until the lease has ended. In the worst case the
//!   lock becomes free with its lease, and the place after two [polls](LockOptions::poll) and a
//!   lease: that of a writer of a read-write lock after a lease.
//! - **A free lock is taken.** A release wakes the first waiting caller. If that one has died, the
//!   next one tries after 500 ms: the first one of another client, if one is among the next 64. If
//!   the message is lost, or there is no release because the holder has died or Redis has deleted the lock, a
//!   waiting caller tries at the end of the lease that it knows of, or at its next
//!   [poll](LockOptions::poll) if that is earlier.
//! - **A crash costs a lease.** If the holder dies, the next caller gets the lock when the rest of
//!   the lease is over. Waiting callers that die with it add little: each one before the next
//!   caller delays it by 50 ms, and by 500 ms more if the lock is [fair](LockOptions::fair), plus a
//!   tick of the timer and the time of a call. Readers wait for up to a lease for a writer that has
//!   died in the queue.
//!
//! # Read-write locks, semaphores and several locks
//!
//! The promises are the same, with these differences:
//!
//! - **A [`RwLock`]** has either several readers or one writer at a time. Readers do not overtake a
//!   waiting writer that is the first of the queue. Tokens increase over readers and writers. A
//!   resource may reject writes by all earlier tokens, but reads only by those of writes:
//!   [details](RwLock#tokens).
//! - **A [`Semaphore`]** has at most as many holders as permits. A permit of a dead holder is free
//!   when its lease ends, by the clock of Redis. Its token identifies the permit, and a resource
//!   must not reject it because of a greater one. If callers give different numbers of permits,
//!   each counts by its own one, so there are never more holders than the greatest number.
//! - **A [`MultiLock`]** takes all of its locks or none, in the order of their names. So callers
//!   that use it never wait for each other in a circle. Its guard is lost when one of the locks is
//!   lost, and each lock has its own token.
//! - **A release wakes all** waiting callers at the front of the queue that can enter together,
//!   such as several readers. If one of them has died, the others are not delayed.
//!
//! # What no lock on Redis can promise
//!
//! - **A holder can be wrong about holding it.** A process may stall for longer than the lease: a
//!   page fault, a migrated virtual machine, a stopped process. When it continues, in the middle of
//!   its work, the lock has another owner. [`Guard::check`] detects that before a step. Nothing can
//!   detect it during a step, or after a suspend of the whole machine: on Linux the clock of a
//!   process does not count that time.
//! - **Redis can forget.** If a replica takes over, everything that was not replicated is lost,
//!   including locks. [`LockOptions::replicas`] makes that less likely. The same holds after a
//!   restart without `appendonly`, and for a server that evicts keys. Then another process may get
//!   the lock before its holder is told. The Redlock algorithm, which uses several servers, solves
//!   this problem but not the one above.
//!
//! So a protected resource has to check for itself. Send the [token](Guard::token) with each
//! access. The resource rejects a token that is less than the greatest one it has seen. If it
//! cannot do that, the lock makes duplicate work rare, but not impossible. The discussion is in
//! Martin Kleppmann's "How to do distributed locking" and Salvatore Sanfilippo's "Is Redlock
//! safe?".
//!
//! # Features
//!
//! Features are additive.
//!
//! | feature | |
//! |---|---|
//! | `blocking` | the module `blocking` |
//! | `cluster` | `LockClient::cluster` |
//! | `sentinel` | `LockClient::sentinel` |
//! | `tls` | URLs with `rediss://`, with rustls and its cryptography `ring`. If your program also enables another one, choose one with rustls' `CryptoProvider::install_default`. For the TLS library of the system, enable the feature `tokio-native-tls-comp` of the crate `redis` instead |
//! | `metrics` | counters of acquisitions, renewals and losses, and the waiting times |
//! | `tracing` | warnings about losses and failed renewals; debug events about renewals and acquisitions |
//!
//! The metrics:
//!
//! | metric | kind | meaning |
//! |---|---|---|
//! | `redis_lock.acquired` | counter | locks that were taken, without re-entries |
//! | `redis_lock.wait` | histogram, seconds | from the call to the lock, of calls that got it |
//! | `redis_lock.renewals` | counter | leases that were renewed |
//! | `redis_lock.renewal_calls` | counter | calls to Redis for renewals |
//! | `redis_lock.renewal_errors` | counter | of these, the calls that failed |
//! | `redis_lock.lost` | counter | locks that were lost, also by the end of a lease without a watchdog |
//!
//! The events of `tracing` have the target `redis_lock`, and a module of it:
//!
//! | level | message | fields |
//! |---|---|---|
//! | warning | a lock is lost | `lock`, `reason` |
//! | warning | leases of locks were not renewed | `leases`, `error` |
//! | debug | leases of locks were renewed | `leases` |
//! | debug | a lock is taken | `lock`, `token`, `waited` |
//!
//! # For users of Redisson
//!
//! | Redisson | here |
//! |---|---|
//! | `getLock(name)` | [`LockClient::lock`] |
//! | `getFairLock(name)` | [`LockOptions::fair`] |
//! | `getFencedLock(name)`, `lockAndGetToken()` | each lock; [`Guard::token`] |
//! | `lock()` | [`Lock::lock`] |
//! | `tryLock()`, `tryLock(wait, unit)` | [`Lock::try_lock`], [`Lock::lock_timeout`] |
//! | `getMultiLock(locks)` | [`LockClient::multi_lock`] |
//! | `getReadWriteLock(name)`, `readLock()`, `writeLock()` | [`LockClient::rw_lock`], [`RwLock::read`], [`RwLock::write`]. The owner of the write lock must [not ask](RwLock#one-task-with-several-owners) for reading |
//! | `getPermitExpirableSemaphore(name)`, `trySetPermits(n)` | [`LockClient::semaphore`]: callers give the number |
//! | `acquire()`, `tryAcquire()`, `tryAcquire(wait, lease, unit)` | [`Semaphore::acquire`], [`try_acquire`](Semaphore::try_acquire), [`acquire_timeout`](Semaphore::acquire_timeout) |
//! | the id of a permit, `release(id)` | [`Guard::token`], [`Guard::unlock`]; from elsewhere [`Semaphore::force_release`] |
//! | `availablePermits()`, `acquiredPermits()` | [`Semaphore::state`] |
//! | `lock(lease, unit)` | [`LockOptions::lease`] with [`LockOptions::watchdog`]`(false)` |
//! | `lockWatchdogTimeout` | [`LockOptions::lease`] |
//! | `checkLockSyncedSlaves`, which is on by default | [`LockOptions::replicas`], which is off |
//! | `unlock()` | [`Guard::unlock`], or dropping the guard |
//! | `isHeldByCurrentThread()` | [`Guard::check`] |
//! | `isLocked()`, `remainTimeToLive()` | [`LockClient::state`], [`RwLock::state`] |
//! | `forceUnlock()` | [`LockClient::force_unlock`], [`RwLock::force_release`] |
//! | `LockRenewalFailureListener`, which tells of failed renewals | [`Guard::on_lost`], [`Guard::lost`], which tell of losses |
//! | the id of the thread, for re-entry | the [`Lock`]: share it between functions, not between tasks |
//!
//! The locks of both libraries do not exclude each other: their keys differ.
//!
//! # For users of Curator
//!
//! | Curator | here |
//! |---|---|
//! | `InterProcessMutex(client, path)` | [`LockClient::lock_with`], [`LockOptions::fair`] |
//! | `acquire()`, `acquire(time, unit)`, `release()` | [`Lock::lock`], [`Lock::lock_timeout`], [`Guard::unlock`] |
//! | `isAcquiredInThisProcess()` | [`Guard::check`] |
//! | `InterProcessReadWriteLock(client, path)` | [`LockClient::rw_lock_with`]. The owner of the write lock must [not ask](RwLock#one-task-with-several-owners) for reading |
//! | `InterProcessSemaphoreV2(client, path, maxLeases)` | [`LockClient::semaphore_with`] |
//! | its `acquire()`, `acquire(qty)`, `returnLease(lease)` | [`Semaphore::acquire`], which takes one permit; [`Guard::unlock`] |
//! | `InterProcessMultiLock(client, paths)` | [`LockClient::multi_lock`], in the order of the names |
//! | `getParticipantNodes()` | [`LockClient::state`], [`Semaphore::state`] |
//! | `LeaderLatch`: `await()`, `hasLeadership()`, `close()` | a lock: [`Lock::lock`], [`Guard::check`], [`Guard::unlock`], as in the example `leader_election` |
//! | `LeaderLatchListener::notLeader()`; `ConnectionStateListener`, which tells of each lost connection | [`Guard::on_lost`], [`Guard::lost`], which tell of losses |
//!
//! # In Redis
//!
//! It has to be Redis 6.2 or later, or Valkey. With an older server, each call is an error of
//! [`Redis`](LockError::Redis) that says so.
//!
//! A lock with the name NAME has the keys `{lock:NAME}`, `{lock:NAME}:tokens`, `{lock:NAME}:queue`
//! and `{lock:NAME}:seen`. Those of a read-write lock begin with `{rwlock:NAME}`, and those of a
//! semaphore with `{semaphore:NAME}`. All of them expire. Messages are published on channels that
//! begin with `lock-wake:`. A name that is not used any more leaves its tokens for a day. The keys
//! and channels of a client with a [prefix](LockClientBuilder::prefix) begin with it:
//! `shop:{lock:NAME}`.
//!
//! A user of Redis with restricted rights needs `EVALSHA` and `EVAL`, the commands of the scripts
//! on these keys, and these channels. Without the channels, waiting callers poll.
//!
//! ```text
//! ACL SETUSER locks on >PASSWORD -@all ~{lock:* ~{rwlock:* ~{semaphore:*
//!     resetchannels &lock-wake:*
//!     +evalsha +eval +pexpire +pttl +time +zadd +zrange +zrem +zrank +zcard
//!     +zscore +zrangebyscore +hget +hmget +hset +hdel +publish +subscribe +ping
//! ```
//!
//! With the prefix `shop:`, the patterns begin with it: `~shop:{lock:*` and `&shop:lock-wake:*`.
//! In addition, it needs `+wait` for [`LockOptions::replicas`], `+select` for a database other than
//! 0, `+cluster|slots +asking` on a cluster, and `+role` with sentinels.
#![cfg_attr(docsrs, feature(doc_cfg))]

#[cfg(feature = "blocking")]
pub mod blocking;
#[cfg(feature = "blocking")]
mod blocking_guard;
#[cfg(feature = "blocking")]
mod blocking_lock;
mod builder;
mod calls;
mod client;
mod connection;
mod context;
mod error;
mod guard;
mod hold;
mod inspect;
mod lock;
mod multi;
mod observe;
mod options;
#[cfg(feature = "blocking")]
mod own_runtime;
mod protocol;
mod refusal;
mod replicas;
mod rw_lock;
mod scripts;
mod semaphore;
mod state;
mod wakeup;
mod watchdog;

pub use builder::LockClientBuilder;
pub use client::LockClient;
pub use error::{LockError, Loss};
pub use guard::Guard;
pub use lock::Lock;
pub use multi::{MultiGuard, MultiLock};
pub use options::LockOptions;
pub use rw_lock::RwLock;
pub use semaphore::Semaphore;
pub use state::{LockState, SharedHolder, SharedState};
pub use {hashed_wheel, redis};

/// The Rust code of the README is compiled as a doc test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
