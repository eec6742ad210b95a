//! The public API as a promise: every name with its signature, and its auto traits. A change that
//! breaks a caller does not compile here. (The full listing is `public-api.txt`, which
//! `.ci/deep` compares.)

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::ops::Deref;
use std::panic::{RefUnwindSafe, UnwindSafe};
use std::sync::Arc;
#[cfg(feature = "async")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use hashed_wheel::wheel::MAX_TICKS_PER_WHEEL;
use hashed_wheel::{
    BuildError, Builder, CancelOnDrop, Clock, Driver, ExpiredTask, HashedWheelTimer, ManualClock,
    MonotonicClock, NewTimeoutError, Stats, TaskExecutor, Timeout, TimerTask, Unavailable,
};

struct Task;

impl TimerTask for Task {
    fn run(self, _: &Timeout) {}
}

type NewTimeout = Result<Timeout, NewTimeoutError>;

#[test]
fn the_timer_has_these_methods() {
    let _: fn(Duration, usize) -> HashedWheelTimer = HashedWheelTimer::new;
    let _: fn() -> Builder = HashedWheelTimer::builder;
    let _: fn() -> HashedWheelTimer = HashedWheelTimer::default;
    let _: fn(&HashedWheelTimer) -> Result<(), NewTimeoutError> = HashedWheelTimer::start;
    let _: fn(&HashedWheelTimer, fn(&Timeout), Duration) -> NewTimeout =
        HashedWheelTimer::new_timeout;
    let _: fn(&HashedWheelTimer, Task, Duration) -> NewTimeout = HashedWheelTimer::new_timeout_task;
    let _: fn(&HashedWheelTimer, fn(&Timeout), Instant) -> NewTimeout =
        HashedWheelTimer::new_timeout_at;
    let _: fn(&HashedWheelTimer, Task, Instant) -> NewTimeout =
        HashedWheelTimer::new_timeout_task_at;
    let _: fn(&HashedWheelTimer) -> Instant = HashedWheelTimer::now;
    let _: fn() -> &'static HashedWheelTimer = HashedWheelTimer::global;
    let _: fn(&HashedWheelTimer) -> Vec<Timeout> = HashedWheelTimer::stop;
    let _: fn(&HashedWheelTimer) -> bool = HashedWheelTimer::is_stopped;
    let _: fn(&HashedWheelTimer) -> usize = HashedWheelTimer::pending_timeouts;
    let _: fn(&HashedWheelTimer) -> Stats = HashedWheelTimer::stats;
    let _: fn(&HashedWheelTimer) -> Duration = HashedWheelTimer::tick_duration;
    let _: fn(&HashedWheelTimer) -> usize = HashedWheelTimer::ticks_per_wheel;
}

#[test]
fn the_builder_has_these_methods() {
    let _: fn() -> Builder = Builder::default;
    let _: fn(Builder, Duration) -> Builder = Builder::tick;
    let _: fn(Builder, usize) -> Builder = Builder::ticks_per_wheel;
    let _: fn(Builder, Option<usize>) -> Builder = Builder::max_pending_timeouts;
    let _: fn(Builder, Option<usize>) -> Builder = Builder::max_tasks_per_turn;
    let _: fn(Builder, Box<dyn TaskExecutor>) -> Builder = Builder::task_executor;
    let _: fn(Builder, Arc<dyn TaskExecutor>) -> Builder = Builder::task_executor;
    let _: fn(Builder, &'static str) -> Builder = Builder::thread_name;
    let _: fn(Builder, String) -> Builder = Builder::thread_name;
    let _: fn(Builder, usize) -> Builder = Builder::thread_stack_size;
    let _: fn(Builder, fn()) -> Builder = Builder::on_thread_start;
    let _: fn(Builder, fn()) -> Builder = Builder::on_thread_stop;
    let _: fn(Builder, bool) -> Builder = Builder::hierarchical;
    let _: fn(Builder, bool) -> Builder = Builder::detach_on_drop;
    let _: fn(Builder, ManualClock) -> Builder = Builder::clock;
    let _: fn(Builder, fn()) -> Builder = Builder::waker;
    let _: fn(Builder) -> Result<HashedWheelTimer, BuildError> = Builder::build;
    let _: fn(Builder) -> Result<(HashedWheelTimer, Driver), BuildError> = Builder::build_driven;
    let _ = |builder: Builder| -> Result<(HashedWheelTimer, Driver), BuildError> {
        builder.build_hosted(|| ())
    };
    let _: fn(&Builder) -> bool = Builder::has_clock;
}

#[test]
fn a_timeout_has_these_methods() {
    let _: fn(&Timeout) -> bool = Timeout::cancel;
    let _: fn(&Timeout) -> bool = Timeout::is_cancelled;
    let _: fn(&Timeout) -> bool = Timeout::is_expired;
    let _: fn(&Timeout, Duration) -> bool = Timeout::reset;
    let _: fn(&Timeout, Instant) -> bool = Timeout::reset_at;
    let _: fn(&Timeout) -> Instant = Timeout::deadline;
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
    let _: fn(&ExpiredTask) -> &Timeout = ExpiredTask::timeout;
    let _: fn(&dyn TaskExecutor, ExpiredTask) -> Result<(), ExpiredTask> =
        <dyn TaskExecutor>::execute;
    let _: fn(&dyn Clock) -> Duration = <dyn Clock>::now;
    let _: fn(&dyn Clock, Instant) -> Duration = <dyn Clock>::time_at;
    let _: fn(&dyn Clock, Duration) -> Instant = <dyn Clock>::instant_at;
    let _: fn() -> MonotonicClock = MonotonicClock::new;
    let _: fn() -> MonotonicClock = MonotonicClock::default;
    let _: fn() -> ManualClock = ManualClock::new;
    let _: fn() -> ManualClock = ManualClock::default;
    let _: fn(&ManualClock, Duration) = ManualClock::advance;
    let _: fn(&ManualClock) -> Duration = ManualClock::now;
    let _: fn(&ManualClock) -> Instant = ManualClock::instant;
    let _: fn(&mut Driver) -> usize = Driver::turn;
    let _: fn(&mut Driver, usize) -> usize = Driver::turn_at_most;
    let _: fn(&Driver) -> Option<Duration> = Driver::next_turn;
    let _: fn(&Driver) -> bool = Driver::is_stopped;
}

#[test]
fn errors_and_stats_have_these_parts() {
    let _: usize = MAX_TICKS_PER_WHEEL;
    match HashedWheelTimer::builder()
        .tick(Duration::ZERO)
        .build()
        .unwrap_err()
    {
        BuildError::TooManyTicksPerWheel { max } => assert_eq!(max, MAX_TICKS_PER_WHEEL),
        BuildError::TickTooLong { max } => assert!(max > Duration::ZERO),
        BuildError::ZeroTicksPerWheel | BuildError::NulInThreadName => unreachable!(),
        error => assert_eq!(error, BuildError::ZeroTick),
    }
    let limit_of = |error: NewTimeoutError| match error {
        NewTimeoutError::TooManyPending { limit } => Some(limit),
        NewTimeoutError::Spawn { os_error, .. } => Some(os_error? as usize),
        _ => None,
    };
    assert_eq!(limit_of(NewTimeoutError::Stopped), None);
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
    let all: [u64; 9] = [
        scheduled,
        expired,
        cancelled,
        pending,
        rejected,
        panics,
        dropped_tasks,
        turns,
        wake_ups,
    ];
    assert_eq!(all, [0; 9]);
}

// --- auto traits and derived traits --------------------------------------------------------------

fn is_send_sync<T: Send + Sync + 'static>() {}
fn is_unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
fn is_unpin<T: Unpin>() {}
fn is_debug<T: Debug>() {}
fn is_clone<T: Clone>() {}
fn is_eq_hash<T: Eq + Hash>() {}
fn is_error_type<T: std::error::Error + Display + Send + Sync + 'static>() {}

#[test]
fn public_types_are_send_and_sync() {
    is_send_sync::<HashedWheelTimer>();
    is_send_sync::<Timeout>();
    is_send_sync::<CancelOnDrop>();
    is_send_sync::<Driver>();
    is_send_sync::<Builder>();
    is_send_sync::<ManualClock>();
    is_send_sync::<MonotonicClock>();
    is_send_sync::<Stats>();
    is_error_type::<BuildError>();
    is_error_type::<NewTimeoutError>();
}

#[test]
fn public_types_are_unwind_safe() {
    is_unwind_safe::<HashedWheelTimer>();
    is_unwind_safe::<Timeout>();
    is_unwind_safe::<CancelOnDrop>();
    is_unwind_safe::<Driver>();
    is_unwind_safe::<ManualClock>();
    is_unwind_safe::<Stats>();
    is_unwind_safe::<BuildError>();
    is_unwind_safe::<NewTimeoutError>();
    is_unwind_safe::<Unavailable>();
    is_clone::<NewTimeoutError>();
    is_clone::<BuildError>();
}

#[test]
fn public_types_are_unpin_debug_and_some_clone() {
    is_unpin::<HashedWheelTimer>();
    is_unpin::<Timeout>();
    is_unpin::<Driver>();
    is_unpin::<Builder>();

    is_debug::<HashedWheelTimer>();
    is_debug::<Timeout>();
    is_debug::<CancelOnDrop>();
    is_debug::<Driver>();
    is_debug::<Builder>();
    is_debug::<ManualClock>();
    is_debug::<MonotonicClock>();
    is_debug::<Stats>();

    is_clone::<HashedWheelTimer>();
    is_clone::<Timeout>();
    is_clone::<ManualClock>();
    is_clone::<Stats>();
    is_clone::<BuildError>();

    is_eq_hash::<Timeout>();
}

#[cfg(feature = "async")]
#[test]
fn async_types_have_these_methods() {
    use std::future::Ready;
    use std::time::Instant;
    use std::{error, io};

    use hashed_wheel::{Interval, Schedule, Sleep, TimeoutError, WithTimeout};

    fn is_future<F: Future<Output = T>, T>() {}

    let _: fn(&HashedWheelTimer, Duration) -> Sleep = HashedWheelTimer::sleep;
    let _: fn(&HashedWheelTimer, Instant) -> Sleep = HashedWheelTimer::sleep_until;
    let _: fn(&HashedWheelTimer, Duration, Ready<u8>) -> WithTimeout<Ready<u8>> =
        HashedWheelTimer::timeout;
    let _: fn(&HashedWheelTimer, Instant, Ready<u8>) -> WithTimeout<Ready<u8>> =
        HashedWheelTimer::timeout_at;
    let _: fn(&HashedWheelTimer, Duration) -> Interval = HashedWheelTimer::interval;
    let _: fn(&HashedWheelTimer, Instant, Duration) -> Interval = HashedWheelTimer::interval_at;
    let _: fn(&HashedWheelTimer, Schedule) -> Interval = HashedWheelTimer::interval_on;

    is_future::<Sleep, Result<(), NewTimeoutError>>();
    let _: fn(&mut Sleep, Duration) = Sleep::reset;
    let _: fn(&mut Sleep, Instant) = Sleep::reset_at;
    let _: fn(&Sleep) -> Instant = Sleep::deadline;
    let _: fn(&Sleep) -> Duration = Sleep::remaining;
    let _: fn(&Sleep) -> bool = Sleep::is_elapsed;

    is_future::<WithTimeout<Ready<u8>>, Result<u8, TimeoutError>>();
    let _: fn(&WithTimeout<u8>) -> &u8 = WithTimeout::get_ref;
    let _: fn(&mut WithTimeout<u8>) -> &mut u8 = WithTimeout::get_mut;
    let _: fn(WithTimeout<u8>) -> u8 = WithTimeout::into_inner;

    let _: fn(&mut Interval, &mut Context<'_>) -> Poll<Result<Instant, NewTimeoutError>> =
        Interval::poll_tick;
    let _: fn(&mut Interval) = Interval::reset;
    let _: fn(&mut Interval) = Interval::reset_immediately;
    let _: fn(&mut Interval, Duration) = Interval::reset_after;
    let _: fn(&mut Interval, Instant) = Interval::reset_at;
    let _: fn(&Interval) -> Duration = Interval::period;
    let _ = async |interval: &mut Interval| -> Result<Instant, NewTimeoutError> {
        interval.tick().await
    };

    let _: fn(&TimeoutError) -> Option<&NewTimeoutError> = |error| match error {
        TimeoutError::Elapsed => None,
        TimeoutError::Timer(error) => Some(error),
    };
    fn is_error<E: error::Error + Send + Sync + Into<io::Error> + 'static>() {}
    is_error::<TimeoutError>();
    is_unwind_safe::<TimeoutError>();
    is_clone::<TimeoutError>();
}
