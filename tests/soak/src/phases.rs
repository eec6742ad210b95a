//! The phases of the load: steady traffic, bursts, and pauses.
//!
//! Each burst has a cycle of the same length. It begins with steady traffic. Then comes the burst,
//! in addition to the traffic. The cycle ends with a pause: threads cancel what they have, and use
//! no timer any more.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::kinds::Shared;
use crate::machine::{self, Memory};
use crate::{Options, Sabotage};

/// The burst comes after this part of a cycle, the pause after that one.
const BURST_AT: f64 = 0.4;
const PAUSE_AT: f64 = 0.7;

/// The interval between two samples of the memory in use.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

const RUNNING: u8 = 0;
const PAUSED: u8 = 1;
const OVER: u8 = 2;

/// The present phase of the threads that use timers.
#[derive(Debug, Default)]
pub(crate) struct Phase(AtomicU8);

impl Phase {
    pub(crate) fn end(&self) {
        self.0.store(OVER, SeqCst);
    }

    /// Waits while there is a pause, in which `rest` is called first. Returns whether the load goes
    /// on. Before it does not, `rest` is called too: a slow thread may have missed the last pause.
    pub(crate) fn goes_on(&self, rest: impl FnOnce()) -> bool {
        if self.0.load(SeqCst) != RUNNING {
            rest();
        }
        while self.0.load(SeqCst) == PAUSED {
            thread::sleep(Duration::from_millis(20));
        }
        self.0.load(SeqCst) == RUNNING
    }
}

/// Observes the program while the phases follow each other.
pub(crate) struct Observer<'a> {
    options: &'a Options,
    began: Instant,
    pub(crate) memory: Memory,
    pub(crate) max_threads: Option<usize>,
    /// How often the threads that turn timers woke up per second, in the second half of the last
    /// pause.
    pub(crate) wake_ups: Option<f64>,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(options: &'a Options) -> Self {
        let (began, memory) = (Instant::now(), Memory::default());
        Self {
            options,
            began,
            memory,
            max_threads: None,
            wake_ups: None,
        }
    }

    /// Runs all phases. The last one is a pause, and the threads that use timers stay in it.
    pub(crate) fn run(&mut self, phase: &Phase, timers: &[Shared]) {
        let cycles = self.options.bursts.max(1);
        let cycle = self.options.duration / cycles;
        for n in 0..cycles {
            let begin = cycle * n;
            let has_burst = self.options.bursts > 0;
            self.watch(
                begin + cycle.mul_f64(if has_burst { BURST_AT } else { 1.0 }),
                true,
            );
            self.memory.end_warm_up();
            if has_burst {
                self.burst(timers, n);
                self.watch(begin + cycle.mul_f64(PAUSE_AT), false);
                phase.0.store(PAUSED, SeqCst);
                self.watch(begin + cycle, false);
                phase.0.store(RUNNING, SeqCst);
            }
        }
        phase.0.store(PAUSED, SeqCst);
        // First what is still pending fires, and memory is returned.
        self.watch(self.began.elapsed() + self.options.quiet / 2, false);
        let (before, began) = (machine::sleeps(), Instant::now());
        self.watch(self.began.elapsed() + self.options.quiet / 2, false);
        let sleeps = machine::sleeps()
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        self.wake_ups = sleeps.map(|sleeps| sleeps as f64 / began.elapsed().as_secs_f64());
        self.memory.end();
    }

    /// The kinds of bursts alternate: all timeouts are cancelled, none, or every other one.
    fn burst(&mut self, timers: &[Shared], n: u32) {
        let cancels = [|_| true, |_| false, |n: u32| n % 2 == 0][n as usize % 3];
        let size = self.options.burst_size;
        let running = AtomicU64::new(timers.len() as u64);
        thread::scope(|scope| {
            for timer in timers {
                scope.spawn(|| {
                    timer.plains.burst(&timer.timer, size, cancels);
                    running.fetch_sub(1, SeqCst);
                });
            }
            while running.load(SeqCst) > 0 {
                thread::sleep(SAMPLE_INTERVAL / 4);
                self.sample(false);
            }
        });
    }

    /// Observes until this time since the beginning.
    fn watch(&mut self, until: Duration, is_steady: bool) {
        loop {
            let left = until.saturating_sub(self.began.elapsed());
            if left.is_zero() {
                return;
            }
            thread::sleep(SAMPLE_INTERVAL.min(left));
            self.sample(is_steady);
        }
    }

    fn sample(&mut self, is_steady: bool) {
        if self.options.sabotage == Some(Sabotage::Leak) {
            std::mem::forget(vec![1_u8; 8 << 20]);
        }
        let elapsed = self.began.elapsed();
        self.memory
            .sample(is_steady, elapsed < self.options.duration / 5);
        self.max_threads = self.max_threads.max(machine::threads());
    }
}
