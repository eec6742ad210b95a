//! Two types of `tokio::time`, or the same without tokio.

#[cfg(not(feature = "tokio"))]
pub use super::own_types::{Instant, MissedTickBehavior};
#[cfg(feature = "tokio")]
pub(super) use tokio::time::{Instant, MissedTickBehavior};
