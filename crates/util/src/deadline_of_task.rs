//! The deadline of the future that a thread polls at the moment. The module `deadline` shows it.

use std::cell::Cell;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use pin_project_lite::pin_project;

thread_local! {
    /// The nearest deadline of the futures that this thread polls at the moment.
    static CURRENT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Returns the deadline of the future that calls this, if it has one.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::deadline;
/// use std::time::{Duration, Instant};
///
/// # smol::block_on(async {
/// let deadline = Instant::now() + Duration::from_secs(5);
/// let seen = deadline::within(deadline, async { deadline::current() }).await;
/// assert_eq!(seen, Ok(Some(deadline)));
/// assert_eq!(deadline::current(), None);
/// # });
/// ```
#[must_use]
pub fn current() -> Option<Instant> {
    CURRENT.get()
}

/// Sets the deadline of a future, without ending it.
pub(crate) fn until<F>(deadline: Option<Instant>, future: F) -> Within<F> {
    Within { deadline, future }
}

/// Sets the deadline of the current thread, if it is nearer than what it has, until the value is
/// dropped.
pub(crate) fn enter(deadline: Option<Instant>) -> Entered {
    Entered(CURRENT.replace(nearest(deadline)))
}

/// Returns the nearer one of `deadline` and the current one.
pub(crate) fn nearest(deadline: Option<Instant>) -> Option<Instant> {
    deadline.into_iter().chain(current()).min()
}

/// Restores what was current before, also if a poll panics.
pub(crate) struct Entered(Option<Instant>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.set(self.0);
    }
}

pin_project! {
    /// A future in which a deadline is [`current`]:
    /// [`within`](crate::deadline::within), [`inherit`](crate::deadline::inherit).
    #[derive(Debug)]
    #[must_use = "a future does nothing unless it is awaited"]
    pub struct Within<F> {
        deadline: Option<Instant>,
        #[pin]
        future: F,
    }
}

impl<F: Future> Future for Within<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let _entered = enter(*this.deadline);
        this.future.poll(context)
    }
}
