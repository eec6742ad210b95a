//! The same tests for the queue of one owner and for tokio-util's, whose behaviour the first one
//! promises, except for the differences in its documentation. They cover what tokio-util's own
//! tests cover. The clock of both is tokio's, and the tests turn it.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::{Builder, EnterGuard, Runtime};
use tokio::time::{self, Instant};

use super::delay_queue::Wakes;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a poll returned.
#[derive(Debug, PartialEq)]
enum Polled {
    Value(u32),
    Waits,
    Empty,
}

use Polled::{Empty, Value, Waits};

/// A queue in a runtime whose clock stands still, and the task that polls it.
struct Task<Q> {
    queue: Q,
    wakes: Arc<Wakes>,
    start: Instant,
    _entered: EnterGuard<'static>,
    runtime: &'static Runtime,
}

impl<Q> Task<Q> {
    fn new(queue: impl FnOnce() -> Q) -> Self {
        let mut builder = Builder::new_current_thread();
        let runtime = builder.enable_time().start_paused(true).build().unwrap();
        let runtime: &Runtime = Box::leak(Box::new(runtime));
        let entered = runtime.enter();
        Self {
            queue: queue(),
            wakes: Arc::default(),
            start: Instant::now(),
            _entered: entered,
            runtime,
        }
    }

    fn pass(&self, millis: u64) {
        self.runtime.block_on(time::advance(ms(millis)));
    }

    /// Whether the task was woken since the last call.
    fn is_woken(&self) -> bool {
        self.wakes.take() > 0
    }

    /// The instant `millis` after the queue was made.
    fn at(&self, millis: u64) -> Instant {
        self.start + ms(millis)
    }
}

/// Defines a module with the tests for one of the queues.
macro_rules! queue_tests {
    ($name:ident, $Queue:ty, $new:expr) => {
        mod $name {
            use super::*;

            fn task() -> Task<$Queue> {
                Task::new(|| $new)
            }

            impl Task<$Queue> {
                fn poll(&mut self) -> Polled {
                    let waker = Waker::from(self.wakes.clone());
                    match self.queue.poll_expired(&mut Context::from_waker(&waker)) {
                        Poll::Ready(Some(expired)) => Value(expired.into_inner()),
                        Poll::Ready(None) => Empty,
                        Poll::Pending => Waits,
                    }
                }

                /// The values that are due.
                pub(super) fn due(&mut self) -> Vec<u32> {
                    let mut values = Vec::new();
                    while let Value(value) = self.poll() {
                        values.push(value);
                    }
                    values
                }
            }

            #[test]
            fn values_of_now_and_of_the_past_come_at_once() {
                let mut task = task();
                task.pass(100);
                for deadline in [100, 100, 50] {
                    task.queue.insert_at(1, task.at(deadline));
                }
                assert_eq!((task.queue.len(), task.due()), (3, vec![1; 3]));
                assert_eq!((task.poll(), task.queue.is_empty()), (Empty, true));
                task.queue.insert(1, Duration::ZERO);
                assert_eq!((task.due(), task.poll()), (vec![1], Empty));
            }

            #[test]
            fn the_task_is_woken_when_a_value_is_due_and_not_before() {
                let mut task = task();
                task.queue.insert(1, ms(5));
                assert_eq!(task.poll(), Waits);
                task.pass(4);
                assert_eq!((task.is_woken(), task.poll()), (false, Waits));
                task.pass(2);
                let seen = (task.is_woken(), task.poll(), task.poll());
                assert_eq!(seen, (true, Value(1), Empty));
            }

            #[test]
            fn delays_of_several_levels_end_in_order() {
                let mut task = task();
                let delays = [1_000, 2, 234, 60, 10, 64, 63, 4_096, 300_000];
                for delay in delays {
                    task.queue.insert(delay, ms(u64::from(delay)));
                }
                let (mut sorted, mut now) = (delays, 0);
                sorted.sort_unstable();
                for delay in sorted {
                    assert_eq!(task.poll(), Waits);
                    task.pass(u64::from(delay) - now - 1);
                    assert_eq!(task.poll(), Waits);
                    task.pass(1);
                    now = u64::from(delay);
                    assert_eq!((task.is_woken(), task.poll()), (true, Value(delay)));
                }
                assert_eq!(task.poll(), Empty);
            }

            #[test]
            fn a_removed_value_does_not_come() {
                let mut task = task();
                let key = task.queue.insert(1, ms(5));
                task.queue.insert(2, ms(7));
                assert_eq!(task.queue.remove(&key).into_inner(), 1);
                task.pass(10);
                assert_eq!((task.due(), task.poll()), (vec![2], Empty));
            }

            #[test]
            fn a_due_value_can_be_removed() {
                for others in [0, 1] {
                    let mut task = task();
                    let key = task.queue.insert(1, ms(64));
                    (0..others).for_each(|_| _ = task.queue.insert(2, ms(64)));
                    assert_eq!(task.poll(), Waits);
                    task.pass(80);
                    let removed = task.queue.remove(&key);
                    assert_eq!((removed.key(), *removed.get_ref()), (key, 1));
                    assert_eq!(task.due(), vec![2; others]);
                    assert_eq!(task.poll(), Empty);
                }
            }

            #[test]
            fn try_remove_returns_none_for_a_value_that_is_gone() {
                let mut task = task();
                let [removed, expired] = [1, 2].map(|value| task.queue.insert(value, ms(5)));
                assert_eq!(task.queue.try_remove(&removed).unwrap().into_inner(), 1);
                assert!(task.queue.try_remove(&removed).is_none());
                task.pass(5);
                assert_eq!(task.due(), [2]);
                assert!(task.queue.try_remove(&expired).is_none());
            }

            #[test]
            fn a_stale_key_panics() {
                let mut task = task();
                let key = task.queue.insert(1, ms(5));
                task.queue.remove(&key);
                let queue = &mut task.queue;
                let mut panics = |call: fn(&mut $Queue, _)| {
                    catch_unwind(AssertUnwindSafe(|| call(queue, key))).is_err()
                };
                assert!(panics(|queue, key| _ = queue.remove(&key)));
                assert!(panics(|queue, key| queue.reset(&key, ms(1))));
                assert!(panics(|queue, key| queue.reset_at(&key, Instant::now())));
                assert!(panics(|queue, key| _ = queue.deadline(&key)));
            }

            #[test]
            fn a_reset_moves_a_value_back_and_forth() {
                let mut task = task();
                let key = task.queue.insert(1, ms(5));
                assert_eq!(task.poll(), Waits);
                task.queue.reset_at(&key, task.at(10));
                assert_eq!(task.poll(), Waits);
                task.pass(7);
                assert_eq!(task.poll(), Waits);
                for deadline in [20_000, 40, 30] {
                    task.queue.reset_at(&key, task.at(deadline));
                    assert_eq!(task.queue.deadline(&key), task.at(deadline));
                    assert_eq!(task.poll(), Waits);
                }
                task.pass(22);
                assert_eq!(task.poll(), Waits);
                task.pass(1);
                let seen = (task.is_woken(), task.due(), task.poll());
                assert_eq!(seen, (true, vec![1], Empty));
            }

            #[test]
            fn a_reset_to_the_past_wakes_the_task() {
                let mut task = task();
                let key = task.queue.insert(1, ms(500));
                assert_eq!(task.poll(), Waits);
                task.pass(50);
                assert!(!task.is_woken());
                task.queue.reset_at(&key, task.at(10));
                let seen = (task.is_woken(), task.due(), task.poll());
                assert_eq!(seen, (true, vec![1], Empty));
            }

            #[test]
            fn a_value_that_was_due_when_inserted_can_be_reset_again_and_again() {
                let mut task = task();
                task.pass(1_000);
                let key = task.queue.insert_at(1, task.at(900));
                for deadline in [800, 1_200, 700, 1_100] {
                    task.queue.reset_at(&key, task.at(deadline));
                }
                assert_eq!(task.poll(), Waits);
                task.pass(100);
                assert_eq!((task.due(), task.poll()), (vec![1], Empty));
            }

            #[test]
            fn a_due_value_that_is_reset_does_not_come() {
                let mut task = task();
                let key = task.queue.insert(1, ms(5));
                task.queue.insert(2, ms(5));
                assert_eq!(task.poll(), Waits);
                task.pass(6);
                task.queue.reset(&key, ms(30));
                assert_eq!((task.due(), task.poll()), (vec![2], Waits));
                task.pass(30);
                assert_eq!(task.due(), [1]);
            }

            #[test]
            fn an_earlier_value_wakes_the_task_before_the_first_one() {
                let mut task = task();
                task.queue.insert(10, ms(10_000));
                assert_eq!(task.poll(), Waits);
                task.pass(600);
                task.queue.insert(8, ms(8));
                assert!(task.is_woken());
                assert_eq!(task.poll(), Waits);
                task.pass(8);
                assert_eq!((task.is_woken(), task.due()), (true, vec![8]));
                assert_eq!(task.poll(), Waits);
                task.pass(10_000);
                assert_eq!((task.is_woken(), task.due()), (true, vec![10]));
            }

            #[test]
            fn resets_of_two_values_change_which_is_first() {
                // For each value, when it is due at first and after its reset.
                let cases = [
                    ([(200, 300), (250, 350)], [1, 2]),
                    ([(200, 100), (250, 250)], [1, 2]),
                    ([(200, 200), (250, 100)], [2, 1]),
                    ([(200, 300), (250, 250)], [2, 1]),
                ];
                for (deadlines, order) in cases {
                    let mut task = task();
                    let keys = [1, 2].map(|value: u32| {
                        let (first, _) = deadlines[value as usize - 1];
                        task.queue.insert(value, ms(first))
                    });
                    assert_eq!(task.poll(), Waits);
                    task.pass(50);
                    for (key, (_, deadline)) in keys.iter().zip(deadlines) {
                        task.queue.reset_at(key, task.at(deadline));
                    }
                    assert_eq!(task.poll(), Waits);
                    let (mut now, mut came) = (50, Vec::new());
                    while came.len() < 2 {
                        task.pass(1);
                        now += 1;
                        for value in task.due() {
                            assert_eq!(now, deadlines[value as usize - 1].1);
                            came.push(value);
                        }
                    }
                    assert_eq!(came, order);
                }
            }

            #[test]
            fn a_value_that_came_can_be_inserted_again_in_the_loop() {
                let mut task = task();
                (1..=3).for_each(|value| _ = task.queue.insert(value, ms(100)));
                task.pass(100);
                let mut came = Vec::new();
                while let Value(value) = task.poll() {
                    came.push(value);
                    if value < 10 {
                        task.queue.insert(value * 10, ms(500));
                    }
                }
                came.sort_unstable();
                assert_eq!((came, task.queue.len()), (vec![1, 2, 3], 3));
                task.pass(500);
                came = task.due();
                came.sort_unstable();
                assert_eq!(came, [10, 20, 30]);
            }

            #[test]
            fn an_empty_queue_wakes_the_task_when_a_value_comes() {
                let mut task = task();
                assert_eq!(task.poll(), Empty);
                task.queue.insert(1, ms(10));
                assert!(task.is_woken());
                assert_eq!(task.poll(), Waits);
            }

            #[test]
            fn the_task_is_woken_when_the_queue_becomes_empty() {
                let removals: [fn(&mut $Queue, _); 2] = [
                    |queue, key| _ = queue.remove(&key),
                    |queue, _| queue.clear(),
                ];
                for removal in removals {
                    let mut task = task();
                    let key = task.queue.insert(1, ms(1_000));
                    assert_eq!(task.poll(), Waits);
                    removal(&mut task.queue, key);
                    assert_eq!((task.is_woken(), task.poll()), (true, Empty));
                }
            }

            #[test]
            fn peek_returns_the_first_key() {
                let mut task = task();
                assert_eq!(task.queue.peek(), None);
                // The last two share a slot of a high level.
                let [later, near, far, first] =
                    [900_000, 50, 900_001, 5].map(|delay| task.queue.insert(0, ms(delay)));
                for key in [first, near, later, far] {
                    assert_eq!(task.queue.peek(), Some(key));
                    task.queue.remove(&key);
                }
                let due = task.queue.insert_at(0, task.at(0));
                task.queue.insert(0, ms(1));
                assert_eq!(task.queue.peek(), Some(due));
            }

            #[test]
            fn a_deadline_is_rounded_up_to_a_millisecond() {
                let mut task = task();
                let key = task.queue.insert(1, Duration::from_micros(4_100));
                assert_eq!(task.queue.deadline(&key), task.at(5));
                task.pass(4);
                assert_eq!(task.poll(), Waits);
                task.pass(1);
                assert_eq!(task.due(), [1]);
            }
        }
    };
}

type OneOwner = timing_wheels::DelayQueue<u32, std::pin::Pin<Box<time::Sleep>>>;

fn one_owner() -> OneOwner {
    timing_wheels::DelayQueue::new(Box::pin(time::sleep(Duration::ZERO)), ms(1))
}

queue_tests!(of_one_owner, OneOwner, one_owner());
queue_tests!(
    of_tokio_util,
    tokio_util::time::DelayQueue<u32>,
    tokio_util::time::DelayQueue::new()
);

/// The differences that the documentation of the queue lists. The clock is that of the last task
/// that was made, so there is one at a time.
mod differences {
    use super::*;

    type TokioUtil = tokio_util::time::DelayQueue<u32>;

    #[test]
    fn values_of_one_tick_come_in_the_order_of_insertion() {
        let mut ours = Task::new(one_owner);
        (1..=3).for_each(|value| _ = ours.queue.insert(value, ms(5)));
        ours.pass(5);
        assert_eq!(ours.due(), [1, 2, 3]);
        drop(ours);

        let mut theirs = Task::new(TokioUtil::new);
        (1..=3).for_each(|value| _ = theirs.queue.insert(value, ms(5)));
        theirs.pass(5);
        assert_eq!(theirs.due(), [3, 2, 1]);
    }

    #[test]
    fn a_key_never_names_a_later_value() {
        let mut ours = Task::new(one_owner);
        let key = ours.queue.insert(1, ms(5));
        ours.queue.remove(&key);
        ours.queue.insert(2, ms(5));
        assert!(ours.queue.try_remove(&key).is_none());
        drop(ours);

        let mut theirs = Task::new(TokioUtil::new);
        let key = theirs.queue.insert(1, ms(5));
        theirs.queue.remove(&key);
        theirs.queue.insert(2, ms(5));
        assert_eq!(theirs.queue.try_remove(&key).unwrap().into_inner(), 2);
    }

    #[test]
    fn a_delay_of_three_years_is_no_panic() {
        let delay = ms(3 * 365 * 86_400_000);
        let mut ours = Task::new(one_owner);
        ours.queue.insert(1, delay);
        ours.pass(delay.as_millis() as u64);
        assert_eq!(ours.due(), [1]);
        drop(ours);

        let mut theirs = Task::new(TokioUtil::new);
        let insert = AssertUnwindSafe(|| theirs.queue.insert(1, delay));
        assert!(catch_unwind(insert).is_err());
    }
}
