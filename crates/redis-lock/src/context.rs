//! The state that a client and its locks share.

use std::hash::{BuildHasher, RandomState};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use hashed_wheel::HashedWheelTimer;
use tokio::runtime::Handle;

use crate::calls::Calls;
use crate::connection::Server;
use crate::scripts::{self, Keys};
use crate::wakeup::Wakeups;
use crate::watchdog::Watchdog;

/// The state that a client and its locks share.
pub(crate) struct Context {
    /// Unique to this client.
    pub(crate) name: Arc<str>,
    /// The beginning of all keys and channels in Redis.
    pub(crate) prefix: Box<str>,
    owners: AtomicU64,
    pub(crate) calls: Arc<Calls>,
    pub(crate) timer: HashedWheelTimer,
    pub(crate) runtime: Handle,
    pub(crate) watchdog: Arc<Watchdog>,
    pub(crate) wakeups: Arc<Wakeups>,
}

impl Context {
    /// `prefix` and `holder` are valid.
    pub(crate) fn start(
        server: Server,
        timer: &HashedWheelTimer,
        [prefix, holder]: [&str; 2],
        runtime: Handle,
    ) -> Self {
        // The process, because a fork copies the state of the random numbers.
        let random = RandomState::new().hash_one(process::id());
        let name: Arc<str> = format!("{holder}:{random:016x}").into();
        let calls = Arc::new(Calls::new(server, timer, &runtime));
        let channel = scripts::channel(prefix, &name);
        Self {
            watchdog: Watchdog::start(&calls, timer, &runtime),
            wakeups: Wakeups::new(channel, &calls, timer, &runtime),
            name,
            prefix: prefix.into(),
            owners: AtomicU64::new(0),
            calls,
            timer: timer.clone(),
            runtime,
        }
    }

    /// Returns an owner that was never used before, and its number.
    pub(crate) fn new_owner(&self, keys: &Keys) -> (Arc<str>, u64) {
        let number = self.owners.fetch_add(1, Relaxed);
        (keys.owner(&self.name, number), number)
    }
}
