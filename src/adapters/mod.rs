//! Other crates: the only files that name types of theirs.
//!
//! Each file belongs to one optional feature. Nothing else in the crate imports from here; `lib.rs` re-exports what is public.

#[cfg(any(feature = "tokio", feature = "rayon"))]
pub mod executor;
#[cfg(feature = "hyper")]
mod hyper;
#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "stream")]
mod stream;
