//! A runtime of one thread: a `Sleep` on a `LocalTimer`, and a reactor on `polling`.
//!
//! ```text
//! 20 ms are over
//! ```

use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};
use std::{cell::RefCell, future::Future, io};

use futures_lite::future::{self, poll_once};
use polling::{Events, Poller};
use timing_wheels::{Key, LocalTimer};

thread_local!(static TIMER: RefCell<LocalTimer<Option<Waker>, Instant>> =
    RefCell::new(LocalTimer::new(Instant::now(), Duration::from_millis(1))));

fn with_timer<R>(access: impl FnOnce(&mut LocalTimer<Option<Waker>, Instant>) -> R) -> R {
    TIMER.with(|timer| access(&mut timer.borrow_mut()))
}

/// The timer has the waker of the future until the reactor takes it out.
struct Sleep(Key);

impl Future for Sleep {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let waker = context.waker().clone();
        // The old waker is dropped outside, as in `drop`.
        let old = with_timer(|timer| Some(timer.get_mut(self.0)?.replace(waker)));
        old.map_or(Poll::Ready(()), |_| Poll::Pending)
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        drop(with_timer(|timer| timer.remove(self.0)));
    }
}

/// Polls a future after each sleep of the thread. So its waker has nothing to do.
fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let (poller, mut events, mut future) = (Poller::new()?, Events::new(), pin!(future));
    loop {
        if let Some(output) = future::block_on(poll_once(&mut future)) {
            return Ok(output);
        }
        let now = Instant::now();
        let next = with_timer(|timer| Some(timer.next()?.saturating_duration_since(now)));
        poller.wait(&mut events, next)?;
        events.clear(); // a runtime with sockets wakes their tasks here
        while let Some((_, waker)) = with_timer(|timer| timer.poll(Instant::now())) {
            waker.into_iter().for_each(Waker::wake);
        }
    }
}

fn main() -> io::Result<()> {
    let at = |ms| Instant::now() + Duration::from_millis(ms);
    let sleep = |ms| Sleep(with_timer(|timer| timer.insert(at(ms), None)));
    block_on(future::or(sleep(20), sleep(60_000))).map(|()| println!("20 ms are over"))
}
