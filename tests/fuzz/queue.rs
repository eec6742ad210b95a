//! Compares a `DelayQueue` with a map from deadlines to values and a list of consumers. A waiting
//! consumer has a timeout, its alarm, whose task calls its waker.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hashed_wheel::{HashedWheelTimer, NewTimeoutError};
use hashed_wheel_util::delay_queue::{DelayQueue, Expired, Key};

use super::{Kind, MAX_TIMEOUTS, Model, NEVER, Phase, Script, State};

/// The maximum number of consumers at the same time.
const MAX_CONSUMERS: usize = 4;

/// A value: its number, and a reference by which the model finds values that are leaked.
type Value = (u64, Arc<()>);

/// The deadline of a value, in nanoseconds, and when it got that.
type Rank = (u64, u64);

pub(super) struct QueueModel {
    queue: DelayQueue<Value>,
    /// The numbers of the values, in their order.
    values: BTreeMap<Rank, u64>,
    /// The keys of all values that were ever inserted, by number, and their ranks.
    keys: Vec<(Key, Rank)>,
    next_rank: u64,
    consumers: Vec<Consumer>,
    /// The consumers that wait, by the order in which they began.
    places: BTreeMap<u64, Arc<ConsumerTask>>,
    next_place: u64,
    /// The deadline that the first consumer awaits, if it has a waker.
    awaited: u64,
}

struct Consumer {
    queue: DelayQueue<Value>,
    place: Option<u64>,
    alarm: Option<usize>,
    task: Arc<ConsumerTask>,
}

/// The task of an executor that polls the queue.
struct ConsumerTask {
    /// The queue has its waker: it was polled, and not woken since.
    is_waiting: AtomicBool,
    /// A call in progress has taken its waker out, and is about to call it.
    is_notified: AtomicBool,
    /// Its pending alarm.
    alarm: AtomicUsize,
    script: Script,
}

/// The result of a poll.
#[derive(PartialEq, Debug)]
enum PollResult {
    Pending,
    /// The number of a value.
    Received(u64),
    Rejected,
}

impl QueueModel {
    pub(super) fn new(timer: &HashedWheelTimer) -> Self {
        Self {
            queue: DelayQueue::new(timer),
            values: BTreeMap::new(),
            keys: Vec::new(),
            next_rank: 0,
            consumers: Vec::new(),
            places: BTreeMap::new(),
            next_place: 0,
            awaited: 0,
        }
    }

    fn first_deadline(&self) -> u64 {
        let first = self.values.keys().next();
        first.map_or(NEVER, |&(deadline, _)| deadline)
    }

    /// Removes the first value if it is due.
    fn take_due(&mut self, now: u64) -> Option<u64> {
        let (&(deadline, _), &number) = self.values.first_key_value()?;
        (deadline <= now).then(|| {
            self.values.pop_first();
            number
        })
    }

    fn contains(&self, number: usize) -> bool {
        self.values.contains_key(&self.keys[number].1)
    }

    fn remove(&mut self, number: usize) -> bool {
        self.values.remove(&self.keys[number].1).is_some()
    }

    /// The rank of a value that gets this deadline now.
    fn rank(&mut self, deadline: u64) -> Rank {
        self.next_rank += 1;
        (deadline, self.next_rank)
    }

    /// A value has this deadline now.
    fn notify_of(&self, deadline: u64) {
        if deadline < self.awaited {
            self.notify_first();
        }
    }

    /// The call in progress wakes the first consumer, if that one has a waker.
    fn notify_first(&self) {
        if let Some((_, first)) = self.places.first_key_value() {
            let was_waiting = first.is_waiting.swap(false, SeqCst);
            first.is_notified.store(was_waiting, SeqCst);
        }
    }
}

impl Model {
    fn queue(&mut self) -> &mut QueueModel {
        let queue = self.delay_queue.as_mut();
        queue.expect("no call in progress drops the queue")
    }

    /// The expected result of a poll.
    fn poll_consumer(&mut self, consumer: &mut Consumer) -> PollResult {
        let now = self.now();
        let queue = self.queue();
        if let Some(number) = queue.take_due(now) {
            self.leave(consumer);
            return PollResult::Received(number);
        }
        let place = *consumer.place.get_or_insert_with(|| {
            queue.next_place += 1;
            queue.next_place
        });
        queue.places.insert(place, Arc::clone(&consumer.task));
        let is_first = queue.places.keys().next() == Some(&place);
        let mut deadline = NEVER;
        if is_first {
            deadline = queue.first_deadline();
            queue.awaited = deadline;
        }
        if let Some(id) = consumer.alarm.filter(|id| self.pending.contains(id)) {
            self.reset_record(id, deadline);
        } else {
            let id = self.schedule(Kind::Alarm, deadline);
            if self.records[id].state == State::Rejected {
                self.records[id].drop_task();
                self.leave(consumer);
                return PollResult::Rejected;
            }
            consumer.alarm = Some(id);
            consumer.task.alarm.store(id, SeqCst);
        }
        consumer.task.is_waiting.store(true, SeqCst);
        PollResult::Pending
    }

    /// A consumer does not wait any more.
    fn leave(&mut self, consumer: &mut Consumer) {
        let queue = self.queue();
        let Some(place) = consumer.place.take() else {
            return;
        };
        let was_first = queue.places.keys().next() == Some(&place);
        queue.places.remove(&place);
        consumer.task.is_waiting.store(false, SeqCst);
        if was_first {
            queue.notify_first();
        }
        let Some(id) = consumer.alarm.take() else {
            return;
        };
        // A stop in progress, one of whose hooks has dropped the queue, ends the alarm unnoticed.
        let is_stopping = self.stopping.remove(&id);
        self.returned_hidden += usize::from(is_stopping);
        if is_stopping || self.cancel_record(id) {
            self.records[id].end(State::Cancelled);
        }
    }
}

impl Script {
    /// `choice` is at most 15.
    pub(super) fn use_queue(&self, choice: u64) {
        {
            let model = self.model();
            // While the timer is being stopped, the alarms that it has not ended yet are not known.
            if model.delay_queue.is_none() || model.phase == Phase::Draining {
                return;
            }
        }
        match choice {
            0..5 => self.insert_value(),
            5 | 6 => self.use_value(Self::remove_value),
            7..9 => self.use_value(Self::reset_value),
            9 => self.receive_without_waiting(),
            10..14 => self.poll_any_consumer(),
            14 => self.drop_consumer(),
            _ => self.check_queue(),
        }
        self.poll_notified();
        self.check_consumers();
    }

    fn insert_value(&self) {
        let mut model = self.model();
        let delay = model.delay();
        let deadline = model.deadline(delay);
        let is_over = model.is_over();
        let queue = model.queue();
        if queue.keys.len() >= MAX_TIMEOUTS {
            return;
        }
        let (handle, number) = (queue.queue.clone(), queue.keys.len() as u64);
        if !is_over {
            queue.notify_of(deadline);
        }
        let value = (number, Arc::clone(&model.live_values));
        drop(model);
        let inserted = handle.insert(value, delay);
        assert_eq!(inserted.is_err(), is_over, "a stopped timer rejects values");
        let Ok(key) = inserted else { return };
        let mut model = self.model();
        let queue = model.queue();
        let rank = queue.rank(deadline);
        queue.keys.push((key, rank));
        queue.values.insert(rank, number);
    }

    /// Calls `action` with a random value, which may have left the queue.
    fn use_value(&self, action: fn(&Self, usize)) {
        let mut model = self.model();
        let at = model.bytes.up_to(255) as usize;
        let count = model.queue().keys.len();
        drop(model);
        if count > 0 {
            action(self, count - 1 - at % count);
        }
    }

    fn remove_value(&self, number: usize) {
        let mut model = self.model();
        let queue = model.queue();
        let (handle, (key, _)) = (queue.queue.clone(), queue.keys[number]);
        let is_there = queue.remove(number);
        drop(model);
        let removed = handle.remove(key);
        let removed = removed.map(|(removed, _)| removed);
        assert_eq!(removed, is_there.then_some(number as u64));
    }

    fn reset_value(&self, number: usize) {
        let mut model = self.model();
        let delay = model.delay();
        let deadline = model.deadline(delay);
        let queue = model.queue();
        let (handle, (key, before)) = (queue.queue.clone(), queue.keys[number]);
        let is_there = queue.remove(number);
        if is_there {
            // The same deadline keeps its place.
            let rank = match deadline == before.0 {
                true => before,
                false => queue.rank(deadline),
            };
            queue.keys[number].1 = rank;
            queue.values.insert(rank, number as u64);
            queue.notify_of(deadline);
        }
        drop(model);
        assert_eq!(handle.reset(key, delay), is_there);
    }

    fn receive_without_waiting(&self) {
        let mut model = self.model();
        let now = model.now();
        let with_timeout = model.bytes.up_to(1) == 1;
        let queue = model.queue();
        let (handle, expected) = (queue.queue.clone(), queue.take_due(now));
        drop(model);
        let received = match with_timeout {
            true => handle
                .recv_timeout(Duration::ZERO)
                .expect("the call does not wait"),
            false => handle.try_recv(),
        };
        let value = received.as_ref().map(|received| received.get_ref().0);
        assert_eq!(value, expected);
        received.inspect(|received| self.check_received(received));
    }

    /// Checks a value that came out of the queue.
    fn check_received(&self, received: &Expired<Value>) {
        let mut model = self.model();
        let queue = model.queue();
        let key = queue.keys[received.get_ref().0 as usize].0;
        let stale = (received.key(), queue.queue.deadline(key));
        assert_eq!(stale, (key, None), "the key is stale");
    }

    fn poll_any_consumer(&self) {
        let mut model = self.model();
        if model.records.len() >= MAX_TIMEOUTS {
            return;
        }
        let at = model.bytes.up_to(255) as usize;
        let queue = model.queue();
        let count = queue.consumers.len();
        let consumer = match at {
            0..64 if count < MAX_CONSUMERS => Consumer::new(self, queue),
            _ if count == 0 => Consumer::new(self, queue),
            at => queue.consumers.swap_remove(at % count),
        };
        drop(model);
        self.poll_consumer(consumer, at % 2 == 1);
    }

    /// Polls a consumer, perhaps by another task than before.
    fn poll_consumer(&self, mut consumer: Consumer, is_another: bool) {
        let mut model = self.model();
        if is_another {
            let task = ConsumerTask::new(self);
            task.alarm.store(consumer.task.alarm.load(SeqCst), SeqCst);
            consumer.task = task;
        }
        let expected = model.poll_consumer(&mut consumer);
        drop(model);
        let waker = Waker::from(Arc::clone(&consumer.task));
        let polled = consumer
            .queue
            .poll_expired(&mut Context::from_waker(&waker));
        drop(waker);
        let result = match polled {
            Poll::Pending => PollResult::Pending,
            Poll::Ready(Ok(received)) => {
                self.check_received(&received);
                PollResult::Received(received.get_ref().0)
            }
            Poll::Ready(Err(error)) => {
                assert!(!matches!(error, NewTimeoutError::ZeroPeriod));
                self.model().expect_rejection(&error);
                PollResult::Rejected
            }
        };
        assert_eq!(result, expected);
        self.model().queue().consumers.push(consumer);
    }

    /// Polls each consumer that a call has woken, as its executor would. Otherwise its alarm would
    /// expire and wake nothing, and the model could not know when.
    fn poll_notified(&self) {
        loop {
            let mut model = self.model();
            let Some(queue) = &mut model.delay_queue else {
                return;
            };
            let is_woken = |consumer: &Consumer| {
                let is_pending =
                    consumer.alarm.is_some() && consumer.task.alarm.load(SeqCst) != usize::MAX;
                is_pending && !consumer.task.is_waiting.load(SeqCst)
            };
            let Some(at) = queue.consumers.iter().position(is_woken) else {
                return;
            };
            let consumer = queue.consumers.swap_remove(at);
            drop(model);
            self.poll_consumer(consumer, false);
        }
    }

    fn drop_consumer(&self) {
        let mut model = self.model();
        let Some(mut consumer) = model.queue().consumers.pop() else {
            return;
        };
        model.leave(&mut consumer);
        drop(model);
        drop(consumer);
    }

    fn check_queue(&self) {
        let mut model = self.model();
        let (is_for_all, drains) = (model.bytes.up_to(3) == 0, model.bytes.up_to(1) == 0);
        let queue = model.queue();
        let len = (queue.queue.len(), queue.queue.is_empty());
        assert_eq!(len, (queue.values.len(), queue.values.is_empty()));
        let first = queue.values.values().next();
        let first = first.map(|&number| queue.keys[number as usize].0);
        assert_eq!(queue.queue.peek(), first);
        for (number, &(key, _)) in queue.keys.iter().enumerate() {
            assert_eq!(queue.queue.deadline(key).is_some(), queue.contains(number));
        }
        if is_for_all {
            let all = std::mem::take(&mut queue.values);
            let handle = queue.queue.clone();
            drop(model);
            if drains {
                let drained = handle.drain().into_iter().map(|(number, _)| number);
                assert!(drained.eq(all.into_values()), "not in order");
            } else {
                handle.clear();
            }
        }
    }

    /// The queue holds the wakers of waiting consumers, and no other waker. It holds the values
    /// that have not come out, and no other value.
    fn check_consumers(&self) {
        let model = self.model();
        let Some(queue) = &model.delay_queue else {
            return;
        };
        for Consumer { task, place, .. } in &queue.consumers {
            let is_waiting = task.is_waiting.load(SeqCst);
            assert!(!task.is_notified.load(SeqCst), "a consumer was not woken");
            let held = Arc::strong_count(task) - 1 - usize::from(place.is_some());
            assert_eq!(held, usize::from(is_waiting), "wakers");
        }
        let live = Arc::strong_count(&model.live_values);
        assert_eq!(live, 1 + queue.values.len(), "values");
    }

    /// Drops the queue, its consumers, and its values.
    pub(super) fn drop_queue(&self) {
        loop {
            let mut model = self.model();
            let Some(queue) = &mut model.delay_queue else {
                return;
            };
            let Some(mut consumer) = queue.consumers.pop() else {
                break;
            };
            model.leave(&mut consumer);
            drop(model);
            drop(consumer);
        }
        let mut model = self.model();
        let Some(QueueModel { queue, places, .. }) = model.delay_queue.take() else {
            return;
        };
        drop(model);
        assert!(places.is_empty());
        drop(queue);
    }
}

impl Consumer {
    fn new(script: &Script, model: &QueueModel) -> Self {
        let task = ConsumerTask::new(script);
        Self {
            queue: model.queue.clone(),
            place: None,
            alarm: None,
            task,
        }
    }
}

impl ConsumerTask {
    fn new(script: &Script) -> Arc<Self> {
        Arc::new(Self {
            is_waiting: AtomicBool::new(false),
            is_notified: AtomicBool::new(false),
            alarm: AtomicUsize::new(usize::MAX),
            script: script.clone(),
        })
    }
}

impl Wake for ConsumerTask {
    fn wake(self: Arc<Self>) {
        if self.is_notified.swap(false, SeqCst) {
            return;
        }
        let was_waiting = self.is_waiting.swap(false, SeqCst);
        assert!(was_waiting, "a consumer was woken for no reason");
        // Its alarm was cancelled with the timer, or expires.
        let id = self.alarm.swap(usize::MAX, SeqCst);
        let mut model = self.script.model();
        let by_stop = model.is_over() && model.end_by_stop(id);
        if by_stop {
            model.returned_hidden += 1;
        } else {
            model.fire(id);
        }
        model.records[id].end(if by_stop {
            State::Cancelled
        } else {
            State::Ran
        });
    }
}
