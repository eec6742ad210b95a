//! Sleeps and the ticks of intervals. Each is polled with a waker that counts.

use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, Interval, MissedTick, NewTimeoutError, Sleep};

use super::recurring::Recurring;
use super::{Context, Load, TIMEOUT, delay};
use crate::Sabotage;
use crate::accounts::{Accounts, Deadline, End, Kind, wait_until};
use crate::ledger::lock;

/// How many a thread has at a time.
const MAX_WAITING: usize = 200;

/// A future that can be polled, reset, and that may come again.
pub(super) trait Subject: Sized + Send {
    const KIND: Kind;
    /// Whether another wait follows.
    const REPEATS: bool;

    /// Makes one, and returns its deadline.
    fn new(timer: &HashedWheelTimer, random: &mut Rng, sabotage: Option<Sabotage>) -> (Self, Deadline);

    /// Returns the deadline of another wait, which begins now. `last`: that of the wait before.
    fn next_deadline(&self, last: Deadline) -> Deadline;

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), NewTimeoutError>>;

    fn reset(&mut self, delay: Duration);
}

impl Subject for Sleep {
    const KIND: Kind = Kind::Sleep;
    const REPEATS: bool = false;

    fn new(timer: &HashedWheelTimer, random: &mut Rng, _: Option<Sabotage>) -> (Self, Deadline) {
        let delay = delay(random);
        let deadline = Deadline::after(delay);
        (timer.sleep(delay), deadline)
    }

    fn next_deadline(&self, _: Deadline) -> Deadline {
        unreachable!("a sleep does not repeat")
    }

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), NewTimeoutError>> {
        Future::poll(Pin::new(self), context)
    }

    fn reset(&mut self, delay: Duration) {
        Self::reset(self, delay);
    }
}

/// An interval, and when its ticks are due.
pub(super) struct Ticks {
    interval: Interval,
    recurring: Recurring,
}

impl Subject for Ticks {
    const KIND: Kind = Kind::Interval;
    const REPEATS: bool = true;

    fn new(timer: &HashedWheelTimer, random: &mut Rng, sabotage: Option<Sabotage>) -> (Self, Deadline) {
        let policies = [MissedTick::Burst, MissedTick::Delay, MissedTick::Skip];
        let (recurring, schedule) = Recurring::new(&policies, random, sabotage);
        let deadline = recurring.first();
        (Self { interval: timer.interval_on(schedule), recurring }, deadline)
    }

    /// A fixed delay begins with the poll that follows.
    fn next_deadline(&self, last: Deadline) -> Deadline {
        self.recurring.next(last)
    }

    fn poll(&mut self, context: &mut TaskContext<'_>) -> Poll<Result<(), NewTimeoutError>> {
        self.interval.poll_tick(context).map_ok(|_| ())
    }

    fn reset(&mut self, delay: Duration) {
        self.interval.reset_after(delay);
    }
}

/// The task that waits.
#[derive(Debug, Default)]
struct Task {
    /// When it was woken.
    woken: Mutex<Option<Instant>>,
    /// For sabotage: it does not notice that it is woken.
    is_deaf: bool,
}

impl Task {
    fn woken(&self) -> Option<Instant> {
        *lock(&self.woken)
    }

    fn is_woken(&self) -> bool {
        self.woken().is_some()
    }
}

impl Wake for Task {
    fn wake(self: Arc<Self>) {
        if !self.is_deaf {
            lock(&self.woken).get_or_insert_with(Instant::now);
        }
    }
}

struct Waiting<S> {
    subject: S,
    deadline: Deadline,
    /// The timer has accepted it.
    is_accepted: bool,
    task: Arc<Task>,
}

/// Futures of one type.
pub(super) struct Futures<S> {
    timer: HashedWheelTimer,
    accounts: Arc<Accounts>,
    waiting: Vec<Waiting<S>>,
    /// Those whose last wait is over, and which can wait again; with the deadline of that wait.
    idle: Vec<(S, Deadline)>,
    sabotage: Option<Sabotage>,
}

impl Futures<Sleep> {
    pub(super) fn sleeps(context: &Context) -> Self {
        Self::new(context)
    }
}

impl Futures<Ticks> {
    pub(super) fn intervals(context: &Context) -> Self {
        Self::new(context)
    }
}

impl<S: Subject> Futures<S> {
    fn new(context: &Context) -> Self {
        Self {
            timer: context.timer.clone(),
            accounts: Arc::clone(&context.accounts),
            waiting: Vec::new(),
            idle: Vec::new(),
            sabotage: context.sabotage,
        }
    }

    /// Begins a wait.
    fn add(&mut self, random: &mut Rng) {
        let (subject, deadline) = match self.idle.pop() {
            Some((subject, last)) => {
                let deadline = subject.next_deadline(last);
                (subject, deadline)
            }
            None => S::new(&self.timer, random, self.sabotage),
        };
        self.accounts.register(S::KIND);
        let is_deaf = self.sabotage == Some(Sabotage::LostWake);
        let task = Arc::new(Task { is_deaf, ..Task::default() });
        self.poll(Waiting { subject, deadline, is_accepted: false, task });
    }

    /// Polls, and keeps what is still waiting.
    fn poll(&mut self, mut one: Waiting<S>) {
        // A wake-up that came before belongs to a wait that is over: this poll returns that.
        let woken = lock(&one.task.woken).take();
        let waker = Waker::from(Arc::clone(&one.task));
        match one.subject.poll(&mut TaskContext::from_waker(&waker)) {
            Poll::Pending => {
                one.is_accepted = true;
                self.waiting.push(one);
            }
            Poll::Ready(Ok(())) => {
                self.accounts.expire(S::KIND, one.deadline, woken.unwrap_or_else(Instant::now));
                if S::REPEATS {
                    self.idle.push((one.subject, one.deadline));
                }
            }
            Poll::Ready(Err(error)) => self.accounts.fail(S::KIND, &error, one.is_accepted),
        }
    }

    fn poll_woken(&mut self) {
        let is_woken = |one: &Waiting<S>| one.task.is_woken();
        let (woken, waiting): (Vec<_>, Vec<_>) = mem::take(&mut self.waiting).into_iter().partition(is_woken);
        self.waiting = waiting;
        woken.into_iter().for_each(|one| self.poll(one));
    }

    /// Takes any, unless it must be woken first.
    fn take(&mut self, random: &mut Rng) -> Option<Waiting<S>> {
        let at = random.usize(0..self.waiting.len().max(1));
        let Waiting { deadline, task, .. } = self.waiting.get(at)?;
        let may_go = task.is_woken() || !deadline.is_overdue();
        may_go.then(|| self.waiting.swap_remove(at))
    }

    /// Drops one that waits. One that was ready before counts as cancelled too.
    fn drop_one(&mut self, one: Waiting<S>) {
        let Waiting { subject, deadline, task, .. } = one;
        let when = task.woken().unwrap_or_else(Instant::now);
        self.accounts.expect_not_overdue(S::KIND, deadline, when);
        drop(subject);
        self.accounts.end(S::KIND, End::Cancelled);
        self.expect_no_waker(&task);
    }

    /// The timer does not keep a waker. Its worker may be about to call it.
    fn expect_no_waker(&self, task: &Arc<Task>) {
        let is_free = || Arc::strong_count(task) == 1;
        self.accounts.expect(wait_until(TIMEOUT, is_free), || format!("{:?}: a waker is left", S::KIND));
    }
}

impl<S: Subject> Load for Futures<S> {
    fn work(&mut self, random: &mut Rng) {
        match random.u8(0..10) {
            0..4 if self.waiting.len() < MAX_WAITING => self.add(random),
            0..6 => self.poll_woken(),
            6 | 7 => {
                let Some(one) = self.take(random) else { return };
                self.drop_one(one);
            }
            8 => {
                let Some(mut one) = self.take(random) else { return };
                let delay = delay(random);
                one.deadline = Deadline::after(delay);
                one.subject.reset(delay);
                // The reset has ended it, or another wait begins.
                self.poll(one);
            }
            _ => {
                // Another task polls.
                let Some(one) = self.take(random) else { return };
                self.poll(Waiting { task: Arc::default(), ..one });
            }
        }
    }

    fn leave(&mut self) {
        while let Some(one) = self.waiting.pop() {
            self.accounts.await_if_due(S::KIND, one.deadline, || one.task.is_woken());
            self.drop_one(one);
        }
        self.idle.clear();
    }

    fn settle(&mut self) {
        for one in mem::take(&mut self.waiting) {
            self.accounts.expect(wait_until(TIMEOUT, || one.task.is_woken()), || {
                format!("{:?}: the end of the timer has not woken its task", S::KIND)
            });
            self.poll(one);
        }
        self.accounts.expect(self.waiting.is_empty(), || format!("{:?}: waits on a stopped timer", S::KIND));
    }
}
