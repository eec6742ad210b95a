//! The module `time`.
//!
//! `suite` and `real_clock` are compiled twice, with tokio's module and with ours: what tokio's own
//! tests of `sleep`, `timeout`, `interval`, `pause` and `JoinSet` check (1.54.1:
//! `tests/time_*.rs`, `rt_time_start_paused.rs`, `task_join_set.rs`), in our words. Those of them
//! that expect something else than this module promises are in `differences`, with one test for
//! each row of the module's table.
#![allow(clippy::duplicate_mod, reason = "one source for two modules")]

#[cfg(all(feature = "tokio", not(miri)))]
mod differences;
mod own_timer;

#[cfg(not(miri))]
#[path = "."]
mod tokios {
    use tokio::time;

    mod real_clock;
    mod suite;
}

#[cfg(not(miri))]
#[path = "."]
mod ours {
    use hashed_wheel_util::time;

    mod real_clock;
    #[cfg(feature = "tokio")]
    mod suite;
}

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// A task that the test polls by hand. It counts how often it is woken.
#[derive(Default)]
struct Task(AtomicUsize);

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Task {
    fn new() -> Arc<Self> {
        Arc::default()
    }

    fn wakes(&self) -> usize {
        self.0.load(SeqCst)
    }

    fn with<T>(self: &Arc<Self>, poll: impl FnOnce(&mut Context<'_>) -> T) -> T {
        poll(&mut Context::from_waker(&Waker::from(Arc::clone(self))))
    }

    fn poll<F: Future + ?Sized>(self: &Arc<Self>, future: Pin<&mut F>) -> Poll<F::Output> {
        self.with(|context| future.poll(context))
    }
}
