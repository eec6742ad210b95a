//! The guard of code that is not async, for one lock or for several.

use std::sync::Arc;

use tokio::runtime::Handle;

use crate::error::{LockError, Loss};
use crate::multi::MultiGuard;
use crate::own_runtime::OwnRuntime;

/// The guards whose calls a [`Guard`] blocks on. Nothing else implements it.
pub trait Held {
    /// Like [`Guard::check`].
    fn check(&self) -> Result<(), LockError>;
    /// Like [`Guard::lost`].
    fn lost(&self) -> impl Future<Output = Loss>;
    /// Like [`Guard::on_lost`].
    fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static);
    /// Like [`Guard::unlock`].
    fn unlock(self) -> impl Future<Output = Result<(), LockError>>;
}

/// The guards have these methods themselves.
macro_rules! held {
    ($($guard:ty),*) => {$(
        impl Held for $guard {
            fn check(&self) -> Result<(), LockError> {
                self.check()
            }

            async fn lost(&self) -> Loss {
                self.lost().await
            }

            fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
                self.on_lost(f);
            }

            async fn unlock(self) -> Result<(), LockError> {
                self.unlock().await
            }
        }
    )*};
}
held!(crate::guard::Guard, MultiGuard);

/// Holds a lock until it is dropped or lost, or several as one if `G` is a
/// [`MultiGuard`](crate::MultiGuard). See [`Guard`](crate::Guard).
///
/// Dropping it is like [`unlock`](Self::unlock) without the result. It waits for Redis. If the lock
/// is lost, or on a thread of an async runtime, the release goes on in the background instead.
///
/// While it holds the lock, do not unlock or drop it in a task of the timer: without an answer from
/// Redis that would wait forever, because the timer ends the call.
///
/// # Examples
///
/// ```no_run
/// # fn work(token: u64) {}
/// # fn example(mut lock: redis_lock::blocking::Lock) -> Result<(), redis_lock::LockError> {
/// let guard = lock.lock()?;
/// guard.on_lost(|loss| eprintln!("the lock is lost: {loss}"));
/// work(guard.token());
/// guard.unlock()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "dropping the guard releases the lock"]
pub struct Guard<G: Held = crate::guard::Guard> {
    /// `None` after the release.
    guard: Option<G>,
    runtime: Arc<OwnRuntime>,
}

impl Guard {
    /// Returns the fencing token. See [`Guard::token`](crate::Guard::token).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// println!("this is hold {}", guard.token());
    /// # Ok(())
    /// # }
    /// ```
    pub fn token(&self) -> u64 {
        self.guard().token()
    }
}

impl Guard<MultiGuard> {
    /// Returns the name and the token of each lock. See
    /// [`MultiGuard::tokens`](crate::MultiGuard::tokens).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::MultiGuard) {
    /// for (name, token) in guard.tokens() {
    ///     println!("the token of {name} is {token}");
    /// }
    /// # }
    /// ```
    pub fn tokens(&self) -> impl Iterator<Item = (&str, u64)> {
        self.guard().tokens()
    }
}

impl<G: Held> Guard<G> {
    pub(crate) fn new(guard: G, runtime: &Arc<OwnRuntime>) -> Self {
        Self {
            guard: Some(guard),
            runtime: Arc::clone(runtime),
        }
    }

    /// Checks whether the lock was held until now. See [`Guard::check`](crate::Guard::check).
    ///
    /// # Errors
    ///
    /// [`Lost`](LockError::Lost).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.check()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn check(&self) -> Result<(), LockError> {
        self.guard().check()
    }

    /// Waits until the lock is lost. See [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| println!("the lock is lost: {}", guard.lost()));
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn lost(&self) -> Loss {
        self.runtime.block_on(self.guard().lost())
    }

    /// Calls `f` when the lock is lost. See [`Guard::on_lost`](crate::Guard::on_lost).
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.on_lost(|loss| eprintln!("the lock is lost: {loss}"));
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_lost(&self, f: impl FnOnce(Loss) + Send + 'static) {
        self.guard().on_lost(f);
    }

    /// Releases the lock, if this is the last guard of its hold. See
    /// [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Errors
    ///
    /// As for [`Guard::unlock`](crate::Guard::unlock).
    ///
    /// # Panics
    ///
    /// If it is called on a thread of an async runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # fn example(guard: redis_lock::blocking::Guard) -> Result<(), redis_lock::LockError> {
    /// guard.unlock()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn unlock(mut self) -> Result<(), LockError> {
        self.guard
            .take()
            .map_or(Ok(()), |guard| self.runtime.block_on(guard.unlock()))
    }

    fn guard(&self) -> &G {
        self.guard.as_ref().expect("it was not released")
    }
}

impl<G: Held> Drop for Guard<G> {
    fn drop(&mut self) {
        let Some(guard) = self.guard.take() else {
            return;
        };
        // If a lock is lost, this does not wait. A callback of the loss may drop the guard on the
        // thread of the timer, which ends the calls that Redis does not answer.
        if guard.check().is_ok() && may_block() {
            _ = self.runtime.block_on(guard.unlock());
        }
    }
}

/// Returns whether this thread is outside of async runtimes.
fn may_block() -> bool {
    Handle::try_current().is_err_and(|error| error.is_missing_context())
}
