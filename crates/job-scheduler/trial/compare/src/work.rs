//! The job that all schedulers execute.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hashed_wheel_job_scheduler::Payload;
use hashed_wheel_trial::Lateness;
use serde::{Deserialize, Serialize};

/// The payload of the job.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Work {
    /// In microseconds of the wall clock, which is also that of the server.
    pub(crate) due: u64,
    /// Whether it does not end, and reports its start on the standard output.
    pub(crate) hangs: bool,
}

impl Payload for Work {
    const HANDLER: &'static str = "work";
}

static COUNT: AtomicU64 = AtomicU64::new(0);
static LATENESS: Mutex<Option<Lateness>> = Mutex::new(None);

impl Work {
    pub(crate) async fn execute(self) {
        record(Duration::from_micros(now().saturating_sub(self.due)));
        COUNT.fetch_add(1, Relaxed);
        if self.hangs {
            println!("started");
            std::future::pending::<()>().await;
        }
    }
}

fn record(late: Duration) {
    let mut lateness = LATENESS.lock().unwrap_or_else(PoisonError::into_inner);
    lateness.get_or_insert_default().record(late);
}

/// Returns the lateness of the executions since the last call.
pub(crate) fn take_lateness() -> Lateness {
    LATENESS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
        .unwrap_or_default()
}

/// The number of executions.
pub(crate) fn count() -> u64 {
    COUNT.load(Relaxed)
}

/// The wall clock in microseconds.
pub(crate) fn now() -> u64 {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("the clock is after 1970");
    now.as_micros() as u64
}
