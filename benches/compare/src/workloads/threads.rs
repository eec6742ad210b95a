//! The rows by number of threads. Each caller repeats an operation until the time is over, while
//! the main thread schedules the probes of the lateness. Netty's and Go's children do the same.

use std::mem::{forget, take};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::thread::{self, Scope, sleep};
use std::time::{Duration, Instant};

use super::expiry::{percentile, wait_for};
use super::{WorkloadResult, nanos_each};
use crate::command::{Answer, Command};
use crate::competitors::Competitor;
use crate::process;
use crate::session::{LONG, with_timer};
use crate::task;

/// The operations between two looks at the clock of the main thread.
pub(crate) const BATCH: usize = 256;

/// Batches of delays that a caller repeats.
const BATCHES: usize = 16;

const PROBE_PAUSE: Duration = Duration::from_millis(2);
const PROBE_DELAY: Duration = Duration::from_millis(20);

/// Counts what the callers have done. Each has its own cache lines.
pub(crate) struct Meter {
    is_over: AtomicBool,
    running: AtomicUsize,
    callers_cpu: AtomicU64,
    /// A caller that has made this many operations ends the run.
    most: u64,
    counts: Vec<Count>,
}

#[derive(Default)]
#[repr(align(128))]
struct Count(AtomicU64);

/// A caller's part of the meter.
pub(crate) struct Lap(Arc<Meter>, usize);

impl Lap {
    /// Counts a batch. Returns whether the caller shall go on.
    pub(crate) fn count(&self) -> bool {
        let before = self.0.counts[self.1].0.fetch_add(BATCH as u64, Relaxed);
        if before >= self.0.most {
            self.0.is_over.store(true, Relaxed);
        }
        !self.0.is_over.load(Relaxed)
    }
}

/// On the caller's thread, which began with the caller.
impl Drop for Lap {
    fn drop(&mut self) {
        let cpu = process::this_cpu().as_nanos() as u64;
        self.0.callers_cpu.fetch_add(cpu, SeqCst);
        self.0.running.fetch_sub(1, SeqCst);
    }
}

impl Meter {
    fn total(&self) -> u64 {
        self.counts.iter().map(|count| count.0.load(Relaxed)).sum()
    }

    /// Starts the callers and measures them, the first sixth of the time excepted. Calls `probe`
    /// meanwhile, which returns whether it has scheduled one.
    pub(crate) fn measure<'e>(
        command: &Command,
        has_worker: bool,
        start: impl for<'s> FnOnce(&'s Scope<'s, 'e>, Vec<Lap>),
        mut probe: impl FnMut() -> bool,
    ) -> WorkloadResult {
        let threads = command.get("threads")?;
        let time = Duration::from_millis(command.get("millis")? as u64);
        let meter = &Arc::new(Meter {
            is_over: AtomicBool::new(false),
            running: AtomicUsize::new(threads),
            callers_cpu: AtomicU64::new(0),
            most: command.get("most").map_or(u64::MAX, |most| most as u64),
            counts: (0..threads).map(|_| Count::default()).collect(),
        });
        let (cpu, begin) = (process::others_cpu(), Instant::now());
        let (mut from, mut probes) = ((begin, 0), 0);
        let rate = thread::scope(|scope| {
            let lap = |index| Lap(Arc::clone(meter), index);
            start(scope, (0..threads).map(lap).collect());
            while begin.elapsed() < time && !meter.is_over.load(Relaxed) {
                if from.1 == 0 && begin.elapsed() >= time / 6 {
                    from = (Instant::now(), meter.total());
                }
                probes += usize::from(probe());
                sleep(PROBE_PAUSE);
            }
            let (count, seconds) = (meter.total() - from.1, from.0.elapsed().as_secs_f64());
            meter.is_over.store(true, Relaxed);
            while meter.running.load(SeqCst) > 0 {
                sleep(PROBE_PAUSE);
            }
            count as f64 / seconds / 1e6
        });
        wait_for(probes, Instant::now() + Duration::from_secs(30))?;
        process::wait_until_idle(Duration::from_secs(5));
        let cpu = process::others_cpu() - cpu;
        let mut answer = Answer::new([
            ("mops", rate),
            ("cpu_ns", nanos_each(cpu, meter.total() as usize)),
        ]);
        if has_worker {
            let callers = Duration::from_nanos(meter.callers_cpu.load(SeqCst));
            let worker = cpu.saturating_sub(callers).as_secs_f64();
            answer = answer.with("worker_percent", 100.0 * worker / cpu.as_secs_f64());
        }
        if probes > 0 {
            let late = task::take_lateness();
            answer = answer.with("late_p50", percentile(&late, 0.5));
            answer = answer.with("late_p99", percentile(&late, 0.99));
        }
        Ok(answer)
    }
}

/// The timeouts that a caller has scheduled before.
pub(super) struct Handles<C: Competitor> {
    window: [Option<C::Handle>; 64],
    next: usize,
    /// Those whose drop would cancel them.
    kept: Vec<C::Handle>,
}

impl<C: Competitor> Handles<C> {
    fn new() -> Self {
        Self {
            window: [const { None }; 64],
            next: 0,
            kept: Vec::new(),
        }
    }

    /// Keeps a handle if its drop would cancel the timeout.
    pub(super) fn keep(&mut self, handle: C::Handle) {
        if C::DROP_CANCELS {
            self.kept.push(handle);
        }
    }

    /// Keeps a handle, and returns the one that was the last but 64.
    pub(super) fn replace(&mut self, handle: C::Handle) -> Option<C::Handle> {
        self.next = (self.next + 1) % self.window.len();
        self.window[self.next].replace(handle)
    }
}

/// Repeats an operation on each of `threads=`.
pub(super) fn timer<C: Competitor>(
    command: &Command,
    operation: impl Fn(&mut C::Caller<'_>, &mut Handles<C>, Duration) + Copy + Send + 'static,
) -> WorkloadResult {
    with_timer::<C>(command, |timer| {
        let random = &mut command.random();
        task::reset(1 << 16);
        Meter::measure(
            command,
            C::HAS_WORKER,
            |scope, laps| {
                for lap in laps {
                    let delays = random.delays(BATCHES * BATCH, LONG);
                    let (mut handles, mut batch) = (Handles::new(), 0);
                    timer.run_caller(scope, move |caller| {
                        batch = (batch + 1) % BATCHES;
                        for &delay in &delays[batch * BATCH..][..BATCH] {
                            operation(caller, &mut handles, delay);
                        }
                        let is_over = !lap.count();
                        if is_over {
                            // Their drop is no part of the operation.
                            forget(take(&mut handles.kept));
                        }
                        !is_over
                    });
                }
            },
            || {
                timer.probe(PROBE_DELAY);
                true
            },
        )
    })
}
