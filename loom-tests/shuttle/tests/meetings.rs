//! Where all meets that is on a timer: timeouts, sleeps, tasks that repeat, and keys; and two who end it, one of them by
//! `shutdown`.

use std::pin::Pin;
use std::task::{Context, Poll, Wake, Waker};

use hashed_wheel_over_shuttle::{KeyedTimeouts, Periodic, Sleep};

use super::*;

/// Longer than anything waits that is not [`FAR`] away; and longer than a schedule takes, lest the real time, which ends a
/// grace as well, has a say in it.
const GRACE: Duration = Duration::from_secs(60);

#[test]
fn everything_meets() {
    explore(|random| {
        let (scene, mut turner) = Scene::new(random);
        let ending = Ending::new(random, turner.as_mut());
        let turner = turner.map(|turner| thread::spawn(|| turner.turn()));
        let producers: Vec<_> = (0..3)
            .map(|_| {
                let (scene, mut random) = (scene.clone(), random.fork());
                thread::spawn(move || (0..random.u8(1..9)).for_each(|_| scene.act(&mut random)))
            })
            .collect();
        let clock = scene.world.tick_on(random);
        let most = *random.choice(&[20, 200]).unwrap();
        (0..random.u8(0..most)).for_each(|_| thread::yield_now());

        let last = scene.world.clock.now() + GRACE;
        let returned = scene.end(&ending, random);
        for thread in producers.into_iter().chain([clock]).chain(turner) {
            thread.join().unwrap();
        }
        if ending.waits_for_all {
            scene.world.ran_by(last, &returned);
        }
        scene.settle(&ending, &returned)
    });
}

// --- the end --------------------------------------------------------------------------------------------------------

/// There always is a shutdown.
struct Ending {
    grace: Duration,
    /// What another thread does meanwhile.
    other: Option<fn(&HashedWheelTimer) -> Vec<Timeout>>,
    /// The driver is dropped after a few turns.
    drops_driver: bool,
    /// Nothing is left but what is [`FAR`] away.
    waits_for_all: bool,
}

impl Ending {
    fn new(random: &mut Rng, turner: Option<&mut Turner>) -> Self {
        let grace = *random.choice(&[Duration::ZERO, GRACE]).unwrap();
        let (mut other, mut drops_driver): (Option<fn(&_) -> _>, _) = (None, false);
        let is_driven = turner.is_some();
        match (random.u8(0..5), turner) {
            (0, Some(turner)) => {
                turner.turns = random.usize(0..4);
                drops_driver = true;
            }
            (1, _) => other = Some(HashedWheelTimer::stop),
            (2, _) => other = Some(|timer: &HashedWheelTimer| timer.shutdown(Duration::ZERO)),
            _ => {}
        }
        // It waits for no loop.
        let waits_for_all = grace == GRACE && other.is_none() && !is_driven;
        Self { grace, other, drops_driver, waits_for_all }
    }
}

impl Scene {
    /// What was returned to whoever was first.
    fn end(&self, ending: &Ending, random: &mut Rng) -> Vec<Timeout> {
        self.world.closes.store(true, Relaxed);
        let grace = ending.grace;
        let shutdown = self.spawn_end(0, move |timer| timer.shutdown(grace));
        let other = ending.other.map(|end| self.spawn_end(random.u8(0..60), end));
        while !self.timer.is_stopped() {
            self.world.clock.advance(TICK / 4);
            thread::yield_now();
        }
        let mut all = shutdown.join().unwrap();
        let others = other.map_or_else(Vec::new, |other| other.join().unwrap());
        assert!(all.is_empty() || others.is_empty(), "one gets all");
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
            assert_eq!(timer.pending_timeouts(), 0, "it returns when it is over");
            rest
        })
    }
}

impl World {
    /// Whatever was due by `last` is not among what a shutdown has returned.
    fn ran_by(&self, last: Duration, returned: &[Timeout]) {
        for Entry { timeout, fate, due, .. } in &*self.known.lock().unwrap() {
            let is_due = get(&fate.resets) == 0 && *due <= last;
            assert!(!is_due || !returned.contains(timeout), "it was due by {last:?}, and was not run");
        }
    }
}

// --- the scene ------------------------------------------------------------------------------------------------------

#[derive(Clone)]
struct Scene {
    world: World,
    timer: HashedWheelTimer,
    sleeps: Arc<Sleeps>,
    repeats: Arc<Repeats>,
    keys: Keys,
}

impl Scene {
    fn new(random: &mut Rng) -> (Self, Option<Turner>) {
        let (world, timer, turner) = World::new(random);
        let keys = Keys::new(&timer);
        (Self { world, timer, sleeps: Arc::default(), repeats: Arc::default(), keys }, turner)
    }

    /// Does one thing to one of what there is.
    fn act(&self, random: &mut Rng) {
        let Self { world, timer, sleeps, repeats, keys } = self;
        let delay = TICK * random.u32(0..4);
        match random.u8(0..24) {
            0..3 => drop(world.schedule(timer, delay)),
            3 => world.schedule_and_forget(timer, delay, random.bool()),
            4 => drop(world.schedule(timer, FAR)),
            5..7 => drop(world.any(random).map(|one| one.cancel())),
            7 => drop(world.any(random).map(|one| one.reset(delay))),
            8..10 => sleeps.add(timer.sleep(delay + TICK)),
            10..14 => sleeps.poll(self, random),
            14 => sleeps.reset(self, random, delay),
            15 => sleeps.drop_one(random),
            16..18 => repeats.add(self, delay),
            18 => drop(repeats.any(random).map(|one| one.cancel())),
            19..22 => keys.schedule(self, random.usize(0..KEYS), delay),
            22 => keys.cancel(random.usize(0..KEYS)),
            _ => keys.reset(random.usize(0..KEYS), delay),
        }
    }

    /// Once nobody is at work any more.
    fn settle(self, ending: &Ending, returned: &[Timeout]) -> Tally {
        let Self { world, timer, sleeps, repeats, keys } = self;
        let returned = (!ending.drops_driver).then_some(returned);
        let ends = world.ends(returned);
        let turned_away = get(&world.turned_away);
        assert!(ends.expired - ends.runs <= turned_away, "all run that the executor did not drop");
        let mut tally = ends.tally(returned.is_some());
        tally.add(&sleeps.settle(ending.waits_for_all));
        tally.add(&repeats.settle());
        tally.add(&keys.settle(if ending.waits_for_all { turned_away } else { usize::MAX }));
        let stats = timer.stats();
        assert_eq!((stats.scheduled, stats.pending), (stats.expired + stats.cancelled, 0));
        assert_eq!(stats.panics, 0);
        tally
    }
}

// --- sleeps ---------------------------------------------------------------------------------------------------------

/// A task that waits for a sleep.
#[derive(Default)]
struct Sleeper {
    wakes: AtomicUsize,
    /// How often it has reset the sleep and polled it again.
    resets: AtomicUsize,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Self>) {
        self.wakes.fetch_add(1, Relaxed);
    }
}

struct Sleeping {
    sleep: Sleep,
    /// Who has polled it last, and was told to wait.
    waits: Option<Arc<Sleeper>>,
}

impl Sleeping {
    fn poll(&mut self, scene: &Scene, sleeper: Arc<Sleeper>) {
        let waker = Waker::from(Arc::clone(&sleeper));
        let polled = Pin::new(&mut self.sleep).poll(&mut Context::from_waker(&waker));
        if let Poll::Ready(Err(error)) = &polled {
            scene.world.refuses(&scene.timer, error);
        }
        self.waits = polled.is_pending().then_some(sleeper);
    }
}

/// Who polls, resets or drops one has it for himself; threads hand them to each other.
#[derive(Default)]
struct Sleeps {
    all: Mutex<Vec<Sleeping>>,
    sleepers: Mutex<Vec<Arc<Sleeper>>>,
    /// How often another task has taken a sleep over.
    taken_over: AtomicUsize,
    dropped: AtomicUsize,
}

impl Sleeps {
    fn add(&self, sleep: Sleep) {
        self.put(Sleeping { sleep, waits: None });
    }

    fn put(&self, one: Sleeping) {
        self.all.lock().unwrap().push(one);
    }

    fn take(&self, random: &mut Rng) -> Option<Sleeping> {
        let mut all = self.all.lock().unwrap();
        let at = random.choice(0..all.len())?;
        Some(all.swap_remove(at))
    }

    /// By another task than before.
    fn poll(&self, scene: &Scene, random: &mut Rng) {
        let Some(mut one) = self.take(random) else { return };
        let sleeper = Arc::<Sleeper>::default();
        self.sleepers.lock().unwrap().push(Arc::clone(&sleeper));
        let before = one.waits.take();
        one.poll(scene, sleeper);
        self.taken_over.fetch_add(usize::from(before.is_some() && one.waits.is_some()), Relaxed);
        self.put(one);
    }

    /// By who waits for it, if anybody does.
    fn reset(&self, scene: &Scene, random: &mut Rng, delay: Duration) {
        let Some(mut one) = self.take(random) else { return };
        one.sleep.reset(delay);
        if let Some(sleeper) = one.waits.take() {
            sleeper.resets.fetch_add(1, Relaxed);
            one.poll(scene, sleeper);
        }
        self.put(one);
    }

    fn drop_one(&self, random: &mut Rng) {
        if let Some(one) = self.take(random) {
            self.dropped.fetch_add(usize::from(one.waits.is_some()), Relaxed);
        }
    }

    fn settle(&self, has_waited: bool) -> Tally {
        let (mut in_time, mut too_soon) = (0, 0);
        for Sleeping { mut sleep, waits } in std::mem::take(&mut *self.all.lock().unwrap()) {
            let Some(sleeper) = waits else { continue };
            assert!(get(&sleeper.wakes) > 0, "who polled last is woken");
            match Pin::new(&mut sleep).poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Pending => panic!("it is woken for nothing"),
                Poll::Ready(Ok(())) => in_time += 1,
                Poll::Ready(Err(error)) => {
                    assert!(!has_waited, "{error}, though it was due");
                    too_soon += 1;
                }
            }
        }
        for sleeper in &*self.sleepers.lock().unwrap() {
            assert!(get(&sleeper.wakes) <= 1 + get(&sleeper.resets), "nobody is woken twice");
            assert_eq!(Arc::strong_count(sleeper), 1, "its wakers are gone");
        }
        Tally::of([
            ("slept", in_time),
            ("woken by the end", too_soon),
            ("taken over by another task", get(&self.taken_over)),
            ("sleeps dropped", get(&self.dropped)),
        ])
    }
}

// --- tasks that repeat ----------------------------------------------------------------------------------------------

/// No more than a turn takes messages: else there could be a backlog for as long as they run elsewhere, and a shutdown waits
/// while there is one.
const MOST_REPEATS: usize = 2;

#[derive(Default)]
struct Repeats {
    all: Mutex<Vec<Arc<Repeated>>>,
    /// How often somebody wanted one more.
    asked: AtomicUsize,
}

struct Repeated {
    periodic: Periodic,
    beat: Arc<Beat>,
    /// Somebody has cancelled it, and it may run so often in all.
    may_run: Mutex<Option<u64>>,
}

#[derive(Default)]
struct Beat {
    runs: AtomicBool,
    drops: AtomicUsize,
}

/// What such a task holds.
struct Beating(Arc<Beat>);

impl Beating {
    /// Where it panics, the timer counts it.
    fn beat(&self) {
        assert!(!self.0.runs.swap(true, Relaxed), "two runs at once");
        thread::yield_now();
        self.0.runs.store(false, Relaxed);
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        self.0.drops.fetch_add(1, Relaxed);
    }
}

impl Repeated {
    fn cancel(&self) {
        if self.periodic.cancel() {
            // One that has begun may not have been counted yet.
            let before = self.may_run.lock().unwrap().replace(self.periodic.runs() + 1);
            assert_eq!(before, None, "two have cancelled it");
        }
    }
}

impl Repeats {
    fn add(&self, scene: &Scene, delay: Duration) {
        if self.asked.fetch_add(1, Relaxed) >= MOST_REPEATS {
            return;
        }
        let beat = Arc::<Beat>::default();
        let beating = Beating(Arc::clone(&beat));
        // What is missed is not made up for: the time may go faster than that.
        match scene.timer.schedule_with_fixed_delay(move || beating.beat(), delay, TICK) {
            Ok(periodic) => {
                let one = Arc::new(Repeated { periodic, beat, may_run: Mutex::default() });
                self.all.lock().unwrap().push(one);
            }
            Err(error) => {
                assert_eq!(get(&beat.drops), 1, "a refused task is dropped");
                scene.world.refuses(&scene.timer, &error);
            }
        }
    }

    fn any(&self, random: &mut Rng) -> Option<Arc<Repeated>> {
        random.choice(&*self.all.lock().unwrap()).cloned()
    }

    fn settle(&self) -> Tally {
        let (mut cancelled, mut stopped, mut runs) = (0, 0, 0);
        for one in &*self.all.lock().unwrap() {
            assert!(one.periodic.is_cancelled(), "nothing else ends it");
            assert_eq!(get(&one.beat.drops), 1, "the task is gone");
            match *one.may_run.lock().unwrap() {
                Some(most) => {
                    assert!(one.periodic.runs() <= most, "a run begins that was cancelled");
                    cancelled += 1;
                }
                None => stopped += 1,
            }
            runs += one.periodic.runs() as usize;
        }
        Tally::of([
            ("runs of what repeats", runs),
            ("cancelled that repeat", cancelled),
            ("stopped that repeat", stopped),
        ])
    }
}

// --- keys -----------------------------------------------------------------------------------------------------------

/// So few that they are fought for.
const KEYS: usize = 2;

#[derive(Clone)]
struct Keys {
    keyed: KeyedTimeouts<usize>,
    items: Arc<[Items; KEYS]>,
}

/// What became of all that was under one key.
#[derive(Default)]
struct Items {
    accepted: AtomicUsize,
    refused: AtomicUsize,
    runs: AtomicUsize,
    replaced: AtomicUsize,
    cancelled: AtomicUsize,
    resets: AtomicUsize,
    drops: AtomicUsize,
}

/// What the task under a key holds.
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
        Self { keyed: KeyedTimeouts::new(timer), items: Arc::default() }
    }

    fn schedule(&self, scene: &Scene, key: usize, delay: Duration) {
        let item = Item { key, items: Arc::clone(&self.items) };
        let items = &self.items[key];
        match self.keyed.schedule(key, move |key| item.run(key), delay) {
            Ok(has_replaced) => {
                items.accepted.fetch_add(1, Relaxed);
                items.replaced.fetch_add(usize::from(has_replaced), Relaxed);
            }
            Err(error) => {
                items.refused.fetch_add(1, Relaxed);
                scene.world.refuses(&scene.timer, &error);
            }
        }
    }

    fn cancel(&self, key: usize) {
        self.items[key].cancelled.fetch_add(usize::from(self.keyed.cancel(&key)), Relaxed);
    }

    fn reset(&self, key: usize, delay: Duration) {
        self.items[key].resets.fetch_add(usize::from(self.keyed.reset(&key, delay)), Relaxed);
    }

    /// All but so many at most have run, or were replaced or cancelled.
    fn settle(&self, most_lost: usize) -> Tally {
        assert!(self.keyed.is_empty(), "each key is free");
        let (mut tally, mut lost) = (Tally::default(), 0);
        for items in &*self.items {
            let Items { accepted, refused, runs, replaced, cancelled, resets, drops } = items;
            let [accepted, runs, replaced, cancelled] = [accepted, runs, replaced, cancelled].map(get);
            assert_eq!(get(drops), accepted + get(refused), "all tasks are gone");
            let ends = runs + replaced + cancelled;
            assert!(
                ends <= accepted,
                "{runs} runs, {replaced} replaced, {cancelled} cancelled of {accepted}"
            );
            lost += accepted - ends;
            tally.add(&Tally::of([
                ("run by key", runs),
                ("replaced by key", replaced),
                ("cancelled by key", cancelled),
                ("reset by key", get(resets)),
                ("stopped by key", accepted - ends),
            ]));
        }
        assert!(lost <= most_lost, "{lost} were due and have had no end");
        tally
    }
}
