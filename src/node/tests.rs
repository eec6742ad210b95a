//! A burst of timeouts, with a worker that this thread plays.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::*;
use crate::sync::Arc;
use crate::wheel::{EitherWheel, Hashed, Hierarchical};

/// A timer without anything but nodes.
struct Timer {
    nodes: Mutex<NodeWheel<Timer>>,
}

impl TaskContext for Timer {
    type Timeout = Handle<Self>;
    type Timer = Pool<Self>;
}

impl Owner for Timer {
    fn timeout(handle: Handle<Self>) -> Handle<Self> {
        handle
    }

    fn handle(timeout: &Handle<Self>) -> &Handle<Self> {
        timeout
    }

    fn recycle(released: Released<Self>) {
        released.free_remotely();
    }

    fn has_made(&self, _: u64) {}
}

struct Nothing;

impl Task<Timer> for Nothing {
    const IS_PLAIN: bool = true;

    fn run(self, _: &Handle<Timer>) {}

    fn cancelled(self, _: &Handle<Timer>) {}

    fn name() -> &'static str {
        "nothing"
    }
}

/// A thread and the worker.
struct Both {
    pool: Arc<Pool<Timer>>,
    local: LocalNodes<Timer>,
    consumer: Consumer,
}

impl Both {
    fn new(wheel: EitherWheel) -> Self {
        let pool = new_pool(wheel, |nodes, _| Timer { nodes: Mutex::new(nodes) });
        let (producer, consumer) = lane(pool.id());
        Self { local: LocalNodes::new(&pool, producer), pool, consumer }
    }

    fn schedule(&mut self, deadline: u64) -> Handle<Timer> {
        self.local.lend(&self.pool).schedule(Nothing, deadline)
    }

    fn cancel(&mut self, handle: Handle<Timer>) {
        let seen = handle.not_ended().expect("the timeout has not ended");
        if let Cancel::TakenBack(task) | Cancel::InFlight(task) | Cancel::InWheel(task) =
            self.local.lend(&self.pool).cancel(&handle, seen)
        {
            let CancelledTask::Owned(task) = task else { panic!("the task does not run") };
            task.discard();
        }
        let mut released = Some(handle.release());
        self.local.recycle(&mut released);
        assert!(released.is_none());
    }

    fn receive(&mut self) {
        let mut nodes = self.pool.nodes.lock().unwrap();
        let mut nodes = nodes.of(&self.pool);
        nodes.collect_remote_frees();
        nodes.receive(self.consumer.look(), u64::MAX, |arrival, _| match arrival {
            Arrival::TakenBack => {}
            Arrival::New(node) | Arrival::Replacement(node) | Arrival::Known(node) => {
                node.accept(|deadline, _| deadline)
            }
        });
    }

    fn expire(&mut self, tick: u64) {
        let mut nodes = self.pool.nodes.lock().unwrap();
        let mut nodes = nodes.of(&self.pool);
        nodes.advance(tick);
        while let Some(node) = nodes.next_due() {
            let Expiry::Once(claimed) = node.expire(|_| true) else { panic!("the timeout is due") };
            let handle = claimed.with(|task, timeout| task.run(timeout));
            nodes.recycle(handle);
        }
    }

    /// Returns the time that it took in total, and that of the longest step.
    fn return_memory(&mut self) -> (usize, Duration, Duration) {
        let (mut steps, mut total, mut longest) = (0, Duration::ZERO, Duration::ZERO);
        loop {
            let start = Instant::now();
            let has_more = self.pool.nodes.lock().unwrap().of(&self.pool).return_memory();
            let time = start.elapsed();
            (steps, total, longest) = (steps + 1, total + time, longest.max(time));
            if !has_more {
                return (steps, total, longest);
            }
        }
    }
}

/// Deadlines over so many ticks.
const SPREAD: u64 = 1_000;

/// Schedules so many timeouts, and ends all of them: by expiry, by cancellation in a random order,
/// or by cancellation of all but each hundredth. Calls `at_peak` when all are in the wheel.
fn burst(both: &mut Both, count: usize, kind: &str, at_peak: impl FnOnce()) -> Vec<Handle<Timer>> {
    let mut random = fastrand::Rng::with_seed(1);
    let start = both.pool.nodes.lock().unwrap().tick();
    let mut handles = Vec::with_capacity(if kind == "expire" { 0 } else { count });
    for each in 1..=count {
        let handle = both.schedule(start + 1 + random.u64(..SPREAD));
        if kind == "expire" {
            let mut released = Some(handle.release());
            both.local.recycle(&mut released);
        } else {
            handles.push(handle);
        }
        if each % 10_000 == 0 || each == count {
            both.receive();
        }
    }
    at_peak();
    let mut kept = Vec::new();
    if kind == "expire" {
        both.expire(start + SPREAD);
    } else {
        random.shuffle(&mut handles);
        for (each, handle) in handles.into_iter().enumerate() {
            if kind == "keep" && each % 100 == 0 {
                kept.push(handle);
            } else {
                both.cancel(handle);
            }
            if each % 10_000 == 0 {
                both.receive();
            }
        }
        both.receive();
    }
    kept
}

#[test]
fn memory_is_returned_and_used_again() {
    const COUNT: usize = if cfg!(miri) { 6_000 } else { 300_000 };

    for wheel in [EitherWheel::Hashed(Hashed::new(512)), EitherWheel::Hierarchical(Hierarchical::new(512))] {
        let mut both = Both::new(wheel);
        for kind in ["expire", "cancel", "keep"] {
            let kept = burst(&mut both, COUNT, kind, || ());
            let steps = both.return_memory().0;
            assert!(steps > 3 || !crate::platform::CAN_RETURN_MEMORY, "{steps} steps");
            assert_eq!(both.return_memory().0, 1, "nothing is left to return");
            for handle in kept {
                both.cancel(handle);
            }
            both.receive();
        }
    }
}

/// Bytes of this process that are in memory.
#[cfg(target_os = "linux")]
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * crate::platform::memory_page_size()
}

/// The measurement of `resident_memory_falls_after_a_burst`, in a process of its own. It can be
/// called alone, for example with ten million timeouts:
///
/// ```text
/// BURST="expire 10000000" cargo test --release --lib node::tests::measure -- --ignored --nocapture
/// ```
#[test]
#[cfg(target_os = "linux")]
#[ignore = "it measures the memory of the whole process"]
fn measure() {
    let setting = std::env::var("BURST").unwrap_or_else(|_| "expire 1000000".to_owned());
    let (kind, count) = setting.split_once(' ').unwrap();
    let mut both = Both::new(EitherWheel::Hashed(Hashed::new(512)));
    let (before, mut peak) = (resident(), 0);
    let count = count.parse().unwrap();
    let kept = burst(&mut both, count, kind, || peak = resident() - before);
    let ended = resident() - before;
    let (steps, total, longest) = both.return_memory();
    let left = resident().saturating_sub(before);
    println!(
        "{kind}, {count} timeouts: {} MB at the peak, {} MB when they had ended, {} MB after {steps} steps in \
         {total:.1?}, at most {longest:.1?} each",
        peak >> 20,
        ended >> 20,
        left >> 20,
    );
    let start = Instant::now();
    for _ in 0..1_000 {
        both.return_memory();
    }
    println!("a step with nothing to do: {:?}", start.elapsed() / 1_000);
    // The nodes alone are 64 bytes each.
    assert!(peak > count * 64, "{peak} bytes");
    let in_use = if kind == "keep" { peak * 2 / 3 } else { 0 };
    assert!(left < in_use + peak / 10 + (4 << 20), "{left} bytes of {peak} are left");
    drop(kept);
}

/// In processes of their own, because other tests run in this one.
#[test]
#[cfg(target_os = "linux")]
#[cfg_attr(miri, ignore = "it starts processes")]
fn resident_memory_falls_after_a_burst() {
    for kind in ["expire", "cancel", "keep"] {
        let output = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "node::tests::measure", "--ignored", "--nocapture"])
            .env("BURST", format!("{kind} 1000000"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && text.contains("1 passed"), "{kind}: {text}");
    }
}
