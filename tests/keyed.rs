//! Timeouts by key: each call of `schedule` that succeeds has one end, and nothing is left of it.

mod common;

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use common::{Driven, PATIENCE, TICK, ends, ms, quietly};
use fastrand::Rng;
use hashed_wheel::{
    Clock, Driver, ExpiredTask, HashedWheelTimer, KeyedTimeouts, ManualClock, NewTimeoutError,
};

const FAR: Duration = ms(123_456);

/// Whose tasks ran, and how many were dropped without that.
#[derive(Clone, Default)]
struct Log {
    ran: Arc<Mutex<Vec<u64>>>,
    unrun: Arc<AtomicUsize>,
}

/// Counts its task, when that is dropped, unless it has run.
struct End {
    unrun: Arc<AtomicUsize>,
    has_run: bool,
}

impl Drop for End {
    fn drop(&mut self) {
        self.unrun.fetch_add(usize::from(!self.has_run), SeqCst);
    }
}

/// Calls something when it is dropped.
struct OnDrop<F: Fn()>(F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        self.0();
    }
}

impl Log {
    fn task<K>(&self, name: u64) -> impl FnOnce(K) + Send + 'static + use<K> {
        let ran = Arc::clone(&self.ran);
        let mut end = End { unrun: Arc::clone(&self.unrun), has_run: false };
        move |_| {
            // All of it, and not this part alone.
            let end = &mut end;
            ran.lock().unwrap().push(name);
            end.has_run = true;
        }
    }

    fn take(&self) -> (Vec<u64>, usize) {
        (std::mem::take(&mut self.ran.lock().unwrap()), self.unrun.swap(0, SeqCst))
    }
}

/// Keeps what it is handed until somebody runs it.
fn with_queue() -> (Driven, Receiver<ExpiredTask>) {
    let (queue, tasks) = channel();
    (Driven::with(|builder| builder.task_executor(move |task| drop(queue.send(task)))), tasks)
}

// --- one at a time ----------------------------------------------------------------------------------------------------

#[test]
fn a_task_gets_its_key_which_is_free_by_then() {
    let mut t = Driven::new();
    let keyed = KeyedTimeouts::new(&t.timer);
    let (said, heard) = channel();
    let inside = keyed.clone();
    let task = move |key: String| {
        let was_there = inside.contains(&key);
        let again = said.clone();
        let replaced = inside.schedule(key.clone(), move |key| again.send((key, true, true)).unwrap(), TICK);
        said.send((key, was_there, replaced.unwrap())).unwrap();
    };
    assert!(!keyed.schedule("a".to_owned(), task, TICK).unwrap());
    assert!(keyed.contains("a") && !keyed.contains("b") && keyed.len() == 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(heard.try_recv().unwrap(), ("a".to_owned(), false, false));
    assert_eq!(keyed.len(), 1);
    assert_eq!(t.pass(TICK), 1);
    assert_eq!(heard.try_recv().unwrap(), ("a".to_owned(), true, true));
    assert!(keyed.is_empty());
}

#[test]
fn who_comes_later_replaces_who_was_there() {
    let mut t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    assert!(!keyed.schedule(7, log.task(1), TICK).unwrap());
    assert!(!keyed.schedule(8, log.task(2), TICK).unwrap());
    assert!(keyed.schedule(7, log.task(3), TICK * 3).unwrap());
    assert_eq!(log.take(), (vec![], 1), "what is replaced is dropped before schedule returns");
    assert_eq!((keyed.len(), t.timer.pending_timeouts()), (2, 2));
    t.pass(TICK * 2);
    assert_eq!(log.take(), (vec![2], 0));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![3], 0));
    assert!(keyed.is_empty());
    assert!(!keyed.schedule(7, log.task(4), TICK).unwrap(), "nothing is there any more");
}

#[test]
fn a_refusal_leaves_what_was_there() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(1));
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    keyed.schedule(7, log.task(1), TICK * 2).unwrap();
    for key in [7, 8] {
        let refused = keyed.schedule(key, log.task(2), TICK).unwrap_err();
        assert!(matches!(refused, NewTimeoutError::TooManyPending { limit: 1 }), "{refused}");
    }
    assert_eq!(log.take(), (vec![], 2));
    assert!(keyed.contains(&7) && !keyed.contains(&8));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![], 0));
    t.pass(TICK);
    assert_eq!(log.take(), (vec![1], 0));
}

#[test]
fn reset_moves_the_deadline_either_way() {
    let mut t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    assert!(!keyed.reset(&7, TICK), "there is none");
    keyed.schedule(7, log.task(1), TICK).unwrap();
    assert!(keyed.reset(&7, TICK * 5));
    assert_eq!(t.pass(TICK * 4), 0);
    assert!(keyed.reset(&7, FAR));
    assert!(keyed.reset(&7, TICK * 2));
    assert_eq!(t.pass(TICK), 0);
    assert_eq!(t.pass(TICK), 1);
    assert!(!keyed.reset(&7, TICK), "it has run");
    assert_eq!(log.take(), (vec![1], 0));
}

#[test]
fn what_is_cancelled_does_not_run() {
    let mut t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    keyed.schedule("a".to_owned(), log.task(1), TICK).unwrap();
    assert!(keyed.cancel("a"));
    assert_eq!(log.take(), (vec![], 1), "it is dropped before cancel returns");
    assert!(!keyed.cancel("a") && keyed.is_empty());
    assert_eq!(t.timer.pending_timeouts(), 0);
    assert_eq!(t.pass(FAR), 0);
}

// --- all at once ------------------------------------------------------------------------------------------------------

#[test]
fn clear_cancels_all() {
    let t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!keyed.schedule(key, log.task(key), TICK).unwrap()));
    assert_eq!(keyed.len(), 100);
    keyed.clear();
    assert_eq!((log.take(), keyed.len(), t.timer.pending_timeouts()), ((vec![], 100), 0, 0));
    assert!(!keyed.schedule(5, log.task(5), TICK).unwrap(), "it can be used again");
}

#[test]
fn the_last_handle_cancels_all() {
    let t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!keyed.schedule(key, log.task(key), TICK).unwrap()));
    let clone = keyed.clone();
    drop(keyed);
    assert_eq!(clone.len(), 100);
    drop(clone);
    assert_eq!((log.take(), t.timer.pending_timeouts()), ((vec![], 100), 0));
}

#[test]
fn it_counts_as_a_handle_of_its_timer() {
    let Driven { timer, mut driver, clock } = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&timer), Log::default());
    drop(timer);
    keyed.schedule(7, log.task(1), TICK).unwrap();
    clock.advance(TICK);
    assert_eq!(driver.turn(), 1);
    drop(keyed);
    assert!(driver.is_stopped());
}

#[test]
fn stop_leaves_nothing() {
    let t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    (0..100).for_each(|key| assert!(!keyed.schedule(key, log.task(key), TICK).unwrap()));
    assert_eq!(t.timer.stop().len(), 100);
    assert_eq!((log.take(), keyed.len()), ((vec![], 100), 0));
    assert!(!keyed.cancel(&7) && !keyed.reset(&7, TICK));
    let refused = keyed.schedule(7, log.task(7), TICK).unwrap_err();
    assert!(matches!(refused, NewTimeoutError::Stopped), "{refused}");
}

/// It ends when they do, and then takes the rest with it.
#[test]
fn a_task_may_hold_the_last_handle() {
    let Driven { timer, mut driver, clock } = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&timer), Log::default());
    let clone = keyed.clone();
    keyed.schedule(1, move |_| drop(clone), TICK).unwrap();
    keyed.schedule(2, log.task(2), TICK).unwrap();
    keyed.schedule(3, log.task(3), FAR).unwrap();
    drop(keyed);
    drop(timer);
    assert!(!driver.is_stopped(), "the task has it");
    clock.advance(TICK);
    // What the last handle cancels is not run in the same turn any more; and then the timer stops.
    assert_eq!(driver.turn(), 1);
    assert_eq!(log.take(), (vec![], 2));
    assert!(driver.is_stopped());
}

#[test]
fn a_weak_one_keeps_nothing() {
    fn again(key: u32, keyed: &Weak<KeyedTimeouts<u32>>) {
        if let Some(strong) = keyed.upgrade() {
            let weak = Weak::clone(keyed);
            strong.schedule(key, move |key| again(key, &weak), TICK).unwrap();
        }
    }

    let mut t = Driven::new();
    let keyed = Arc::new(KeyedTimeouts::new(&t.timer));
    again(7, &Arc::downgrade(&keyed));
    (0..10).for_each(|_| assert_eq!(t.pass(TICK), 1));
    assert_eq!(Arc::strong_count(&keyed), 1);
    drop(keyed);
    assert_eq!((t.timer.pending_timeouts(), t.pass(TICK)), (0, 0));
}

// --- in an executor ---------------------------------------------------------------------------------------------------

/// Its timeout has expired, and yet it can be cancelled, replaced and cleared.
#[test]
fn what_waits_in_an_executor_has_not_begun() {
    let (mut t, tasks) = with_queue();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    let mut due = |name| {
        assert!(!keyed.schedule(7, log.task(name), TICK).unwrap());
        assert_eq!(t.pass(TICK), 1);
        assert!(keyed.contains(&7));
        assert!(!keyed.reset(&7, TICK), "its time has come");
        tasks.try_recv().unwrap()
    };

    due(1).run();
    assert_eq!(log.take(), (vec![1], 0));

    let task = due(2);
    assert!(keyed.cancel(&7) && !keyed.contains(&7));
    task.run();
    assert_eq!(log.take(), (vec![], 1), "cancelled");

    let task = due(3);
    assert!(keyed.schedule(7, log.task(4), TICK).unwrap());
    task.run();
    assert_eq!(log.take(), (vec![], 1), "replaced");
    assert!(keyed.cancel(&7));
    assert_eq!(log.take(), (vec![], 1));

    let task = due(5);
    keyed.clear();
    task.run();
    assert_eq!(log.take(), (vec![], 1), "cleared");

    drop(due(6));
    assert_eq!(log.take(), (vec![], 1), "dropped by the executor");
    assert!(keyed.is_empty());

    let task = due(8);
    drop(keyed);
    task.run();
    assert_eq!(log.take(), (vec![], 1), "of no map any more");
}

// --- what is faster than `schedule` -----------------------------------------------------------------------------------

/// A timer whose worker is there at once: when it is needed, `new_timeout` itself moves the clock and turns it.
struct Hasty {
    timer: HashedWheelTimer,
    driver: Arc<Mutex<Option<Driver>>>,
    log: Log,
}

impl Hasty {
    fn new(runs: bool) -> Self {
        let driver = Arc::new(Mutex::new(None::<Driver>));
        let (clock, turned) = (ManualClock::new(), Arc::clone(&driver));
        let mut builder = HashedWheelTimer::builder().tick(TICK).clock(clock.clone()).waker(move || {
            clock.advance(TICK);
            // `stop` calls it too, when the driver is gone.
            if let Some(driver) = &mut *turned.lock().unwrap() {
                driver.turn();
            }
        });
        if !runs {
            builder = builder.task_executor(drop::<ExpiredTask>);
        }
        let (timer, its) = builder.build_driven().unwrap();
        *driver.lock().unwrap() = Some(its);
        Self { timer, driver, log: Log::default() }
    }

    /// From here on, one that is due earlier than all others calls the waker.
    fn promise(&self) {
        let _ = self.driver.lock().unwrap().as_mut().unwrap().next_turn();
    }
}

/// The timer has the waker, and that has the driver.
impl Drop for Hasty {
    fn drop(&mut self) {
        let driver = self.driver.lock().unwrap().take();
        self.timer.stop();
        drop(driver);
    }
}

#[test]
fn a_task_that_begins_before_schedule_returns_does_all_that_schedule_would() {
    let t = Hasty::new(true);
    let keyed = KeyedTimeouts::new(&t.timer);
    t.promise();
    assert!(!keyed.schedule(7, t.log.task(1), TICK).unwrap());
    assert_eq!(t.log.take(), (vec![1], 0));
    assert!(keyed.is_empty());

    assert!(!keyed.schedule(7, t.log.task(2), FAR).unwrap());
    t.promise();
    assert!(keyed.schedule(7, t.log.task(3), TICK).unwrap(), "it replaces one, whoever did it");
    assert_eq!(t.log.take(), (vec![3], 1));
    assert!(keyed.is_empty());
    assert_eq!(t.timer.pending_timeouts(), 0);
}

#[test]
fn a_task_that_puts_another_one_there_before_schedule_returns_is_not_undone() {
    let t = Hasty::new(true);
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), t.log.clone());
    let inside = keyed.clone();
    t.promise();
    let task = move |key| assert!(!inside.schedule(key, log.task(1), FAR).unwrap());
    assert!(!keyed.schedule(7, task, TICK).unwrap());
    assert!(keyed.contains(&7));
    assert!(keyed.cancel(&7));
    assert_eq!(t.log.take(), (vec![], 1));
}

#[test]
fn a_task_that_is_dropped_before_schedule_returns_leaves_nothing() {
    let t = Hasty::new(false);
    let keyed = KeyedTimeouts::new(&t.timer);
    t.promise();
    assert!(!keyed.schedule(7, t.log.task(1), TICK).unwrap());
    assert_eq!(t.log.take(), (vec![], 1));
    assert!(keyed.is_empty());

    assert!(!keyed.schedule(7, t.log.task(2), FAR).unwrap());
    t.promise();
    assert!(keyed.schedule(7, t.log.task(3), TICK).unwrap());
    assert_eq!(t.log.take(), (vec![], 2), "it has replaced one all the same");
    assert!(keyed.is_empty());
}

// --- user code --------------------------------------------------------------------------------------------------------

/// Uses what holds it, whenever it can: with a lock held, that would hang.
#[derive(Clone)]
struct Meddler {
    keyed: Arc<Mutex<Option<KeyedTimeouts<Meddler>>>>,
    calls: Arc<AtomicUsize>,
}

impl Meddler {
    fn meddle(&self) {
        // (Not with this lock held either.)
        let keyed = self.keyed.lock().unwrap().clone();
        if let Some(keyed) = keyed {
            self.calls.fetch_add(1, SeqCst);
            // All of it, for each shard.
            let _ = keyed.len();
        }
    }
}

impl Hash for Meddler {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

impl PartialEq for Meddler {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Meddler {}

impl Drop for Meddler {
    fn drop(&mut self) {
        self.meddle();
    }
}

impl Clock for Meddler {
    fn now(&self) -> Duration {
        self.meddle();
        Duration::ZERO
    }
}

#[test]
fn no_lock_is_held_while_user_code_runs() {
    let calls = ends(|| {
        let (slot, calls) = (Arc::default(), Arc::default());
        let meddler = Meddler { keyed: Arc::clone(&slot), calls: Arc::clone(&calls) };
        let (clock, waker) = (meddler.clone(), meddler.clone());
        let builder = HashedWheelTimer::builder().max_pending_timeouts(2);
        let (timer, driver) = builder.clock(clock).waker(move || waker.meddle()).build_driven().unwrap();
        let keyed = KeyedTimeouts::new(&timer);
        *slot.lock().unwrap() = Some(keyed.clone());
        let task = || {
            let meddler = meddler.clone();
            move |_| meddler.meddle()
        };
        let calls_of = |what: &str, code: &mut dyn FnMut()| {
            let _ = driver.next_turn();
            let before = calls.load(SeqCst);
            code();
            assert!(calls.load(SeqCst) > before, "{what} calls back");
        };
        calls_of("scheduling", &mut || assert!(!keyed.schedule(meddler.clone(), task(), FAR).unwrap()));
        calls_of("replacing", &mut || assert!(keyed.schedule(meddler.clone(), task(), TICK).unwrap()));
        calls_of("re-arming", &mut || assert!(keyed.reset(&meddler, TICK / 2)));
        let other = timer.new_timeout(|_| (), FAR).unwrap();
        calls_of("a refusal", &mut || assert!(keyed.schedule(meddler.clone(), task(), FAR).is_err()));
        other.cancel();
        calls_of("cancelling", &mut || assert!(keyed.cancel(&meddler)));
        assert!(!keyed.schedule(meddler.clone(), task(), FAR).unwrap());
        calls_of("clearing", &mut || keyed.clear());
        assert!(!keyed.schedule(meddler.clone(), task(), FAR).unwrap());
        calls_of("stopping", &mut || assert_eq!(timer.stop().len(), 1));
        assert!(keyed.is_empty());
        *slot.lock().unwrap() = None;
        calls.load(SeqCst)
    });
    assert!(calls > 10, "{calls}");
}

#[test]
fn a_panic_harms_no_other_key() {
    let mut t = Driven::new();
    let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
    keyed.schedule(1, |_| panic!("in a task"), TICK).unwrap();
    keyed.schedule(2, log.task(2), TICK).unwrap();
    let guard = OnDrop(|| panic!("in a drop"));
    keyed.schedule(3, move |_| drop(guard), TICK).unwrap();
    quietly(|| {
        assert!(keyed.schedule(3, log.task(3), TICK).unwrap());
        assert_eq!(t.pass(TICK), 3);
    });
    assert_eq!(log.take(), (vec![2, 3], 0));
    assert!(keyed.is_empty());
    assert_eq!(t.timer.stats().panics, 2);
}

#[test]
fn the_face_is_send_and_sync() {
    fn check<T: Send + Sync + Clone + std::panic::UnwindSafe + std::panic::RefUnwindSafe>(_: &T) {}

    let t = Driven::new();
    let keyed = KeyedTimeouts::<std::cell::Cell<u8>>::new(&t.timer);
    check(&keyed);
    assert!(format!("{keyed:?}").starts_with("KeyedTimeouts { timer: HashedWheelTimer { "), "{keyed:?}");
}

/// What is reported names the task.
#[test]
fn a_task_has_its_name() {
    fn log_out(_: u32) {}

    let t = Driven::new();
    let keyed = KeyedTimeouts::new(&t.timer);
    keyed.schedule(7, log_out, TICK).unwrap();
    let timeout = t.timer.stop().pop().unwrap();
    assert!(format!("{timeout:?}").contains("log_out"), "{timeout:?}");
}

// --- at random --------------------------------------------------------------------------------------------------------

/// Against a map that is scanned.
#[test]
fn agrees_with_a_dumb_model() {
    for seed in 0..if cfg!(miri) { 2 } else { 60 } {
        let mut random = Rng::with_seed(seed);
        let mut t = Driven::new();
        let (keyed, log) = (KeyedTimeouts::new(&t.timer), Log::default());
        let mut model = BTreeMap::<u8, (Duration, u64)>::new();
        let mut now = Duration::ZERO;
        for name in 0..if cfg!(miri) { 60 } else { 1_000 } {
            let (key, delay) = (random.u8(0..4), ms(random.u64(0..100)));
            let mut unrun = 0;
            let mut due = vec![];
            match random.u32(0..100) {
                0..40 => {
                    let replaced = keyed.schedule(key, log.task(name), delay).unwrap();
                    assert_eq!(replaced, model.insert(key, (now + delay, name)).is_some());
                    unrun = usize::from(replaced);
                }
                40..60 => {
                    let reset = keyed.reset(&key, delay);
                    assert_eq!(reset, model.contains_key(&key));
                    model.entry(key).and_modify(|(deadline, _)| *deadline = now + delay);
                }
                60..75 => {
                    let cancelled = keyed.cancel(&key);
                    assert_eq!(cancelled, model.remove(&key).is_some());
                    unrun = usize::from(cancelled);
                }
                75 => {
                    keyed.clear();
                    unrun = std::mem::take(&mut model).len();
                }
                _ => {
                    let by = ms(random.u64(0..50));
                    let turned = t.pass(by);
                    let last = now.as_millis() / TICK.as_millis();
                    now += by;
                    let reached = now.as_millis() / TICK.as_millis();
                    model.retain(|_, (deadline, name)| {
                        let tick = deadline.as_millis().div_ceil(TICK.as_millis()).max(last + 1);
                        if tick <= reached {
                            due.push(*name);
                        }
                        tick > reached
                    });
                    assert_eq!(turned, due.len());
                }
            }
            let (mut ran, dropped) = log.take();
            ran.sort_unstable();
            due.sort_unstable();
            assert_eq!((ran, dropped), (due, unrun), "seed {seed}, step {name}");
            assert_eq!(keyed.len(), model.len());
            assert_eq!(keyed.contains(&key), model.contains_key(&key));
            assert_eq!(t.timer.pending_timeouts(), model.len(), "no orphans");
        }
    }
}

/// Who is alone with a key knows which task it was that a call has replaced or cancelled.
#[test]
fn what_was_replaced_or_cancelled_does_not_begin() {
    stress(true, |index, _| index as u32);
}

/// All want the same few keys.
#[test]
fn each_task_has_one_end_whoever_wants_its_key() {
    stress(false, |_, random| random.u32(0..3));
}

fn stress(is_alone: bool, key: fn(usize, &mut Rng) -> u32) {
    const THREADS: usize = 4;
    let time = if cfg!(miri) { ms(0) } else { ms(300) };

    for in_pool in [false, true] {
        let builder = HashedWheelTimer::builder().tick(Duration::from_micros(50));
        let (timer, pool) = if in_pool {
            let (queue, tasks) = channel::<ExpiredTask>();
            let pool = thread::spawn(move || tasks.into_iter().for_each(ExpiredTask::run));
            (builder.task_executor(move |task| drop(queue.send(task))).build().unwrap(), Some(pool))
        } else {
            (builder.build().unwrap(), None)
        };
        let keyed = KeyedTimeouts::new(&timer);
        let [runs, too_late] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
        let log = Log::default();
        let begin = Instant::now();
        let threads: Vec<_> = (0..THREADS)
            .map(|index| {
                let (keyed, log) = (keyed.clone(), log.clone());
                let (runs, too_late) = (Arc::clone(&runs), Arc::clone(&too_late));
                thread::spawn(move || {
                    let mut random = Rng::with_seed(index as u64);
                    let (mut scheduled, mut taken_out) = (0, 0);
                    let mut last = Arc::new(AtomicBool::new(false));
                    while begin.elapsed() < time || scheduled < 20 {
                        let (key, delay) =
                            (key(index, &mut random), Duration::from_micros(random.u64(0..200)));
                        if random.u32(0..4) > 0 {
                            let is_out = Arc::new(AtomicBool::new(false));
                            let (task, its) = (log.task::<u32>(0), Arc::clone(&is_out));
                            let (runs, too_late) = (Arc::clone(&runs), Arc::clone(&too_late));
                            let task = move |key| {
                                too_late.fetch_add(usize::from(its.load(SeqCst)), SeqCst);
                                runs.fetch_add(1, SeqCst);
                                task(key);
                            };
                            let replaced = keyed.schedule(key, task, delay).unwrap();
                            let before = std::mem::replace(&mut last, is_out);
                            before.store(is_alone && replaced, SeqCst);
                            (scheduled, taken_out) = (scheduled + 1, taken_out + usize::from(replaced));
                        } else if random.bool() {
                            let cancelled = keyed.cancel(&key);
                            last.store(is_alone && cancelled, SeqCst);
                            taken_out += usize::from(cancelled);
                        } else {
                            keyed.reset(&key, delay);
                        }
                        if random.u32(0..8) == 0 {
                            sleep(Duration::from_micros(random.u64(0..200)));
                        }
                    }
                    (scheduled, taken_out)
                })
            })
            .collect();
        let (mut scheduled, mut taken_out) = (0, 0);
        for thread in threads {
            let of_one = thread.join().unwrap();
            scheduled += of_one.0;
            taken_out += of_one.1;
        }
        let end = Instant::now();
        while !keyed.is_empty() {
            assert!(end.elapsed() < PATIENCE, "{} never end", keyed.len());
            sleep(ms(1));
        }
        drop(keyed);
        timer.stop();
        pool.into_iter().for_each(|pool| pool.join().unwrap());
        assert_eq!(too_late.load(SeqCst), 0, "tasks that began after they were replaced or cancelled");
        let runs = runs.load(SeqCst);
        assert_eq!(runs + taken_out, scheduled, "each has one end");
        assert_eq!(log.unrun.load(SeqCst), taken_out, "and what did not run was dropped");
        assert!(cfg!(miri) || (runs > 0 && taken_out > 0), "{runs} ran, {taken_out} did not");
    }
}
