//! Values that are too large for the worker's stack, or for several copies on it.
//!
//! An overflow of a stack ends the process. So each test passes if it ends.

#![cfg(not(miri))]

use crate::common;
use crate::support;

use std::hint::black_box;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use common::{TEST_TIMEOUT, accepts_all, ms};
use hashed_wheel::{ExpiredTask, HashedWheelTimer, TaskExecutor, executor};
use hashed_wheel_util::delay_queue::DelayQueue;
use hashed_wheel_util::executor::TaskExecutorExt;
use hashed_wheel_util::{ExpiringMap, Removed};
use support::Tasks;

const HOUR: Duration = Duration::from_secs(3_600);

/// For keys and values that a map moves: the default stack of a thread, 2 MiB, has room for 32.
const LARGE: usize = 64 << 10;
/// More than this stack.
const HUGE: usize = 3 << 20;

#[derive(Debug)]
struct Bytes<const SIZE: usize>([u8; SIZE]);

impl<const SIZE: usize> Bytes<SIZE> {
    fn new() -> Self {
        Self([1; SIZE])
    }

    fn len(&self) -> usize {
        black_box(&self.0)
            .iter()
            .map(|byte| usize::from(*byte))
            .sum()
    }
}

/// Sends the number of its bytes when it is dropped.
struct Dropped<const SIZE: usize>(Bytes<SIZE>, Sender<usize>);

impl<const SIZE: usize> Drop for Dropped<SIZE> {
    fn drop(&mut self) {
        self.1.send(self.0.len()).unwrap();
    }
}

/// Runs on a thread with a large stack: a caller moves what it passes by value.
fn with_large_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .stack_size(128 << 20)
        .spawn(test)
        .unwrap()
        .join()
        .unwrap();
}

/// Runs on a thread with the default stack.
fn with_default_stack(test: impl FnOnce() + Send + 'static) {
    thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(test)
        .unwrap()
        .join()
        .unwrap();
}

/// The worker of this timer has the default stack.
fn timer() -> HashedWheelTimer {
    HashedWheelTimer::builder()
        .tick(ms(1))
        .thread_stack_size(2 << 20)
        .build()
        .unwrap()
}

/// A timer whose tasks run on a thread with the default stack.
fn timer_with_pool() -> HashedWheelTimer {
    let (to_pool, tasks) = channel::<ExpiredTask>();
    thread::Builder::new()
        .stack_size(2 << 20)
        .spawn(move || tasks.into_iter().for_each(ExpiredTask::run))
        .unwrap();
    let to_pool = accepts_all(move |task| drop(to_pool.send(task)));
    HashedWheelTimer::builder()
        .tick(ms(1))
        .task_executor(to_pool)
        .build()
        .unwrap()
}

#[track_caller]
fn expect<T: PartialEq + std::fmt::Debug>(receiver: &Receiver<T>, expected: T) {
    assert_eq!(receiver.recv_timeout(TEST_TIMEOUT), Ok(expected));
}

// --- keys ----------------------------------------------------------------------------------------

#[test]
fn a_handler_gets_a_large_value() {
    with_large_stack(|| {
        for timer in [timer(), timer_with_pool()] {
            let (sender, lengths) = channel();
            let map =
                ExpiringMap::with_handler(&timer, move |removed: Removed<u32, Bytes<LARGE>>| {
                    sender.send((removed.key, removed.value.len())).unwrap();
                });
            assert!(map.insert(7, Bytes::new(), ms(1)).unwrap().is_none());
            expect(&lengths, (7, LARGE));
        }
    });
}

/// A key is a value of the user, too.
#[test]
fn a_handler_gets_a_large_key() {
    with_large_stack(|| {
        let timer = timer();
        let (sender, lengths) = channel();
        let map = ExpiringMap::with_handler(&timer, move |removed: Removed<[u8; LARGE], ()>| {
            sender.send(removed.key.len()).unwrap();
        });
        assert!(map.insert([7; LARGE], (), ms(1)).unwrap().is_none());
        expect(&lengths, LARGE);
    });
}

#[test]
fn the_worker_sends_a_large_value() {
    with_large_stack(|| {
        let timer = timer();
        let (map, mut expired) = ExpiringMap::with_receiver(&timer);
        assert!(
            map.insert(7, Bytes::<LARGE>::new(), ms(1))
                .unwrap()
                .is_none()
        );
        let first = smol::block_on(expired.recv()).unwrap();
        assert_eq!((first.key, first.value.len()), (7, LARGE));
        let mut batch = Vec::new();
        assert!(map.insert(8, Bytes::new(), ms(1)).unwrap().is_none());
        assert_eq!(smol::block_on(expired.recv_many(&mut batch, 10)), 1);
        assert_eq!((batch[0].key, batch[0].value.len()), (8, LARGE));
    });
}

#[test]
fn a_task_under_a_key_is_larger_than_the_stack() {
    with_large_stack(|| {
        for timer in [timer(), timer_with_pool()] {
            let map = Tasks::new(&timer);
            let (sender, lengths) = channel();
            let task = |bytes: Bytes<HUGE>| {
                let sender = sender.clone();
                move |key: u32| sender.send((key, bytes.len())).unwrap()
            };
            assert!(!map.schedule(7, task(Bytes::new()), ms(1)).unwrap());
            expect(&lengths, (7, HUGE));
            assert!(
                !map.schedule_at(8, task(Bytes::new()), timer.now() + ms(1))
                    .unwrap()
            );
            expect(&lengths, (8, HUGE));
        }
    });
}

/// On a thread with the default stack: `retain`, `clear`, `cancel`, the drop of the map, `stop`,
/// and the worker for an executor that drops tasks.
#[test]
fn large_values_under_keys_are_dropped() {
    type Maps = (ExpiringMap<u32, Dropped<LARGE>>, Tasks<u32>);
    type End = fn(&HashedWheelTimer, Maps);

    fn new(timer: &HashedWheelTimer, drops: &Sender<usize>) -> Maps {
        let values = ExpiringMap::new(timer);
        let tasks = Tasks::new(timer);
        let value = || Dropped(Bytes::new(), drops.clone());
        assert!(values.insert(7, value(), HOUR).unwrap().is_none());
        let owned = value();
        assert!(
            !tasks
                .schedule(7, move |_| drop(black_box(owned)), HOUR)
                .unwrap()
        );
        (values, tasks)
    }

    with_large_stack(|| {
        let (sender, drops) = channel();
        let ends: [End; 5] = [
            |_, (values, tasks)| {
                values.retain(|_, _| false);
                assert!(tasks.cancel(&7));
            },
            |_, (values, tasks)| assert_eq!([values.clear(), tasks.clear()], [1, 1]),
            |_, maps| drop(maps),
            |timer, _maps| assert_eq!(timer.stop().len(), 2),
            // A task drops the last handles on the worker.
            |timer, maps| _ = timer.new_timeout(move |_| drop(maps), ms(1)).unwrap(),
        ];
        for end in ends {
            let timer = timer();
            let maps = new(&timer, &sender);
            with_default_stack(move || end(&timer, maps));
            expect(&drops, LARGE);
            expect(&drops, LARGE);
        }
        let builder = HashedWheelTimer::builder().tick(ms(1));
        let timer = builder
            .task_executor(accepts_all(drop::<ExpiredTask>))
            .build()
            .unwrap();
        // (The handler of a task that has expired would be called, and moves it.)
        let values = ExpiringMap::new(&timer);
        let value = Dropped(Bytes::<LARGE>::new(), sender.clone());
        assert!(values.insert(7, value, ms(1)).unwrap().is_none());
        expect(&drops, LARGE);
    });
}

// --- queues --------------------------------------------------------------------------------------

#[test]
fn the_worker_moves_no_value_of_a_queue() {
    with_large_stack(|| {
        let timer = timer();
        let queue = DelayQueue::new(&timer);
        let (sender, drops) = channel();
        let value = || Dropped(Bytes::<HUGE>::new(), sender.clone());
        queue.insert(value(), ms(5)).unwrap();
        assert_eq!(queue.recv().unwrap().get_ref().0.len(), HUGE);
        expect(&drops, HUGE);
        queue.insert(value(), HOUR).unwrap();
        timer.new_timeout(move |_| drop(queue), ms(1)).unwrap();
        expect(&drops, HUGE);
    });
}

// --- tasks ---------------------------------------------------------------------------------------

/// A refused task comes back to the worker, which moves only a pointer.
#[test]
fn a_refused_task_is_larger_than_the_stack() {
    with_large_stack(|| {
        // The second offer is accepted.
        let refuses_one = || {
            let refused = AtomicBool::new(false);
            executor::from_fn(move |task: ExpiredTask| match refused.swap(true, SeqCst) {
                true => {
                    task.run();
                    Ok(())
                }
                false => Err(task),
            })
        };
        let executors: [Box<dyn TaskExecutor>; 4] = [
            Box::new(refuses_one()),
            Box::new(refuses_one().or_run_here()),
            Box::new(refuses_one().or_retry(ms(1))),
            Box::new(refuses_one().or_else(accepts_all(ExpiredTask::run))),
        ];
        for executor in executors {
            let (sender, drops) = channel();
            let timer = HashedWheelTimer::builder()
                .tick(ms(1))
                .task_executor(executor)
                .build()
                .unwrap();
            let owned = Dropped(Bytes::<HUGE>::new(), sender);
            timer
                .new_timeout(move |_| _ = black_box(&owned), ms(1))
                .unwrap();
            expect(&drops, HUGE);
        }
    });
}
