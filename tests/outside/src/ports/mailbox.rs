//! The timers of an actor, as Akka's `TimerScheduler`: they send messages to the actor's mailbox,
//! once or repeatedly, and each has a key. A message of a timer that was cancelled or replaced is
//! not received, even if it is in the mailbox already. The timers end with the actor.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashed_wheel::{Cancel, CancelOnDrop, HashedWheelTimer, NewTimeoutError};

use super::{Driven, SECOND};

type Key = &'static str;
type Mailbox<M> = Arc<Mutex<VecDeque<(Origin, M)>>>;

/// The timer that has sent a message, and which one of its key it was; `None` for an actor's.
type Origin = Option<(Key, u64)>;

struct Actor<M> {
    timer: HashedWheelTimer,
    mailbox: Mailbox<M>,
    timers: HashMap<Key, (u64, CancelOnDrop<Box<dyn Cancel>>)>,
    last: u64,
}

impl<M: Clone + Send + Sync + 'static> Actor<M> {
    fn new(timer: &HashedWheelTimer) -> Self {
        Self {
            timer: timer.clone(),
            mailbox: Mailbox::default(),
            timers: HashMap::new(),
            last: 0,
        }
    }

    fn tell(&self, message: M) {
        self.mailbox.lock().unwrap().push_back((None, message));
    }

    /// `startSingleTimer`.
    fn once(&mut self, key: Key, message: M, delay: Duration) -> Result<(), NewTimeoutError> {
        let send = self.sender(key, message);
        let timeout = self.timer.new_timeout(move |_| send(), delay)?;
        self.keep(key, Box::new(timeout));
        Ok(())
    }

    /// `startTimerAtFixedRate`.
    fn repeat(&mut self, key: Key, message: M, period: Duration) -> Result<(), NewTimeoutError> {
        let send = self.sender(key, message);
        let periodic = self.timer.schedule_at_fixed_rate(send, period, period)?;
        self.keep(key, Box::new(periodic));
        Ok(())
    }

    fn sender(&mut self, key: Key, message: M) -> impl Fn() + Send + Sync + 'static {
        self.last += 1;
        let (mailbox, origin) = (Arc::clone(&self.mailbox), Some((key, self.last)));
        move || mailbox.lock().unwrap().push_back((origin, message.clone()))
    }

    /// Cancels the one that had the key.
    fn keep(&mut self, key: Key, timer: Box<dyn Cancel>) {
        self.timers
            .insert(key, (self.last, CancelOnDrop::new(timer)));
    }

    fn cancel(&mut self, key: Key) -> bool {
        self.timers.remove(key).is_some()
    }

    fn receive(&mut self) -> Option<M> {
        loop {
            let (origin, message) = self.mailbox.lock().unwrap().pop_front()?;
            let is_current =
                |(key, number)| self.timers.get(key).is_some_and(|(own, _)| *own == number);
            if origin.is_none_or(is_current) {
                return Some(message);
            }
        }
    }
}

#[test]
fn timers_send_messages_until_they_are_cancelled() {
    let mut t = Driven::new();
    let mut actor = Actor::new(&t.timer);
    actor.once("timeout", "no answer", SECOND * 3).unwrap();
    actor.repeat("heartbeat", "beat", SECOND * 2).unwrap();
    actor.tell("hello");
    t.pass(SECOND * 2);
    t.pass(SECOND);
    t.pass(SECOND);
    let received: Vec<_> = std::iter::from_fn(|| actor.receive()).collect();
    assert_eq!(received, ["hello", "beat", "no answer", "beat"]);
    assert!(actor.cancel("heartbeat") && !actor.cancel("heartbeat"));
    t.pass(SECOND * 10);
    assert_eq!(actor.receive(), None);
}

#[test]
fn message_of_a_replaced_timer_is_not_received() {
    let mut t = Driven::new();
    let mut actor = Actor::new(&t.timer);
    for (message, seconds) in [("first", 1), ("second", 2), ("third", 4)] {
        actor.once("key", message, SECOND * seconds).unwrap();
        t.pass(SECOND * seconds);
    }
    assert_eq!(
        (actor.receive(), actor.receive()),
        (Some("third"), None),
        "all three are in the mailbox"
    );
    actor.once("key", "fourth", SECOND).unwrap();
    actor.once("key", "fifth", SECOND).unwrap();
    assert_eq!((t.pass(SECOND), actor.receive()), (1, Some("fifth")));
}

#[test]
fn timers_end_with_their_actor() {
    let t = Driven::new();
    let mut actor = Actor::new(&t.timer);
    actor.once("timeout", 1, SECOND).unwrap();
    actor.repeat("heartbeat", 2, SECOND).unwrap();
    let mailbox = Arc::downgrade(&actor.mailbox);
    drop(actor);
    assert_eq!((t.timer.pending_timeouts(), mailbox.strong_count()), (0, 0));
}
