//! A runtime of one thread: a `Sleep` on a `LocalTimer`, and a reactor on `polling`.
//!
//! ```text
//! 20 ms are over
//! ```

use std::future::Future;
use std::pin::{pin, Pin};
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};
use std::{cell::RefCell, io, mem};

use futures_lite::future;
use polling::{Events, Poller};
use timing_wheels::{Key, LocalTimer};

thread_local!(static TIMER: RefCell<LocalTimer<Waker, Instant>> =
    RefCell::new(LocalTimer::new(Instant::now(), Duration::from_millis(1))));

fn with_timer<R>(access: impl FnOnce(&mut LocalTimer<Waker, Instant>) -> R) -> R {
    TIMER.with(|timer| access(&mut timer.borrow_mut()))
}

/// The waker of a task that is polled after each sleep of the thread.
struct Nothing;

impl Wake for Nothing {
    fn wake(self: Arc<Self>) {}
}

/// The timer has the waker of the future until the reactor takes it out.
struct Sleep(Key);

fn sleep_until(at: Instant) -> Sleep {
    Sleep(with_timer(|timer| {
        timer.insert(at, Arc::new(Nothing).into())
    }))
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        // The old waker is dropped outside, as in `drop`.
        let swap = |timer: &mut LocalTimer<_, _>| Some(mem::replace(timer.get_mut(self.0)?, waker));
        with_timer(swap).map_or(Poll::Ready(()), |_| Poll::Pending)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        drop(with_timer(|timer| timer.remove(self.0)));
    }
}

fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let (poller, mut events, mut future) = (Poller::new()?, Events::new(), pin!(future));
    let waker = Waker::from(Arc::new(Nothing));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return Ok(output);
        }
        let next = with_timer(|timer| timer.next());
        let rest = next.map(|at| at.saturating_duration_since(Instant::now()));
        poller.wait(&mut events, rest)?;
        events.clear(); // a runtime with sockets wakes their tasks here
        let now = Instant::now();
        while let Some((_, waker)) = with_timer(|timer| timer.poll(now)) {
            waker.wake();
        }
    }
}

fn main() -> io::Result<()> {
    let after = |ms| sleep_until(Instant::now() + Duration::from_millis(ms));
    block_on(future::or(after(20), after(60_000))).map(|()| println!("20 ms are over"))
}
