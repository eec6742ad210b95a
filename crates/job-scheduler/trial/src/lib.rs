//! What the trial and the tests of the job scheduler share: a PostgreSQL server of their own.

mod database;

pub use crate::database::Database;
