//! The public face as a promise: every name with its signature, and what can go to which thread. A change that breaks a caller
//! does not compile here. (The full listing is tests/public-api.txt, which `.ci/deep` compares.)

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::rc::Rc;
use std::time::{Duration, Instant};

use hashed_wheel::wheel::{HashedWheel, HierarchicalWheel, Key, MAX_TICKS_PER_WHEEL};
use hashed_wheel::{
    BuildError, Builder, CancelOnDrop, Clock, Driver, ExpiredTask, HashedWheelTimer, KeyedTimeouts,
    ManualClock, NewTimeoutError, Stats, TaskExecutor, Timeout, TimerTask,
};

struct Task;

impl TimerTask for Task {
    fn run(self, _: &Timeout) {}
}

type Refusable = Result<Timeout, NewTimeoutError>;

#[test]
fn the_timer_has_these_methods() {
    let _: fn(Duration, usize) -> HashedWheelTimer = HashedWheelTimer::new;
    let _: fn() -> Builder = HashedWheelTimer::builder;
    let _: fn() -> HashedWheelTimer = HashedWheelTimer::default;
    let _: fn(&HashedWheelTimer) -> Result<(), NewTimeoutError> = HashedWheelTimer::start;
    let _: fn(&HashedWheelTimer, fn(&Timeout), Duration) -> Refusable = HashedWheelTimer::new_timeout;
    let _: fn(&HashedWheelTimer, Task, Duration) -> Refusable = HashedWheelTimer::new_timeout_task;
    let _: fn(&HashedWheelTimer, fn(&Timeout), Instant) -> Refusable = HashedWheelTimer::new_timeout_at;
    let _: fn() -> &'static HashedWheelTimer = HashedWheelTimer::global;
    let _: fn(&HashedWheelTimer) -> Vec<Timeout> = HashedWheelTimer::stop;
    let _: fn(&HashedWheelTimer) -> bool = HashedWheelTimer::is_stopped;
    let _: fn(&HashedWheelTimer) -> usize = HashedWheelTimer::pending_timeouts;
    let _: fn(&HashedWheelTimer) -> Stats = HashedWheelTimer::stats;
    let _: fn(&HashedWheelTimer) -> Duration = HashedWheelTimer::tick_duration;
    let _: fn(&HashedWheelTimer) -> usize = HashedWheelTimer::ticks_per_wheel;
}

#[test]
fn keyed_timeouts_have_these_methods() {
    type Keyed = KeyedTimeouts<String>;
    type Schedule = fn(&Keyed, String, fn(String), Duration) -> Result<bool, NewTimeoutError>;

    let _: fn(&HashedWheelTimer) -> Keyed = Keyed::new;
    let _: Schedule = Keyed::schedule;
    let _: fn(&Keyed, &str, Duration) -> bool = Keyed::reset;
    let _: fn(&Keyed, &str) -> bool = Keyed::cancel;
    let _: fn(&Keyed, &str) -> bool = Keyed::contains;
    let _: fn(&Keyed) -> usize = Keyed::len;
    let _: fn(&Keyed) -> bool = Keyed::is_empty;
    let _: fn(&Keyed) = Keyed::clear;
    let _: fn(&Keyed) -> Keyed = Keyed::clone;
}

#[cfg(feature = "tokio")]
#[test]
fn tokios_executors_have_these_methods() {
    use hashed_wheel::executor::{TokioSpawn, TokioSpawnBlocking};
    use tokio::runtime::Handle;

    let _: fn(Handle) -> TokioSpawn = TokioSpawn::new;
    let _: fn(Handle) -> TokioSpawnBlocking = TokioSpawnBlocking::new;
    let _: fn(Builder, TokioSpawn) -> Builder = Builder::task_executor;
    let _: fn(Builder, TokioSpawnBlocking) -> Builder = Builder::task_executor;
}

#[cfg(feature = "rayon")]
#[test]
fn rayons_executors_have_these_methods() {
    use hashed_wheel::executor::{RayonGlobal, RayonPool};
    use rayon_core::ThreadPool;
    use std::sync::Arc;

    let _: fn(Arc<ThreadPool>) -> RayonPool = RayonPool::new;
    let _: fn() -> RayonGlobal = RayonGlobal::default;
    let _: fn(Builder, RayonGlobal) -> Builder = Builder::task_executor;
    let _: fn(Builder, RayonPool) -> Builder = Builder::task_executor;
}

#[test]
fn the_builder_has_these_methods() {
    let _: fn() -> Builder = Builder::default;
    let _: fn(Builder, Duration) -> Builder = Builder::tick;
    let _: fn(Builder, usize) -> Builder = Builder::ticks_per_wheel;
    let _: fn(Builder, usize) -> Builder = Builder::max_pending_timeouts;
    let _: fn(Builder, fn(ExpiredTask)) -> Builder = Builder::task_executor;
    let _: fn(Builder, &'static str) -> Builder = Builder::thread_name;
    let _: fn(Builder, String) -> Builder = Builder::thread_name;
    let _: fn(Builder) -> Builder = Builder::hierarchical;
    let _: fn(Builder, ManualClock) -> Builder = Builder::clock;
    let _: fn(Builder, fn()) -> Builder = Builder::waker;
    let _: fn(Builder) -> Result<HashedWheelTimer, BuildError> = Builder::build;
    let _: fn(Builder) -> Result<(HashedWheelTimer, Driver), BuildError> = Builder::build_driven;
}

#[test]
fn a_timeout_has_these_methods() {
    let _: fn(&Timeout) -> bool = Timeout::cancel;
    let _: fn(&Timeout) -> bool = Timeout::is_cancelled;
    let _: fn(&Timeout) -> bool = Timeout::is_expired;
    let _: fn(&Timeout, Duration) -> bool = Timeout::reset;
    let _: fn(&Timeout) -> HashedWheelTimer = Timeout::timer;
    let _: fn(&Timeout) -> Duration = Timeout::remaining;
    let _: fn(Timeout) -> CancelOnDrop = Timeout::cancel_on_drop;
    let _: fn(&CancelOnDrop) -> &Timeout = CancelOnDrop::deref;
}

#[test]
fn tasks_executors_and_clocks_have_these_methods() {
    let _: fn(Task, &Timeout) = Task::run;
    let _: fn(Task, &Timeout) = Task::cancelled;
    let _: fn(ExpiredTask) = ExpiredTask::run;
    let _: fn(&fn(ExpiredTask), ExpiredTask) = TaskExecutor::execute;
    let _: fn(&dyn TaskExecutor, ExpiredTask) = <dyn TaskExecutor>::execute;
    let _: fn(&dyn Clock) -> Duration = <dyn Clock>::now;
    let _: fn() -> ManualClock = ManualClock::new;
    let _: fn() -> ManualClock = ManualClock::default;
    let _: fn(&ManualClock, Duration) = ManualClock::advance;
    let _: fn(&ManualClock) -> Duration = ManualClock::now;
    let _: fn(&mut Driver) -> usize = Driver::turn;
    let _: fn(&Driver) -> Option<Duration> = Driver::next_turn;
    let _: fn(&Driver) -> bool = Driver::is_stopped;
}

/// Of a wheel of what cannot even go to another thread.
macro_rules! wheel_has_these_methods {
    ($name:ident, $wheel:ident) => {
        #[test]
        fn $name() {
            type Wheel = $wheel<Rc<str>>;
            let _: fn(usize) -> Wheel = Wheel::new;
            let _: fn(&mut Wheel, u64, Rc<str>) -> Key = Wheel::insert;
            let _: fn(&mut Wheel, Key) -> Option<Rc<str>> = Wheel::remove;
            let _: fn(&Wheel, Key) -> Option<&Rc<str>> = Wheel::get;
            let _: fn(&mut Wheel, u64, fn(Rc<str>)) = Wheel::advance;
            let _: fn(&Wheel) -> Option<u64> = Wheel::next_deadline;
            let _: fn(&Wheel) -> u64 = Wheel::tick;
            let _: fn(&Wheel) -> usize = Wheel::len;
            let _: fn(&Wheel) -> bool = Wheel::is_empty;
            fn drain(wheel: &mut Wheel) -> impl Iterator<Item = Rc<str>> {
                wheel.drain()
            }
            assert_eq!(drain(&mut Wheel::new(8)).count(), 0);
        }
    };
}

wheel_has_these_methods!(the_hashed_wheel_has_these_methods, HashedWheel);
wheel_has_these_methods!(the_hierarchical_wheel_has_these_methods, HierarchicalWheel);

#[test]
fn the_errors_and_the_counters_have_these_parts() {
    let _: usize = MAX_TICKS_PER_WHEEL;
    match HashedWheelTimer::builder().tick(Duration::ZERO).build().unwrap_err() {
        BuildError::TooManyTicksPerWheel { max } => assert_eq!(max, MAX_TICKS_PER_WHEEL),
        BuildError::TickTooLong { max } => assert!(max > Duration::ZERO),
        BuildError::ZeroTicksPerWheel | BuildError::NulInThreadName => unreachable!(),
        error => assert_eq!(error, BuildError::ZeroTick),
    }
    let refused = |error: NewTimeoutError| match error {
        NewTimeoutError::TooManyPending { limit } => Some(limit),
        NewTimeoutError::Spawn(error) => Some(error.raw_os_error()? as usize),
        _ => None,
    };
    assert_eq!(refused(NewTimeoutError::Stopped), None);
    let Stats {
        scheduled,
        expired,
        cancelled,
        pending,
        rejected,
        panics,
        dropped_tasks,
        turns,
        wake_ups,
        ..
    } = HashedWheelTimer::default().stats();
    let all: [u64; 9] =
        [scheduled, expired, cancelled, pending, rejected, panics, dropped_tasks, turns, wake_ups];
    assert_eq!(all, [0; 9]);
}

// --- what can go to which thread, and be looked at after a panic ----------------------------------------------------

fn threads<T: Send + Sync + 'static>() {}
fn panics<T: UnwindSafe + RefUnwindSafe>() {}
fn moves<T: Unpin>() {}
fn shows<T: Debug>() {}
fn copies<T: Clone>() {}
fn compares<T: Eq + Hash>() {}
fn fails<T: std::error::Error + Display + Send + Sync + 'static>() {}

#[test]
fn all_go_to_other_threads() {
    threads::<HashedWheelTimer>();
    threads::<Timeout>();
    threads::<CancelOnDrop>();
    threads::<ExpiredTask>();
    threads::<Driver>();
    threads::<Builder>();
    threads::<ManualClock>();
    threads::<Stats>();
    threads::<Key>();
    threads::<HashedWheel<String>>();
    threads::<HierarchicalWheel<String>>();
    fails::<BuildError>();
    fails::<NewTimeoutError>();
}

#[test]
fn a_panic_leaves_nothing_half_done() {
    panics::<HashedWheelTimer>();
    panics::<Timeout>();
    panics::<CancelOnDrop>();
    panics::<ExpiredTask>();
    panics::<Driver>();
    panics::<ManualClock>();
    panics::<Stats>();
    panics::<Key>();
    panics::<BuildError>();
    panics::<HashedWheel<String>>();
    panics::<HierarchicalWheel<String>>();
}

#[test]
fn all_can_be_moved_shown_and_where_it_makes_sense_cloned() {
    moves::<HashedWheelTimer>();
    moves::<Timeout>();
    moves::<Driver>();
    moves::<Builder>();
    moves::<HashedWheel<String>>();
    moves::<HierarchicalWheel<String>>();

    // Of a wheel too whose entries cannot be shown.
    shows::<HashedWheel<Box<dyn Send>>>();
    shows::<HierarchicalWheel<Box<dyn Send>>>();
    shows::<HashedWheelTimer>();
    shows::<Timeout>();
    shows::<CancelOnDrop>();
    shows::<ExpiredTask>();
    shows::<Driver>();
    shows::<Builder>();
    shows::<ManualClock>();
    shows::<Stats>();
    shows::<Key>();

    copies::<HashedWheelTimer>();
    copies::<Timeout>();
    copies::<ManualClock>();
    copies::<Stats>();
    copies::<BuildError>();

    compares::<Timeout>();
    compares::<Key>();
}

#[cfg(feature = "async")]
#[test]
fn what_is_async_has_these_methods() {
    use std::future::Ready;
    use std::task::{Context, Poll};
    use std::time::Instant;
    use std::{error, io};

    use hashed_wheel::{Interval, Schedule, Sleep, TimeoutError, WithTimeout};

    fn is_future<F: Future<Output = T>, T>() {}

    let _: fn(&HashedWheelTimer, Duration) -> Sleep = HashedWheelTimer::sleep;
    let _: fn(&HashedWheelTimer, Instant) -> Sleep = HashedWheelTimer::sleep_until;
    let _: fn(&HashedWheelTimer, Duration, Ready<u8>) -> WithTimeout<Ready<u8>> = HashedWheelTimer::timeout;
    let _: fn(&HashedWheelTimer, Duration) -> Interval = HashedWheelTimer::interval;
    let _: fn(&HashedWheelTimer, Schedule) -> Interval = HashedWheelTimer::interval_on;

    is_future::<Sleep, Result<(), NewTimeoutError>>();
    let _: fn(&mut Sleep, Duration) = Sleep::reset;
    let _: fn(&Sleep) -> Duration = Sleep::remaining;
    let _: fn(&Sleep) -> bool = Sleep::is_elapsed;

    is_future::<WithTimeout<Ready<u8>>, Result<u8, TimeoutError>>();
    let _: fn(&WithTimeout<u8>) -> &u8 = WithTimeout::get_ref;
    let _: fn(&mut WithTimeout<u8>) -> &mut u8 = WithTimeout::get_mut;
    let _: fn(WithTimeout<u8>) -> u8 = WithTimeout::into_inner;

    let _: fn(&mut Interval, &mut Context<'_>) -> Poll<Result<(), NewTimeoutError>> = Interval::poll_tick;
    let _ = async |interval: &mut Interval| -> Result<(), NewTimeoutError> { interval.tick().await };

    let _: fn(&TimeoutError) -> Option<&NewTimeoutError> = |error| match error {
        TimeoutError::Elapsed => None,
        TimeoutError::Timer(error) => Some(error),
        _ => None,
    };
    fn is_error<E: error::Error + Send + Sync + Into<io::Error> + 'static>() {}
    is_error::<TimeoutError>();
}
