use std::time::Duration;

use hashed_wheel::{Timeout, TimerTask};
use tracing::Span;

/// A task that runs in the `tracing` span in which it was made.
///
/// The span is entered while the task runs, on the worker or wherever the task executor runs it,
/// and in the hook of a cancelled task. It is closed at the earliest when the task is dropped.
///
/// A closure can do the same by itself, also as a periodic task: `let span = Span::current();`, and
/// `move |timeout| span.in_scope(|| …)`. tracing has the same for futures: `Instrument`.
///
/// # Examples
///
/// ```
/// use hashed_wheel::{HashedWheelTimer, ManualClock, Timeout, TimerTask};
/// use hashed_wheel_util::InSpan;
/// use std::time::Duration;
///
/// struct NoAnswer;
///
/// impl TimerTask for NoAnswer {
///     fn run(self, _: &Timeout) {
///         tracing::warn!("no answer");
///     }
/// }
///
/// let clock = ManualClock::new();
/// let (timer, mut driver) = HashedWheelTimer::builder().clock(clock.clone()).build_driven()?;
/// tracing::info_span!("request", id = 7).in_scope(|| {
///     timer.new_timeout_task(InSpan::new(NoAnswer), Duration::from_secs(5))
/// })?;
/// clock.advance(Duration::from_secs(5));
/// driver.turn(); // the warning is within `request{id=7}`
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct InSpan<T> {
    task: T,
    span: Span,
}

impl<T> InSpan<T> {
    /// Takes the current span of this thread.
    #[must_use]
    pub fn new(task: T) -> Self {
        Self {
            task,
            span: Span::current(),
        }
    }

    /// Returns the task without its span: for a task that the timer has rejected.
    pub fn into_inner(self) -> T {
        self.task
    }
}

impl<T: TimerTask> TimerTask for InSpan<T> {
    const RUNS_ON_WORKER: bool = T::RUNS_ON_WORKER;
    const IS_AWAITED: bool = T::IS_AWAITED;
    const POSTPONES: bool = T::POSTPONES;

    fn postpone(&self, timeout: &Timeout) -> Option<Duration> {
        self.span.in_scope(|| self.task.postpone(timeout))
    }

    fn run(self, timeout: &Timeout) {
        let Self { task, span } = self;
        span.in_scope(|| task.run(timeout));
    }

    fn cancelled(self, timeout: &Timeout) {
        let Self { task, span } = self;
        span.in_scope(|| task.cancelled(timeout));
    }
}
