//! Three permanent timers with all kinds of load, and the threads that use all three.

use std::array;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fastrand::Rng;

use crate::Options;
use crate::loads::{Context, Loads};
use crate::phases::Phase;
use crate::producer::{Producer, Target};
use crate::timers::{Closed, Ending, Left, Plan, Running, TurnedBy};

const COUNT: usize = 3;

/// What turns the timers, and how they end.
const TIMERS: [(&str, TurnedBy, Ending); COUNT] = [
    ("mixed, thread", TurnedBy::Thread, Ending::Shutdown),
    ("mixed, loop", TurnedBy::Loop, Ending::Awaited),
    ("mixed, tokio", TurnedBy::Tokio, Ending::Stop),
];

pub(crate) struct Mixed([Running; COUNT]);

impl Mixed {
    pub(crate) fn start(options: &Options) -> Self {
        let plan = |turned_by| Plan::mixed(turned_by, options.max_late, options.sabotage);
        Self(TIMERS.map(|(_, turned_by, _)| plan(turned_by).start()))
    }

    /// Returns the timers with their names.
    pub(crate) fn named(&self) -> impl Iterator<Item = (&'static str, &Running)> {
        TIMERS.into_iter().map(|(name, ..)| name).zip(&self.0)
    }

    /// Starts the threads that use the timers. They are fewer than the other producers, because
    /// each of them uses three timers.
    pub(crate) fn start_producers(
        &self,
        options: &Options,
        phase: &Arc<Phase>,
    ) -> Vec<JoinHandle<[Left; COUNT]>> {
        let start = |n| {
            let seed = options.seed << 32 | n;
            let users = self.0.each_ref().map(|running| User::new(running, seed));
            let phase = Arc::clone(phase);
            thread::spawn(move || produce(users, &phase, seed))
        };
        (0..options.producers.div_ceil(2)).map(start).collect()
    }

    /// Returns what a thread needs that ends soon.
    pub(crate) fn visits(&self) -> [Visit; COUNT] {
        self.0.each_ref().map(Visit::new)
    }

    /// For sabotage: gives a timer work, until the result is dropped.
    pub(crate) fn keep_busy(&self) -> impl Drop + use<> {
        let period = Duration::from_millis(1);
        let busy = self.0[0].timer.schedule_at_fixed_rate(|| (), period, period);
        busy.expect("the timer is not stopped").cancel_on_drop()
    }

    /// Ends the timers after their producers have ended.
    pub(crate) fn end(self, producers: Vec<JoinHandle<[Left; COUNT]>>) -> impl Iterator<Item = Closed> {
        let mut left: [Left; COUNT] = array::from_fn(|_| Left::default());
        for producer in producers {
            let mine = producer.join().expect("a producer does not panic");
            left.iter_mut().zip(mine).for_each(|(all, mine)| all.add(mine));
        }
        let endings = TIMERS.into_iter().map(|(.., ending)| ending);
        self.0.into_iter().zip(left).zip(endings).map(|((running, left), ending)| running.end(ending, left))
    }
}

/// What threads that end soon need to use one of the timers.
#[derive(Clone)]
pub(crate) struct Visit {
    target: Target,
    context: Context,
}

impl Visit {
    fn new(running: &Running) -> Self {
        Self { target: running.target(), context: context_of(running).clone() }
    }

    /// Uses the timer on this thread, which ends soon.
    pub(crate) fn run(self, random: &mut Rng) {
        let loads = Loads::new(&self.context);
        Producer::new(self.target, random.u64(..)).visit();
        loads.visit(random);
    }

    /// Cancels what such threads have left, when there is a pause.
    pub(crate) fn rest(&self) {
        Loads::new(&self.context).rest();
    }
}

fn context_of(running: &Running) -> &Context {
    running.context.as_ref().expect("the timer has all kinds of load")
}

/// What a thread needs to use one of the timers.
struct User {
    producer: Producer,
    loads: Loads,
}

impl User {
    fn new(running: &Running, seed: u64) -> Self {
        Self { producer: Producer::new(running.target(), seed), loads: Loads::new(context_of(running)) }
    }

    fn rest(&mut self) {
        self.producer.rest();
        self.loads.rest();
    }
}

/// A thread that uses all three timers for the whole time.
fn produce(mut users: [User; COUNT], phase: &Phase, seed: u64) -> [Left; COUNT] {
    let mut random = Rng::with_seed(seed);
    while phase.goes_on(|| users.iter_mut().for_each(User::rest)) {
        for User { producer, loads } in &mut users {
            producer.work();
            loads.work(&mut random);
        }
    }
    users.map(|User { producer, loads }| Left { entries: producer.entries(), loads: vec![loads] })
}
