//! Sleeps and the ticks of intervals. Each is polled with a waker that counts.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, Interval, MissedTick, NewTimeoutError, Sleep};
use hashed_wheel_ledger::{Deadline, Kind, Ticket};

use super::{Load, Recurring, Shared, delay, take};
use crate::Sabotage;
use crate::tally::{Tally, await_if_due, comes, fail, lock, now};

/// How many a thread has at a time.
const MAX_WAITING: usize = 200;

enum Subject {
    Sleep(Sleep),
    Ticks(Interval, Recurring),
}

impl Subject {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<(), NewTimeoutError>> {
        match self {
            Self::Sleep(sleep) => Pin::new(sleep).poll(context),
            Self::Ticks(interval, _) => interval.poll_tick(context).map_ok(|_| ()),
        }
    }
}

/// The task that waits.
#[derive(Debug, Default)]
struct Task {
    /// When it was woken.
    woken: Mutex<Option<Duration>>,
    /// For sabotage: it does not notice that it is woken.
    is_deaf: bool,
}

impl Task {
    fn is_woken(&self) -> bool {
        lock(&self.woken).is_some()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_deaf {
            lock(&self.woken).get_or_insert_with(now);
        }
    }
}

struct Waiting {
    subject: Subject,
    ticket: Ticket,
    /// The timer has accepted it.
    is_accepted: bool,
    task: Arc<Task>,
}

/// Futures of one kind.
pub(super) struct Futures {
    kind: Kind,
    timer: HashedWheelTimer,
    tally: Arc<Tally>,
    waiting: Vec<Waiting>,
    /// Intervals whose last tick is over, with its deadline.
    idle: Vec<(Interval, Recurring, Deadline)>,
}

impl Futures {
    pub(super) fn new(kind: Kind, shared: &Shared) -> Self {
        let (timer, tally) = (shared.timer.clone(), Arc::clone(&shared.tally));
        Self {
            kind,
            timer,
            tally,
            waiting: Vec::new(),
            idle: Vec::new(),
        }
    }

    /// Begins a wait. A fixed delay begins with the poll that follows.
    fn add(&mut self, random: &mut Rng) {
        let (subject, deadline) = if let Some((interval, recurring, last)) = self.idle.pop() {
            (Subject::Ticks(interval, recurring), recurring.next(last))
        } else if self.kind == Kind::Interval {
            let policies = [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip];
            let (recurring, schedule) = Recurring::new(&policies, random, &self.tally);
            let deadline = recurring.first();
            let interval = self.timer.interval_on(schedule);
            (Subject::Ticks(interval, recurring), deadline)
        } else {
            let delay = delay(random);
            let deadline = self.tally.after(delay);
            (Subject::Sleep(self.timer.sleep(delay)), deadline)
        };
        let ticket = Ticket::new(&self.tally, self.kind, deadline);
        let task = Task {
            is_deaf: self.tally.does(Sabotage::LostWake),
            ..Task::default()
        };
        self.poll(Waiting {
            subject,
            ticket,
            is_accepted: false,
            task: Arc::new(task),
        });
    }

    /// Polls, and keeps what is still waiting.
    fn poll(&mut self, mut one: Waiting) {
        // A wake-up that came before belongs to a wait that is over: this poll returns that.
        let woken = lock(&one.task.woken).take();
        let waker = Waker::from(Arc::clone(&one.task));
        match one.subject.poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {
                one.is_accepted = true;
                self.waiting.push(one);
            }
            Poll::Ready(Ok(())) => {
                one.ticket.expire_at(woken.unwrap_or_else(now));
                if let Subject::Ticks(interval, recurring) = one.subject {
                    self.idle.push((interval, recurring, one.ticket.deadline()));
                }
            }
            Poll::Ready(Err(error)) => fail(&one.ticket, &error, one.is_accepted),
        }
    }

    /// Takes any, unless it must be woken first.
    fn take(&mut self, random: &mut Rng) -> Option<Waiting> {
        let one = take(&mut self.waiting, random)?;
        if one.task.is_woken() || !one.ticket.is_overdue() {
            return Some(one);
        }
        self.waiting.push(one);
        None
    }

    /// Drops one that waits. One that was ready before counts as cancelled too.
    fn drop_one(&self, one: Waiting) {
        let task = one.task;
        one.ticket.cancel_at(lock(&task.woken).unwrap_or_else(now));
        drop(one.subject);
        // The worker may be about to call the waker.
        let is_free = comes(|| Arc::strong_count(&task) == 1);
        self.tally
            .expect(is_free, || format!("{:?}: a waker is left", self.kind));
    }
}

impl Load for Futures {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..10) {
            0..4 if self.waiting.len() < MAX_WAITING => self.add(random),
            0..6 => {
                let is_woken = |one: &Waiting| one.task.is_woken();
                let (woken, waiting): (Vec<_>, Vec<_>) =
                    mem::take(&mut self.waiting).into_iter().partition(is_woken);
                self.waiting = waiting;
                woken.into_iter().for_each(|one| self.poll(one));
            }
            6 | 7 => {
                let one = self.take(random);
                one.into_iter().for_each(|one| self.drop_one(one));
            }
            8 => {
                let Some(mut one) = self.take(random) else {
                    return;
                };
                let delay = delay(random);
                one.ticket.set_deadline(self.tally.after(delay));
                match &mut one.subject {
                    Subject::Sleep(sleep) => sleep.reset(delay),
                    Subject::Ticks(interval, _) => interval.reset_after(delay),
                }
                // The reset has ended it, or another wait begins.
                self.poll(one);
            }
            _ => {
                // Another task polls. It knows when this one was woken.
                let Some(one) = self.take(random) else { return };
                let woken = Mutex::new(*lock(&one.task.woken));
                self.poll(Waiting {
                    task: Arc::new(Task {
                        woken,
                        is_deaf: false,
                    }),
                    ..one
                });
            }
        }
    }

    fn leave(&mut self) {
        for one in mem::take(&mut self.waiting) {
            await_if_due(&one.ticket, || one.task.is_woken());
            self.drop_one(one);
        }
        self.idle.clear();
    }

    fn settle(&mut self) {
        for one in mem::take(&mut self.waiting) {
            let is_woken = comes(|| one.task.is_woken());
            let kind = self.kind;
            self.tally.expect(is_woken, || {
                format!("{kind:?}: the timer's end has not woken its task")
            });
            self.poll(one);
        }
        self.tally.expect(self.waiting.is_empty(), || {
            format!("{:?}: waits on a stopped timer", self.kind)
        });
    }
}
