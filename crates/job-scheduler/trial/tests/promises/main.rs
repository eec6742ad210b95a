//! The promises of the crate's documentation, each with nodes in this process, on a PostgreSQL
//! server that this test starts. (`trial.rs` kills processes.)
//!
//! Bounds on time are generous, because the machine may be busy.

mod administration;
mod assertions;
mod batches;
mod changes;
mod completed;
mod control;
mod documents;
mod duties;
mod failover;
mod fixture;
mod health;
mod interruptions;
mod keys;
mod limits;
mod locks;
mod network;
mod nodes;
mod notified;
mod observed;
mod pages;
mod places;
mod plans;
mod pooler;
mod priorities;
mod races;
mod rates;
mod registered;
mod repeated;
mod restarts;
mod runs;
mod sabotages;
mod sql;
mod tls;
