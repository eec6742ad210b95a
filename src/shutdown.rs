//! Stopping a timer that may first do what is due soon.

use std::time::{Duration, Instant};

use crate::core::Core;
use crate::sync::{Arc, Backoff, Parker};
use crate::ticks::{self, NEVER};
use crate::timeout::Timeout;

/// Who waits looks so often whether anything is left to wait for: a `cancel` tells nobody.
const STEP: Duration = Duration::from_millis(10);

/// But not more often than this, lest the worker find it in its place.
const SHORTEST_STEP: Duration = Duration::from_millis(1);

/// To look takes some nanoseconds for each timeout: these are a tenth of the time.
const STEP_FOR_EACH_PENDING: u64 = 100;

impl Core {
    /// Admits nobody from now on, lets what falls due within `grace` run, and stops. Not to be called by the worker in a
    /// turn. Whoever stops the timer meanwhile ends the wait, and gets what is left.
    pub(crate) fn shutdown(self: &Arc<Self>, grace: Duration) -> Vec<Timeout> {
        self.life.close();
        // As `new_timeout` reads it, and later: what was accepted with a delay of `grace` falls due within it.
        let now = self.time.now_or_soon();
        let last = self.ticks.of(ticks::deadline(now, grace)).min(self.ticks.reached(NEVER - 1));
        if self.thread.is_started() {
            self.wait_for_the_worker(last, self.ticks.until(last + 1, now));
        } else {
            self.turn_while_due(last);
        }
        self.stop()
    }

    /// Waits until nothing is left that falls due up to the tick `last`, or for as long as that should take in real time, if
    /// what is left is not due by the timer's clock then.
    fn wait_for_the_worker(self: &Arc<Self>, last: u64, at_most: Duration) {
        let parker = Parker::default();
        let (mut awaited, mut by) = (0, Instant::now() + at_most);
        while let Some(next) = self.next_due(last) {
            let now = self.time.now();
            if next > awaited {
                // Who was let in pushes perhaps so late that its tick comes after `last`.
                awaited = next;
                by = by.max(Instant::now() + self.ticks.until(next, now) + STEP);
            }
            if next > self.ticks.reached(now) {
                if Instant::now() > by {
                    return;
                }
            } else if next > 0 {
                // The worker may sleep for a time that its clock has jumped over.
                self.wake();
            }
            let shortest = Duration::from_nanos(self.life.pending() * STEP_FOR_EACH_PENDING) + SHORTEST_STEP;
            parker.park_timeout(self.ticks.until(next, now).min(STEP).max(shortest));
        }
    }

    /// Turns a driven timer in its loop's place, without letting any time pass.
    fn turn_while_due(self: &Arc<Self>, last: u64) {
        let backoff = Backoff::new();
        while let Some(next) = self.next_due(last) {
            match next {
                // A turn would take the time past what comes.
                0 => backoff.snooze(),
                _ if next <= self.ticks.reached(self.time.now()) => _ = self.turn(),
                _ => break,
            }
        }
        if self.post.is_abandoned() {
            // By a task that had the driver.
            self.drop_executor();
        }
    }

    /// The tick at which the first timeout fires that falls due up to `last`, zero if somebody is about to push it; `None` if
    /// there is none, or the timer is stopped.
    fn next_due(self: &Arc<Self>, last: u64) -> Option<u64> {
        let word = self.life.word();
        let is_over = word.is_stopped() || word.pending() == 0;
        if is_over { None } else { self.post.enter().next_due(self, last) }
    }
}
