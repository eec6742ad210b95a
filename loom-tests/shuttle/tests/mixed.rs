//! All kinds of operations on one timer: timeouts, sleeps, intervals, periodic tasks, maps and a
//! queue. Up to two threads end the timer, one of them by `shutdown`. Some schedules
//! have a second timer, which the same threads use.

mod keys;
mod periodic;
mod sleeps;

use super::queue::Queue;
use super::*;
use keys::{KEYS, Keys};
use periodic::PeriodicTasks;
use sleeps::Sleeps;

/// Longer than all delays except [`FAR`]. It is also longer than a schedule takes in real time,
/// which ends a grace too.
const GRACE: Duration = Duration::from_secs(60);

#[test]
fn all_operations_end_once() {
    explore(|random| {
        let (scenario, mut event_loop) = Scenario::new(random);
        let ending = Ending::new(random, event_loop.as_mut());
        let event_loop = event_loop.map(EventLoop::start);
        let producers = spawn(3, &scenario, random, |scenario, random| {
            (0..random.u8(1..9)).for_each(|_| scenario.do_one_operation(random));
        });
        let consumer = random.bool().then(|| scenario.queue.start_consumer());
        let clock = scenario.world.advance_clock(random);
        let max = *random.choice(&[20, 200]).unwrap();
        pause(random, max);

        let last = scenario.world.clock.now() + GRACE;
        let returned = scenario.end(&ending, random);
        let others = event_loop.into_iter().chain(consumer);
        join(producers.into_iter().chain([clock]).chain(others));
        if ending.waits_for_all {
            scenario.world.assert_ran_by(last, &returned);
        }
        scenario.check(&ending, &returned)
    });
}

// --- the end -------------------------------------------------------------------------------------

/// How a scenario ends the timer. One thread always shuts it down.
struct Ending {
    grace: Duration,
    /// Shuts the timer down: in the call, or on another thread.
    shutdown: fn(&HashedWheelTimer, Duration) -> Vec<Timeout>,
    /// The call of another thread at the same time.
    other: Option<fn(&HashedWheelTimer) -> Vec<Timeout>>,
    /// The driver is dropped after a few turns.
    drops_driver: bool,
    /// The shutdown waits until only timeouts that are [`FAR`] away are left.
    waits_for_all: bool,
}

impl Ending {
    fn new(random: &mut Rng, event_loop: Option<&mut EventLoop>) -> Self {
        let grace = *random.choice(&[Duration::ZERO, GRACE]).unwrap();
        let (mut other, mut drops_driver): (Option<fn(&_) -> _>, _) = (None, false);
        let is_driven = event_loop.is_some();
        match (random.u8(0..7), event_loop) {
            (0, Some(event_loop)) => {
                event_loop.turns = random.usize(0..4);
                drops_driver = true;
            }
            (1, _) => other = Some(HashedWheelTimer::stop),
            (2, _) => other = Some(|timer: &HashedWheelTimer| timer.shutdown(Duration::ZERO)),
            (3, _) => {
                other =
                    Some(|timer: &HashedWheelTimer| wait_for(timer.begin_stop().wait_timeout(FAR)))
            }
            (4, _) => {
                other = Some(|timer: &HashedWheelTimer| {
                    wait_for(timer.begin_stop().wait_timeout(Duration::ZERO))
                })
            }
            _ => {}
        }
        let shutdown = *random.choice(&SHUTDOWNS).unwrap();
        // A shutdown of a driven timer does not wait for the event loop.
        let waits_for_all = grace == GRACE && other.is_none() && !is_driven;
        Self {
            grace,
            shutdown,
            other,
            drops_driver,
            waits_for_all,
        }
    }
}

/// The ways to shut a timer down. A limit of zero is over before the timer has ended.
const SHUTDOWNS: [fn(&HashedWheelTimer, Duration) -> Vec<Timeout>; 4] = [
    HashedWheelTimer::shutdown,
    HashedWheelTimer::shutdown,
    |timer, grace| wait_for(timer.begin_shutdown(grace).wait_timeout(FAR)),
    |timer, grace| wait_for(timer.begin_shutdown(grace).wait_timeout(Duration::ZERO)),
];

/// Waits for the thread that ends the timer.
fn wait_for(ended: Result<Vec<Timeout>, hashed_wheel_over_shuttle::Ending>) -> Vec<Timeout> {
    ended.unwrap_or_else(|ending| ending.wait())
}

impl Scenario {
    /// Ends the timer. Returns the timeouts that the first of the calls has returned.
    fn end(&self, ending: &Ending, random: &mut Rng) -> Vec<Timeout> {
        self.world.is_closing.store(true, Relaxed);
        let Ending {
            grace, shutdown, ..
        } = *ending;
        let shutdown = self.spawn_end(0, move |timer| shutdown(timer, grace));
        let other = ending
            .other
            .map(|end| self.spawn_end(random.u8(0..60), end));
        while !self.timer.is_stopped() {
            self.world.clock.advance(TICK / 4);
            thread::yield_now();
        }
        let mut all = shutdown.join().unwrap();
        let others = other.map_or_else(Vec::new, |other| other.join().unwrap());
        assert!(
            all.is_empty() || others.is_empty(),
            "one of the two returns all"
        );
        all.extend(others);
        all
    }

    fn spawn_end<F>(&self, pause: u8, end: F) -> JoinHandle<Vec<Timeout>>
    where
        F: FnOnce(&HashedWheelTimer) -> Vec<Timeout> + Send + 'static,
    {
        let timer = self.timer.clone();
        thread::spawn(move || {
            (0..pause).for_each(|_| thread::yield_now());
            let rest = end(&timer);
            assert_eq!(
                timer.pending_timeouts(),
                0,
                "each call returns after the end"
            );
            rest
        })
    }
}

impl World {
    /// Checks that the shutdown has returned no timeout that was due by `last`.
    fn assert_ran_by(&self, last: Duration, returned: &[Timeout]) {
        for one in &*self.known.lock().unwrap() {
            let is_due = one.ticket.get(Count::Reset) == 0 && one.ticket.deadline().is_before(last);
            assert!(
                !is_due || !returned.contains(&*one.timeout),
                "a timeout that was due by {last:?} was not run"
            );
        }
    }
}

// --- the scenario --------------------------------------------------------------------------------

#[derive(Clone)]
struct Scenario {
    world: World,
    timer: HashedWheelTimer,
    sleeps: Arc<Sleeps>,
    periodic_tasks: Arc<PeriodicTasks>,
    keys: Keys,
    queue: Queue,
    second: Option<SecondTimer>,
}

impl Scenario {
    fn new(random: &mut Rng) -> (Self, Option<EventLoop>) {
        let (world, timer, event_loop) = World::new(random);
        let keys = Keys::new(&timer, &world, random);
        let queue = Queue::new(&timer, &world);
        let second = (random.u8(0..4) == 0).then(|| SecondTimer::new(random));
        let (sleeps, periodic_tasks) = (Arc::default(), Arc::default());
        (
            Self {
                world,
                timer,
                sleeps,
                periodic_tasks,
                keys,
                queue,
                second,
            },
            event_loop,
        )
    }

    /// Does a random operation on a random object.
    fn do_one_operation(&self, random: &mut Rng) {
        let Self {
            world,
            timer,
            sleeps,
            periodic_tasks,
            keys,
            queue,
            second,
        } = self;
        if let Some(second) = second.as_ref().filter(|_| random.bool()) {
            second.do_one_operation(random);
        }
        let delay = TICK * random.u32(0..4);
        match random.u8(0..33) {
            0..3 => drop(world.schedule(timer, delay)),
            3 => world.schedule_and_drop_handle(timer, delay, random.bool()),
            4 => drop(world.schedule(timer, FAR)),
            5..7 => drop(world.pick(random).map(|one| one.cancel())),
            7 => drop(world.pick(random).map(|one| one.reset(delay))),
            8..10 => sleeps.add(timer.sleep(delay + TICK)),
            10..14 => sleeps.poll(self, random),
            14 => sleeps.reset(self, random, delay),
            15 => sleeps.drop_one(random),
            16..18 => periodic_tasks.add(self, delay),
            18 => drop(periodic_tasks.pick(random).map(|one| one.cancel())),
            19..22 => keys.schedule(timer, random.usize(0..KEYS), delay),
            22 => keys.cancel(random.usize(0..KEYS)),
            23 => keys.reset(random.usize(0..KEYS), delay),
            24 | 25 => {
                sleeps.add_interval(timer.interval_at(timer.now() + delay + TICK, delay + TICK))
            }
            26..29 => drop(queue.insert(delay)),
            29 => drop(queue.insert(FAR)),
            30 => queue.change(random, delay),
            31 => keys.receive(),
            _ => queue.poll(random),
        }
    }

    /// Checks everything, after all threads have ended.
    fn check(self, ending: &Ending, returned: &[Timeout]) -> Counts {
        let Self {
            world,
            timer,
            sleeps,
            periodic_tasks,
            keys,
            queue,
            second,
        } = self;
        let returned = (!ending.drops_driver).then_some(returned);
        let rejected = get(&world.rejected);
        let on_other_threads = world.settle(returned);
        let mut counts = sleeps.check(ending.waits_for_all);
        counts.add(&periodic_tasks.check(&world.ledger));
        counts.add(&keys.check(if ending.waits_for_all {
            rejected
        } else {
            u64::MAX
        }));
        counts.add(&queue.check());
        if let Some(second) = second {
            second.check();
        }
        world.close(&timer, returned, false);
        let dropped = world.ledger.get(Kind::Plain, Count::Dropped);
        assert!(dropped <= rejected, "each other task runs");
        counts.add(&world.counts(on_other_threads, returned.is_some()));
        counts
    }
}

/// Another timer. The threads of the scenario use it too. It has only plain timeouts.
#[derive(Clone)]
struct SecondTimer {
    world: World,
    timer: HashedWheelTimer,
    event_loop: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl SecondTimer {
    fn new(random: &mut Rng) -> Self {
        let (world, timer, event_loop) = World::new(random);
        let event_loop = Arc::new(Mutex::new(event_loop.map(EventLoop::start)));
        Self {
            world,
            timer,
            event_loop,
        }
    }

    fn do_one_operation(&self, random: &mut Rng) {
        let Self { world, timer, .. } = self;
        let delay = TICK * random.u32(0..4);
        match random.u8(0..8) {
            0..3 => drop(world.schedule(timer, delay)),
            3 => world.schedule_and_drop_handle(timer, delay, random.bool()),
            4 => drop(world.schedule(timer, FAR)),
            5 => drop(world.pick(random).map(|one| one.cancel())),
            6 => drop(world.pick(random).map(|one| one.reset(delay))),
            _ => world.clock.advance(TICK),
        }
    }

    /// Stops the timer, and checks how its timeouts have ended.
    fn check(&self) {
        let Self {
            world,
            timer,
            event_loop,
        } = self;
        let returned = timer.stop();
        join(event_loop.lock().unwrap().take());
        world.check(Some(&returned));
    }
}
