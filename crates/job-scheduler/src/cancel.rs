//! How a handler learns that its run was cancelled.
//!
//! ```text
//! Jobs::cancel ──► mark of the run ──► beat of its node ──► Canceller ──► Cancelled ──► handler
//!              └── notification ─────► (at once)
//! ```
//!
//! Each beat returns all runs of the node that are marked, so that no request is lost: neither if a
//! notification is, nor if the node begins to execute the run at the same time.

use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use tokio::sync::watch;

/// The end of the node.
#[derive(Debug, Clone)]
pub(crate) struct Canceller(watch::Sender<bool>);

/// The end of the handler.
#[derive(Debug, Clone)]
pub(crate) struct Cancelled(watch::Receiver<bool>);

pub(crate) fn pair() -> (Canceller, Cancelled) {
    let (sender, receiver) = watch::channel(false);
    (Canceller(sender), Cancelled(receiver))
}

impl Canceller {
    /// May be called again.
    pub(crate) fn cancel(&self) {
        self.0.send_replace(true);
    }

    /// Waits until the execution has ended, and its handler has left no [`Cancelled`].
    pub(crate) async fn unused(&self) {
        self.0.closed().await;
    }
}

impl Cancelled {
    pub(crate) fn is_cancelled(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits for the cancellation.
    pub(crate) async fn cancelled(&self) {
        let mut receiver = self.0.clone();
        if receiver
            .wait_for(|is_cancelled| *is_cancelled)
            .await
            .is_err()
        {
            // The run has ended, or the node has lost it.
            std::future::pending::<()>().await;
        }
    }

    /// Waits for the cancellation, and then for the time that a handler has to end.
    pub(crate) async fn grace_ended(&self, timer: &HashedWheelTimer, grace: Duration) {
        self.cancelled().await;
        // A timer that is stopped ends the node.
        let _ = timer.sleep(grace).await;
    }
}
