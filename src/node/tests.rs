//! A burst of timeouts, with a worker that this thread plays.

use super::*;
use crate::sync::Arc;
use crate::sync::unmodelled::Mutex;
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

    fn lend(&mut self) -> Lent<'_, Timer> {
        self.local.set_ready();
        self.local.lend(&self.pool)
    }

    fn schedule(&mut self, deadline: u64) -> Handle<Timer> {
        self.lend().schedule(Nothing, deadline)
    }

    fn cancel(&mut self, handle: Handle<Timer>) {
        let seen = handle.not_ended().expect("the timeout has not ended");
        if let Some((task, _)) = self.lend().cancel(&handle, seen).into_task() {
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
                node.accept(|deadline, _| deadline);
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

    /// Returns the number of steps.
    fn return_memory(&mut self) -> usize {
        let mut steps = 1;
        while self.pool.nodes.lock().unwrap().of(&self.pool).return_memory() {
            steps += 1;
        }
        steps
    }
}

/// Deadlines over so many ticks.
const SPREAD: u64 = 1_000;

/// Schedules so many timeouts, and ends all of them: by expiry, by cancellation in a random order,
/// or by cancellation of all but each hundredth.
fn burst(both: &mut Both, count: usize, kind: &str) -> Vec<Handle<Timer>> {
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
        let mut most_made = None;
        for kind in ["expire", "cancel", "keep"] {
            let kept = burst(&mut both, COUNT, kind);
            // One in eight of the nodes that were made may be held. So a later burst may make a
            // seventh more, if no memory is returned in between. A sixth allows for a few pages.
            let made = both.pool.arena.made();
            let most = *most_made.get_or_insert(made + made / 6);
            assert!(made <= most, "{kind}: {made} nodes were made instead of {most}");
            let steps = both.return_memory();
            assert!(steps > 3 || !crate::platform::CAN_RETURN_MEMORY, "{steps} steps");
            assert_eq!(both.return_memory(), 1, "nothing is left to return");
            for handle in kept {
                both.cancel(handle);
            }
            both.receive();
        }
    }
}
