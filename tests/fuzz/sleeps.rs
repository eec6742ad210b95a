//! Compares sleeps and intervals with a model of each. A waiting sleep is a timeout whose task is a
//! waker. An interval is a sleep that gets the deadline of the next tick after each tick.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use hashed_wheel::{Interval, MissedTick, NewTimeoutError, Schedule, Sleep};

use super::{Kind, LAST, MAX_TIMEOUTS, Model, Script, State, later};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SleepState {
    /// Has no timeout on the timer.
    Idle,
    /// Waits with this timeout.
    Waiting(usize),
    Elapsed,
}

/// The future that is compared.
enum Subject {
    Sleep(Sleep),
    Interval(Interval, IntervalModel),
}

/// The model's state of an interval, in addition to that of its sleep.
struct IntervalModel {
    /// When the next tick is due, in nanoseconds. If one was delivered: when that was due.
    due: u64,
    period: Duration,
    /// `None` is a fixed delay.
    missed_tick: Option<MissedTick>,
    /// When the last tick was delivered, if it was not polled since.
    delivered: Option<u64>,
}

impl IntervalModel {
    /// Returns the deadline of the tick after the one that was delivered then.
    fn next(&mut self, delivered: u64, now: u64) -> u64 {
        let next = later(self.due, self.period);
        let is_missed = next <= delivered;
        self.due = match self.missed_tick {
            None => later(self.due.max(now), self.period),
            Some(MissedTick::Delay) if is_missed => later(self.due.max(delivered), self.period),
            Some(MissedTick::Skip) if is_missed => {
                let period = self.period.as_nanos() as u64;
                let missed = (delivered - next) / period + 1;
                later(next, Duration::from_nanos(missed * period))
            }
            Some(_) => next,
        };
        self.due
    }
}

pub(super) struct Sleeper {
    subject: Subject,
    /// In nanoseconds.
    deadline: u64,
    state: SleepState,
    /// The task that has polled it last.
    task: Arc<PollingTask>,
}

/// The task of an executor that polls the sleep.
struct PollingTask {
    /// The timeout that has the waker of this task.
    id: AtomicUsize,
    /// Chooses whether the task acts when it is woken.
    behaviour: u64,
    script: Script,
}

/// The result of a poll.
#[derive(PartialEq, Debug)]
enum PollResult {
    Pending,
    Elapsed,
    Rejected,
    /// An interval whose period is zero.
    ZeroPeriod,
}

impl Model {
    /// The expected result of a poll by the same task as before, or by another one.
    fn poll(&mut self, sleeper: &mut Sleeper, is_another: bool) -> PollResult {
        let now = self.now();
        if let Subject::Interval(_, interval) = &mut sleeper.subject {
            if interval.period.is_zero() {
                return PollResult::ZeroPeriod;
            }
            if let Some(delivered) = interval.delivered.take() {
                (sleeper.deadline, sleeper.state) =
                    (interval.next(delivered, now), SleepState::Idle);
            }
        }
        let result = self.poll_sleep(sleeper, is_another);
        if let (PollResult::Elapsed, Subject::Interval(_, interval)) =
            (&result, &mut sleeper.subject)
        {
            interval.delivered = Some(now);
        }
        result
    }

    fn poll_sleep(&mut self, sleeper: &mut Sleeper, is_another: bool) -> PollResult {
        match sleeper.state {
            SleepState::Elapsed => PollResult::Elapsed,
            SleepState::Waiting(id) => match self.records[id].state {
                State::Pending if is_another => {
                    // A new timeout with the new waker takes the place of the first.
                    self.cancel_sleep(id);
                    self.wait(sleeper, false)
                }
                State::Pending => PollResult::Pending,
                State::Ran => {
                    sleeper.state = SleepState::Elapsed;
                    PollResult::Elapsed
                }
                _ => {
                    sleeper.state = SleepState::Idle;
                    PollResult::Rejected
                }
            },
            SleepState::Idle if self.now() >= sleeper.deadline => {
                if self.is_closed() {
                    return PollResult::Rejected;
                }
                sleeper.state = SleepState::Elapsed;
                PollResult::Elapsed
            }
            SleepState::Idle => self.wait(sleeper, self.is_closed() || self.is_full()),
        }
    }

    /// Chooses how an interval treats missed ticks.
    fn schedule_of(&mut self, period: Duration) -> (Schedule, Option<MissedTick>) {
        let rate = Schedule::at_fixed_rate(period);
        match self.bytes.up_to(3) {
            0 => (rate, Some(MissedTick::Burst)),
            1 => (rate.missed_tick(MissedTick::Delay), Some(MissedTick::Delay)),
            2 => (rate.missed_tick(MissedTick::Skip), Some(MissedTick::Skip)),
            _ => (Schedule::with_fixed_delay(period), None),
        }
    }

    fn wait(&mut self, sleeper: &mut Sleeper, is_rejected: bool) -> PollResult {
        let id = self.add(Kind::Sleep, sleeper.deadline, is_rejected);
        if is_rejected {
            self.records[id].drop_task();
            return PollResult::Rejected;
        }
        sleeper.state = SleepState::Waiting(id);
        sleeper.task.id.store(id, SeqCst);
        PollResult::Pending
    }

    /// The timer holds a waker of a waiting task, and no other waker.
    fn check_waker_count(&self, sleeper: &Sleeper) {
        let waits = matches!(sleeper.state, SleepState::Waiting(id) if self.pending.contains(&id));
        let held = Arc::strong_count(&sleeper.task) - 1;
        // A waker holds a reference to itself while it runs.
        let is_right = held == usize::from(waits) || self.depth > 0;
        assert!(is_right, "{held} wakers, {:?}", sleeper.state);
    }

    /// Cancels the timeout of a sleep. No task is woken.
    fn cancel_sleep(&mut self, id: usize) {
        if self.cancel_record(id) {
            self.records[id].end(State::Cancelled);
        }
    }
}

impl Script {
    /// `choice` is at most 25.
    pub(super) fn use_sleeper(&self, choice: u64) {
        let new = choice < 6;
        if new {
            self.new_sleeper(choice >= 4);
        }
        let mut model = self.model();
        if model.sleepers.is_empty() {
            return;
        }
        let last = model.sleepers.len() - 1;
        let at = match new {
            true => 0,
            false => model.bytes.up_to(255) as usize,
        };
        let mut sleeper = model.sleepers.swap_remove(last - at % (last + 1));
        drop(model);
        // No user code runs meanwhile, so the model does not need this sleep.
        match choice {
            0 | 1 => {}
            2..18 => self.poll_sleeper(&mut sleeper),
            18..22 => self.reset_sleeper(&mut sleeper),
            22 | 23 => self.check_sleeper(&sleeper),
            _ => return self.drop_sleeper(sleeper),
        }
        let mut model = self.model();
        model.check_waker_count(&sleeper);
        model.sleepers.push(sleeper);
    }

    fn new_sleeper(&self, is_interval: bool) {
        let mut model = self.model();
        let Some(timer) = model.timer() else { return };
        let delay = model.delay();
        let deadline = model.deadline(delay);
        let (subject, deadline) = match is_interval {
            false => (Subject::Sleep(timer.sleep(delay)), deadline),
            true => {
                let period = model.delay();
                let (schedule, missed_tick) = model.schedule_of(period);
                let interval = timer.interval_on(schedule.initial_delay(delay));
                // An interval without a period has no first tick either.
                let due = if period.is_zero() { 0 } else { deadline };
                let model = IntervalModel {
                    due,
                    period,
                    missed_tick,
                    delivered: None,
                };
                (Subject::Interval(interval, model), due)
            }
        };
        let task = PollingTask::new(self, model.bytes.up_to(255));
        model.sleepers.push(Sleeper {
            subject,
            deadline,
            state: SleepState::Idle,
            task,
        });
    }

    fn poll_sleeper(&self, sleeper: &mut Sleeper) {
        let mut model = self.model();
        if model.records.len() >= MAX_TIMEOUTS {
            return;
        }
        let behaviour = model.bytes.up_to(255);
        let is_another = behaviour % 2 == 1;
        let before = is_another
            .then(|| std::mem::replace(&mut sleeper.task, PollingTask::new(self, behaviour)));
        let expected = model.poll(sleeper, is_another);
        drop(model);
        let waker = Waker::from(Arc::clone(&sleeper.task));
        let mut context = Context::from_waker(&waker);
        let polled = match &mut sleeper.subject {
            Subject::Sleep(sleep) => Pin::new(sleep).poll(&mut context),
            Subject::Interval(interval, _) => interval.poll_tick(&mut context).map_ok(|_| ()),
        };
        drop((waker, before));
        let result = match polled {
            Poll::Pending => PollResult::Pending,
            Poll::Ready(Ok(())) => PollResult::Elapsed,
            Poll::Ready(Err(NewTimeoutError::ZeroPeriod)) => PollResult::ZeroPeriod,
            Poll::Ready(Err(error)) => {
                self.model().expect_rejection(&error);
                PollResult::Rejected
            }
        };
        assert_eq!(result, expected);
    }

    fn reset_sleeper(&self, sleeper: &mut Sleeper) {
        let mut model = self.model();
        let mut delay = model.delay();
        if let Subject::Interval(_, interval) = &mut sleeper.subject {
            if interval.period.is_zero() {
                return;
            }
            // `Interval::reset` instead of `reset_after`.
            if delay == Duration::MAX {
                delay = interval.period;
            }
            (interval.due, interval.delivered) = (model.deadline(delay), None);
        }
        sleeper.deadline = model.deadline(delay);
        let is_over = delay.is_zero();
        match sleeper.state {
            // The call wakes the task that waits.
            SleepState::Waiting(id) if is_over && model.cancel_record(id) => {
                sleeper.state = SleepState::Elapsed;
            }
            SleepState::Waiting(id) if model.pending.contains(&id) => {
                model.reset_record(id, sleeper.deadline);
            }
            _ if is_over && !model.is_closed() => sleeper.state = SleepState::Elapsed,
            _ => sleeper.state = SleepState::Idle,
        }
        drop(model);
        match &mut sleeper.subject {
            Subject::Sleep(sleep) => sleep.reset(delay),
            Subject::Interval(interval, model) if delay == model.period => interval.reset(),
            Subject::Interval(interval, _) if delay.is_zero() => interval.reset_immediately(),
            Subject::Interval(interval, _) => interval.reset_after(delay),
        }
    }

    fn check_sleeper(&self, sleeper: &Sleeper) {
        let sleep = match &sleeper.subject {
            Subject::Sleep(sleep) => sleep,
            Subject::Interval(interval, model) => {
                let last = Duration::from_nanos(LAST);
                let period = Some(model.period).filter(|period| *period <= last);
                return assert_eq!(interval.period(), period.unwrap_or(Duration::MAX));
            }
        };
        let model = self.model();
        let has_elapsed = match sleeper.state {
            SleepState::Idle => false,
            SleepState::Waiting(id) => model.records[id].state == State::Ran,
            SleepState::Elapsed => true,
        };
        assert_eq!(sleep.is_elapsed(), has_elapsed);
        assert_eq!(sleep.remaining(), model.time_until(sleeper.deadline));
    }

    fn drop_sleeper(&self, mut sleeper: Sleeper) {
        if let SleepState::Waiting(id) = sleeper.state {
            self.model().cancel_sleep(id);
            sleeper.state = SleepState::Idle;
        }
        let Sleeper { subject, task, .. } = sleeper;
        drop(subject);
        drop(task);
    }

    pub(super) fn drop_sleepers(&self) {
        let sleepers = std::mem::take(&mut self.model().sleepers);
        for sleeper in sleepers {
            self.drop_sleeper(sleeper);
        }
    }
}

impl PollingTask {
    fn new(script: &Script, behaviour: u64) -> Arc<Self> {
        Arc::new(Self {
            id: AtomicUsize::new(usize::MAX),
            behaviour,
            script: script.clone(),
        })
    }
}

impl Wake for PollingTask {
    fn wake(self: Arc<Self>) {
        let id = self.id.load(SeqCst);
        let expires = {
            let mut model = self.script.model();
            let is_over = model.is_stopped || model.timer().is_some_and(|timer| timer.is_stopped());
            let by_stop = is_over && model.end_by_stop(id);
            let by_reset = model.records[id].state == State::Cancelling;
            let expires = !by_stop && !by_reset;
            if by_stop {
                model.returned_hidden += 1;
            } else if expires {
                model.fire(id);
            }
            use State::{Cancelled, Ran};
            model.records[id].end(if expires { Ran } else { Cancelled });
            expires
        };
        if self.behaviour >= 128 {
            self.script.act_nested(if expires { 7 } else { 2 });
        }
    }
}
