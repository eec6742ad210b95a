//! All kinds of operations on one timer: timeouts, sleeps, periodic tasks and keyed timeouts. Up to
//! two threads end the timer, one of them by `shutdown`.

use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel_over_shuttle::{KeyedTimeouts, Periodic, Sleep};

use super::*;

/// Longer than all delays except [`FAR`]. It is also longer than a schedule takes in real time,
/// which ends a grace too.
const GRACE: Duration = Duration::from_secs(60);

#[test]
fn all_operations_end_once() {
    explore(|random| {
        let (scenario, mut event_loop) = Scenario::new(random);
        let ending = Ending::new(random, event_loop.as_mut());
        let event_loop = event_loop.map(|event_loop| thread::spawn(|| event_loop.turn()));
        let producers: Vec<_> = (0..3)
            .map(|_| {
                let (scenario, mut random) = (scenario.clone(), random.fork());
                thread::spawn(move || {
                    (0..random.u8(1..9)).for_each(|_| scenario.do_one_operation(&mut random))
                })
            })
            .collect();
        let clock = scenario.world.advance_clock(random);
        let max = *random.choice(&[20, 200]).unwrap();
        (0..random.u8(0..max)).for_each(|_| thread::yield_now());

        let last = scenario.world.clock.now() + GRACE;
        let returned = scenario.end(&ending, random);
        for thread in producers.into_iter().chain([clock]).chain(event_loop) {
            thread.join().unwrap();
        }
        if ending.waits_for_all {
            scenario.world.assert_ran_by(last, &returned);
        }
        scenario.check(&ending, &returned)
    });
}

// --- the end -------------------------------------------------------------------------------------

/// How a scenario ends the timer. One thread always calls `shutdown`.
struct Ending {
    grace: Duration,
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
        match (random.u8(0..5), event_loop) {
            (0, Some(event_loop)) => {
                event_loop.turns = random.usize(0..4);
                drops_driver = true;
            }
            (1, _) => other = Some(HashedWheelTimer::stop),
            (2, _) => other = Some(|timer: &HashedWheelTimer| timer.shutdown(Duration::ZERO)),
            _ => {}
        }
        // A shutdown of a driven timer does not wait for the event loop.
        let waits_for_all = grace == GRACE && other.is_none() && !is_driven;
        Self { grace, other, drops_driver, waits_for_all }
    }
}

impl Scenario {
    /// Ends the timer. Returns the timeouts that the first of the calls has returned.
    fn end(&self, ending: &Ending, random: &mut Rng) -> Vec<Timeout> {
        self.world.is_closing.store(true, Relaxed);
        let grace = ending.grace;
        let shutdown = self.spawn_end(0, move |timer| timer.shutdown(grace));
        let other = ending.other.map(|end| self.spawn_end(random.u8(0..60), end));
        while !self.timer.is_stopped() {
            self.world.clock.advance(TICK / 4);
            thread::yield_now();
        }
        let mut all = shutdown.join().unwrap();
        let others = other.map_or_else(Vec::new, |other| other.join().unwrap());
        assert!(all.is_empty() || others.is_empty(), "one of the two returns all");
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
            assert_eq!(timer.pending_timeouts(), 0, "each call returns after the end");
            rest
        })
    }
}

impl World {
    /// Checks that the shutdown has returned no timeout that was due by `last`.
    fn assert_ran_by(&self, last: Duration, returned: &[Timeout]) {
        for Scheduled { timeout, outcome, due, .. } in &*self.known.lock().unwrap() {
            let is_due = get(&outcome.resets) == 0 && *due <= last;
            assert!(!is_due || !returned.contains(timeout), "a timeout that was due by {last:?} was not run");
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
}

impl Scenario {
    fn new(random: &mut Rng) -> (Self, Option<EventLoop>) {
        let (world, timer, event_loop) = World::new(random);
        let keys = Keys::new(&timer);
        (Self { world, timer, sleeps: Arc::default(), periodic_tasks: Arc::default(), keys }, event_loop)
    }

    /// Does a random operation on a random object.
    fn do_one_operation(&self, random: &mut Rng) {
        let Self { world, timer, sleeps, periodic_tasks, keys } = self;
        let delay = TICK * random.u32(0..4);
        match random.u8(0..24) {
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
            19..22 => keys.schedule(self, random.usize(0..KEYS), delay),
            22 => keys.cancel(random.usize(0..KEYS)),
            _ => keys.reset(random.usize(0..KEYS), delay),
        }
    }

    /// Checks everything, after all threads have ended.
    fn check(self, ending: &Ending, returned: &[Timeout]) -> Counts {
        let Self { world, timer, sleeps, periodic_tasks, keys } = self;
        let returned = (!ending.drops_driver).then_some(returned);
        let totals = world.totals(returned);
        let rejected = get(&world.rejected);
        assert!(totals.expired - totals.runs <= rejected, "each task runs unless the executor drops it");
        let mut counts = totals.counts(returned.is_some());
        counts.add(&sleeps.check(ending.waits_for_all));
        counts.add(&periodic_tasks.check());
        counts.add(&keys.check(if ending.waits_for_all { rejected } else { usize::MAX }));
        let stats = timer.stats();
        assert_eq!((stats.scheduled, stats.pending), (stats.expired + stats.cancelled, 0));
        assert_eq!(stats.panics, 0);
        counts
    }
}

// --- sleeps --------------------------------------------------------------------------------------

/// A future's task, which waits for a sleep.
#[derive(Default)]
struct Poller {
    wakes: AtomicUsize,
    /// How often the task has reset the sleep and polled it again.
    resets: AtomicUsize,
}

impl Wake for Poller {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Relaxed);
    }
}

struct PolledSleep {
    sleep: Sleep,
    /// The task of the last poll, if that poll was pending.
    waiting_poller: Option<Arc<Poller>>,
}

impl PolledSleep {
    fn poll(&mut self, scenario: &Scenario, poller: Arc<Poller>) {
        let waker = Waker::from(Arc::clone(&poller));
        let polled = Pin::new(&mut self.sleep).poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(Err(error)) = &polled {
            scenario.world.assert_may_reject(&scenario.timer, error);
        }
        self.waiting_poller = polled.is_pending().then_some(poller);
    }
}

/// The sleeps of a scenario. A thread takes a sleep out to poll, reset or drop it.
#[derive(Default)]
struct Sleeps {
    all: Mutex<Vec<PolledSleep>>,
    pollers: Mutex<Vec<Arc<Poller>>>,
    /// How often another task has taken over a sleep.
    taken_over: AtomicUsize,
    dropped: AtomicUsize,
}

impl Sleeps {
    fn add(&self, sleep: Sleep) {
        self.put(PolledSleep { sleep, waiting_poller: None });
    }

    fn put(&self, one: PolledSleep) {
        self.all.lock().unwrap().push(one);
    }

    fn take(&self, random: &mut Rng) -> Option<PolledSleep> {
        let mut all = self.all.lock().unwrap();
        let at = random.choice(0..all.len())?;
        Some(all.swap_remove(at))
    }

    /// Polls a sleep with another task than before.
    fn poll(&self, scenario: &Scenario, random: &mut Rng) {
        let Some(mut one) = self.take(random) else { return };
        let poller = Arc::<Poller>::default();
        self.pollers.lock().unwrap().push(Arc::clone(&poller));
        let before = one.waiting_poller.take();
        one.poll(scenario, poller);
        self.taken_over.fetch_add(usize::from(before.is_some() && one.waiting_poller.is_some()), Relaxed);
        self.put(one);
    }

    /// Resets a sleep, and polls it again with the task that waits for it, if there is one.
    fn reset(&self, scenario: &Scenario, random: &mut Rng, delay: Duration) {
        let Some(mut one) = self.take(random) else { return };
        one.sleep.reset(delay);
        if let Some(poller) = one.waiting_poller.take() {
            poller.resets.fetch_add(1, Relaxed);
            one.poll(scenario, poller);
        }
        self.put(one);
    }

    fn drop_one(&self, random: &mut Rng) {
        if let Some(one) = self.take(random) {
            self.dropped.fetch_add(usize::from(one.waiting_poller.is_some()), Relaxed);
        }
    }

    fn check(&self, has_waited: bool) -> Counts {
        let (mut in_time, mut too_soon) = (0, 0);
        for PolledSleep { mut sleep, waiting_poller } in std::mem::take(&mut *self.all.lock().unwrap()) {
            let Some(poller) = waiting_poller else { continue };
            assert!(get(&poller.wakes) > 0, "the task of the last poll is woken");
            match Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => panic!("a task is woken before the end of its sleep"),
                Poll::Ready(Ok(())) => in_time += 1,
                Poll::Ready(Err(error)) => {
                    assert!(!has_waited, "{error}, although the sleep was due");
                    too_soon += 1;
                }
            }
        }
        for poller in &*self.pollers.lock().unwrap() {
            assert!(get(&poller.wakes) <= 1 + get(&poller.resets), "a task is woken once per poll");
            assert_eq!(Arc::strong_count(poller), 1, "all wakers are dropped");
        }
        Counts::of([
            ("slept", in_time),
            ("woken by the end", too_soon),
            ("taken over by another task", get(&self.taken_over)),
            ("sleeps dropped", get(&self.dropped)),
        ])
    }
}

// --- periodic tasks ------------------------------------------------------------------------------

/// As many as the messages that a turn takes. With more, there could be a backlog for as long as
/// the tasks run on other threads, and a shutdown waits while there is a backlog.
const MAX_PERIODIC_TASKS: usize = 2;

#[derive(Default)]
struct PeriodicTasks {
    all: Mutex<Vec<Arc<PeriodicTask>>>,
    /// How often a thread wanted to schedule one.
    requested: AtomicUsize,
}

struct PeriodicTask {
    periodic: Periodic,
    state: Arc<RunState>,
    /// The most runs that it may have in total, once a thread has cancelled it.
    max_runs: Mutex<Option<u64>>,
}

#[derive(Default)]
struct RunState {
    is_running: AtomicBool,
    drops: AtomicUsize,
}

/// The value that a periodic task captures.
struct RunGuard(Arc<RunState>);

impl RunGuard {
    /// A panic here is counted by the timer.
    fn run(&self) {
        assert!(!self.0.is_running.swap(true, Relaxed), "two runs at the same time");
        thread::yield_now();
        self.0.is_running.store(false, Relaxed);
    }
}

impl Drop for RunGuard {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

impl PeriodicTask {
    fn cancel(&self) {
        if self.periodic.cancel() {
            // A run that has begun may not have been counted yet.
            let before = self.max_runs.lock().unwrap().replace(self.periodic.runs() + 1);
            assert_eq!(before, None, "two cancels succeeded");
        }
    }
}

impl PeriodicTasks {
    fn add(&self, scenario: &Scenario, delay: Duration) {
        if self.requested.fetch_add(1, Relaxed) >= MAX_PERIODIC_TASKS {
            return;
        }
        let state = Arc::<RunState>::default();
        let guard = RunGuard(Arc::clone(&state));
        // A fixed delay, because the clock may advance faster than missed runs could be made up
        // for.
        match scenario.timer.schedule_with_fixed_delay(move || guard.run(), delay, TICK) {
            Ok(periodic) => {
                let one = Arc::new(PeriodicTask { periodic, state, max_runs: Mutex::default() });
                self.all.lock().unwrap().push(one);
            }
            Err(error) => {
                assert_eq!(get(&state.drops), 1, "a rejected task is dropped");
                scenario.world.assert_may_reject(&scenario.timer, &error);
            }
        }
    }

    fn pick(&self, random: &mut Rng) -> Option<Arc<PeriodicTask>> {
        random.choice(&*self.all.lock().unwrap()).cloned()
    }

    fn check(&self) -> Counts {
        let (mut cancelled, mut stopped, mut runs) = (0, 0, 0);
        for one in &*self.all.lock().unwrap() {
            assert!(one.periodic.is_cancelled(), "a periodic task ends only by a cancel or a stop");
            assert_eq!(get(&one.state.drops), 1, "each task is dropped once");
            match *one.max_runs.lock().unwrap() {
                Some(max) => {
                    assert!(one.periodic.runs() <= max, "a run began after the cancel");
                    cancelled += 1;
                }
                None => stopped += 1,
            }
            runs += one.periodic.runs() as usize;
        }
        Counts::of([
            ("runs of periodic tasks", runs),
            ("periodic tasks cancelled", cancelled),
            ("periodic tasks stopped", stopped),
        ])
    }
}

// --- keys ----------------------------------------------------------------------------------------

/// Few keys, so that threads contend for them.
const KEYS: usize = 2;

/// Whether the items of a key are values of a map. Those of the other keys are captured by tasks.
fn has_value(key: usize) -> bool {
    key % 2 == 1
}

#[derive(Clone)]
struct Keys {
    keyed: KeyedTimeouts<usize>,
    /// A map with values, for some of the keys.
    values: KeyedTimeouts<usize, Item>,
    items: Arc<[Items; KEYS]>,
}

/// Counts of what happened to the items of one key.
#[derive(Default)]
struct Items {
    accepted: AtomicUsize,
    rejected: AtomicUsize,
    runs: AtomicUsize,
    replaced: AtomicUsize,
    cancelled: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

/// The value that the task of an item captures.
struct Item {
    key: usize,
    items: Arc<[Items; KEYS]>,
}

impl Item {
    fn run(self, key: usize) {
        assert_eq!(key, self.key);
        self.items[key].runs.fetch_add(1, Relaxed);
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.items[self.key].drops.fetch_add(1, Relaxed);
    }
}

impl Keys {
    fn new(timer: &HashedWheelTimer) -> Self {
        let values = KeyedTimeouts::with_handler(timer, |key, item: Item| item.run(key));
        Self { keyed: KeyedTimeouts::new(timer), values, items: Arc::default() }
    }

    fn schedule(&self, scenario: &Scenario, key: usize, delay: Duration) {
        let item = Item { key, items: Arc::clone(&self.items) };
        let items = &self.items[key];
        let scheduled = if has_value(key) {
            let inserted = self.values.insert(key, item, delay);
            inserted.map(|replaced| replaced.is_some()).map_err(NewTimeoutError::from)
        } else {
            self.keyed.schedule(key, move |key| item.run(key), delay)
        };
        match scheduled {
            Ok(has_replaced) => {
                items.accepted.fetch_add(1, Relaxed);
                items.replaced.fetch_add(usize::from(has_replaced), Relaxed);
            }
            Err(error) => {
                items.rejected.fetch_add(1, Relaxed);
                scenario.world.assert_may_reject(&scenario.timer, &error);
            }
        }
    }

    fn cancel(&self, key: usize) {
        let is_cancelled =
            if has_value(key) { self.values.remove(&key).is_some() } else { self.keyed.cancel(&key) };
        self.items[key].cancelled.fetch_add(usize::from(is_cancelled), Relaxed);
    }

    fn reset(&self, key: usize, delay: Duration) {
        let is_reset =
            if has_value(key) { self.values.touch(&key, delay) } else { self.keyed.reset(&key, delay) };
        self.items[key].resets.fetch_add(usize::from(is_reset), Relaxed);
    }

    /// Checks that at most `max_lost` items have neither run nor been replaced or cancelled.
    fn check(&self, max_lost: usize) -> Counts {
        assert!(self.keyed.is_empty() && self.values.is_empty(), "each key is free");
        let (mut counts, mut lost) = (Counts::default(), 0);
        for items in &*self.items {
            let Items { accepted, rejected, runs, replaced, cancelled, resets, drops } = items;
            let [accepted, runs, replaced, cancelled] = [accepted, runs, replaced, cancelled].map(get);
            assert_eq!(get(drops), accepted + get(rejected), "each task is dropped once");
            let ended = runs + replaced + cancelled;
            assert!(
                ended <= accepted,
                "{runs} runs, {replaced} replaced, {cancelled} cancelled of {accepted}"
            );
            lost += accepted - ended;
            counts.add(&Counts::of([
                ("run by key", runs),
                ("replaced by key", replaced),
                ("cancelled by key", cancelled),
                ("reset by key", get(resets)),
                ("stopped by key", accepted - ended),
            ]));
        }
        assert!(lost <= max_lost, "{lost} items were due and did not end");
        counts
    }
}
