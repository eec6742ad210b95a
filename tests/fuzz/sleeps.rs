//! Futures that wait, beside a model of each. One that waits is a timeout as any other, whose task is a waker.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hashed_wheel::Sleep;

use super::{Kind, MOST_TIMEOUTS, NEVER, Script, State, World};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// Not on the timer.
    Idle,
    /// By this timeout.
    Waiting(usize),
    Elapsed,
}

pub(super) struct Sleeper {
    sleep: Sleep,
    /// In nanoseconds; 0 if there was no delay.
    deadline: u64,
    life: Life,
    /// Who has polled it last.
    sleeping: Arc<Sleeping>,
}

/// The task of some executor that polls it.
struct Sleeping {
    /// The timeout that has its waker.
    id: AtomicUsize,
    /// Whether it does anything when it is woken.
    temper: u64,
    script: Script,
}

/// What a poll says.
#[derive(PartialEq, Debug)]
enum Said {
    Pending,
    Elapsed,
    Refused,
}

impl World {
    fn deadline_of_sleep(&self, delay: Duration) -> u64 {
        if delay.is_zero() { 0 } else { self.deadline(delay) }
    }

    /// What is to come of a poll, by the same task as before or by another one.
    fn poll(&mut self, sleeper: &mut Sleeper, is_another: bool) -> Said {
        match sleeper.life {
            Life::Elapsed => Said::Elapsed,
            Life::Waiting(id) => match self.records[id].state {
                State::Pending if is_another => {
                    // It waits by another timeout, which takes the place of the first.
                    self.withdraw_sleep(id);
                    self.wait(sleeper, false)
                }
                State::Pending => Said::Pending,
                State::Ran => {
                    sleeper.life = Life::Elapsed;
                    Said::Elapsed
                }
                _ => {
                    sleeper.life = Life::Idle;
                    Said::Refused
                }
            },
            Life::Idle if self.now() >= sleeper.deadline => {
                if self.is_closed() {
                    return Said::Refused;
                }
                sleeper.life = Life::Elapsed;
                Said::Elapsed
            }
            Life::Idle => self.wait(sleeper, self.is_closed() || self.is_full()),
        }
    }

    fn wait(&mut self, sleeper: &mut Sleeper, is_refused: bool) -> Said {
        let id = self.add(Kind::Sleep, sleeper.deadline, is_refused);
        if is_refused {
            self.records[id].task_is_gone = true;
            return Said::Refused;
        }
        sleeper.life = Life::Waiting(id);
        sleeper.sleeping.id.store(id, SeqCst);
        Said::Pending
    }

    /// The timer has a waker of whoever waits, and of nobody else.
    fn expect_to_be_held(&self, sleeper: &Sleeper) {
        let waits = matches!(sleeper.life, Life::Waiting(id) if self.pending.contains(&id));
        let held = Arc::strong_count(&sleeper.sleeping) - 1;
        // (One that is being woken holds itself.)
        assert!(held == usize::from(waits) || self.depth > 0, "{held} wakers, {:?}", sleeper.life);
    }

    /// Nobody is woken for it.
    fn withdraw_sleep(&mut self, id: usize) {
        if self.withdraw(id) {
            let record = &mut self.records[id];
            (record.state, record.task_is_gone) = (State::Cancelled, true);
        }
    }
}

impl Script {
    /// `choice` is up to 25.
    pub(super) fn use_sleeper(&self, choice: u64) {
        let new = choice < 6;
        if new {
            self.new_sleeper();
        }
        let mut world = self.world();
        if world.sleepers.is_empty() {
            return;
        }
        let (last, at) = (world.sleepers.len() - 1, if new { 0 } else { world.bytes.up_to(255) as usize });
        let mut sleeper = world.sleepers.swap_remove(last - at % (last + 1));
        drop(world);
        // Nothing of ours is called meanwhile, so nobody misses it.
        match choice {
            0 | 1 => {}
            2..18 => self.poll_sleeper(&mut sleeper),
            18..22 => self.reset_sleeper(&mut sleeper),
            22 | 23 => self.look_at_sleeper(&sleeper),
            _ => return self.drop_sleeper(sleeper),
        }
        let mut world = self.world();
        world.expect_to_be_held(&sleeper);
        world.sleepers.push(sleeper);
    }

    fn new_sleeper(&self) {
        let mut world = self.world();
        let Some(timer) = world.timer() else { return };
        let delay = world.delay();
        let deadline = world.deadline_of_sleep(delay);
        let sleep = timer.sleep(delay);
        let sleeping = Sleeping::new(self, world.bytes.up_to(255));
        world.sleepers.push(Sleeper { sleep, deadline, life: Life::Idle, sleeping });
    }

    fn poll_sleeper(&self, sleeper: &mut Sleeper) {
        let mut world = self.world();
        if world.records.len() >= MOST_TIMEOUTS {
            return;
        }
        let temper = world.bytes.up_to(255);
        let is_another = temper % 2 == 1;
        let before =
            is_another.then(|| std::mem::replace(&mut sleeper.sleeping, Sleeping::new(self, temper)));
        let expected = world.poll(sleeper, is_another);
        drop(world);
        let waker = Waker::from(Arc::clone(&sleeper.sleeping));
        let polled = Pin::new(&mut sleeper.sleep).poll(&mut Context::from_waker(&waker));
        drop((waker, before));
        let said = match polled {
            Poll::Pending => Said::Pending,
            Poll::Ready(Ok(())) => Said::Elapsed,
            Poll::Ready(Err(error)) => {
                self.world().expect_refusal(&error);
                Said::Refused
            }
        };
        assert_eq!(said, expected);
    }

    fn reset_sleeper(&self, sleeper: &mut Sleeper) {
        let mut world = self.world();
        let delay = world.delay();
        sleeper.deadline = world.deadline_of_sleep(delay);
        match sleeper.life {
            Life::Waiting(id) if world.pending.contains(&id) => world.rearm(id, sleeper.deadline),
            _ => sleeper.life = Life::Idle,
        }
        drop(world);
        sleeper.sleep.reset(delay);
    }

    fn look_at_sleeper(&self, sleeper: &Sleeper) {
        let world = self.world();
        let has_elapsed = match sleeper.life {
            Life::Idle => false,
            Life::Waiting(id) => world.records[id].state == State::Ran,
            Life::Elapsed => true,
        };
        assert_eq!(sleeper.sleep.is_elapsed(), has_elapsed);
        let remaining = match sleeper.deadline {
            NEVER => Duration::MAX,
            deadline => Duration::from_nanos(deadline.saturating_sub(world.now())),
        };
        assert_eq!(sleeper.sleep.remaining(), remaining);
    }

    fn drop_sleeper(&self, mut sleeper: Sleeper) {
        if let Life::Waiting(id) = sleeper.life {
            self.world().withdraw_sleep(id);
            sleeper.life = Life::Idle;
        }
        let Sleeper { sleep, sleeping, .. } = sleeper;
        drop(sleep);
        drop(sleeping);
    }

    pub(super) fn drop_sleepers(&self) {
        let sleepers = std::mem::take(&mut self.world().sleepers);
        sleepers.into_iter().for_each(|sleeper| self.drop_sleeper(sleeper));
    }
}

impl Sleeping {
    fn new(script: &Script, temper: u64) -> Arc<Self> {
        Arc::new(Self { id: AtomicUsize::new(usize::MAX), temper, script: script.clone() })
    }
}

impl Wake for Sleeping {
    fn wake(self: Arc<Self>) {
        let id = self.id.load(SeqCst);
        let by_stop = {
            let mut world = self.script.world();
            let is_over = world.is_stopped || world.timer().is_some_and(|timer| timer.is_stopped());
            let by_stop = is_over && world.sweep(id);
            if by_stop {
                world.returned_unseen += 1;
            } else {
                world.fire(id);
            }
            let record = &mut world.records[id];
            record.state = if by_stop { State::Cancelled } else { State::Ran };
            assert!(!record.task_is_gone);
            record.task_is_gone = true;
            by_stop
        };
        if self.temper >= 128 {
            self.script.nested(if by_stop { 2 } else { 7 });
        }
    }
}
