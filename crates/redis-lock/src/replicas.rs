//! Waits until replicas have a lock that was just taken.
//!
//! `WAIT` counts the replicas that have the writes before the last command *of its connection*, and
//! blocks the connection meanwhile. So it gets a connection of its own, and a command before it:
//!
//! | step | connection | |
//! |---|---|---|
//! | 1 | that of all calls | the script takes the lock: it writes the owner and the token |
//! | 2 | a spare one | the script renews the lock, if it still has this owner |
//! | 3 | the same, in the same pipeline | `WAIT` |
//!
//! Replicas execute writes in the order of the master. So those that have the write of step 2 also
//! have those of step 1. If the spare connection leads to another server than the first one, such
//! as a former master, step 2 does not find the owner, and the call fails, whatever that server's
//! replicas are. Because 2 and 3 are one pipeline, no new connection can come between them.

use std::time::{Duration, Instant};

use crate::calls::Calls;
use crate::error::{LockError, Loss};
use crate::options::LockOptions;
use crate::scripts::{Found, Keys};

/// The maximum time for the replicas, however long the lease is.
const WAIT: Duration = Duration::from_secs(1);

impl Calls {
    /// Waits until as many replicas as the options say have the lock, whose lease ends at `until`.
    pub(crate) async fn replicate(
        &self,
        keys: &Keys,
        owner: &str,
        until: Instant,
        options: &LockOptions,
    ) -> Result<(), LockError> {
        let wanted = options.replica_count();
        if wanted == 0 {
            return Ok(());
        }
        // The answer comes before the call ends.
        let wait = WAIT.min(options.call_timeout() / 2);
        let lease = until.saturating_duration_since(Instant::now());
        let lock = [(keys, owner, lease.as_millis() as u64)];
        let mut commands = redis::pipe();
        commands.add_command(self.scripts.renew(&lock).by_text());
        commands
            .cmd("WAIT")
            .arg(wanted)
            .arg(wait.as_millis() as u64);
        let ([found], acknowledged): ([Found; 1], usize) = self
            .connection
            .call_alone(&commands, options.call_timeout())
            .await?;
        match found {
            Found::NoOwner => Err(LockError::Lost(Loss::NoOwner)),
            Found::OtherOwner => Err(LockError::Lost(Loss::OtherOwner)),
            Found::Caller if acknowledged < wanted.into() => Err(LockError::Replicas {
                wanted: wanted.into(),
                acknowledged,
            }),
            Found::Caller => Ok(()),
        }
    }
}
