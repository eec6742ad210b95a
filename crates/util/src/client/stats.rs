//! What a client counts.

use crate::sync::{AtomicU64, Ordering};

/// Declares the counters: as numbers for the user, and as what is counted.
macro_rules! counters {
    ($(#[doc = $doc:literal] $name:ident)*) => {
        /// What a [`Client`](super::Client) and its clones have done: see
        /// [`stats`](super::Client::stats). `metrics::publish_client` publishes it.
        ///
        /// A call that is dropped is not counted as ended. Each counter is exact once no call is in
        /// progress.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[non_exhaustive]
        pub struct ClientStats {
            $(#[doc = $doc] pub $name: u64,)*
        }

        #[cfg(feature = "metrics")]
        impl ClientStats {
            /// Returns the name, the description and the value of each counter.
            pub(crate) fn all(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> {
                [$((stringify!($name), $doc, self.$name),)*].into_iter()
            }
        }

        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $(pub(super) $name: Counter,)*
        }

        impl Counters {
            pub(super) fn stats(&self) -> ClientStats {
                ClientStats { $($name: self.$name.0.load(Ordering::Relaxed),)* }
            }
        }
    };
}

counters! {
    /// Calls that have begun.
    calls
    /// Calls that have ended with an answer.
    answers
    /// Calls that have ended at their deadline.
    past_deadline
    /// Attempts that have begun: the first ones of the calls, and the retries.
    attempts
    /// Attempts that have failed, with all of their requests.
    failures
    /// Attempts that have timed out.
    attempt_timeouts
    /// Retries.
    retries
    /// Retries that were answered.
    retry_answers
    /// Hedges.
    hedges
    /// Hedges whose answer came first.
    hedge_answers
    /// Retries and hedges that the budget has refused.
    over_budget
}

#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add_one(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}
