//! A timer without an engine: this thread plays the worker too.

#![allow(unsafe_code)]

use std::ops::Deref;

use super::arena::PAGE;
use super::local::Cancelled;
use super::timer_ref::TimerRef;
use super::*;
use crate::either_wheel::EitherWheel;
use crate::sync::Arc;
use crate::sync::unmodelled::Mutex;

/// The types of an arena whose nodes get no tasks.
pub(super) struct NoTasks;

impl TaskContext for NoTasks {
    type Timeout = ();
}

impl<S: TaskContext> Pool<S> {
    /// How many nodes were made.
    pub(crate) fn made(&self) -> u64 {
        self.arena.made()
    }
}

/// A timer without anything but nodes.
struct Timer {
    nodes: Mutex<NodeWheel<Timer>>,
    pool: Pool<Self>,
}

impl TaskContext for Timer {
    type Timeout = Handle<Self>;
}

impl Owner for Timer {
    fn pool(&self) -> &Pool<Self> {
        &self.pool
    }

    fn timeout(handle: Handle<Self>) -> Handle<Self> {
        handle
    }

    fn handle(timeout: &Handle<Self>) -> &Handle<Self> {
        timeout
    }

    fn recycle(released: Released<Self>) {
        released.free_remotely();
    }
}

struct Nothing;

impl Task<Timer> for Nothing {
    const ON_CANCEL: OnCancel = OnCancel::Nothing;

    fn run(self, _: &Handle<Timer>) {}

    fn cancelled(self, _: &Handle<Timer>) {}

    fn name() -> &'static str {
        "nothing"
    }
}

/// A periodic task that ends at its first run.
struct RunsOnce;

impl Task<Timer> for RunsOnce {
    const ON_CANCEL: OnCancel = OnCancel::Drop;
    const IS_PERIODIC: bool = true;

    fn run(self, _: &Handle<Timer>) {
        unreachable!("the task is periodic");
    }

    fn cancelled(self, _: &Handle<Timer>) {}

    fn name() -> &'static str {
        "runs once"
    }
}

/// The worker's reference to the timer.
struct WorkerTimer(Arc<Timer>);

impl Deref for WorkerTimer {
    type Target = Arc<Timer>;

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

/// The timer is freed only if the worker gives back the references to it that it has in reserve.
impl Drop for WorkerTimer {
    fn drop(&mut self) {
        if let Ok(mut nodes) = self.nodes.lock() {
            nodes.of(self).empty_reserve();
        }
    }
}

/// A thread and the worker.
struct Both {
    timer: WorkerTimer,
    local: LocalNodes<Timer>,
    consumer: Consumer,
}

impl Both {
    fn new(wheel: EitherWheel) -> Self {
        let timer = new_timer(wheel, |nodes, pool| Timer {
            nodes: Mutex::new(nodes),
            pool,
        });
        let (producer, consumer) = lane(timer.pool.id());
        Self {
            local: LocalNodes::<Timer>::new(&timer, producer),
            timer: WorkerTimer(timer),
            consumer,
        }
    }

    fn borrow(&mut self) -> NodesGuard<'_, Timer> {
        self.local.make_room();
        self.local.borrow(&self.timer)
    }

    fn schedule(&mut self, deadline: u64) -> Handle<Timer> {
        self.borrow().schedule(Nothing, deadline)
    }

    /// Returns whether nodes were freed for the worker to reclaim.
    fn cancel(&mut self, handle: Handle<Timer>) -> bool {
        let seen = handle.not_ended().expect("the timeout has not ended");
        if let Some(Cancelled { task, .. }) = self.borrow().cancel(&handle, seen) {
            let task = task.expect("the task does not run");
            assert!(task.is_plain(), "its cancellation has nothing to do");
            task.drop_task();
        }
        let recycled = self.local.recycle(handle.release());
        recycled.unwrap_or_else(|_| panic!("the handle is one of this timer"))
    }

    fn receive(&mut self) {
        let mut nodes = self.timer.nodes.lock().unwrap();
        let mut nodes = nodes.of(&self.timer);
        nodes.collect_remote_frees();
        self.consumer.look();
        let mut lane = self.consumer.take(u64::MAX);
        while let Some(arrival) = nodes.next_arrival(&mut lane) {
            match arrival {
                Arrival::TakenBack => {}
                Arrival::New(node) | Arrival::Replacement(node) | Arrival::Update(node) => {
                    node.accept(|deadline| deadline);
                }
            }
        }
    }

    fn expire(&mut self, tick: u64) {
        let mut nodes = self.timer.nodes.lock().unwrap();
        let mut nodes = nodes.of(&self.timer);
        nodes.advance(tick);
        while let Some(node) = nodes.next_due() {
            let Expiry::Once(claimed) = node.expire(|_| true) else {
                panic!("the timeout is due")
            };
            let handle = claimed.with(|task, timeout| task.run(timeout));
            nodes.recycle(handle);
        }
    }

    /// Takes in what the thread has freed. Returns whether there was anything.
    fn collect(&self) -> bool {
        self.timer
            .nodes
            .lock()
            .unwrap()
            .of(&self.timer)
            .collect_remote_frees()
    }

    fn has_surplus(&self) -> bool {
        self.timer
            .nodes
            .lock()
            .unwrap()
            .of(&self.timer)
            .has_surplus()
    }

    /// Returns the number of steps.
    fn return_memory(&mut self) -> usize {
        let mut steps = 1;
        while self
            .timer
            .nodes
            .lock()
            .unwrap()
            .of(&self.timer)
            .return_memory()
        {
            steps += 1;
        }
        steps
    }
}

/// Deadlines over this many ticks.
const SPREAD: u64 = 1_000;

/// Schedules this many timeouts, and ends all of them: by expiry, by cancellation in a random
/// order, or by cancellation of all but each hundredth.
fn burst(both: &mut Both, count: usize, kind: &str) -> Vec<Handle<Timer>> {
    let mut random = fastrand::Rng::with_seed(1);
    let start = both.timer.nodes.lock().unwrap().tick();
    let mut handles = Vec::with_capacity(if kind == "expire" { 0 } else { count });
    for each in 1..=count {
        let handle = both.schedule(start + 1 + random.u64(..SPREAD));
        if kind == "expire" {
            assert!(both.local.recycle(handle.release()).is_ok());
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
#[cfg_attr(miri, ignore = "takes minutes")]
fn memory_is_returned_and_used_again() {
    const COUNT: usize = 300_000;

    for wheel in [
        EitherWheel::try_new(false, 512).expect("memory"),
        EitherWheel::try_new(true, 512).expect("memory"),
    ] {
        let mut both = Both::new(wheel);
        let mut most_made = None;
        for kind in ["expire", "cancel", "keep"] {
            let kept = burst(&mut both, COUNT, kind);
            // One in eight of the nodes that were made may be held. So a later burst may make a
            // seventh more, if no memory is returned in between. A sixth allows for a few pages.
            let made = both.timer.pool.arena.made();
            let most = *most_made.get_or_insert(made + made / 6);
            assert!(
                made <= most,
                "{kind}: {made} nodes were made instead of {most}"
            );
            let steps = both.return_memory();
            assert!(
                steps > 3 || !crate::platform::CAN_RETURN_MEMORY,
                "{steps} steps"
            );
            assert_eq!(both.return_memory(), 1, "nothing is left to return");
            for handle in kept {
                both.cancel(handle);
            }
            both.receive();
        }
    }
}

fn both() -> Both {
    Both::new(EitherWheel::try_new(false, 512).expect("memory"))
}

#[test]
fn worker_knows_of_a_surplus_until_it_is_returned() {
    const COUNT: usize = if cfg!(miri) { 600 } else { 60_000 };

    let mut both = both();
    assert!(!both.has_surplus());
    burst(&mut both, COUNT, "expire");
    assert_eq!(both.has_surplus(), crate::platform::CAN_RETURN_MEMORY);
    both.return_memory();
    assert!(!both.has_surplus());
    // Uses the memory again. (Under Miri the burst fits into memory that is never returned.)
    burst(&mut both, COUNT, "expire");
}

#[test]
fn thread_keeps_two_pages_of_free_nodes_and_gives_others_to_the_worker() {
    let mut both = both();
    let handles: Vec<_> = (0..2 * PAGE + 2).map(|_| both.schedule(1)).collect();
    for (each, handle) in (1..).zip(handles) {
        assert_eq!(both.cancel(handle), each > 2 * PAGE + 1, "{each} nodes");
    }
    assert!(both.collect());
    assert!(!both.collect(), "nothing is left");
}

#[test]
fn thread_with_a_cache_takes_only_handles_of_its_timer() {
    let (mut own, mut other) = (both(), both());
    assert!(
        own.local.is_of(Arc::as_ptr(&own.timer)) && !own.local.is_of(Arc::as_ptr(&other.timer))
    );
    let Err(released) = own.local.recycle(other.schedule(1).release()) else {
        panic!("it is left to the caller");
    };
    let has_freed = other.local.recycle(released).ok();
    assert_eq!(has_freed, Some(false), "the message still has the node");
}

#[test]
#[should_panic(expected = "the handle is one of this timer")]
fn handle_of_another_timer_is_not_cancelled() {
    let (mut own, mut other) = (both(), both());
    let handle = other.schedule(1);
    let seen = handle.not_ended().unwrap();
    own.borrow().cancel(&handle, seen);
}

/// Another block begins with each 512 messages, and eight blocks are a batch.
#[test]
#[cfg_attr(miri, ignore = "too many messages")]
fn each_batch_of_messages_is_noticed_once() {
    let mut both = both();
    let mut batches = Vec::new();
    for pushed in 1..=10_000 {
        let handle = both.schedule(1);
        both.cancel(handle);
        if both.local.take_full_batch() {
            batches.push(pushed);
            both.receive();
        }
    }
    assert_eq!(batches, [8 * 512 + 1, 16 * 512 + 1]);
}

#[test]
fn what_a_thread_leaves_is_for_the_next_thread_or_for_the_worker() {
    let mut both = both();
    let idle = IdleNodes::<Timer>::new();
    assert!(!idle.retire(&both.timer) && idle.take().is_none());
    let handle = both.schedule(1);
    both.cancel(handle);
    idle.put(both.local);
    both.local = idle.take().expect("what the thread has left");
    assert!(!idle.retire(&both.timer), "another thread has taken it");
    idle.put(both.local);
    assert!(idle.retire(&both.timer));
    assert!(both.consumer.look().1);
    let mut nodes = both.timer.nodes.lock().unwrap();
    assert!(
        nodes.of(&both.timer).collect_remote_frees(),
        "the free nodes are the worker's"
    );
    assert!(!idle.retire(&both.timer));
}

#[test]
fn last_handle_frees_the_node_for_a_thread_without_a_cache() {
    let mut both = both();
    let handle = both.schedule(1);
    both.receive();
    both.expire(1);
    let other = handle.clone();
    assert!(
        handle.release().free_remotely().is_none(),
        "there is another handle"
    );
    assert!(!both.collect());
    assert!(other.release().free_remotely().is_some());
    assert!(both.collect());
}

#[test]
fn worker_recycles_the_node_of_an_expired_timeout_itself() {
    let mut both = both();
    drop(both.schedule(1));
    both.receive();
    both.expire(1);
    assert!(!both.collect());
}

/// They would keep the timer.
#[test]
fn worker_gives_its_reserve_of_references_back() {
    let mut both = both();
    drop(both.schedule(1));
    both.receive();
    both.expire(1);
    let Both { timer, local, .. } = both;
    drop(local);
    assert_eq!(Arc::strong_count(&timer), 2);
    timer.nodes.lock().unwrap().of(&timer).empty_reserve();
    assert_eq!(Arc::strong_count(&timer), 1);
}

#[test]
fn last_reference_of_the_wheel_gives_the_node() {
    let both = both();
    let node = both.timer.pool.arena.take_page().next().unwrap();
    // SAFETY: the node is one of the pool, which exists until the end of this test.
    let (handle, wheel_ref) = unsafe { node.fill(Nothing, 1, 0, TimerRef::new(&both.timer)) };
    assert!(!wheel_ref.is_last_reference());
    assert!(handle.release().node.is_none());
    assert!(wheel_ref.is_last_reference());
    assert!(wheel_ref.release().is_some());
}

/// The worker has refused the timeout, because the timer closes.
#[test]
fn node_of_a_refused_timeout_is_freed_by_the_thread_that_withdraws_it() {
    let mut both = both();
    let handle = both.schedule(1);
    let mut nodes = both.timer.nodes.lock().unwrap();
    let mut wheel = nodes.of(&both.timer);
    both.consumer.look();
    let mut lane = both.consumer.take(u64::MAX);
    let Some(Arrival::New(node)) = wheel.next_arrival(&mut lane) else {
        panic!("the timeout is new")
    };
    node.refuse();
    assert!(wheel.next_arrival(&mut lane).is_none());
    drop(nodes);
    let Ok(claimed) = both.borrow().withdraw(handle) else {
        panic!("the timeout has not ended")
    };
    let handle = claimed.with(|task, _| task.drop_task());
    assert!(handle.release().node.is_some());
}

#[test]
fn periodic_task_has_its_name_and_is_dropped_after_its_last_run() {
    let mut both = both();
    drop(both.borrow().schedule(RunsOnce, 1));
    both.receive();
    let mut nodes = both.timer.nodes.lock().unwrap();
    let mut nodes = nodes.of(&both.timer);
    nodes.advance(1);
    let Expiry::Stays(node) = nodes.next_due().unwrap().expire(|_| true) else {
        panic!("the task stays in the node");
    };
    let Ok(mut run) = node.begin_run(|_| true) else {
        panic!("it is periodic")
    };
    assert_eq!(run.name(), "runs once");
    assert!(run.repeat(&both.timer).is_none());
    let RunOutcome::LastRun(ended) = run.finish(None) else {
        panic!("it was not cancelled")
    };
    let mut was_dropped = false;
    ended.drop_task(|task| {
        task.drop_task();
        was_dropped = true;
    });
    assert!(was_dropped);
}

impl Both {
    /// Cancels a timeout and gives up its handle. Returns whether the worker has memory to reclaim.
    fn discard(&mut self, handle: Handle<Timer>) -> Result<bool, Handle<Timer>> {
        self.local.make_room();
        let (cancelled, timer) = self.local.discard(handle, OnCancel::Drop)?;
        assert!(cancelled.task.is_none(), "there is nothing to drop");
        self.local.put(timer);
        Ok(cancelled.leaves_memory)
    }
}

#[test]
fn node_of_a_discarded_timeout_is_used_next_if_the_worker_has_not_seen_it() {
    let mut both = both();
    let handle = both.schedule(1);
    let node = handle.as_ptr();
    assert!(matches!(both.discard(handle), Ok(false)));
    let next = both.schedule(1);
    assert_eq!(next.as_ptr(), node);
    both.receive();
    assert!(matches!(both.discard(next), Ok(true)), "it is in the wheel");
    both.receive();
    both.expire(1);
}

#[test]
fn message_of_a_discarded_timeout_leaves_other_handles_alone() {
    let mut both = both();
    let handle = both.schedule(1);
    let clone = handle.clone();
    both.receive();
    assert!(both.discard(handle).is_ok());
    both.receive();
    assert_eq!(clone.end(), Some(End::Cancelled));
    assert!(clone.release().node.is_some(), "it is the last one");
}

#[test]
fn timeout_that_has_ended_or_has_another_handle_in_flight_is_not_discarded() {
    let mut both = both();
    let handle = both.schedule(1);
    let clone = handle.clone();
    let Err(handle) = both.discard(handle) else {
        panic!("there is a clone")
    };
    both.cancel(clone);
    let Err(handle) = both.discard(handle) else {
        panic!("it has ended")
    };
    assert_eq!(handle.end(), Some(End::Cancelled));
}

#[test]
#[should_panic(expected = "the handle is one of this timer")]
fn handle_of_another_timer_is_not_discarded() {
    let (mut own, mut other) = (both(), both());
    let handle = other.schedule(1);
    _ = own.discard(handle);
}
