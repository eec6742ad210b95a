//! The calls to Redis: the scripts, on the connection.

use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use tokio::runtime::Handle;

use crate::LockError;
use crate::connection::{Connection, Server};
use crate::options::LockOptions;
use crate::scripts::{Answer, Keys, Renewed, Request, Scripts};

/// What calls Redis for a client.
pub(crate) struct Calls {
    pub(crate) connection: Connection,
    scripts: Scripts,
}

impl Calls {
    pub(crate) fn new(server: Server, timer: &HashedWheelTimer, runtime: &Handle) -> Self {
        Self { connection: Connection::new(server, timer, runtime), scripts: Scripts::new() }
    }

    pub(crate) async fn lock(
        &self,
        keys: &Keys,
        request: &Request<'_>,
        timeout: Duration,
    ) -> Result<Answer, LockError> {
        self.connection.call(&self.scripts.lock(keys, request), timeout).await
    }

    /// Returns whether Redis had this owner.
    pub(crate) async fn release(
        &self,
        keys: &Keys,
        owner: &str,
        options: &LockOptions,
    ) -> Result<bool, LockError> {
        let claim = options.claim().as_millis() as u64;
        self.connection.call(&self.scripts.release(keys, owner, claim), options.call_timeout()).await
    }

    pub(crate) async fn renew(
        &self,
        locks: &[(&str, &str, u64)],
        timeout: Duration,
    ) -> Result<Vec<Renewed>, LockError> {
        self.connection.call(&self.scripts.renew(locks), timeout).await
    }
}
