//! The kinds of load, apart from plain timeouts ([`producer`](crate::producer)). A thread has one
//! of each for each timer that it uses, and lets them work in turn.

mod futures;
mod keys;
mod periodic;
mod queue;
mod recurring;

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use hashed_wheel::HashedWheelTimer;

use crate::Sabotage;
use crate::accounts::{Accounts, End, Kind, Sum};
use crate::ledger::Ledger;

use keys::Keys;
use queue::Queue;

/// A delay that is longer than the program runs.
const A_DAY: Duration = Duration::from_secs(86_400);

/// Longer than any wake-up that should be immediate.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The kinds of maps with keys.
const MAPS: [Kind; 3] = [Kind::Map, Kind::Batched, Kind::Received];

/// What a load needs to know.
#[derive(Clone)]
pub(crate) struct Context {
    timer: HashedWheelTimer,
    pub(crate) accounts: Arc<Accounts>,
    /// Shared by all threads that use the timer, so that they contend for the same keys.
    keys: [Keys; 3],
    /// Shared as well: each value goes to one of the threads.
    queue: Queue,
    sabotage: Option<Sabotage>,
}

impl Context {
    pub(crate) fn new(timer: &HashedWheelTimer, ledger: &Arc<Ledger>, sabotage: Option<Sabotage>) -> Self {
        let accounts = Accounts::new(ledger);
        let keys = MAPS.map(|kind| Keys::new(kind, timer, &accounts, sabotage));
        let queue = Queue::new(timer, &accounts, sabotage);
        Self { timer: timer.clone(), accounts, keys, queue, sabotage }
    }

    /// Settles all threads' loads, after the end of the timer. `may_be_left`: the threads have not
    /// cancelled everything before.
    pub(crate) fn settle(self, mut loads: Vec<Loads>, may_be_left: bool) -> Sum {
        // Also of the context itself: there may be no thread.
        loads.push(Loads::new(&self));
        loads.iter_mut().flat_map(|loads| &mut loads.0).for_each(|load| load.settle());
        // Each entry with a key was dropped. Those that were not run or cancelled are left.
        MAPS.into_iter().for_each(|kind| self.accounts.end_rest(kind, End::LeftAtStop));
        self.accounts.close(may_be_left)
    }
}

/// One kind of load of one thread on one timer. It accounts for all that it registers.
trait Load: Send {
    /// Does one operation.
    fn work(&mut self, random: &mut Rng);

    /// Ends what belongs to this thread, before the thread ends. Waits for what is due.
    fn leave(&mut self);

    /// Cancels everything that is not due, also of other threads, so that a pause begins.
    fn rest(&mut self) {
        self.leave();
    }

    /// Records what was left when the timer was stopped. Called after that.
    fn settle(&mut self);
}

/// All kinds of load of one thread on one timer.
pub(crate) struct Loads(Vec<Box<dyn Load>>);

impl Loads {
    pub(crate) fn new(context: &Context) -> Self {
        let mut loads: Vec<Box<dyn Load>> = vec![
            Box::new(futures::Futures::sleeps(context)),
            Box::new(futures::Futures::intervals(context)),
            Box::new(periodic::PeriodicTasks::new(context)),
        ];
        loads.extend(context.keys.iter().map(|keys| Box::new(keys.clone()) as Box<dyn Load>));
        loads.push(Box::new(context.queue.clone()));
        Self(loads)
    }

    /// Lets the loads work for a while, in random order.
    pub(crate) fn work(&mut self, random: &mut Rng) {
        for _ in 0..random.usize(1..200) {
            let at = random.usize(0..self.0.len());
            self.0[at].work(random);
        }
    }

    /// Lets the loads work once, as a thread does that ends soon.
    pub(crate) fn visit(mut self, random: &mut Rng) {
        self.work(random);
        self.0.iter_mut().for_each(|load| load.leave());
    }

    pub(crate) fn rest(&mut self) {
        self.0.iter_mut().for_each(|load| load.rest());
    }
}

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
