//! Which owners hold a lock, a read-write lock or a semaphore.

use std::time::Duration;

use redis::{FromRedisValue, ParsingError, Value};

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
    /// places: two [polls](crate::LockOptions::poll) and a lease after their last attempt.
    pub waiting: usize,
}

impl LockState {
    /// A lock has one holder at most.
    pub(crate) fn of(state: SharedState) -> Option<Self> {
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
    /// [polls](crate::LockOptions::poll) and a lease after their last attempt, writers after a lease.
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
    /// The [token](crate::Guard::token) of this hold. `None` if no hold has begun for more than a
    /// day, not even this one: then it cannot be ended by its token.
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
