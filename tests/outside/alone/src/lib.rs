//! A queue from which each value comes out when its delay is over, built on the public API of
//! `timing-wheels` alone: a wheel behind a lock. It has no worker: whoever receives waits.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use timing_wheels::{Key, LocalTimer};

/// Values, each with a time of its own.
pub struct Queue<T> {
    timer: Mutex<LocalTimer<T, Instant>>,
    /// A value was inserted or moved.
    changed: Condvar,
}

impl<T> Queue<T> {
    /// Makes an empty queue whose values are exact to a `tick`.
    pub fn new(tick: Duration) -> Self {
        Self {
            timer: Mutex::new(LocalTimer::new(Instant::now(), tick)),
            changed: Condvar::new(),
        }
    }

    /// Inserts a value that comes out after `delay`.
    pub fn insert(&self, value: T, delay: Duration) -> Key {
        let key = self.lock().insert(Instant::now() + delay, value);
        self.changed.notify_all();
        key
    }

    /// Moves a value. Returns false if it has come out or was removed.
    pub fn reset(&self, key: Key, delay: Duration) -> bool {
        let moved = self.lock().reset(key, Instant::now() + delay);
        self.changed.notify_all();
        moved
    }

    /// Removes a value before it comes out.
    pub fn remove(&self, key: Key) -> Option<T> {
        self.lock().remove(key)
    }

    /// Takes a value whose delay is over.
    pub fn try_recv(&self) -> Option<T> {
        let (_, value) = self.lock().poll(Instant::now())?;
        Some(value)
    }

    /// Waits until the delay of a value is over, and takes it. Waits without end if there is none.
    pub fn recv(&self) -> T {
        let mut timer = self.lock();
        loop {
            let now = Instant::now();
            if let Some((_, value)) = timer.poll(now) {
                return value;
            }
            timer = match timer.next() {
                None => self
                    .changed
                    .wait(timer)
                    .unwrap_or_else(PoisonError::into_inner),
                Some(next) => {
                    let waited = self
                        .changed
                        .wait_timeout(timer, next.saturating_duration_since(now));
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, LocalTimer<T, Instant>> {
        self.timer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn values_come_out_in_the_order_of_their_deadlines() {
        let (queue, begin) = (Queue::new(MS), Instant::now());
        for (value, delay) in [('c', MS * 30), ('a', MS * 10), ('b', MS * 20)] {
            queue.insert(value, delay);
        }
        assert_eq!([(); 3].map(|()| queue.recv()), ['a', 'b', 'c']);
        assert!(begin.elapsed() >= MS * 30);
        assert_eq!(queue.try_recv(), None);
    }

    #[test]
    fn value_can_be_removed_or_moved_until_it_comes_out() {
        let queue = Queue::new(MS);
        let [removed, moved] = ["removed", "moved"].map(|value| queue.insert(value, MS * 60_000));
        assert_eq!(queue.remove(removed), Some("removed"));
        assert!(!queue.reset(removed, MS) && queue.reset(moved, MS));
        assert_eq!(queue.recv(), "moved");
        assert_eq!((queue.remove(moved), queue.reset(moved, MS)), (None, false));
    }

    #[test]
    fn receiver_that_waits_gets_an_earlier_value() {
        let queue = Queue::new(MS);
        queue.insert('b', MS * 60_000);
        thread::scope(|scope| {
            let receiver = scope.spawn(|| queue.recv());
            queue.insert('a', MS * 5);
            assert_eq!(receiver.join().unwrap(), 'a');
        });
    }
}
