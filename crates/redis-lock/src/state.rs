//! Which owners hold a lock, a read-write lock or a semaphore, and an administrator's way to end a
//! hold.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

use crate::client::LockClient;
use crate::error::LockError;
use crate::lock::Lock;
use crate::options::LockOptions;
use crate::scripts::Kind;

/// A held lock, as Redis had it when it was asked.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// match locks.state("invoices").await? {
///     Some(state) => println!("{} holds it, for {:?} at least", state.holder, state.expires_in),
///     None => println!("it is free"),
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockState {
    /// The [name of the holder](crate::LockClientBuilder::holder): by default `HOST/PID`.
    pub holder: String,
    /// The [token](crate::Guard::token) of this hold. `None` if it has lasted for more than a
    /// day.
    pub token: Option<u64>,
    /// After which time the lease ends if it is not renewed, in whole milliseconds. A watchdog
    /// renews it before.
    pub expires_in: Duration,
    /// How many callers wait for the lock. Callers that have died count until they lose their
    /// places: two [polls](LockOptions::poll) and a lease after their last attempt.
    pub waiting: usize,
}

impl LockState {
    /// A lock has one holder at most.
    fn of(state: SharedState) -> Option<Self> {
        let holder = state.holders.into_iter().next()?;
        Some(Self {
            holder: holder.holder,
            token: holder.token,
            expires_in: holder.expires_in,
            waiting: state.waiting,
        })
    }
}

/// Returns the first part of `HOLDER:RANDOM:NUMBER`. A name that another program has written may
/// have other parts.
fn holder_of(owner: &str) -> String {
    owner.rsplitn(3, ':').nth(2).unwrap_or(owner).to_owned()
}

fn duration(milliseconds: i64) -> Duration {
    milliseconds
        .try_into()
        .map_or(Duration::MAX, Duration::from_millis)
}

/// The holders and the queue of a read-write lock or a semaphore, at the time of the call.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// let state = locks.semaphore("downloads", 4).state().await?;
/// println!("{} permits are held, and {} callers wait", state.holders.len(), state.waiting);
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedState {
    /// The holders, in the order in which their leases end. Empty: it is free.
    pub holders: Vec<SharedHolder>,
    /// How many callers wait. Callers that have died count until they lose their places: two
    /// [polls](LockOptions::poll) and a lease after their last attempt, writers after a lease.
    pub waiting: usize,
}

/// One holder of a read-write lock or a semaphore.
///
/// # Examples
///
/// ```no_run
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// for holder in locks.rw_lock("prices").state().await?.holders {
///     let how = if holder.is_writer { "writes" } else { "reads" };
///     println!("{} {how}, for {:?} at least", holder.holder, holder.expires_in);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SharedHolder {
    /// The [name of the holder](crate::LockClientBuilder::holder): by default `HOST/PID`.
    pub holder: String,
    /// The [token](crate::Guard::token) of this hold. `None` if it has lasted for more than
    /// a day, and no other hold has begun in that time: then it cannot be ended by its token.
    pub token: Option<u64>,
    /// After which time the lease ends if it is not renewed, in whole milliseconds. A watchdog
    /// renews it before.
    pub expires_in: Duration,
    /// Whether it holds a read-write lock for writing. Always false for a semaphore.
    pub is_writer: bool,
}

impl FromRedisValue for SharedState {
    fn from_redis_value(value: Value) -> Result<Self, ParsingError> {
        let (waiting, holders): (usize, Vec<(String, i64, Option<u64>)>) =
            redis::from_redis_value(value)?;
        let holders = holders
            .into_iter()
            .map(|(owner, expires_in, token)| SharedHolder {
                holder: holder_of(&owner),
                token,
                expires_in: duration(expires_in),
                is_writer: Kind::Write.is_of(&owner),
            });
        Ok(Self {
            holders: holders.collect(),
            waiting,
        })
    }
}

/// All owners of a name have the same keys.
impl Lock {
    pub(crate) async fn state(&self) -> Result<SharedState, LockError> {
        let (calls, keys) = self.in_redis();
        calls.state(keys, &LockOptions::new()).await
    }

    /// Ends the hold with this token, or any hold if it is `*`.
    pub(crate) async fn end_hold(&self, token: &str) -> Result<SharedState, LockError> {
        let (calls, keys) = self.in_redis();
        calls.end_hold(keys, token, &LockOptions::new()).await
    }

    pub(crate) async fn force_release(
        &self,
        token: u64,
    ) -> Result<Option<SharedHolder>, LockError> {
        let ended = self.end_hold(&token.to_string()).await?;
        Ok(ended.holders.into_iter().next())
    }
}

impl LockClient {
    /// Asks Redis which owner has the lock with this name. Returns `None` if it is free. (It is for
    /// locks. [`RwLock::state`](crate::RwLock::state) and
    /// [`Semaphore::state`](crate::Semaphore::state) ask about those.)
    ///
    /// The answer may be outdated when it arrives: use it to show it, and not to decide whether to
    /// enter. [`Lock::try_lock`](crate::Lock::try_lock) decides that.
    ///
    /// # Errors
    ///
    /// - [`Redis`](LockError::Redis): the call failed, or was not answered within 5 s.
    /// - [`Timer`](LockError::Timer): the timer is stopped, or its limit is reached.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// if let Some(state) = locks.state("invoices").await? {
    ///     println!("{} holds it, and {} callers wait", state.holder, state.waiting);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn state(&self, name: &str) -> Result<Option<LockState>, LockError> {
        self.lock(name).state().await.map(LockState::of)
    }

    /// Ends the hold of the lock with this name, whatever owner has it. The first waiting caller is
    /// woken, and gets a greater token. Returns the state before, or `None` if the lock was free.
    ///
    /// The holder learns it when its watchdog renews the lease next, after a third of a lease at
    /// the latest: it has lost the lock, with the reason [`NoOwner`](crate::Loss::NoOwner) or
    /// [`OtherOwner`](crate::Loss::OtherOwner). Without a watchdog, it learns it at the end of its
    /// lease. Until then it works on, at the same time as the next holder.
    ///
    /// So this is safe only if the holder does no more harm: its process has ended, or hangs and is
    /// ended first, or the resource rejects its [token](crate::Guard::token). A resource rejects it
    /// only after it has seen the token of a later holder. If the process has ended, you can also
    /// wait for [`expires_in`](LockState::expires_in): then the lock becomes free by itself.
    ///
    /// (`redis-cli del '{lock:NAME}'` does the same, but wakes no waiting caller. They try at their
    /// next [poll](LockOptions::poll).)
    ///
    /// # Errors
    ///
    /// As for [`state`](Self::state). After an error of [`Redis`](LockError::Redis) it is unknown
    /// whether the hold was ended. The call is not repeated, because that could end the next hold;
    /// only the client of a cluster may repeat it, after it has lost a connection.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// // Its process hangs, and has been killed. Its lease would last for an hour.
    /// if let Some(ended) = locks.force_unlock("report").await? {
    ///     println!("ended the hold of {}, with token {:?}", ended.holder, ended.token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_unlock(&self, name: &str) -> Result<Option<LockState>, LockError> {
        self.lock(name).end_hold("*").await.map(LockState::of)
    }
}
