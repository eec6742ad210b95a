//! Runs the scripts on this crate.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel, Key};
use hashed_wheel::{
    Builder, Clock, Driver, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout,
};

use super::trace::{Event, Op, Script, Size, Task};
use crate::common::ends;

/// The events of each step, and the number of pending timeouts after it.
pub(crate) type Results = Vec<(Vec<Event>, usize)>;

/// The settings of a timer.
pub(crate) type Settings = fn(Builder) -> Builder;

/// Runs a script on a timer with the wheel that `settings` choose.
pub(crate) fn on_timer(script: &Script, settings: Settings) -> Results {
    let script = script.clone();
    ends(move || replay(&script, &mut OnTimer::new(&script, settings)))
}

/// Runs a script on the plain wheels, if the script uses no operation that only timers have.
pub(crate) fn on_plain_wheels(script: &Script) -> Option<[Results; 2]> {
    let is_plain = script.limit == 0
        && script.steps.iter().all(|step| match &step.op {
            Op::Add { task, .. } => task.cancels.is_empty() && task.next.is_none(),
            _ => true,
        });
    let slots = script.asked.slots;
    let hashed = || replay(script, &mut OnWheel::new(script, HashedWheel::new(slots)));
    let hierarchical = HierarchicalWheel::new;
    let hierarchical = || replay(script, &mut OnWheel::new(script, hierarchical(slots)));
    is_plain.then(|| [hashed(), hierarchical()])
}

trait Subject {
    fn add(&mut self, delay: Duration, task: &Task);
    fn cancel(&mut self, id: usize);
    /// Lets time pass.
    fn advance_clock(&mut self, nanos: u64);
    fn now(&self) -> u64;
    /// Processes all ticks that have begun. All events belong to `tick`, the last of them.
    fn turn(&mut self, tick: u64);
    fn stop(&mut self);
    fn pending(&self) -> usize;
    fn take_events(&mut self) -> Vec<Event>;
}

fn replay(script: &Script, subject: &mut impl Subject) -> Results {
    let tick = script.asked.tick;
    subject.advance_clock(script.from * tick);
    subject.turn(script.from);
    let mut results = Vec::new();
    for step in &script.steps {
        match step.op {
            Op::Add { delay, ref task } => subject.add(nanos(delay), task),
            Op::Fill { count, delay } => {
                (0..count).for_each(|_| subject.add(nanos(delay), &Task::default()));
            }
            Op::Cancel(id) => subject.cancel(id),
            Op::Stall(by) => subject.advance_clock(by),
            Op::Turn(by) => {
                subject.advance_clock(by);
                subject.turn(subject.now() / tick);
            }
            Op::Run(count) => {
                for _ in 0..count {
                    subject.advance_clock(tick - subject.now() % tick);
                    subject.turn(subject.now() / tick);
                }
            }
            Op::Stop => subject.stop(),
            Op::StopWithinAdd => unreachable!("a separate test replays this script"),
        }
        results.push((subject.take_events(), subject.pending()));
    }
    results
}

/// Java's delays can be negative and then mean zero.
pub(crate) fn nanos(delay: i64) -> Duration {
    Duration::from_nanos(delay.try_into().unwrap_or(0))
}

pub(crate) fn build(size: Size, builder: Builder) -> Builder {
    builder
        .tick(Duration::from_nanos(size.tick))
        .ticks_per_wheel(size.slots)
}

struct OnTimer {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
    log: Arc<Mutex<Log>>,
}

#[derive(Default)]
struct Log {
    events: Vec<Event>,
    /// Indexed by id. `None` means that the timeout was rejected.
    timeouts: Vec<Option<Timeout>>,
    tick: u64,
}

impl OnTimer {
    fn new(script: &Script, settings: Settings) -> Self {
        let clock = ManualClock::new();
        let builder = build(script.asked, HashedWheelTimer::builder())
            .max_pending_timeouts((script.limit > 0).then_some(script.limit));
        let builder = settings(builder).clock(clock.clone());
        let (timer, driver) = builder.build_driven().unwrap();
        Self {
            timer,
            driver,
            clock,
            log: Arc::default(),
        }
    }
}

impl Subject for OnTimer {
    fn add(&mut self, delay: Duration, task: &Task) {
        schedule(&self.timer, &self.log, delay, task.clone());
    }

    fn cancel(&mut self, id: usize) {
        cancel(&self.log, id);
    }

    fn advance_clock(&mut self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }

    fn turn(&mut self, tick: u64) {
        self.log.lock().unwrap().tick = tick;
        self.driver.turn();
        while self.driver.next_turn() == Some(Duration::ZERO) {
            self.driver.turn();
        }
    }

    fn stop(&mut self) {
        let rest = self.timer.stop();
        assert!(rest.iter().all(Timeout::is_cancelled));
        let mut log = self.log.lock().unwrap();
        let id = |rest: &Timeout| {
            let mut timeouts = log.timeouts.iter();
            timeouts.position(|it| it.as_ref() == Some(rest)).unwrap()
        };
        let mut ids: Vec<_> = rest.iter().map(id).collect();
        ids.sort_unstable();
        log.events.extend(ids.into_iter().map(Event::Returned));
    }

    fn pending(&self) -> usize {
        self.timer.pending_timeouts()
    }

    fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.log.lock().unwrap().events)
    }
}

fn schedule(timer: &HashedWheelTimer, log: &Arc<Mutex<Log>>, delay: Duration, task: Task) {
    let id = log.lock().unwrap().timeouts.len();
    let task_log = Arc::clone(log);
    let result = timer.new_timeout(move |timeout| perform(timeout, &task_log, id, &task), delay);
    let mut log = log.lock().unwrap();
    match &result {
        Ok(_) => {}
        Err(NewTimeoutError::TooManyPending { .. }) => log.events.push(Event::Full),
        Err(NewTimeoutError::Stopped) => log.events.push(Event::Stopped),
        Err(other) => panic!("{other}"),
    }
    log.timeouts.push(result.ok());
}

fn perform(timeout: &Timeout, log: &Arc<Mutex<Log>>, id: usize, task: &Task) {
    let fired = |log: &mut Log| log.events.push(Event::Fired { tick: log.tick, id });
    fired(&mut log.lock().unwrap());
    task.cancels.iter().for_each(|other| cancel(log, *other));
    if let Some((delay, next)) = &task.next {
        schedule(&timeout.timer(), log, nanos(*delay), Task::clone(next));
    }
}

fn cancel(log: &Mutex<Log>, id: usize) {
    // Without the lock, because `cancel` drops the task.
    let timeout = log.lock().unwrap().timeouts[id].clone().unwrap();
    let succeeded = timeout.cancel();
    let event = Event::Cancel { id, succeeded };
    log.lock().unwrap().events.push(event);
}

/// A plain wheel with the time as a number, and without tasks.
struct OnWheel<W> {
    wheel: W,
    tick: u64,
    now: u64,
    keys: Vec<Key>,
    events: Vec<Event>,
}

impl<W: Wheel> OnWheel<W> {
    fn new(script: &Script, wheel: W) -> Self {
        Self {
            wheel,
            tick: script.asked.tick,
            now: 0,
            keys: Vec::new(),
            events: Vec::new(),
        }
    }
}

impl<W: Wheel> Subject for OnWheel<W> {
    fn add(&mut self, delay: Duration, _: &Task) {
        let deadline = self.now.saturating_add(delay.as_nanos() as u64);
        // A deadline that has passed is moved to the next tick.
        let tick = deadline.div_ceil(self.tick).max(self.wheel.tick() + 1);
        self.keys.push(self.wheel.insert(tick, self.keys.len()));
    }

    fn cancel(&mut self, id: usize) {
        let succeeded = self.wheel.remove(self.keys[id]).is_some();
        self.events.push(Event::Cancel { id, succeeded });
    }

    fn advance_clock(&mut self, nanos: u64) {
        self.now += nanos;
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn turn(&mut self, tick: u64) {
        self.wheel
            .advance(tick, |id| self.events.push(Event::Fired { tick, id }));
    }

    fn stop(&mut self) {
        let mut rest = self.wheel.drain();
        rest.sort_unstable();
        self.events.extend(rest.into_iter().map(Event::Returned));
    }

    fn pending(&self) -> usize {
        self.wheel.len()
    }

    fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.events)
    }
}

/// The operations that both wheels have.
trait Wheel {
    fn insert(&mut self, deadline: u64, id: usize) -> Key;
    fn remove(&mut self, key: Key) -> Option<usize>;
    fn advance(&mut self, now: u64, expired: impl FnMut(usize));
    fn drain(&mut self) -> Vec<usize>;
    fn tick(&self) -> u64;
    fn len(&self) -> usize;
}

macro_rules! wheel {
    ($($wheel:ident)*) => { $(
        impl Wheel for $wheel<usize> {
            fn insert(&mut self, deadline: u64, id: usize) -> Key {
                self.insert(deadline, id)
            }

            fn remove(&mut self, key: Key) -> Option<usize> {
                self.remove(key)
            }

            fn advance(&mut self, now: u64, expired: impl FnMut(usize)) {
                self.advance(now, expired);
            }

            fn drain(&mut self) -> Vec<usize> {
                self.drain().collect()
            }

            fn tick(&self) -> u64 {
                self.tick()
            }

            fn len(&self) -> usize {
                self.len()
            }
        }
    )* };
}

wheel!(HashedWheel HierarchicalWheel);
