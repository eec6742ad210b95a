//! The kinds of use of a timer. A thread has a load of each kind for each timer that it uses, and
//! lets them work in turn.

mod futures;
mod map;
mod periodic;
mod plain;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, MissedTick, Schedule};
use hashed_wheel_ledger::Kind;

use crate::Sabotage;
use crate::tally::{Deadline, Tally, now};

pub(crate) use plain::{Action, Entry, Plains, cancel_all, schedule};

/// One kind of use of one timer by one thread. It adds everything that it registers to the tally.
pub(crate) trait Load: Send {
    /// Does one operation.
    fn work(&mut self, random: &mut Rng);

    /// Ends what belongs to this thread, before the thread ends. Waits for what is due.
    fn leave(&mut self);

    /// Cancels everything that is not due, also of other threads, so that a pause begins.
    fn rest(&mut self) {
        self.leave();
    }

    /// Records what was left when the timer ended. Called after that, by each thread.
    fn settle(&mut self);
}

/// A timer, and what all threads that use it share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) timer: HashedWheelTimer,
    pub(crate) tally: Arc<Tally>,
    pub(crate) plains: Arc<Plains>,
    /// The other kinds, unless the timer has only plain timeouts.
    others: Option<([map::Keys; 3], queue::Queue)>,
}

impl Shared {
    pub(crate) fn new(timer: &HashedWheelTimer, plains: &Arc<Plains>, is_mixed: bool) -> Self {
        let (tally, plains) = (Arc::clone(&plains.tally), Arc::clone(plains));
        let maps = || Kind::MAPS.map(|kind| map::Keys::new(kind, timer, &tally));
        let others = is_mixed.then(|| (maps(), queue::Queue::new(timer, &tally)));
        Self {
            timer: timer.clone(),
            tally,
            plains,
            others,
        }
    }

    /// Returns the loads of one thread.
    pub(crate) fn loads(&self) -> Loads {
        let mut loads: Vec<Box<dyn Load>> =
            vec![Box::new(plain::Producer::new(&self.timer, &self.plains))];
        if let Some((maps, queue)) = &self.others {
            loads.push(Box::new(futures::Futures::new(Kind::Sleep, self)));
            loads.push(Box::new(futures::Futures::new(Kind::Interval, self)));
            loads.push(Box::new(periodic::PeriodicTasks::new(self)));
            let maps = maps.iter().cloned();
            loads.extend(maps.map(|keys| Box::new(keys) as Box<dyn Load>));
            loads.push(Box::new(queue.clone()));
        }
        Loads(loads)
    }

    /// Settles the loads of all threads after the end of the timer.
    pub(crate) fn settle(self, mut loads: Vec<Loads>) {
        // There may be no thread.
        loads.push(self.loads());
        let all = loads.iter_mut().flat_map(|loads| &mut loads.0);
        all.for_each(|load| load.settle());
    }
}

/// All kinds of use of one timer by one thread.
pub(crate) struct Loads(Vec<Box<dyn Load>>);

impl Loads {
    /// Does some operations, in random order: at most so many with plain timeouts, and fewer if the
    /// thread has to come back soon to what expires.
    pub(crate) fn work(&mut self, most: usize, random: &mut Rng) {
        let (plain, others) = self.0.split_first_mut().expect("there are plain timeouts");
        let max = if others.is_empty() { most } else { 1_000 };
        (0..random.usize(..=most.min(max))).for_each(|_| plain.work(random));
        if !others.is_empty() {
            for _ in 0..random.usize(1..200) {
                let at = random.usize(0..others.len());
                others[at].work(random);
            }
        }
    }

    pub(crate) fn leave(mut self) {
        self.0.iter_mut().for_each(|load| load.leave());
    }

    pub(crate) fn rest(&mut self) {
        self.0.iter_mut().for_each(|load| load.rest());
    }
}

/// A delay that is longer than the program runs.
pub(crate) const A_DAY: Duration = Duration::from_secs(86_400);

/// A delay: most are short, some longer than the program runs.
fn delay(random: &mut Rng) -> Duration {
    match random.u8(0..10) {
        0 => Duration::ZERO,
        1 => A_DAY,
        _ => short_delay(random),
    }
}

fn short_delay(random: &mut Rng) -> Duration {
    let max_micros = if random.u8(0..3) == 0 { 5_000 } else { 500_000 };
    Duration::from_micros(random.u64(0..max_micros))
}

/// Takes a random element.
fn take<T>(list: &mut Vec<T>, random: &mut Rng) -> Option<T> {
    (!list.is_empty()).then(|| list.swap_remove(random.usize(0..list.len())))
}

/// Invariants of the runs of a periodic task and the ticks of an interval, whatever the timer
/// says about their deadlines.
#[derive(Debug, Clone, Copy)]
struct Recurring {
    period: Duration,
    has_fixed_delay: bool,
}

impl Recurring {
    /// Returns a random schedule too: at a fixed rate with one of the policies, or with a fixed
    /// delay.
    fn new(policies: &[MissedTick], random: &mut Rng, tally: &Tally) -> (Self, Schedule) {
        let period = Duration::from_micros(random.u64(1_000..100_000));
        // Correct in the first run, so that the check of the others is tested.
        let [is_half, is_late] = [Sabotage::Half, Sabotage::Late].map(|it| tally.does(it));
        let scheduled = if is_half { period / 2 } else { period };
        let first = if is_late { A_DAY } else { period };
        let policy = policies.get(random.usize(0..=policies.len()));
        let schedule = match policy {
            Some(policy) => Schedule::at_fixed_rate(scheduled).missed_tick(*policy),
            None => Schedule::with_fixed_delay(scheduled),
        };
        let has_fixed_delay = policy.is_none();
        let recurring = Self {
            period,
            has_fixed_delay,
        };
        (recurring, schedule.initial_delay(first))
    }

    /// Returns when the first run is due, if the schedule begins now.
    fn first(self) -> Deadline {
        Deadline::at(now() + self.period)
    }

    /// Returns when the next run is due, if the one with this deadline ends now. The permitted
    /// lateness covers the time until the timer computes the deadline.
    ///
    /// At a fixed rate, no policy makes the next run due before one period after the last one was
    /// due.
    fn next(self, last: Deadline) -> Deadline {
        let next = self.first();
        if self.has_fixed_delay {
            return next;
        }
        let earliest = last.earliest.map(|due| due + self.period);
        Deadline { earliest, ..next }
    }
}
