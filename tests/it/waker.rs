//! The sleep that a driver announces, and the operations that wake the loop earlier. The tests use
//! a clock that stands still, and a loop that really sleeps.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use crate::common::{Driven, Ends, Schedules, TICK, built_driven, ends, ms, quietly};
use hashed_wheel::{Alarm, Clock, Driver, ExpiredTask, HashedWheelTimer, Schedule, TaskExecutor};

/// Returns a driven timer and the number of calls of its waker.
fn counted() -> (Driven, Arc<AtomicUsize>) {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let wake = move || {
        counter.fetch_add(1, SeqCst);
    };
    (Driven::with(|builder| builder.waker(wake)), wakes)
}

#[test]
fn an_earlier_timeout_wakes_the_loop_once_and_a_later_one_does_not() {
    let (t, wakes) = counted();
    t.schedule(|_| (), TICK * 10);
    assert_eq!(t.next_turn(), Some(TICK * 10));
    for ticks in [10, 11, 1_000] {
        t.schedule(|_| (), TICK * ticks);
        assert_eq!(wakes.load(SeqCst), 0, "{ticks}");
    }
    // The deadline is earlier than the announced turn, but its tick is the same.
    t.schedule(|_| (), TICK * 9 + ms(1));
    assert_eq!(wakes.load(SeqCst), 0);
    t.schedule(|_| (), TICK * 9);
    assert_eq!(wakes.load(SeqCst), 1);
    t.schedule(|_| (), TICK);
    assert_eq!(wakes.load(SeqCst), 1, "the loop has already been woken");
    assert_eq!(t.next_turn(), Some(TICK));
}

#[test]
fn any_timeout_wakes_a_loop_that_sleeps_without_a_limit() {
    for delay in [Duration::ZERO, TICK, TICK * 1_000_000] {
        let (mut t, wakes) = counted();
        assert_eq!(t.next_turn(), None);
        t.schedule(|_| (), delay);
        assert_eq!(wakes.load(SeqCst), 1, "{delay:?}");
        assert_eq!(t.pass(delay + TICK), 1);
        assert_eq!(t.next_turn(), None);
    }
}

#[test]
fn a_loop_without_an_announced_sleep_is_not_woken() {
    let (mut t, wakes) = counted();
    t.schedule(|_| (), TICK * 5);
    assert_eq!(t.next_turn(), Some(TICK * 5));
    // The turn has another cause. From now on the loop is awake, also while its tasks run.
    let handle = t.timer.clone();
    t.schedule(move |_| drop(handle.schedule(|_| (), TICK)), TICK * 5);
    assert_eq!(t.pass(TICK), 0);
    t.schedule(|_| (), TICK);
    assert_eq!(t.pass(TICK * 4), 3);
    t.schedule(|_| (), Duration::ZERO);
    assert_eq!(wakes.load(SeqCst), 0);
}

#[test]
fn a_loop_that_wakes_for_the_next_tick_is_not_woken_earlier() {
    let (mut t, wakes) = counted();
    t.pass(TICK * 3);
    t.schedule(|_| (), TICK);
    assert_eq!(t.next_turn(), Some(TICK));
    t.schedule(|_| (), Duration::ZERO);
    assert_eq!(wakes.load(SeqCst), 0, "both timeouts are for the next tick");
    assert_eq!(t.pass(TICK), 2);
}

#[test]
fn a_reset_to_before_the_announced_turn_wakes_the_loop() {
    let (mut t, wakes) = counted();
    let near = t.schedule(|_| (), TICK * 10);
    let far = t.schedule(|_| (), TICK * 100);
    t.turn();
    assert_eq!(t.next_turn(), Some(TICK * 10));
    assert!(near.reset(TICK * 20) && far.reset(TICK * 200) && far.reset(TICK * 15));
    assert_eq!(wakes.load(SeqCst), 0);
    assert!(far.reset(TICK * 5));
    assert_eq!(wakes.load(SeqCst), 1);
    assert_eq!(t.next_turn(), Some(TICK * 5));
}

#[test]
fn a_cancel_does_not_wake_the_loop() {
    let (mut t, wakes) = counted();
    let timeouts: Vec<_> = (10..20)
        .map(|ticks| t.schedule(|_| (), TICK * ticks))
        .collect();
    t.turn();
    assert_eq!(t.next_turn(), Some(TICK * 10));
    assert!(timeouts.iter().all(|timeout| timeout.cancel()));
    assert_eq!(wakes.load(SeqCst), 0);
    assert_eq!(t.next_turn(), None);
}

/// A loop with a long sleep is woken after a number of messages. Otherwise the messages of a whole
/// day could accumulate.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn messages_do_not_accumulate_during_an_announced_sleep() {
    let (t, wakes) = counted();
    t.schedule(|_| (), TICK);
    assert_eq!(t.next_turn(), Some(TICK));
    for _ in 0..10_000 {
        t.schedule(|_| (), TICK * 100).cancel();
    }
    assert_eq!(wakes.load(SeqCst), 0, "the loop makes a turn soon");

    let (t, wakes) = counted();
    t.schedule(|_| (), TICK * 10);
    let mut expected = 0;
    for index in 0..100_000 {
        if wakes.load(SeqCst) == expected {
            expected += 1;
            assert_eq!(t.next_turn(), Some(TICK * 10), "{index}");
        }
        t.schedule(|_| (), TICK * 100).cancel();
    }
    assert!((10..100).contains(&wakes.load(SeqCst)), "{wakes:?}");
}

#[test]
fn a_stop_wakes_the_loop_once_and_the_drop_of_the_driver_does_not() {
    let (t, wakes) = counted();
    assert!(t.timer.stop().is_empty());
    assert_eq!(wakes.load(SeqCst), 1);
    assert!(t.timer.stop().is_empty());
    drop(t.driver);
    drop(t.timer);
    assert_eq!(wakes.load(SeqCst), 1);

    let (t, wakes) = counted();
    assert_eq!(t.next_turn(), None);
    drop(t.timer);
    assert_eq!(wakes.load(SeqCst), 1, "the last handle stops the timer too");

    let (t, wakes) = counted();
    assert_eq!(t.next_turn(), None);
    drop(t.driver);
    drop(t.timer.stop());
    assert_eq!(wakes.load(SeqCst), 0, "there is no loop to wake");
}

#[test]
fn a_waker_that_panics_affects_no_timeout() {
    let mut t = Driven::with(|builder| builder.waker(|| panic!("the waker")));
    let ends = Ends::new();
    quietly(|| {
        assert_eq!(t.next_turn(), None);
        t.schedule_task(ends.task(), TICK);
        assert_eq!(t.stats().panics, 1);
        assert_eq!(t.pass(TICK), 1);
        assert!(t.timer.stop().is_empty());
        assert_eq!(t.stats().panics, 2);
    });
    assert_eq!((ends.runs(), ends.drops()), (1, 1));
}

/// A write to an `eventfd` can fail once, for example.
#[test]
fn after_a_panic_of_the_waker_the_next_timeout_wakes_the_loop() {
    let wakes = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&wakes);
    let t = Driven::with(|builder| {
        builder.waker(move || assert_ne!(counter.fetch_add(1, SeqCst), 0, "the first call panics"))
    });
    quietly(|| {
        assert_eq!(t.next_turn(), None);
        for expected in [1, 2, 2] {
            t.schedule(|_| (), TICK);
            assert_eq!(wakes.load(SeqCst), expected);
        }
    });
}

#[test]
fn a_loop_that_sleeps_for_two_ticks_is_woken_for_the_next_one() {
    let (t, wakes) = counted();
    t.schedule(|_| (), TICK * 2);
    assert_eq!(t.next_turn(), Some(TICK * 2));
    t.schedule(|_| (), TICK);
    assert_eq!(wakes.load(SeqCst), 1);
}

/// The loop sees that the timer is stopped, ends, and drops the driver. That drop is another stop.
#[test]
fn a_loop_that_ends_takes_no_timeout_from_the_stop() {
    for _ in 0..if cfg!(miri) { 3 } else { 200 } {
        let wake_up = Arc::new(WakeUp::default());
        let wake = Arc::clone(&wake_up);
        let (timer, driver) = built_driven(|builder| builder.waker(move || wake.wake()));
        let timeout = timer.schedule(|_| (), ms(60_000));
        let sleeper = sleeper(driver, wake_up);
        assert_eq!(timer.stop(), [timeout]);
        sleeper.join().unwrap();
    }
}

/// The executor may be a pool whose drop joins its threads. Those threads must not stop the timer,
/// but they may turn it.
#[test]
fn a_loop_that_ends_leaves_the_executor_to_the_stopping_thread() {
    struct Pool(Sender<ThreadId>);

    impl TaskExecutor for Pool {
        fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
            task.run();
            Ok(())
        }
    }

    impl Drop for Pool {
        fn drop(&mut self) {
            self.0.send(thread::current().id()).unwrap();
        }
    }

    let ((dropping_thread, dropped_by), (end, has_ended)) = (channel(), channel::<()>());
    let has_ended = Mutex::new(has_ended);
    let builder = HashedWheelTimer::builder().task_executor(Pool(dropping_thread));
    // The stop calls this waker, which blocks until the driver is dropped.
    let wake = move || has_ended.lock().unwrap().recv().unwrap();
    let (timer, driver) = builder.waker(wake).build_driven().unwrap();
    let event_loop = thread::spawn(move || {
        while !driver.is_stopped() {
            thread::yield_now();
        }
        drop(driver);
        // There is no receiver if the driver was dropped before the stop would have called the
        // waker.
        let _ = end.send(());
    });
    let stopper = ends(move || {
        assert!(timer.stop().is_empty());
        thread::current().id()
    });
    event_loop.join().unwrap();
    assert_eq!(dropped_by.try_iter().collect::<Vec<_>>(), [stopper]);
}

#[test]
fn a_waker_may_use_the_timer() {
    let own: Arc<Mutex<Option<HashedWheelTimer>>> = Arc::default();
    let in_waker = Arc::clone(&own);
    let t = Driven::with(|builder| {
        builder.waker(move || {
            let timer = in_waker.lock().unwrap().clone().unwrap();
            // Called before the stop and by the stop itself, when nothing is left to stop.
            assert_eq!(timer.new_timeout(|_| (), TICK).is_err(), timer.is_stopped());
            drop(timer.stop());
        })
    });
    *own.lock().unwrap() = Some(t.timer.clone());
    ends(move || {
        assert_eq!(t.next_turn(), None);
        let timeout = t.schedule(|_| (), TICK * 3);
        assert!(timeout.is_cancelled());
        assert_eq!(t.next_turn(), None);
        assert_eq!(t.stats().panics, 0);
    });
    // The waker's own handle would keep the waker alive, and the leak sanitizer would report it.
    *own.lock().unwrap() = None;
}

/// Keeps the tasks that it is given.
struct Queue(Sender<ExpiredTask>);

impl TaskExecutor for Queue {
    fn execute(&self, task: ExpiredTask) -> Result<(), ExpiredTask> {
        self.0.send(task).unwrap();
        Ok(())
    }
}

/// The message about the end of a last run is the last one of a batch, for which the waker is
/// called. The waker stops the timer.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_waker_may_stop_the_timer_at_the_end_of_a_last_run() {
    let mut stops = 0;
    // Eight blocks of 512 messages, and those around.
    for count in 4_094..4_099 {
        let own: Arc<Mutex<Option<HashedWheelTimer>>> = Arc::default();
        let in_waker = Arc::clone(&own);
        let (send, tasks) = channel();
        let mut t = Driven::with(|builder| {
            builder.task_executor(Queue(send)).waker(move || {
                let timer = in_waker.lock().unwrap().take();
                timer.inspect(|timer| drop(timer.stop()));
            })
        });
        stops += ends(move || {
            let schedule = Schedule::at_fixed_rate(TICK);
            let periodic = t.periodic(schedule, |_| ControlFlow::Break(()));
            t.pass(TICK * 2);
            for _ in 0..count {
                t.schedule(|_| (), TICK * 99);
            }
            assert!(t.next_turn().is_some());
            *own.lock().unwrap() = Some(t.timer.clone());
            tasks.recv().unwrap().run();
            *own.lock().unwrap() = None;
            drop(periodic);
            usize::from(t.timer.is_stopped())
        });
    }
    assert_eq!(stops, 1);
}

/// No lock of the alarm is held while the waker, or the clock, is called.
#[test]
#[cfg_attr(miri, ignore = "too many timeouts")]
fn a_waker_and_a_clock_may_use_an_alarm() {
    struct UsesAlarm(Arc<AtomicUsize>, Arc<Mutex<Option<Alarm>>>);
    impl UsesAlarm {
        fn use_alarm(&self) {
            let alarm = self.1.lock().unwrap().clone();
            if let Some(alarm) = alarm {
                self.0.fetch_add(1, SeqCst);
                let _ = alarm.is_armed();
            }
        }
    }
    impl Clock for UsesAlarm {
        fn now(&self) -> Duration {
            self.use_alarm();
            Duration::ZERO
        }
    }
    type Step = fn(&Alarm);
    // Each wakes a loop that sleeps until the alarm is due, or has nothing to do.
    let steps: [(&str, Step); 5] = [
        ("arm", |alarm| {
            assert!(alarm.disarm());
            alarm.arm(TICK).unwrap();
        }),
        ("earlier, in the wheel", |alarm| alarm.arm(TICK).unwrap()),
        ("disarm", |alarm| {
            for _ in 0..40_000 {
                alarm.arm(TICK * 90).unwrap();
                assert!(alarm.disarm());
            }
        }),
        ("cancel", |alarm| {
            let other = alarm.timer().new_alarm(|_| ());
            for _ in 0..40_000 {
                other.arm(TICK * 90).unwrap();
                assert!(other.disarm());
            }
            assert!(alarm.cancel());
        }),
        ("arm_at", |alarm| {
            alarm.arm_at(alarm.timer().now()).unwrap();
            assert!(alarm.deadline() > None && alarm.remaining() > None);
        }),
    ];
    for (name, step) in steps {
        ends(move || {
            let own = Arc::new(Mutex::new(None));
            let [wakes, reads] = [(); 2].map(|()| Arc::new(AtomicUsize::new(0)));
            let clock = UsesAlarm(Arc::clone(&reads), Arc::clone(&own));
            let waker = UsesAlarm(Arc::clone(&wakes), Arc::clone(&own));
            let (timer, mut driver) = HashedWheelTimer::builder()
                .tick(TICK)
                .clock(clock)
                .waker(move || waker.use_alarm())
                .build_driven()
                .unwrap();
            let alarm = timer.new_alarm(|_| ());
            alarm.arm(TICK * 50).unwrap();
            *own.lock().unwrap() = Some(alarm.clone());
            driver.turn();
            assert_eq!(driver.next_turn(), Some(TICK * 50));
            step(&alarm);
            assert!(wakes.load(SeqCst) > 0, "{name}");
            assert!(reads.load(SeqCst) > 0, "{name}");
            assert_eq!(timer.stats().panics, 0, "{name}");
            // The clock's own handle would keep the timer alive.
            *own.lock().unwrap() = None;
        });
    }
}

/// A condition variable on which a loop sleeps. A wake-up that comes before the sleep is not lost.
#[derive(Default)]
struct WakeUp {
    woken: Mutex<bool>,
    wake: Condvar,
}

impl WakeUp {
    fn wake(&self) {
        *self.woken.lock().unwrap() = true;
        self.wake.notify_one();
    }

    fn sleep(&self, max: Option<Duration>) {
        let begin = Instant::now();
        let mut woken = self.woken.lock().unwrap();
        while !*woken {
            let Some(max) = max else {
                woken = self.wake.wait(woken).unwrap();
                continue;
            };
            let Some(left) = max
                .checked_sub(begin.elapsed())
                .filter(|left| !left.is_zero())
            else {
                break;
            };
            woken = self.wake.wait_timeout(woken, left).unwrap().0;
        }
        *woken = false;
    }
}

/// A loop that sleeps for exactly the duration that the driver returns, until the timer is stopped.
/// Returns the number of sleeps.
fn sleeper(mut driver: Driver, wake_up: Arc<WakeUp>) -> thread::JoinHandle<usize> {
    thread::spawn(move || {
        let mut sleeps = 0;
        while !driver.is_stopped() {
            wake_up.sleep(driver.next_turn());
            driver.turn();
            sleeps += 1;
        }
        sleeps
    })
}

/// Each producer waits for its timeout before it schedules the next one. A lost wake-up would block
/// it indefinitely.
#[test]
fn no_wake_up_is_lost_between_four_producers_and_a_loop() {
    for hierarchical in [false, true] {
        ends(move || {
            let wake_up = Arc::new(WakeUp::default());
            let wake = Arc::clone(&wake_up);
            let builder = HashedWheelTimer::builder()
                .tick(Duration::from_micros(50))
                .ticks_per_wheel(8);
            let builder = builder.hierarchical(hierarchical);
            let (timer, driver) = builder.waker(move || wake.wake()).build_driven().unwrap();
            let sleeper = sleeper(driver, wake_up);
            let producer = |seed| {
                let timer = timer.clone();
                move || {
                    let mut random = fastrand::Rng::with_seed(seed);
                    for _ in 0..if cfg!(miri) { 10 } else { 300 } {
                        let (fired, wait) = std::sync::mpsc::channel();
                        let (begin, delay) =
                            (Instant::now(), Duration::from_micros(random.u64(..300)));
                        let task = move |_: &_| fired.send(begin.elapsed()).unwrap();
                        // Some timeouts are far away at first and then reset to an earlier
                        // deadline. Others are scheduled after a timeout that is cancelled
                        // immediately.
                        match random.u32(..4) {
                            0 => {
                                let far = timer.schedule(task, Duration::from_secs(3_600));
                                assert!(far.reset(delay));
                            }
                            1 => {
                                timer.schedule(|_| unreachable!(), delay + ms(100)).cancel();
                                timer.schedule(task, delay);
                            }
                            _ => drop(timer.schedule(task, delay)),
                        }
                        assert!(wait.recv().unwrap() >= delay, "early");
                    }
                }
            };
            thread::scope(|scope| (0..4).for_each(|seed| drop(scope.spawn(producer(seed)))));
            assert_eq!(timer.pending_timeouts(), 0);
            assert!(timer.stop().is_empty());
            sleeper.join().unwrap();
        });
    }
}

#[test]
fn a_loop_with_nothing_to_do_sleeps_until_the_timer_is_stopped() {
    let wake_up = Arc::new(WakeUp::default());
    let wake = Arc::clone(&wake_up);
    let (timer, driver) = built_driven(|builder| builder.waker(move || wake.wake()));
    let sleeper = sleeper(driver, wake_up);
    thread::sleep(ms(50));
    let sleeps = ends(move || {
        assert!(timer.stop().is_empty());
        sleeper.join().unwrap()
    });
    assert!(sleeps <= 1, "{sleeps}");
}
