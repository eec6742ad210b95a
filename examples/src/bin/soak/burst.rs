//! Bursts: many timeouts at once, which all end soon.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, Timeout, TimerTask};

use crate::Sabotage;
use crate::ledger::Ledger;
use crate::producer::Target;

/// How long the end of a burst may take, in addition to the permitted lateness.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The longest delay of timeouts that are to fire.
const MAX_DELAY: Duration = Duration::from_secs(1);

/// Longer than the program waits for the end of a burst.
const NEVER_FIRES: Duration = Duration::from_secs(86_400);

/// How the timeouts of a burst end.
#[derive(Debug, Clone, Copy)]
pub(crate) enum End {
    Cancel,
    Fire,
    /// Every other timeout is cancelled.
    Half,
}

impl End {
    /// The kinds alternate.
    pub(crate) fn of(burst: u64) -> Self {
        [Self::Cancel, Self::Fire, Self::Half][burst as usize % 3]
    }

    fn cancels(self, n: usize) -> bool {
        match self {
            Self::Cancel => true,
            Self::Fire => false,
            Self::Half => n % 2 == 0,
        }
    }
}

/// How the timeouts of a burst have ended. Unlike other timeouts they have no records of their own,
/// because only the timer is to use memory for them.
#[derive(Debug, Default)]
struct Counts {
    runs: AtomicU64,
    hook_calls: AtomicU64,
    drops: AtomicU64,
}

struct Task(Arc<Counts>);

impl TimerTask for Task {
    fn run(self, _: &Timeout) {
        self.0.runs.fetch_add(1, SeqCst);
    }

    fn cancelled(self, _: &Timeout) {
        self.0.hook_calls.fetch_add(1, SeqCst);
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, SeqCst);
    }
}

/// Schedules `size` timeouts, and returns when all have ended.
pub(crate) fn run(target: &Target, size: usize, end: End, max_late: Duration) {
    let Target { timer, ledger, sabotage, .. } = target;
    let counts = Arc::new(Counts::default());
    let timeouts = schedule(timer, &counts, size, end);
    let is_cancelled = |(n, timeout): &(usize, &Timeout)| end.cancels(*n) && timeout.cancel();
    let cancelled = timeouts.iter().enumerate().filter(is_cancelled).count() as u64;
    if *sabotage == Some(Sabotage::Hoard) {
        std::mem::forget(timeouts);
    } else {
        drop(timeouts);
    }
    let (size, began) = (size as u64, Instant::now());
    while counts.drops.load(SeqCst) < size && began.elapsed() < MAX_DELAY + max_late + TIMEOUT {
        thread::sleep(Duration::from_millis(5));
    }
    check(ledger, &counts, size, cancelled);
}

fn schedule(timer: &HashedWheelTimer, counts: &Arc<Counts>, size: usize, end: End) -> Vec<Timeout> {
    let mut timeouts = Vec::with_capacity(size);
    timeouts.extend((0..size).map(|n| {
        let delay = if end.cancels(n) { NEVER_FIRES } else { MAX_DELAY.mul_f64(n as f64 / size as f64) };
        let timeout = timer.new_timeout_task(Task(Arc::clone(counts)), delay);
        timeout.expect("a timer without a limit accepts timeouts until it is stopped")
    }));
    timeouts
}

fn check(ledger: &Ledger, counts: &Counts, size: u64, cancelled: u64) {
    let [runs, hook_calls, drops] =
        [&counts.runs, &counts.hook_calls, &counts.drops].map(|count| count.load(SeqCst));
    ledger.expect(runs + cancelled == size && hook_calls == cancelled && drops == size, || {
        format!(
            "of a burst of {size} timeouts {runs} ran and {cancelled} were cancelled; {hook_calls} hook calls, \
             {drops} drops of tasks"
        )
    });
    ledger.add_burst(size, runs, cancelled);
}
