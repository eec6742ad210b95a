//! A `DelayQueue`: threads insert, remove and reset values, wait for them, and poll for them.

use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel_over_shuttle::util::delay_queue::{DelayQueue, Expired, Key};

use super::*;

/// How often a waiting thread tries again if the timer has too many timeouts for it to wait.
const MAX_ATTEMPTS: usize = 3;

#[test]
fn no_value_is_forgotten() {
    explore(|random| {
        let (world, timer, event_loop) = World::new(random);
        let event_loop = event_loop.map(|event_loop| thread::spawn(|| event_loop.turn()));
        let queue = Queue::new(&timer, &world);
        let consumers: Vec<_> = (0..2).map(|_| queue.start_consumer()).collect();
        let producers: Vec<_> = (0..random.u8(1..=3))
            .map(|_| {
                let (queue, mut random) = (queue.clone(), random.fork());
                thread::spawn(move || (0..random.u8(1..4)).for_each(|_| queue.produce(&mut random)))
            })
            .collect();
        producers
            .into_iter()
            .for_each(|producer| producer.join().unwrap());
        let mut attempts_left = 3_000;
        while queue.values.left() > 0 {
            world.clock.advance(TICK / 4);
            thread::yield_now();
            attempts_left -= 1;
            assert!(attempts_left > 0, "a value that is due is forgotten");
        }
        timer.stop();
        consumers
            .into_iter()
            .chain(event_loop)
            .for_each(|thread| thread.join().unwrap());
        queue.check();
        Counts::of([
            ("received", get(&queue.values.received)),
            ("removed", get(&queue.values.removed)),
        ])
    });
}

/// Counts of the values of a queue.
#[derive(Default)]
struct Values {
    inserted: AtomicUsize,
    received: AtomicUsize,
    /// Of those: by a consumer that polls.
    polled: AtomicUsize,
    removed: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

impl Values {
    /// Returns how many are in the queue if no call is in progress.
    fn left(&self) -> usize {
        get(&self.inserted) - get(&self.received) - get(&self.removed)
    }
}

struct Value {
    /// It may not come out before, in nanoseconds. Zero if it was reset.
    due: Arc<Mutex<Duration>>,
    values: Arc<Values>,
}

impl Drop for Value {
    fn drop(&mut self) {
        self.values.drops.fetch_add(1, Relaxed);
    }
}

/// A value that is in the queue or was there.
#[derive(Clone)]
pub(super) struct Inserted {
    key: Key,
    due: Arc<Mutex<Duration>>,
}

/// An async task that waits for a value.
#[derive(Default)]
struct Poller(AtomicUsize);

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Relaxed);
    }
}

struct PollingConsumer {
    queue: DelayQueue<Value>,
    poller: Arc<Poller>,
}

/// The queue and its polling consumers.
#[derive(Clone)]
pub(super) struct Queue {
    /// In an `Arc`, because shuttle may switch threads in the clone of a handle.
    queue: Arc<DelayQueue<Value>>,
    timer: HashedWheelTimer,
    world: World,
    values: Arc<Values>,
    inserted: Arc<Mutex<Vec<Inserted>>>,
    consumers: Arc<Mutex<Vec<PollingConsumer>>>,
}

impl Queue {
    pub(super) fn new(timer: &HashedWheelTimer, world: &World) -> Self {
        Self {
            queue: Arc::new(DelayQueue::new(timer)),
            timer: timer.clone(),
            world: world.clone(),
            values: Arc::default(),
            inserted: Arc::default(),
            consumers: Arc::default(),
        }
    }

    /// Inserts a value that comes out soon, or one that does so only after a reset, or never.
    fn produce(&self, random: &mut Rng) {
        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
        let delay = TICK * random.u32(0..3);
        let is_far = random.bool();
        let Some(inserted) = self.insert(if is_far { FAR } else { delay }) else {
            return;
        };
        (0..random.u8(0..20)).for_each(|_| thread::yield_now());
        if is_far && random.u8(0..4) > 0 {
            self.reset(&inserted, delay);
        } else if is_far {
            self.remove(&inserted);
        }
    }

    /// Returns `None` if the timer is stopped: the value comes back, like one that is removed.
    pub(super) fn insert(&self, delay: Duration) -> Option<Inserted> {
        let due = Arc::new(Mutex::new(self.world.clock.now() + delay));
        let value = Value {
            due: Arc::clone(&due),
            values: Arc::clone(&self.values),
        };
        self.values.inserted.fetch_add(1, Relaxed);
        let Ok(key) = self.queue.insert(value, delay) else {
            assert!(self.timer.is_stopped());
            self.values.removed.fetch_add(1, Relaxed);
            return None;
        };
        let inserted = Inserted { key, due };
        self.inserted.lock().unwrap().push(inserted.clone());
        Some(inserted)
    }

    /// Removes or resets a value.
    pub(super) fn change(&self, random: &mut Rng, delay: Duration) {
        let Some(inserted) = random.choice(&*self.inserted.lock().unwrap()).cloned() else {
            return;
        };
        if random.bool() {
            self.remove(&inserted)
        } else {
            self.reset(&inserted, delay)
        }
    }

    fn remove(&self, inserted: &Inserted) {
        let removed = self.queue.remove(inserted.key);
        self.values
            .removed
            .fetch_add(usize::from(removed.is_some()), Relaxed);
    }

    fn reset(&self, inserted: &Inserted, delay: Duration) {
        *inserted.due.lock().unwrap() = Duration::ZERO;
        let is_reset = self.queue.reset(inserted.key, delay);
        self.values.resets.fetch_add(usize::from(is_reset), Relaxed);
    }

    /// Starts a thread that receives values until the timer ends.
    pub(super) fn start_consumer(&self) -> JoinHandle<()> {
        let this = self.clone();
        thread::spawn(move || {
            let mut attempts_left = MAX_ATTEMPTS;
            while attempts_left > 0 {
                match this.queue.recv() {
                    Ok(expired) => this.receive(&expired),
                    Err(NewTimeoutError::TooManyPending { .. }) => {
                        attempts_left -= 1;
                        thread::yield_now();
                    }
                    Err(error) => return this.world.assert_may_reject(&this.timer, &error),
                }
            }
        })
    }

    fn receive(&self, expired: &Expired<Value>) {
        let due = *expired.get_ref().due.lock().unwrap();
        assert!(
            self.world.clock.now() >= due,
            "a value came out before it was due"
        );
        self.values.received.fetch_add(1, Relaxed);
    }

    /// Polls with a consumer that waits already, or with a new one. If it waits now, it may be
    /// dropped.
    pub(super) fn poll(&self, random: &mut Rng) {
        let waiting = self.consumers.lock().unwrap().pop();
        // Perhaps it is dropped instead, after the list was unlocked.
        let waiting = waiting.filter(|_| random.bool());
        let mut consumer = waiting.unwrap_or_else(|| PollingConsumer {
            queue: self.queue.as_ref().clone(),
            poller: Arc::default(),
        });
        let waker = Waker::from(Arc::clone(&consumer.poller));
        match consumer
            .queue
            .poll_expired(&mut Context::from_waker(&waker))
        {
            Poll::Ready(Ok(expired)) => {
                self.values.polled.fetch_add(1, Relaxed);
                self.receive(&expired);
            }
            Poll::Ready(Err(error)) => self.world.assert_may_reject(&self.timer, &error),
            Poll::Pending if random.bool() => self.consumers.lock().unwrap().push(consumer),
            Poll::Pending => {}
        }
    }

    /// Checks that each value was received, removed or left, after all threads have ended.
    pub(super) fn check(&self) -> Counts {
        for PollingConsumer { queue, poller } in
            std::mem::take(&mut *self.consumers.lock().unwrap())
        {
            assert!(get(&poller.0) > 0, "a waiting consumer is woken by the end");
            drop(queue);
            assert_eq!(Arc::strong_count(&poller), 1, "all wakers are dropped");
        }
        let values = &self.values;
        let left = self.queue.drain();
        assert_eq!(
            left.len(),
            values.left(),
            "each value is received, removed or left"
        );
        let left_count = left.len();
        drop(left);
        assert_eq!(
            get(&values.drops),
            get(&values.inserted),
            "each value is dropped once"
        );
        Counts::of([
            ("values received", get(&values.received)),
            ("values received by a poll", get(&values.polled)),
            ("values removed", get(&values.removed)),
            ("values reset", get(&values.resets)),
            ("values left", left_count),
        ])
    }
}
