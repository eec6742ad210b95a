//! A `DelayQueue`: threads insert, remove and reset values, wait for them, and poll for them.

use hashed_wheel_over_shuttle::util::delay_queue::{DelayQueue, Key};

use super::*;

/// How often a waiting thread tries again if the timer has too many timeouts for it to wait.
const MAX_ATTEMPTS: usize = 3;

#[test]
fn no_value_is_forgotten() {
    explore(|random| {
        let (world, timer, event_loop) = World::new(random);
        let event_loop = event_loop.map(EventLoop::start);
        let queue = Queue::new(&timer, &world);
        let consumers: Vec<_> = (0..2).map(|_| queue.start_consumer()).collect();
        let producers = random.u8(1..=3);
        join(spawn(producers, &queue, random, |queue, random| {
            (0..random.u8(1..4)).for_each(|_| queue.produce(random));
        }));
        world.advance_until("a value that is due is forgotten", || {
            world.ledger.pending(Kind::Queue) == 0
        });
        timer.stop();
        join(consumers.into_iter().chain(event_loop));
        queue.check();
        world.close(&timer, None, false);
        let of = |count| world.ledger.get(Kind::Queue, count);
        Counts::of([
            ("received", of(Count::Expired)),
            ("removed", of(Count::Cancelled)),
        ])
    });
}

/// A value has its own ticket.
type Value = Arc<Ticket>;

/// A value that is in the queue or was there.
#[derive(Clone)]
pub(super) struct Inserted {
    key: Key,
    ticket: Arc<Ticket>,
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
    /// How many values a consumer that polls has received.
    polled: Arc<AtomicU64>,
    inserted: Arc<Mutex<Vec<Inserted>>>,
    consumers: Arc<Mutex<Vec<PollingConsumer>>>,
}

impl Queue {
    pub(super) fn new(timer: &HashedWheelTimer, world: &World) -> Self {
        Self {
            queue: Arc::new(DelayQueue::new(timer)),
            timer: timer.clone(),
            world: world.clone(),
            polled: Arc::default(),
            inserted: Arc::default(),
            consumers: Arc::default(),
        }
    }

    /// Inserts a value that comes out soon, or one that does so only after a reset, or never.
    fn produce(&self, random: &mut Rng) {
        pause(random, 20);
        let delay = TICK * random.u32(0..3);
        let is_far = random.bool();
        let Some(inserted) = self.insert(if is_far { FAR } else { delay }) else {
            return;
        };
        pause(random, 20);
        if is_far && random.u8(0..4) > 0 {
            self.reset(&inserted, delay);
        } else if is_far {
            self.remove(&inserted);
        }
    }

    /// Returns `None` if the timer is stopped: the value comes back, like one that is removed.
    pub(super) fn insert(&self, delay: Duration) -> Option<Inserted> {
        let deadline = self.world.ledger.after(delay);
        let ticket = Arc::new(Ticket::new(&self.world.ledger, Kind::Queue, deadline));
        let Ok(key) = self.queue.insert(Arc::clone(&ticket), delay) else {
            assert!(self.timer.is_stopped());
            ticket.count(Count::Rejected);
            return None;
        };
        let inserted = Inserted { key, ticket };
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
        removed.inspect(|ticket| ticket.count(Count::Cancelled));
    }

    fn reset(&self, Inserted { key, ticket }: &Inserted, delay: Duration) {
        ticket.reset(delay, || self.queue.reset(*key, delay));
    }

    /// Starts a thread that receives values until the timer ends.
    pub(super) fn start_consumer(&self) -> JoinHandle<()> {
        let this = self.clone();
        thread::spawn(move || {
            let mut attempts_left = MAX_ATTEMPTS;
            while attempts_left > 0 {
                match this.queue.recv() {
                    Ok(expired) => expired.get_ref().expire(),
                    Err(NewTimeoutError::TooManyPending { .. }) => {
                        attempts_left -= 1;
                        thread::yield_now();
                    }
                    Err(error) => return this.world.assert_may_reject(&this.timer, &error),
                }
            }
        })
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
                self.polled.fetch_add(1, Relaxed);
                expired.get_ref().expire();
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
            assert!(poller.was_woken(), "a waiting consumer is woken by the end");
            drop(queue);
            assert_eq!(Arc::strong_count(&poller), 1, "all wakers are dropped");
        }
        self.inserted.lock().unwrap().clear();
        let left = self.queue.drain();
        left.iter().for_each(|ticket| ticket.count(Count::Left));
        let of = |count| self.world.ledger.get(Kind::Queue, count);
        Counts::of([
            ("values received", of(Count::Expired)),
            ("values received by a poll", get(&self.polled)),
            ("values removed", of(Count::Cancelled)),
            ("values reset", of(Count::Reset)),
            ("values left", of(Count::Left)),
        ])
    }
}
