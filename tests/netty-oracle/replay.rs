//! The scripts, run on this crate.

use std::mem;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel, Key};
use hashed_wheel::{Builder, Clock, Driver, HashedWheelTimer, ManualClock, NewTimeoutError, Timeout};

use crate::common::ends;
use crate::trace::{Event, Op, Script, Size, Task};

/// What came of each step, and how many timeouts were pending then.
pub(crate) type Answers = Vec<(Vec<Event>, usize)>;

/// How a timer is to be made.
pub(crate) type Settings = fn(Builder) -> Builder;

/// The timer, on the wheel that `settings` choose.
pub(crate) fn on_timer(script: &Script, settings: Settings) -> Answers {
    let script = script.clone();
    ends(move || replay(&script, &mut OnTimer::new(&script, settings)))
}

/// The plain wheels, if there is nothing in the script that only timers can do.
pub(crate) fn on_plain_wheels(script: &Script) -> Option<[Answers; 2]> {
    let is_plain = script.limit == 0
        && script.steps.iter().all(|step| match &step.op {
            Op::Add { task, .. } => task.cancels.is_empty() && task.next.is_none(),
            _ => true,
        });
    is_plain.then(|| {
        [
            replay(script, &mut OnWheel::new(script, HashedWheel::new(script.asked.slots))),
            replay(script, &mut OnWheel::new(script, HierarchicalWheel::new(script.asked.slots))),
        ]
    })
}

trait Subject {
    fn add(&mut self, delay: Duration, task: &Task);
    fn cancel(&mut self, id: usize);
    /// Time passes.
    fn pass(&mut self, nanos: u64);
    fn now(&self) -> u64;
    /// Makes all ticks that have begun; these things happen in `tick`, the last of them.
    fn turn(&mut self, tick: u64);
    fn stop(&mut self);
    fn pending(&self) -> usize;
    fn take_events(&mut self) -> Vec<Event>;
}

fn replay(script: &Script, subject: &mut impl Subject) -> Answers {
    let tick = script.asked.tick;
    subject.pass(script.from * tick);
    subject.turn(script.from);
    let mut answers = Vec::new();
    for step in &script.steps {
        match step.op {
            Op::Add { delay, ref task } => subject.add(nanos(delay), task),
            Op::Fill { count, delay } => (0..count).for_each(|_| subject.add(nanos(delay), &Task::default())),
            Op::Cancel(id) => subject.cancel(id),
            Op::Stall(by) => subject.pass(by),
            Op::Turn(by) => {
                subject.pass(by);
                subject.turn(subject.now() / tick);
            }
            Op::Run(count) => {
                for _ in 0..count {
                    subject.pass(tick - subject.now() % tick);
                    subject.turn(subject.now() / tick);
                }
            }
            Op::Stop => subject.stop(),
            Op::StopWithinAdd => unreachable!("a replay has no two threads; the test of that script has"),
        }
        answers.push((subject.take_events(), subject.pending()));
    }
    answers
}

/// Java's delays can be negative, and mean zero then.
pub(crate) fn nanos(delay: i64) -> Duration {
    Duration::from_nanos(delay.try_into().unwrap_or(0))
}

pub(crate) fn build(size: Size, builder: Builder) -> Builder {
    builder.tick(Duration::from_nanos(size.tick)).ticks_per_wheel(size.slots)
}

struct OnTimer {
    timer: HashedWheelTimer,
    driver: Driver,
    clock: ManualClock,
    notes: Arc<Mutex<Notes>>,
}

#[derive(Default)]
struct Notes {
    events: Vec<Event>,
    /// By id; `None` was refused.
    timeouts: Vec<Option<Timeout>>,
    tick: u64,
}

impl OnTimer {
    fn new(script: &Script, settings: Settings) -> Self {
        let clock = ManualClock::new();
        let builder = build(script.asked, HashedWheelTimer::builder()).max_pending_timeouts(script.limit);
        let (timer, driver) = settings(builder).clock(clock.clone()).build_driven().unwrap();
        Self { timer, driver, clock, notes: Arc::default() }
    }
}

impl Subject for OnTimer {
    fn add(&mut self, delay: Duration, task: &Task) {
        schedule(&self.timer, &self.notes, delay, task.clone());
    }

    fn cancel(&mut self, id: usize) {
        cancel(&self.notes, id);
    }

    fn pass(&mut self, nanos: u64) {
        self.clock.advance(Duration::from_nanos(nanos));
    }

    fn now(&self) -> u64 {
        self.clock.now().as_nanos() as u64
    }

    fn turn(&mut self, tick: u64) {
        self.notes.lock().unwrap().tick = tick;
        self.driver.turn();
        while self.driver.next_turn() == Some(Duration::ZERO) {
            self.driver.turn();
        }
    }

    fn stop(&mut self) {
        let rest = self.timer.stop();
        assert!(rest.iter().all(Timeout::is_cancelled));
        let mut notes = self.notes.lock().unwrap();
        let id = |rest: &Timeout| notes.timeouts.iter().position(|it| it.as_ref() == Some(rest)).unwrap();
        let mut ids: Vec<_> = rest.iter().map(id).collect();
        ids.sort_unstable();
        notes.events.extend(ids.into_iter().map(Event::Returned));
    }

    fn pending(&self) -> usize {
        self.timer.pending_timeouts()
    }

    fn take_events(&mut self) -> Vec<Event> {
        mem::take(&mut self.notes.lock().unwrap().events)
    }
}

fn schedule(timer: &HashedWheelTimer, notes: &Arc<Mutex<Notes>>, delay: Duration, task: Task) {
    let id = notes.lock().unwrap().timeouts.len();
    let its_notes = Arc::clone(notes);
    let answer = timer.new_timeout(move |timeout| perform(timeout, &its_notes, id, &task), delay);
    let mut notes = notes.lock().unwrap();
    match &answer {
        Ok(_) => {}
        Err(NewTimeoutError::TooManyPending { .. }) => notes.events.push(Event::Full),
        Err(NewTimeoutError::Stopped) => notes.events.push(Event::Stopped),
        Err(other) => panic!("{other}"),
    }
    notes.timeouts.push(answer.ok());
}

fn perform(timeout: &Timeout, notes: &Arc<Mutex<Notes>>, id: usize, task: &Task) {
    let fired = |notes: &mut Notes| notes.events.push(Event::Fired { tick: notes.tick, id });
    fired(&mut notes.lock().unwrap());
    task.cancels.iter().for_each(|victim| cancel(notes, *victim));
    if let Some((delay, next)) = &task.next {
        schedule(&timeout.timer(), notes, nanos(*delay), Task::clone(next));
    }
}

fn cancel(notes: &Mutex<Notes>, id: usize) {
    // Not under the lock: it drops the task.
    let timeout = notes.lock().unwrap().timeouts[id].clone().unwrap();
    let won = timeout.cancel();
    notes.lock().unwrap().events.push(Event::Cancel { id, won });
}

/// Such a wheel as someone would own who has neither clock nor tasks.
struct OnWheel<W> {
    wheel: W,
    tick: u64,
    now: u64,
    keys: Vec<Key>,
    events: Vec<Event>,
}

impl<W: Wheel> OnWheel<W> {
    fn new(script: &Script, wheel: W) -> Self {
        Self { wheel, tick: script.asked.tick, now: 0, keys: Vec::new(), events: Vec::new() }
    }
}

impl<W: Wheel> Subject for OnWheel<W> {
    fn add(&mut self, delay: Duration, _: &Task) {
        let deadline = self.now.saturating_add(delay.as_nanos() as u64);
        // What is due already is for the next tick.
        let tick = deadline.div_ceil(self.tick).max(self.wheel.tick() + 1);
        self.keys.push(self.wheel.insert(tick, self.keys.len()));
    }

    fn cancel(&mut self, id: usize) {
        let won = self.wheel.remove(self.keys[id]).is_some();
        self.events.push(Event::Cancel { id, won });
    }

    fn pass(&mut self, nanos: u64) {
        self.now += nanos;
    }

    fn now(&self) -> u64 {
        self.now
    }

    fn turn(&mut self, tick: u64) {
        self.wheel.advance(tick, |id| self.events.push(Event::Fired { tick, id }));
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

/// What both wheels can do.
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
