//! An administrator's calls: which owners hold a lock, and the end of a hold.

use crate::client::LockClient;
use crate::error::LockError;
use crate::lock::Lock;
use crate::options::LockOptions;
use crate::state::{LockState, SharedHolder, SharedState};

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
