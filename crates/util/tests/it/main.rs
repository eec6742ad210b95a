//! The tests of the crate. (`fuzz.rs` replays the corpora of `tests/fuzz`.)

#[path = "../../../../tests/it/common/mod.rs"]
mod common;
mod support;

mod backoff;
mod client;
mod deadline;
mod delay_queue;
mod delay_queue_runtimes;
mod expiring_map;
mod expiring_map_clock;
mod expiring_map_ends;
mod expiring_map_entry;
mod expiring_map_limit;
mod expiring_map_tasks;
mod expiring_map_touch;
mod hyper;
mod idle_io;
mod in_span;
mod large_values;
mod metrics;
mod peers;
mod public_api;
mod rayon_executor;
mod refused;
mod stream;
mod time;
mod timer;
mod tokio_executor;
mod tokio_runtime;
mod tower;
