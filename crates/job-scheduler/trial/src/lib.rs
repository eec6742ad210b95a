//! A PostgreSQL server of their own for the trial, its tests and the comparison.

mod certificate;
mod database;
pub mod disk;
pub mod rewrite;
mod wall_clock;

pub use crate::certificate::Certificate;
pub use crate::database::{Clocks, Database, End, Faults};
pub use crate::wall_clock::WallClock;
