//! Tasks that postpone themselves.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use crate::common::{Driven, Schedules, TICK, accepts_all, ends, eventually, quietly};
use hashed_wheel::{ExpiredTask, Timeout, TimerTask, executor};

type Answer = dyn Fn(&Timeout) -> Option<Duration> + Send;

/// Answers what the function returns, and reports what happens to it.
struct Postponing {
    answer: Box<Answer>,
    /// In a box, so that the task fits into a node.
    log: Box<Sender<&'static str>>,
}

impl TimerTask for Postponing {
    const POSTPONES: bool = true;

    fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
        assert!(timeout.timer().is_worker_thread());
        self.log.send("asked").unwrap();
        (self.answer)(timeout)
    }

    fn run(self, timeout: &Timeout) {
        assert!(timeout.is_expired());
        self.log.send("run").unwrap();
    }

    fn cancelled(self, timeout: &Timeout) {
        assert!(timeout.is_cancelled());
        self.log.send("cancelled").unwrap();
    }
}

fn postponing(
    answer: impl Fn(&Timeout) -> Option<Duration> + Send + 'static,
) -> (Postponing, Receiver<&'static str>) {
    let (log, events) = channel();
    let (answer, log) = (Box::new(answer), Box::new(log));
    (Postponing { answer, log }, events)
}

/// Answers with each of these delays, and then that the task is due.
fn answers<const N: usize>(delays: [Duration; N]) -> (Postponing, Receiver<&'static str>) {
    let left = Mutex::new(delays.into_iter());
    postponing(move |_| left.lock().unwrap().next())
}

fn all(events: &Receiver<&'static str>) -> Vec<&'static str> {
    events.try_iter().collect()
}

#[test]
fn a_task_that_postpones_itself_keeps_its_timeout_and_its_place() {
    let mut t = Driven::with(|builder| builder.max_pending_timeouts(Some(1)));
    let (task, events) = answers([TICK * 5, TICK]);
    let timeout = t.schedule_task(task, TICK);
    assert_eq!((t.pass(TICK), all(&events)), (0, vec!["asked"]));
    assert_eq!(timeout.remaining(), TICK * 5);
    assert!(t.timer.new_timeout(|_| (), TICK).is_err());
    assert_eq!((t.pass(TICK * 4), all(&events)), (0, vec![]));
    assert_eq!((t.pass(TICK), all(&events)), (0, vec!["asked"]));
    assert_eq!((t.pass(TICK), all(&events)), (1, vec!["asked", "run"]));
    assert!(timeout.is_expired());
    let stats = t.stats();
    assert_eq!((stats.scheduled, stats.expired, stats.pending), (1, 1, 0));
}

/// A timer that is stopped runs nothing more: also a task whose answer is that it is due.
#[test]
fn a_task_whose_timer_is_stopped_while_it_is_asked_does_not_run() {
    let t = Driven::new();
    let (timer, mut driver, clock) = (t.timer, t.driver, t.clock);
    let last = Arc::new(Mutex::new(Some(timer.clone())));
    let (task, events) = postponing(move |_| {
        drop(last.lock().unwrap().take());
        None
    });
    let timeout = timer.schedule_task(task, TICK);
    drop(timer);
    clock.advance(TICK);
    assert_eq!(
        (driver.turn(), all(&events)),
        (0, vec!["asked", "cancelled"])
    );
    assert!(timeout.is_cancelled() && driver.is_stopped());
}

/// Otherwise a turn would not end.
#[test]
fn a_task_that_postpones_itself_by_nothing_is_asked_once_per_tick() {
    let mut t = Driven::new();
    let (task, events) = answers([Duration::ZERO; 2]);
    t.schedule_task(task, TICK);
    for _ in 0..2 {
        assert_eq!((t.pass(TICK), all(&events)), (0, vec!["asked"]));
        assert_eq!((t.turn(), all(&events)), (0, vec![]));
    }
    assert_eq!((t.pass(TICK), all(&events)), (1, vec!["asked", "run"]));
}

#[test]
fn a_reset_moves_the_deadline_at_which_the_task_is_asked() {
    let mut t = Driven::new();
    let (task, events) = answers([TICK * 9]);
    let timeout = t.schedule_task(task, TICK * 9);
    assert!(timeout.reset(TICK));
    t.turn();
    assert!(timeout.reset(TICK * 3));
    assert_eq!((t.pass(TICK * 2), all(&events)), (0, vec![]));
    assert_eq!((t.pass(TICK), all(&events)), (0, vec!["asked"]));
    assert_eq!(Timeout::reset_each([&timeout], t.timer.now() + TICK), 1);
    assert_eq!((t.pass(TICK), all(&events)), (1, vec!["asked", "run"]));
    assert!(!timeout.reset(TICK));
}

/// The thread that asks has the task. It would wait for itself.
#[test]
fn a_task_that_is_asked_resets_nothing_and_cancels_itself() {
    for mut t in with_and_without_executor() {
        let (task, events) = postponing(|own| {
            assert!(!own.reset(TICK * 5));
            assert_eq!(Timeout::reset_each([own], own.timer().now()), 0);
            assert!(own.cancel() && !own.cancel() && !own.cancel_and_wait());
            Some(TICK)
        });
        let timeout = t.schedule_task(task, TICK);
        assert_eq!(t.pass(TICK), 0);
        assert_eq!(all(&events), ["asked", "cancelled"]);
        assert!(timeout.is_cancelled());
        assert_eq!((t.pass(TICK * 5), t.pending()), (0, 0));
        assert_eq!(t.stats().panics, 0);
    }
}

/// If the wait did not end, this would hang.
#[test]
fn cancel_and_wait_waits_for_the_hook_of_a_task_that_is_asked() {
    for mut t in with_and_without_executor() {
        let (asked, is_asked) = channel();
        let (release, is_released) = channel();
        let is_released = Mutex::new(is_released);
        let (task, events) = postponing(move |_| {
            asked.send(()).unwrap();
            is_released.lock().unwrap().recv().unwrap();
            Some(TICK)
        });
        let timeout = t.schedule_task(task, TICK);
        let events = ends(move || {
            thread::scope(|scope| {
                let waiting = timeout.clone();
                let turn = scope.spawn(move || t.pass(TICK));
                is_asked.recv().unwrap();
                let wait = scope.spawn(move || (waiting.cancel_and_wait(), all(&events)));
                eventually("it is cancelled", || timeout.is_cancelled());
                release.send(()).unwrap();
                assert_eq!(turn.join().unwrap(), 0);
                wait.join().unwrap()
            })
        });
        assert_eq!(events, (true, vec!["asked", "cancelled"]));
    }
}

fn with_and_without_executor() -> [Driven; 2] {
    let runs = accepts_all(ExpiredTask::run);
    [
        Driven::new(),
        Driven::with(|builder| builder.task_executor(runs)),
    ]
}

#[test]
fn a_task_that_panics_when_it_is_asked_runs() {
    let mut t = Driven::new();
    let (task, events) = postponing(|_| panic!("no answer"));
    t.schedule_task(task, TICK);
    assert_eq!(quietly(|| t.pass(TICK)), 1);
    assert_eq!(all(&events), ["asked", "run"]);
    assert_eq!(t.stats().panics, 1);
}

/// The worker asks. Only a task that is due goes to the executor.
#[test]
fn a_task_that_postpones_itself_does_not_go_to_the_executor() {
    let (queue, tasks) = channel();
    let executor =
        executor::from_fn(move |task: ExpiredTask| queue.send(task).map_err(|task| task.0));
    let mut t = Driven::with(|builder| builder.task_executor(executor));
    let (task, events) = answers([TICK]);
    t.schedule_task(task, TICK);
    assert_eq!((t.pass(TICK), all(&events)), (0, vec!["asked"]));
    assert!(tasks.try_recv().is_err());
    assert_eq!((t.pass(TICK), all(&events)), (1, vec!["asked"]));
    tasks.try_recv().unwrap().run();
    assert_eq!(all(&events), ["run"]);
}

#[test]
fn the_end_of_the_timer_cancels_a_task_that_has_postponed_itself() {
    let mut t = Driven::new();
    let (task, events) = answers([TICK]);
    let timeout = t.schedule_task(task, TICK);
    t.pass(TICK);
    assert_eq!(t.timer.stop(), [timeout]);
    assert_eq!(all(&events), ["asked", "cancelled"]);
}

/// It is asked within the grace, and later deadlines are not waited for.
#[test]
fn a_timer_that_shuts_down_lets_a_task_postpone_itself() {
    let t = Driven::new();
    let count = Arc::new(AtomicUsize::new(0));
    let asked = Arc::clone(&count);
    let (task, events) = postponing(move |_| {
        asked.fetch_add(1, SeqCst);
        Some(TICK)
    });
    let timeout = t.schedule_task(task, TICK);
    t.clock.advance(TICK);
    assert_eq!(t.timer.shutdown(TICK), [timeout]);
    assert_eq!(count.load(SeqCst), 1);
    assert_eq!(all(&events), ["asked", "cancelled"]);
}

#[test]
fn a_task_that_gives_no_answer_is_due() {
    struct Silent;

    impl TimerTask for Silent {
        const POSTPONES: bool = true;

        fn run(self, _: &Timeout) {}
    }

    let mut t = Driven::new();
    t.schedule_task(Silent, TICK);
    assert_eq!(t.pass(TICK), 1);
}

/// A task that does not fit into a node is asked in its box.
#[test]
fn a_large_task_postpones_itself() {
    struct Large(Postponing, [u64; 99]);

    impl TimerTask for Large {
        const POSTPONES: bool = true;

        fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
            self.0.postpone(timeout)
        }

        fn run(self, timeout: &Timeout) {
            assert_eq!(self.1, [7; 99]);
            self.0.run(timeout);
        }
    }

    let mut t = Driven::new();
    let (task, events) = answers([TICK]);
    t.schedule_task(Large(task, [7; 99]), TICK);
    assert_eq!((t.pass(TICK), t.pass(TICK)), (0, 1));
    assert_eq!(all(&events), ["asked", "asked", "run"]);
}
