//! The phases of the load: steady traffic, bursts, and pauses.
//!
//! Each burst has a cycle of the same length. It begins with steady traffic. Then comes the burst,
//! in addition to the traffic. The cycle ends with a pause: threads cancel what they have, and use
//! no timer any more.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

use crate::burst::{self, End};
use crate::machine::Memory;
use crate::producer::Target;
use crate::{Options, machine};

/// The burst comes after this part of a cycle, the pause after that one.
const BURST_AT: f64 = 0.4;
const PAUSE_AT: f64 = 0.7;

/// The interval between two samples of the memory in use.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

const RUNNING: u8 = 0;
const PAUSED: u8 = 1;
const OVER: u8 = 2;

/// What the threads that use timers do at present.
#[derive(Debug, Default)]
pub(crate) struct Phase(AtomicU8);

impl Phase {
    fn pause(&self) {
        self.0.store(PAUSED, SeqCst);
    }

    fn resume(&self) {
        self.0.store(RUNNING, SeqCst);
    }

    pub(crate) fn end(&self) {
        self.0.store(OVER, SeqCst);
    }

    /// Waits while there is a pause, in which `rest` is called first. Returns whether the load goes
    /// on. Before it does not, `rest` is called too: a slow thread may have missed the last pause.
    pub(crate) fn goes_on(&self, rest: impl FnOnce()) -> bool {
        if self.0.load(SeqCst) != RUNNING {
            rest();
        }
        loop {
            match self.0.load(SeqCst) {
                RUNNING => return true,
                PAUSED => thread::sleep(Duration::from_millis(20)),
                _ => return false,
            }
        }
    }
}

/// Observes the program while the phases follow each other.
pub(crate) struct Observer<'a> {
    options: &'a Options,
    began: Instant,
    pub(crate) memory: Memory,
    pub(crate) max_threads: Option<usize>,
    /// The longest time that a burst took.
    pub(crate) longest_burst: Duration,
    /// How often the threads that turn timers woke up per second, in the second half of the last
    /// pause.
    pub(crate) wake_ups: Option<f64>,
    reported: u64,
    scheduled: &'a dyn Fn() -> u64,
}

impl<'a> Observer<'a> {
    pub(crate) fn new(options: &'a Options, scheduled: &'a dyn Fn() -> u64) -> Self {
        Self {
            options,
            began: Instant::now(),
            memory: Memory::new(options.duration),
            max_threads: machine::threads(),
            longest_burst: Duration::ZERO,
            wake_ups: None,
            reported: 0,
            scheduled,
        }
    }

    /// Runs all phases. The last one is a pause, and the threads that use timers stay in it.
    pub(crate) fn run(&mut self, phase: &Phase, targets: &[Target; 2]) {
        let cycles = self.options.bursts.max(1);
        let cycle = self.options.duration / cycles as u32;
        for n in 0..cycles {
            let begin = cycle * n as u32;
            if self.options.bursts > 0 {
                self.watch(begin + cycle.mul_f64(BURST_AT), true);
                self.memory.end_warm_up();
                self.burst(targets, End::of(n));
                self.watch(begin + cycle.mul_f64(PAUSE_AT), false);
                phase.pause();
                self.watch(begin + cycle, false);
                machine::trim_heap();
                phase.resume();
            } else {
                self.watch(begin + cycle, true);
                self.memory.end_warm_up();
            }
        }
        phase.pause();
        // First what is still pending fires, and memory is returned.
        self.watch(self.began.elapsed() + self.options.quiet / 2, false);
        let (before, began) = (machine::sleeps(), Instant::now());
        self.watch(self.began.elapsed() + self.options.quiet / 2, false);
        let sleeps = machine::sleeps().zip(before).map(|(after, before)| after.saturating_sub(before));
        self.wake_ups = sleeps.map(|sleeps| sleeps as f64 / began.elapsed().as_secs_f64());
        machine::trim_heap();
        self.memory.end();
    }

    fn burst(&mut self, targets: &[Target; 2], end: End) {
        let began = Instant::now();
        let (size, max_late) = (self.options.burst_size as usize, self.options.max_late);
        let running = AtomicU64::new(targets.len() as u64);
        thread::scope(|scope| {
            for target in targets {
                let running = &running;
                scope.spawn(move || {
                    burst::run(target, size, end, max_late);
                    running.fetch_sub(1, SeqCst);
                });
            }
            while running.load(SeqCst) > 0 {
                thread::sleep(SAMPLE_INTERVAL / 4);
                self.sample(false);
            }
        });
        self.longest_burst = self.longest_burst.max(began.elapsed());
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
        if self.options.sabotage == Some(crate::Sabotage::Leak) {
            std::mem::forget(vec![1_u8; 8 << 20]);
        }
        let elapsed = self.began.elapsed();
        self.memory.sample(elapsed, is_steady);
        self.max_threads = self.max_threads.max(machine::threads());
        let tenths = (elapsed.as_secs_f64() * 10.0 / self.options.duration.as_secs_f64()) as u64;
        if tenths > self.reported && tenths < 10 {
            self.reported = tenths;
            let count = indicatif::HumanCount((self.scheduled)());
            println!("{elapsed:>8.1?}: {count} timeouts, {}", self.memory.now());
        }
    }
}
