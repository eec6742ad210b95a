//! A runtime of one thread: a `Sleep` on a `LocalTimer`, and a reactor on `polling`.
//!
//! ```text
//! 20 ms are over
//! ```

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{cell::RefCell, io, mem};

use hashed_wheel::{LocalTimer, wheel::Key};
use polling::{Events, Poller};

thread_local!(static TIMER: RefCell<LocalTimer<Waker, Instant>> =
    RefCell::new(LocalTimer::new(Instant::now(), Duration::from_millis(1))));

/// The timer has the waker of the future until the reactor takes it out.
struct Sleep(Key);

fn sleep_until(at: Instant) -> Sleep {
    Sleep(TIMER.with_borrow_mut(|timer| timer.insert(at, Waker::noop().clone())))
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        // The old waker is dropped outside, as in `drop`.
        let swap = |timer: &mut LocalTimer<_, _>| Some(mem::replace(timer.get_mut(self.0)?, waker));
        TIMER
            .with_borrow_mut(swap)
            .map_or(Poll::Ready(()), |_| Poll::Pending)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        drop(TIMER.with_borrow_mut(|timer| timer.remove(self.0)));
    }
}

/// Polls a future after each sleep of the thread. So its waker has nothing to do.
fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let (poller, mut events, mut future) = (Poller::new()?, Events::new(), pin!(future));
    loop {
        if let Poll::Ready(output) = future
            .as_mut()
            .poll(&mut Context::from_waker(Waker::noop()))
        {
            return Ok(output);
        }
        let next = TIMER.with_borrow(LocalTimer::next);
        poller.wait(
            &mut events,
            next.map(|at| at.saturating_duration_since(Instant::now())),
        )?;
        events.clear(); // a runtime with sockets wakes their tasks here
        let now = Instant::now();
        while let Some((_, waker)) = TIMER.with_borrow_mut(|timer| timer.poll(now)) {
            waker.wake();
        }
    }
}

fn main() -> io::Result<()> {
    let after = |ms| sleep_until(Instant::now() + Duration::from_millis(ms));
    block_on(smol::future::or(after(20), after(60_000))).map(|()| println!("20 ms are over"))
}
