//! Reports to `metrics` and `tracing`, if these features are enabled. The crate's
//! documentation lists the metrics and the events.

#![cfg_attr(not(feature = "tracing"), allow(unused_variables))]

use std::panic::{self, AssertUnwindSafe};
use std::time::Duration;

use crate::error::{LockError, Loss};

/// Calls recorders and subscribers. A panic of theirs does not end a renewal, nor keep a loss from
/// the holder.
fn report(f: impl FnOnce()) {
    let _ = panic::catch_unwind(AssertUnwindSafe(f));
}

pub(crate) fn acquired(lock: &str, token: u64, waited: Duration) {
    report(|| {
        #[cfg(feature = "metrics")]
        {
            metrics::counter!("redis_lock.acquired").increment(1);
            metrics::histogram!("redis_lock.wait").record(waited.as_secs_f64());
        }
        #[cfg(feature = "tracing")]
        tracing::debug!(lock, token, ?waited, "a lock is taken");
    });
}

/// A call has renewed this number of leases.
pub(crate) fn renewed(leases: usize) {
    report(|| {
        #[cfg(feature = "metrics")]
        {
            metrics::counter!("redis_lock.renewal_calls").increment(1);
            metrics::counter!("redis_lock.renewals").increment(leases as u64);
        }
        #[cfg(feature = "tracing")]
        tracing::debug!(leases, "leases of locks were renewed");
    });
}

/// A call should have renewed this number of leases.
pub(crate) fn renewal_failed(leases: usize, error: &LockError) {
    report(|| {
        #[cfg(feature = "metrics")]
        {
            metrics::counter!("redis_lock.renewal_calls").increment(1);
            metrics::counter!("redis_lock.renewal_errors").increment(1);
        }
        #[cfg(feature = "tracing")]
        tracing::warn!(leases, %error, "leases of locks were not renewed");
    });
}

pub(crate) fn lost(lock: &str, loss: &Loss) {
    report(|| {
        #[cfg(feature = "metrics")]
        metrics::counter!("redis_lock.lost").increment(1);
        #[cfg(feature = "tracing")]
        tracing::warn!(lock, reason = %loss, "a lock is lost");
    });
}
