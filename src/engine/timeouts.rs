//! Netty's `timeouts` queue: from all callers to the worker.
//!
//! The queue has many producers and one consumer. It is built from one lane (`node/lane.rs`) per
//! thread, so a push contends with no other thread. Each thread opens its lane in [`NewLanes`]; the
//! worker adopts it and takes messages from all lanes, up to a limit at a time. There is no
//! cancellation queue (Netty's `cancelledTimeouts`): a cancellation is a message in this queue.
//!
//! The worker looks at every lane in every turn. With 10 000 threads that have used the timer and
//! do not use it any more, a look at all lanes takes 0.1 ms.

use crate::node::{Consumer, PoolId, Producer, Waiting, lane};
use crate::sync::SegQueue;

/// The lanes that the worker has to adopt.
pub(crate) struct NewLanes {
    lanes: SegQueue<Consumer>,
    pool: PoolId,
}

impl NewLanes {
    pub(crate) fn new(pool: PoolId) -> Self {
        Self {
            lanes: SegQueue::new(),
            pool,
        }
    }

    /// Opens a lane.
    pub(crate) fn open(&self) -> Producer {
        let (producer, consumer) = lane(self.pool);
        self.lanes.push(consumer);
        producer
    }
}

/// The consumer's side of the queue: the lanes that the worker has adopted.
#[derive(Default)]
pub(crate) struct TimeoutsQueue {
    /// In the order of the next scan. If more messages wait than may be taken at a time, each lane
    /// gets its turn.
    pub(super) lanes: Vec<Consumer>,
    /// Messages were carried over when the wheel left this tick. Some of them may have been taken.
    carried_over_from: Option<u64>,
    /// The tick of the wheel when messages were last taken of which some were left before.
    pub(super) taken_at: u64,
}

impl TimeoutsQueue {
    #[inline]
    fn adopt_new_lanes(&mut self, new: &NewLanes) {
        // Most turns find none, and a `pop` that finds none executes a fence.
        if !new.lanes.is_empty() {
            self.adopt_all(new);
        }
    }

    #[cold]
    fn adopt_all(&mut self, new: &NewLanes) {
        self.lanes.extend(std::iter::from_fn(|| new.lanes.pop()));
    }

    /// Looks at each lane once, for a worker that takes what waits now: at most `most` messages,
    /// and at most `portion` of each lane.
    #[inline]
    pub(crate) fn scan(&mut self, new: &NewLanes, most: usize, portion: usize) -> Scan<'_> {
        self.adopt_new_lanes(new);
        Scan {
            queue: self,
            next: 0,
            most: most as u64,
            left: most as u64,
            portion: portion as u64,
            has_more: false,
            any_retired: false,
        }
    }

    /// From now on the messages that wait now are carried over, until they are taken. The wheel is
    /// about to leave `tick`.
    #[cold]
    pub(crate) fn carry_over(&mut self, new: &NewLanes, tick: u64) {
        self.adopt_new_lanes(new);
        if self.taken_at != tick {
            // Nothing was left before.
            self.carried_over_from = None;
        }
        self.carried_over_from.get_or_insert(tick);
        self.lanes.iter_mut().for_each(Consumer::carry_over);
    }

    /// If messages that are carried over may have been taken since the last call, and come out at
    /// `tick`, where the wheel was then, returns the tick that the wheel had left. `has_backlog`:
    /// more may be taken later.
    pub(crate) fn carried_over_from(&mut self, has_backlog: bool, tick: u64) -> Option<u64> {
        let from = self.carried_over_from;
        self.carried_over_from = from.filter(|_| has_backlog);
        from.filter(|_| self.taken_at == tick)
    }

    /// Whether no message waits.
    pub(crate) fn is_empty(&self, new: &NewLanes) -> bool {
        new.lanes.is_empty() && self.lanes.iter().all(|lane| lane.waiting().0 == 0)
    }
}

/// A scan of all lanes.
pub(crate) struct Scan<'a> {
    queue: &'a mut TimeoutsQueue,
    /// The lane that is looked at next.
    next: usize,
    /// The most messages that are taken.
    most: u64,
    /// How many of them are left.
    left: u64,
    /// The most messages that are taken from a lane.
    portion: u64,
    /// Messages are left in a lane that was looked at.
    has_more: bool,
    any_retired: bool,
}

impl Scan<'_> {
    /// Returns the next lane in which messages wait, for a worker that takes them.
    #[inline]
    pub(crate) fn next_lane(&mut self) -> Option<Waiting<'_>> {
        while self.next < self.queue.lanes.len() && self.left > 0 {
            let at = self.next;
            self.next += 1;
            let (count, is_retired) = self.queue.lanes[at].look();
            self.any_retired |= is_retired;
            if count > 0 {
                let most = self.left.min(self.portion);
                self.has_more |= count > most;
                self.left -= count.min(most);
                return Some(self.queue.lanes[at].take(most));
            }
        }
        None
    }

    /// Returns how many messages were taken, and whether more wait.
    #[inline]
    pub(crate) fn end(self, new: &NewLanes) -> (usize, bool) {
        let (queue, mut has_backlog) = (self.queue, self.has_more);
        if self.left == 0 {
            // The lanes that were left out are the first ones next time.
            queue.lanes.rotate_left(self.next);
            has_backlog |= !queue.is_empty(new);
        }
        if self.any_retired {
            // A thread may have pushed to its lane before it retired it, and after this step has
            // looked: a lane goes only when it is empty.
            queue.lanes.retain(|lane| lane.waiting() != (0, true));
        }
        ((self.most - self.left) as usize, has_backlog)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::inner::Inner;
    use crate::engine::pending::OwnCounts;
    use crate::engine::tests::{Driven, Nothing};
    use crate::node::{Arrival, LocalNodes};

    /// A queue, and the lanes of some threads. The messages that it takes go into the wheel of a
    /// timer, which has other lanes.
    struct Queue {
        queue: TimeoutsQueue,
        new: NewLanes,
        lanes: Vec<LocalNodes<Inner>>,
        counts: OwnCounts,
        /// Which of the messages that were taken last were carried over.
        carried_over: Vec<bool>,
        t: Driven,
    }

    impl Queue {
        fn with_lanes(count: usize) -> Self {
            let t = Driven::new();
            let (new, counts) = (
                NewLanes::new(t.inner().pool.id()),
                t.inner().pending_counts.take(),
            );
            let mut queue = Self {
                queue: TimeoutsQueue::default(),
                new,
                lanes: Vec::new(),
                counts,
                carried_over: Vec::new(),
                t,
            };
            queue.open(count);
            queue
        }

        fn open(&mut self, count: usize) {
            let open = || LocalNodes::<Inner>::new(self.t.inner(), self.new.open());
            self.lanes.extend((0..count).map(|_| open()));
        }

        /// Pushes this many messages to each lane.
        fn push(&mut self, counts: &[usize]) {
            for (lane, &count) in self.lanes.iter_mut().zip(counts) {
                for _ in 0..count {
                    self.counts.register();
                    lane.make_room();
                    lane.borrow(self.t.inner()).schedule(Nothing, 0);
                }
            }
        }

        /// Takes messages. Returns how many were taken from each lane that had any; then what
        /// [`end`](Scan::end) returns.
        fn take(&mut self, most: usize) -> (Vec<usize>, (usize, bool)) {
            self.take_portions(most, usize::MAX)
        }

        /// [`take`](Self::take), at most `portion` messages of each lane.
        fn take_portions(&mut self, most: usize, portion: usize) -> (Vec<usize>, (usize, bool)) {
            let mut counts = Vec::new();
            let mut worker = self.t.inner().worker.lock();
            let mut nodes = worker.nodes.of(self.t.inner());
            let next_tick = nodes.tick() + 1;
            self.carried_over.clear();
            let mut scan = self.queue.scan(&self.new, most, portion);
            while let Some(mut lane) = scan.next_lane() {
                let before = self.carried_over.len();
                while let Some(arrival) = nodes.next_arrival(&mut lane) {
                    let Arrival::New(node) = arrival else {
                        panic!("each message is a new timeout")
                    };
                    node.accept(|_| next_tick);
                    self.carried_over.push(lane.is_carried_over());
                }
                counts.push(self.carried_over.len() - before);
            }
            (counts, scan.end(&self.new))
        }

        /// Takes messages. Returns which of them were carried over.
        fn take_carried_over(&mut self, most: usize) -> &[bool] {
            self.take(most);
            &self.carried_over
        }
    }

    #[test]
    fn each_lane_gets_its_turn_if_more_wait_than_may_be_taken() {
        let mut q = Queue::with_lanes(3);
        q.push(&[3, 3, 3]);
        assert_eq!(q.take(4), (vec![3, 1], (4, true)));
        assert_eq!(q.take(4), (vec![3, 1], (4, true)));
        assert_eq!(q.take(4), (vec![1], (1, false)));
        for _ in 0..2 {
            q.push(&[1, 2, 3]);
            assert_eq!(
                q.take(9),
                (vec![3, 1, 2], (6, false)),
                "all were taken before"
            );
        }
    }

    #[test]
    fn a_lane_that_was_left_out_is_the_first_one_next_time() {
        let mut q = Queue::with_lanes(3);
        q.push(&[3, 4, 5]);
        assert_eq!(q.take(3), (vec![3], (3, true)));
        assert_eq!(q.take(9), (vec![4, 5], (9, false)));
    }

    #[test]
    fn no_lane_gives_out_more_than_a_portion() {
        let mut q = Queue::with_lanes(3);
        q.push(&[5, 1, 3]);
        assert_eq!(q.take_portions(9, 2), (vec![2, 1, 2], (5, true)));
        assert_eq!(q.take_portions(3, 2), (vec![2, 1], (3, true)));
        assert_eq!(q.take_portions(9, 2), (vec![1], (1, false)));
    }

    #[test]
    fn a_lane_that_was_left_out_is_the_first_one_after_others_have_gone() {
        let mut q = Queue::with_lanes(4);
        q.push(&[1, 1, 2, 3]);
        q.lanes.drain(..2);
        assert_eq!(q.take(3), (vec![1, 1, 1], (3, true)));
        assert_eq!(q.queue.lanes.len(), 2);
        assert_eq!(q.take(9), (vec![3, 1], (4, false)));
    }

    #[test]
    fn as_many_messages_as_may_be_taken_leave_no_backlog() {
        let mut q = Queue::with_lanes(3);
        q.push(&[3, 3]);
        assert_eq!(q.take(6), (vec![3, 3], (6, false)));
        q.push(&[1, 2, 3]);
        assert_eq!(q.take(6), (vec![3, 1, 2], (6, false)));
    }

    #[test]
    fn the_lane_of_a_thread_that_has_ended_goes_once_it_is_empty() {
        let mut q = Queue::with_lanes(2);
        q.push(&[3, 3]);
        q.lanes.clear();
        assert_eq!(q.take(4), (vec![3, 1], (4, true)));
        assert_eq!(q.queue.lanes.len(), 1);
        assert_eq!(q.take(4), (vec![2], (2, false)));
        assert_eq!(q.queue.lanes.len(), 0);
    }

    #[test]
    fn messages_are_carried_over_that_waited_at_that_moment() {
        let mut q = Queue::with_lanes(2);
        q.push(&[3, 1]);
        assert_eq!(q.take(1).1, (1, true));
        assert_eq!(q.queue.carried_over_from(true, 0), None);
        q.queue.carry_over(&q.new, 7);
        q.queue.taken_at = 8;
        q.push(&[1, 0]);
        // (The first lane was cut short, so the second one is first now.)
        assert_eq!(q.take_carried_over(2), [true, true]);
        assert_eq!(q.queue.carried_over_from(true, 9), None, "at a later tick");
        assert_eq!(q.queue.carried_over_from(true, 8), Some(7));
        assert_eq!(q.take_carried_over(9), [true, false]);
        assert_eq!(q.queue.carried_over_from(false, 8), Some(7), "in this turn");
        assert_eq!(q.queue.carried_over_from(false, 8), None);
        q.push(&[2, 0]);
        assert_eq!(q.take_carried_over(9), [false, false]);
        assert_eq!(q.queue.carried_over_from(false, 8), None);
    }
}
