//! The tests of the library. What needs a process of its own is in `tests/alone_*.rs`.

mod common;

mod alarm;
mod async_code;
mod async_runtimes;
mod behaviour;
mod both_wheels;
mod cancel;
mod deadlines;
mod ending;
mod global;
mod groups;
mod netty;
mod netty_oracle;
mod occupancy;
mod peers;
mod periodic;
mod portions;
mod postpone;
mod races;
mod reentry;
mod reports;
mod shutdown;
mod slack;
mod stats;
mod suspend;
mod thread_cache;
mod threads;
mod tokio;
mod waker;
mod worker_thread;
