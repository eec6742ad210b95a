//! A lock on Redis (draft of the docs).

#[cfg(feature = "blocking")]
pub mod blocking;
mod calls;
mod client;
mod connection;
mod error;
mod guard;
mod hold;
mod lock;
mod observe;
mod options;
mod scripts;
mod wakeup;
mod watchdog;

pub use client::LockClient;
pub use error::{LockError, Loss};
pub use guard::Guard;
pub use lock::Lock;
pub use options::LockOptions;
