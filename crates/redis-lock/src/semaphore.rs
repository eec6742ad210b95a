//! Semaphores.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::LockClient;
use crate::error::LockError;
use crate::guard::Guard;
use crate::lock::Lock;
use crate::lock::Patience;
use crate::options::LockOptions;
use crate::scripts::Kind;
use crate::state::{SharedHolder, SharedState};

/// A semaphore in Redis: a number of permits, each of which one owner may hold.
///
/// A permit expires like a lock: its lease is renewed while its holder lives, and ends after that.
/// With [`watchdog`](LockOptions::watchdog)`(false)`, it expires with its first lease. The
/// [`Guard`] of a permit is that of a lock.
///
/// All callers should give the same number of permits. Redis does not keep it: each caller takes a
/// permit only if fewer than its own number are held. So there are never more holders than the
/// greatest number. A caller with a smaller number waits for longer, and callers with a greater one
/// do not overtake it while it is the first of the queue. The number can be changed while the
/// semaphore is in use, one process after the other.
///
/// The [token](Guard::token) of a permit is greater than those of all permits that were taken
/// before. It identifies the permit. As holders of other permits may have greater tokens, a
/// resource must not reject the smaller ones.
///
/// # Examples
///
/// ```no_run
/// # async fn download() {}
/// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
/// // At most four downloads at a time, in all processes.
/// let downloads = locks.semaphore("downloads", 4);
/// let permit = downloads.acquire().await?;
/// tokio::select! {
///     () = download() => permit.unlock().await?,
///     loss = permit.lost() => println!("the permit is lost: {loss}"),
/// }
/// # Ok(())
/// # }
/// ```
pub struct Semaphore {
    permits: u32,
    permit: Lock,
}

impl LockClient {
    /// Returns the semaphore with this name and number of permits, with the default options. It
    /// does not call Redis. With no permits, each call that acquires one fails.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(locks: redis_lock::LockClient) -> Result<(), redis_lock::LockError> {
    /// let permit = locks.semaphore("downloads", 4).acquire().await?;
    /// permit.unlock().await
    /// # }
    /// ```
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        self.semaphore_with(name, permits, LockOptions::new())
    }

    /// Returns the semaphore with this name, number of permits and options.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use redis_lock::{LockClient, LockOptions};
    /// # use std::time::Duration;
    /// # fn example(locks: &LockClient) {
    /// // Each permit expires after a minute.
    /// let options = LockOptions::new().lease(Duration::from_secs(60)).watchdog(false);
    /// let downloads = locks.semaphore_with("downloads", 4, options);
    /// # let _ = downloads;
    /// # }
    /// ```
    pub fn semaphore_with(&self, name: &str, permits: u32, options: LockOptions) -> Semaphore {
        let permit = Lock::new(
            Arc::clone(&self.shared),
            Kind::Permit(permits),
            name,
            options,
        );
        Semaphore { permits, permit }
    }
}

impl Semaphore {
    /// Returns the name of the semaphore.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// assert_eq!(locks.semaphore("downloads", 4).name(), "downloads");
    /// # }
    /// ```
    pub fn name(&self) -> &str {
        self.permit.name()
    }

    /// Returns the number of permits, in the opinion of this caller.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(locks: redis_lock::LockClient) {
    /// assert_eq!(locks.semaphore("downloads", 4).permits(), 4);
    /// # }
    /// ```
    pub fn permits(&self) -> u32 {
        self.permits
    }

    /// Takes a permit. Waits while all permits are held. Each call is an owner of its own.
    ///
    /// # Errors
    ///
    /// [`Options`](LockError::Options) if there are 0 permits; otherwise as for [`Lock::lock`].
    ///
    /// # Cancel safety
    ///
    /// As for a [`Lock`](Lock#cancel-safety).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(downloads: redis_lock::Semaphore) -> Result<(), redis_lock::LockError> {
    /// let permit = downloads.acquire().await?;
    /// permit.unlock().await
    /// # }
    /// ```
    pub async fn acquire(&self) -> Result<Guard, LockError> {
        loop {
            if let Some(permit) = self.take(Patience::Forever).await? {
                return Ok(permit);
            }
        }
    }

    /// Takes a permit if one is free. Returns `None` if all are held, or if the semaphore is fair
    /// and others wait for the free ones.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(downloads: redis_lock::Semaphore) -> Result<(), redis_lock::LockError> {
    /// match downloads.try_acquire().await? {
    ///     Some(permit) => permit.unlock().await?,
    ///     None => println!("all permits are held"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self) -> Result<Option<Guard>, LockError> {
        self.take(Patience::None).await
    }

    /// Takes a permit. Waits for at most `timeout` while all are held, and returns `None` after
    /// that. It may take longer by the time of one call to Redis, and with
    /// [replicas](LockOptions::replicas) by that of the release.
    ///
    /// # Errors
    ///
    /// As for [`acquire`](Self::acquire).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn example(downloads: redis_lock::Semaphore) -> Result<(), redis_lock::LockError> {
    /// match downloads.acquire_timeout(Duration::from_secs(3)).await? {
    ///     Some(permit) => permit.unlock().await?,
    ///     None => println!("all permits were held for 3 s"),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<Option<Guard>, LockError> {
        self.take(Patience::of(timeout)).await
    }

    /// Asks Redis which owners hold permits, and how many callers wait.
    ///
    /// The answer may be outdated when it arrives: use it to show it, and not to decide whether to
    /// enter.
    ///
    /// # Errors
    ///
    /// As for [`LockClient::state`].
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(downloads: redis_lock::Semaphore) -> Result<(), redis_lock::LockError> {
    /// for holder in downloads.state().await?.holders {
    ///     println!("{} holds it, with token {:?}", holder.holder, holder.token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn state(&self) -> Result<SharedState, LockError> {
        self.permit.state().await
    }

    /// Ends the hold with this token, whatever owner has it, and wakes the callers that can enter
    /// then. Returns the holder, or `None` if no hold has this token, or only one whose
    /// [token](crate::SharedHolder::token) is forgotten.
    ///
    /// The holder learns it like that of a lock, and works on until then. See
    /// [`LockClient::force_unlock`] for when that is safe.
    ///
    /// # Errors
    ///
    /// As for [`LockClient::force_unlock`]. If the client of a cluster repeats the call, the answer is
    /// `None` although the hold was ended.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(downloads: redis_lock::Semaphore) -> Result<(), redis_lock::LockError> {
    /// // Its process hangs, and has been killed.
    /// let state = downloads.state().await?;
    /// let hung = state.holders.iter().find(|holder| holder.holder == "worker-7/4711");
    /// if let Some(token) = hung.and_then(|hung| hung.token) {
    ///     downloads.force_release(token).await?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn force_release(&self, token: u64) -> Result<Option<SharedHolder>, LockError> {
        self.permit.force_release(token).await
    }

    async fn take(&self, patience: Patience) -> Result<Option<Guard>, LockError> {
        if self.permits == 0 {
            return Err(LockError::Options(
                "a semaphore with 0 permits; at least 1 is needed".to_owned(),
            ));
        }
        self.permit.another().take(patience).await
    }
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Semaphore")
            .field("name", &self.name())
            .field("permits", &self.permits)
            .finish_non_exhaustive()
    }
}
