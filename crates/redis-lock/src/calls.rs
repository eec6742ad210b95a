//! The calls to Redis: the scripts, on the connection.

use std::sync::Arc;
#[cfg(feature = "blocking")]
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use redis::FromRedisValue;
use tokio::runtime::Handle;

use crate::connection::{Connection, Server};
use crate::error::LockError;
use crate::options::LockOptions;
#[cfg(feature = "blocking")]
use crate::own_runtime::OwnRuntime;
use crate::scripts::{Answer, Call, Found, Keys, Request, Scripts};
use crate::state::SharedState;

/// The calls of a client to Redis.
pub(crate) struct Calls {
    pub(crate) connection: Connection,
    pub(crate) scripts: Scripts,
    timer: HashedWheelTimer,
    runtime: Handle,
    /// The runtime of a blocking client, so that it does not end before a call in the background.
    #[cfg(feature = "blocking")]
    own_runtime: OnceLock<Arc<OwnRuntime>>,
}

impl Calls {
    pub(crate) fn new(server: Server, timer: &HashedWheelTimer, runtime: &Handle) -> Self {
        Self {
            connection: Connection::new(server, timer, runtime),
            scripts: Scripts::new(),
            timer: timer.clone(),
            runtime: runtime.clone(),
            #[cfg(feature = "blocking")]
            own_runtime: OnceLock::new(),
        }
    }

    /// Keeps the runtime of a blocking client until the calls in the background have ended.
    #[cfg(feature = "blocking")]
    pub(crate) fn keep(&self, runtime: &Arc<OwnRuntime>) {
        self.own_runtime.get_or_init(|| Arc::clone(runtime));
    }

    pub(crate) async fn lock(
        &self,
        keys: &Keys,
        request: &Request<'_>,
        timeout: Duration,
    ) -> Result<Answer, LockError> {
        self.call(&self.scripts.enter(keys, request), timeout).await
    }

    /// Returns which owner Redis had. If that is unknown, other attempts are made in the
    /// background, until the lease has ended anyway.
    pub(crate) async fn release(
        self: &Arc<Self>,
        keys: Arc<Keys>,
        owner: Arc<str>,
        options: Arc<LockOptions>,
    ) -> Result<Found, LockError> {
        let released = self.try_release(&keys, &owner, &options).await;
        if matches!(released, Err(LockError::Redis(_) | LockError::Timer(_))) {
            let calls = Arc::clone(self);
            self.runtime
                .spawn(async move { calls.release_again(&keys, &owner, &options).await });
        }
        released
    }

    async fn release_again(&self, keys: &Keys, owner: &str, options: &LockOptions) {
        let end = Instant::now() + options.lease_time();
        while Instant::now() < end {
            if self.timer.sleep(options.lease_time() / 6).await.is_err() {
                return self.release_without_timer(keys, owner, options).await;
            }
            if self.try_release(keys, owner, options).await.is_ok() {
                return;
            }
        }
    }

    async fn try_release(
        &self,
        keys: &Keys,
        owner: &str,
        options: &LockOptions,
    ) -> Result<Found, LockError> {
        let script = self.scripts.leave(keys, owner, options.claim());
        let end = Instant::now() + options.call_timeout();
        match self.connection.call(&script, options.call_timeout()).await {
            Err(LockError::Redis(error)) if self.connection.was_closed(&error) => {
                match self.connection.call(&script, until(end)).await {
                    // The call that failed may have released the lock.
                    Ok(Found::NoOwner | Found::OtherOwner) => Err(error.into()),
                    released => released,
                }
            }
            released => released,
        }
    }

    /// A timer that is stopped does not keep other owners from the lock.
    async fn release_without_timer(&self, keys: &Keys, owner: &str, options: &LockOptions) {
        let script = self.scripts.leave(keys, owner, options.claim());
        let _ = self.connection.call_without_timer::<Found>(&script).await;
    }

    pub(crate) async fn renew(
        &self,
        locks: &[(&Keys, &str, u64)],
        timeout: Duration,
    ) -> Result<Vec<Found>, LockError> {
        self.call(&self.scripts.renew(locks), timeout).await
    }

    pub(crate) async fn state(
        &self,
        keys: &Keys,
        options: &LockOptions,
    ) -> Result<SharedState, LockError> {
        let script = self.scripts.state(keys, "", options.claim());
        self.call(&script, options.call_timeout()).await
    }

    /// Ends the hold with this token, or any hold if it is `*`. Executed twice, it would find no
    /// hold with this token; with `*`, it would end the next one.
    pub(crate) async fn end_hold(
        &self,
        keys: &Keys,
        token: &str,
        options: &LockOptions,
    ) -> Result<SharedState, LockError> {
        let script = self.scripts.state(keys, token, options.claim());
        let timeout = options.call_timeout();
        self.connection.call(&script, timeout).await
    }

    /// Calls a script that may be executed twice. If the connection has failed, calls it again on a
    /// new one: it may have failed while there was no call.
    async fn call<T: FromRedisValue>(
        &self,
        script: &Call<'_>,
        timeout: Duration,
    ) -> Result<T, LockError> {
        let end = Instant::now() + timeout;
        match self.connection.call(script, timeout).await {
            Err(LockError::Redis(error)) if self.connection.was_closed(&error) => {
                self.connection.call(script, until(end)).await
            }
            answer => answer,
        }
    }
}

fn until(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}
