//! What the trial, its tests and the comparison share: a PostgreSQL server of their own.

mod database;
pub mod disk;
mod wall_clock;

pub use crate::database::{Clocks, Database, End, Faults};
pub use crate::wall_clock::WallClock;
