//! The queue of one owner, on a sleep whose clock the test turns.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use timing_wheels::{DelayQueue, Expired, Key, QueueSleep};

const TICK: Duration = Duration::from_millis(10);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A sleep by a clock that stands still. Its waker is not called: the tests poll.
#[derive(Clone, Default)]
struct Sleep {
    now: Rc<Cell<Duration>>,
    until: Cell<Duration>,
    resets: Rc<Cell<usize>>,
}

impl QueueSleep for Sleep {
    type Instant = Duration;

    fn now(&self) -> Duration {
        self.now.get()
    }

    fn reset_at(&mut self, deadline: Duration) {
        self.until.set(deadline);
        self.resets.set(self.resets.get() + 1);
    }

    fn poll_elapsed(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.now.get() < self.until.get() {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

/// A task: how often it was woken since the last look.
#[derive(Default)]
pub(super) struct Wakes(AtomicUsize);

impl Wakes {
    pub(super) fn take(&self) -> usize {
        self.0.swap(0, Relaxed)
    }
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

/// A queue and its task. The values are not `Send`.
struct Task {
    queue: DelayQueue<Rc<u64>, Sleep>,
    now: Rc<Cell<Duration>>,
    resets: Rc<Cell<usize>>,
    wakes: Arc<Wakes>,
}

impl Task {
    fn new() -> Self {
        let sleep = Sleep::default();
        sleep.now.set(ms(777));
        let (now, resets) = (sleep.now.clone(), sleep.resets.clone());
        Self {
            queue: DelayQueue::new(sleep, TICK),
            now,
            resets,
            wakes: Arc::default(),
        }
    }

    fn insert(&mut self, value: u64, delay: u64) -> Key {
        self.queue.insert(Rc::new(value), ms(delay))
    }

    fn poll(&mut self) -> Poll<Option<Expired<Rc<u64>, Duration>>> {
        let waker = Waker::from(self.wakes.clone());
        self.queue.poll_expired(&mut Context::from_waker(&waker))
    }

    /// Polls until the task has to wait. Returns the values.
    fn run(&mut self) -> Vec<u64> {
        let mut values = Vec::new();
        while let Poll::Ready(Some(expired)) = self.poll() {
            assert!(expired.deadline() <= self.now.get());
            values.push(*expired.into_inner());
        }
        values
    }

    fn pass(&mut self, millis: u64) {
        self.now.set(self.now.get() + ms(millis));
    }

    /// How many wake-ups there were since the last call.
    fn wakes(&self) -> usize {
        self.wakes.take()
    }

    fn resets(&self) -> usize {
        self.resets.replace(0)
    }
}

#[test]
fn values_come_in_the_order_of_their_ticks_and_never_early() {
    let mut task = Task::new();
    for (value, delay) in [(1, 25), (2, 10), (3, 21), (4, 0), (5, 9)] {
        task.insert(value, delay);
    }
    assert_eq!(task.run(), [4]);
    task.pass(9);
    assert!(task.run().is_empty());
    task.pass(1);
    assert_eq!(task.run(), [2, 5]);
    task.pass(19);
    assert!(task.run().is_empty());
    task.pass(1);
    assert_eq!(task.run(), [1, 3]);
    assert!(matches!(task.poll(), Poll::Ready(None)));
}

#[test]
fn one_sleep_serves_all_values() {
    let mut task = Task::new();
    for value in 0..100 {
        task.insert(value, 100 + value % 20);
    }
    assert!(task.poll().is_pending() && task.poll().is_pending());
    assert_eq!(task.resets(), 1);
    task.pass(120);
    assert_eq!(task.run().len(), 100);
    assert_eq!((task.resets(), task.wakes()), (0, 0));
}

#[test]
fn task_is_woken_if_the_next_deadline_becomes_earlier() {
    let mut task = Task::new();
    assert!(matches!(task.poll(), Poll::Ready(None)));
    let first = task.insert(1, 1_000);
    assert_eq!(task.wakes(), 1, "the queue is no longer empty");
    assert!(task.poll().is_pending());
    let second = task.insert(2, 1_000);
    task.insert(3, 2_000);
    task.queue.reset(&first, ms(1_500));
    assert_eq!(task.wakes(), 0, "the sleep ends early enough");
    task.queue.reset(&second, ms(500));
    assert_eq!(task.wakes(), 1);
    task.insert(4, 100);
    assert_eq!(task.wakes(), 0, "the task has not polled since");
    assert!(task.poll().is_pending());
    task.pass(100);
    assert_eq!(task.run(), [4]);
    task.pass(400);
    assert_eq!(task.run(), [2]);
    task.pass(1_500);
    assert_eq!(task.run(), [1, 3]);
}

#[test]
fn sleep_that_ends_too_early_is_set_again() {
    let mut task = Task::new();
    let key = task.insert(1, 100);
    assert!(task.poll().is_pending());
    let later = task.now.get() + ms(300);
    task.queue.reset_at(&key, later);
    assert_eq!(task.queue.deadline(&key), later);
    assert!(task.poll().is_pending());
    task.pass(100);
    assert!(task.poll().is_pending());
    task.pass(199);
    assert!(task.poll().is_pending());
    assert!(task.resets() <= 3);
    task.pass(1);
    assert_eq!(task.run(), [1]);
}

#[test]
fn removal_of_the_last_value_wakes_the_task() {
    let mut task = Task::new();
    let [first, second] = [task.insert(1, 5), task.insert(2, 15)];
    assert!(task.poll().is_pending());
    assert_eq!(task.queue.peek(), Some(first));
    let removed = task.queue.remove(&first);
    assert_eq!((removed.key(), **removed.get_ref()), (first, 1));
    assert_eq!(removed.deadline(), ms(787));
    assert_eq!((task.wakes(), task.queue.len()), (0, 1));
    assert!(task.queue.try_remove(&second).is_some());
    assert_eq!(task.wakes(), 1);
    assert!(matches!(task.poll(), Poll::Ready(None)));

    task.insert(3, 0);
    task.queue.clear();
    assert!(task.queue.is_empty() && matches!(task.poll(), Poll::Ready(None)));
}

#[test]
fn stale_key_is_refused() {
    let mut task = Task::new();
    let key = task.insert(1, 0);
    assert_eq!(task.run(), [1]);
    assert!(task.queue.try_remove(&key).is_none());
    let queue = &mut task.queue;
    assert!(catch_unwind(AssertUnwindSafe(|| queue.remove(&key))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| queue.reset(&key, TICK))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| queue.reset_at(&key, TICK))).is_err());
    assert!(catch_unwind(AssertUnwindSafe(|| queue.deadline(&key))).is_err());
}

#[test]
fn value_that_is_never_due_sets_no_sleep() {
    let mut task = Task::new();
    let never = task.queue.insert(Rc::new(1), Duration::MAX);
    assert!(task.poll().is_pending());
    assert_eq!(task.resets(), 0);
    task.insert(2, 10);
    assert_eq!(task.wakes(), 1);
    assert!(task.poll().is_pending());
    task.pass(10);
    assert_eq!(task.run(), [2]);
    assert!(task.poll().is_pending());
    // After the sleep for the other value has ended, too.
    task.insert(3, 10);
    assert_eq!(task.wakes(), 1);
    task.queue.reset(&never, ms(10));
    task.pass(10);
    assert_eq!(task.run(), [3, 1]);
}

#[test]
fn clear_wakes_the_task_although_a_drop_panics() {
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a drop");
        }
    }

    let mut queue = DelayQueue::new(Sleep::default(), TICK);
    queue.insert(Panics, Duration::MAX);
    let wakes = Arc::<Wakes>::default();
    let waker = Waker::from(wakes.clone());
    let mut context = Context::from_waker(&waker);
    assert!(queue.poll_expired(&mut context).is_pending());
    assert!(catch_unwind(AssertUnwindSafe(|| queue.clear())).is_err());
    assert_eq!(wakes.take(), 1);
    assert!(matches!(
        queue.poll_expired(&mut context),
        Poll::Ready(None)
    ));
}

#[test]
fn queue_does_what_a_map_does() {
    let mut random = fastrand::Rng::with_seed(1);
    for _ in 0..if cfg!(miri) { 1 } else { 50 } {
        let mut task = Task::new();
        let origin = task.now.get();
        let (mut model, mut keys) = (BTreeMap::new(), Vec::new());
        for number in 0..500 {
            let bits = random.u32(1..16);
            let delay = random.u64(0..1 << bits);
            let now = (task.now.get() - origin).as_millis() as u64;
            let tick = (now + delay + 9) / 10;
            match random.u32(0..4) {
                0 | 1 => {
                    keys.push((task.insert(number, delay), (tick, number)));
                    model.insert((tick, number), number);
                }
                2 if !keys.is_empty() => {
                    let (key, rank) = keys.swap_remove(random.usize(..keys.len()));
                    let removed = task.queue.try_remove(&key).map(|gone| *gone.into_inner());
                    assert_eq!(removed, model.remove(&rank));
                }
                _ => {
                    task.pass(delay / 8);
                    let reached = (task.now.get() - origin).as_millis() as u64 / 10;
                    let later = model.split_off(&(reached + 1, 0));
                    let due: Vec<_> = std::mem::replace(&mut model, later).into_values().collect();
                    assert_eq!(task.run(), due);
                }
            }
            assert_eq!(task.queue.len(), model.len());
        }
    }
}

#[test]
fn debug_shows_the_number_of_values() {
    let mut task = Task::new();
    task.insert(1, 5);
    let text = format!("{:?}", task.queue);
    assert_eq!(text, "DelayQueue { len: 1, tick: 10ms, .. }");
}

#[cfg(feature = "stream")]
#[test]
fn queue_is_a_stream() {
    use futures_core::Stream;
    use std::pin::Pin;

    let mut task = Task::new();
    assert_eq!(task.queue.size_hint(), (0, Some(0)));
    task.insert(1, 5);
    let waker = Waker::from(task.wakes.clone());
    let mut context = Context::from_waker(&waker);
    assert_eq!(task.queue.size_hint(), (0, Some(1)));
    let polled = Pin::new(&mut task.queue)
        .poll_next(&mut context)
        .is_pending();
    assert!(polled);
    task.pass(10);
    let next = Pin::new(&mut task.queue).poll_next(&mut context);
    assert!(matches!(next, Poll::Ready(Some(expired)) if **expired.get_ref() == 1));
    let next = Pin::new(&mut task.queue).poll_next(&mut context);
    assert!(matches!(next, Poll::Ready(None)));
}

/// On tokio's paused clock, which goes on to the next sleep when all tasks wait.
#[cfg(feature = "tokio")]
#[test]
fn queue_sleeps_by_the_clock_of_tokio() {
    use std::future::poll_fn;
    use tokio::time::{self, Instant};

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let begin = Instant::now();
        let sleep = Box::pin(time::sleep(Duration::ZERO));
        let mut queue = DelayQueue::new(sleep, ms(1));
        for millis in [30, 7_000, 10] {
            queue.insert(Rc::new(millis), ms(millis));
        }
        queue.insert_at(Rc::new(20), begin + ms(20));
        for millis in [10, 20, 30, 7_000] {
            let expired = poll_fn(|context| queue.poll_expired(context)).await;
            let expired = expired.expect("the queue is not empty");
            assert_eq!(**expired.get_ref(), millis);
            assert_eq!(expired.deadline(), begin + ms(millis));
            let late = begin.elapsed() - ms(millis);
            assert!(late <= ms(1), "{late:?} late");
        }
        let last = poll_fn(|context| queue.poll_expired(context))
            .await
            .is_none();
        assert!(last);
    });
}
