//! Adapters to other crates: the only files that name types of optional dependencies.
//!
//! Each file belongs to one optional feature. No other module imports from here; `lib.rs`
//! re-exports what is public.

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub mod executor;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "tokio")]
mod idle_io;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "stream")]
mod stream;
#[cfg(feature = "tokio")]
mod tokio;
#[cfg(feature = "tower")]
pub mod tower;

#[cfg(feature = "tokio")]
pub use self::{idle_io::IdleIo, tokio::TokioClock};
