//! Sleeps and intervals. Threads take one out to poll, reset or drop it.

use std::pin::Pin;

use hashed_wheel_over_shuttle::{Interval, Sleep};

use super::*;

enum Subject {
    Sleep(Sleep),
    Interval(Interval),
}

impl Subject {
    fn poll(&mut self, waker: &Waker) -> Poll<Result<(), NewTimeoutError>> {
        let mut context = Context::from_waker(waker);
        match self {
            Self::Sleep(sleep) => Pin::new(sleep).poll(&mut context),
            Self::Interval(interval) => interval.poll_tick(&mut context).map_ok(|_| ()),
        }
    }

    fn reset(&mut self, delay: Duration) {
        match self {
            Self::Sleep(sleep) => sleep.reset(delay),
            Self::Interval(interval) => interval.reset_after(delay),
        }
    }
}

struct PolledSleep {
    subject: Subject,
    /// The task of the last poll, if that poll was pending.
    waiting_poller: Option<Arc<Poller>>,
}

impl PolledSleep {
    fn poll(&mut self, scenario: &Scenario, poller: Arc<Poller>) {
        let waker = Waker::from(Arc::clone(&poller));
        let polled = self.subject.poll(&waker);
        if let Poll::Ready(Err(error)) = &polled {
            scenario.world.assert_may_reject(&scenario.timer, error);
        }
        let is_tick = matches!(
            (&self.subject, &polled),
            (Subject::Interval(_), Poll::Ready(Ok(())))
        );
        scenario.sleeps.ticks.fetch_add(u64::from(is_tick), Relaxed);
        self.waiting_poller = polled.is_pending().then_some(poller);
    }
}

/// The sleeps of a scenario.
#[derive(Default)]
pub(super) struct Sleeps {
    all: Mutex<Vec<PolledSleep>>,
    pollers: Mutex<Vec<Arc<Poller>>>,
    /// How often another task has taken over a sleep.
    taken_over: AtomicU64,
    dropped: AtomicU64,
    /// Ticks of intervals.
    ticks: AtomicU64,
}

impl Sleeps {
    pub(super) fn add(&self, sleep: Sleep) {
        self.put(PolledSleep {
            subject: Subject::Sleep(sleep),
            waiting_poller: None,
        });
    }

    pub(super) fn add_interval(&self, interval: Interval) {
        self.put(PolledSleep {
            subject: Subject::Interval(interval),
            waiting_poller: None,
        });
    }

    fn put(&self, one: PolledSleep) {
        self.all.lock().unwrap().push(one);
    }

    fn take(&self, random: &mut Rng) -> Option<PolledSleep> {
        let mut all = self.all.lock().unwrap();
        let at = random.choice(0..all.len())?;
        Some(all.swap_remove(at))
    }

    /// Polls a sleep with another task than before.
    pub(super) fn poll(&self, scenario: &Scenario, random: &mut Rng) {
        let Some(mut one) = self.take(random) else {
            return;
        };
        let poller = Arc::<Poller>::default();
        self.pollers.lock().unwrap().push(Arc::clone(&poller));
        let before = one.waiting_poller.take();
        one.poll(scenario, poller);
        self.taken_over.fetch_add(
            u64::from(before.is_some() && one.waiting_poller.is_some()),
            Relaxed,
        );
        self.put(one);
    }

    /// Resets a sleep, and polls it again with the task that waits for it, if there is one.
    pub(super) fn reset(&self, scenario: &Scenario, random: &mut Rng, delay: Duration) {
        let Some(mut one) = self.take(random) else {
            return;
        };
        one.subject.reset(delay);
        if let Some(poller) = one.waiting_poller.take() {
            poller.resets.fetch_add(1, Relaxed);
            one.poll(scenario, poller);
        }
        self.put(one);
    }

    pub(super) fn drop_one(&self, random: &mut Rng) {
        if let Some(one) = self.take(random) {
            self.dropped
                .fetch_add(u64::from(one.waiting_poller.is_some()), Relaxed);
        }
    }

    pub(super) fn check(&self, has_waited: bool) -> Counts {
        let (mut in_time, mut too_soon) = (0, 0);
        for PolledSleep {
            mut subject,
            waiting_poller,
        } in std::mem::take(&mut *self.all.lock().unwrap())
        {
            let Some(poller) = waiting_poller else {
                continue;
            };
            assert!(poller.was_woken(), "the task of the last poll is woken");
            match subject.poll(Waker::noop()) {
                Poll::Pending => panic!("a task is woken before the end of its sleep"),
                Poll::Ready(Ok(())) => in_time += 1,
                Poll::Ready(Err(error)) => {
                    assert!(!has_waited, "{error}, although the sleep was due");
                    too_soon += 1;
                }
            }
        }
        for poller in &*self.pollers.lock().unwrap() {
            assert!(
                get(&poller.wakes) <= 1 + get(&poller.resets),
                "a task is woken once per poll"
            );
            assert_eq!(Arc::strong_count(poller), 1, "all wakers are dropped");
        }
        Counts::of([
            ("slept", in_time),
            ("ticks of intervals", get(&self.ticks)),
            ("woken by the end", too_soon),
            ("taken over by another task", get(&self.taken_over)),
            ("sleeps dropped", get(&self.dropped)),
        ])
    }
}
