//! The tests of the lock, each with Redis servers of its own. They are one program, because cargo
//! runs programs one after the other, and most of these tests wait.

#[cfg(feature = "blocking")]
mod blocking;
mod builder;
mod closure;
#[cfg(feature = "cluster")]
mod cluster;
mod common;
mod connections;
mod leader;
mod lock;
mod losses;
mod mixed;
mod multi;
#[cfg(all(feature = "metrics", feature = "tracing"))]
mod observe;
mod queue;
mod readme;
mod refusals;
mod remains;
mod replicas;
mod runtimes;
#[cfg(feature = "sentinel")]
mod sentinel;
mod shared;
mod state;
#[cfg(feature = "tls")]
mod tls;
mod writers;
