//! The timers of a reactor, as async-io's: one thread waits for events, no longer than until the
//! next timer, and wakes the tasks whose time has come. Other threads may add timers meanwhile; one
//! that is earlier than all others ends the wait.

use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use hashed_wheel::{CancelOnDrop, Driver, HashedWheelTimer, ManualClock, NewTimeoutError};

use super::SECOND;

struct Reactor {
    timer: HashedWheelTimer,
    driver: Driver,
}

impl Reactor {
    /// `notify` ends the wait, from any thread: an eventfd, or `polling::Poller::notify`.
    fn new(clock: ManualClock, notify: impl Fn() + Send + Sync + 'static) -> Self {
        let builder = HashedWheelTimer::builder().clock(clock).waker(notify);
        let (timer, driver) = builder.build_driven().unwrap();
        Self { timer, driver }
    }

    /// Waits once for events, by a function that gets the longest wait, and wakes tasks.
    fn react<E>(&mut self, wait: impl FnOnce(Option<Duration>) -> E) -> E {
        let events = wait(self.driver.next_turn());
        self.driver.turn();
        events
    }
}

/// A future that is ready at its deadline: async-io's `Timer`.
struct Timer {
    state: Arc<Mutex<State>>,
    _timeout: CancelOnDrop,
}

#[derive(Default)]
struct State {
    is_over: bool,
    waker: Option<Waker>,
}

impl Timer {
    fn at(timer: &HashedWheelTimer, deadline: Instant) -> Result<Self, NewTimeoutError> {
        let state = Arc::<Mutex<State>>::default();
        let own = Arc::clone(&state);
        let expire = move |_: &_| {
            let mut state = own.lock().unwrap();
            state.is_over = true;
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        };
        let _timeout = timer.new_timeout_at(expire, deadline)?.cancel_on_drop();
        Ok(Self { state, _timeout })
    }
}

impl Future for Timer {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.state.lock().unwrap();
        state.waker = Some(context.waker().clone());
        if state.is_over {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, SeqCst);
    }
}

#[test]
fn reactor_waits_until_the_next_timer_and_wakes_its_task() {
    let (clock, task) = (ManualClock::new(), Arc::<Count>::default());
    let mut reactor = Reactor::new(clock.clone(), || ());
    let (begin, waker) = (reactor.timer.now(), Waker::from(Arc::clone(&task)));
    let context = &mut Context::from_waker(&waker);
    let mut timers = [1, 2].map(|n| Timer::at(&reactor.timer, begin + SECOND * n).unwrap());
    let all_wait = timers
        .iter_mut()
        .all(|timer| Pin::new(timer).poll(context).is_pending());
    assert!(all_wait);
    for (before, timer) in timers.iter_mut().enumerate() {
        reactor.react(|limit| {
            assert_eq!((limit, task.0.load(SeqCst)), (Some(SECOND), before));
            clock.advance(SECOND);
        });
        let polled = (Pin::new(timer).poll(context), task.0.load(SeqCst));
        assert_eq!(polled, (Poll::Ready(()), before + 1));
    }
    reactor.react(|limit| assert_eq!(limit, None, "there is no timer left"));
}

#[test]
fn earlier_timer_of_another_thread_ends_the_wait() {
    let notified = Arc::<Count>::default();
    let count = Arc::clone(&notified);
    let mut reactor = Reactor::new(ManualClock::new(), move || Arc::clone(&count).wake());
    let mut kept = vec![];
    // A later one does not end it: the reactor sees it in time anyway.
    for (seconds, limit, notifications) in [(20, None, 1), (10, Some(20), 2), (15, Some(10), 2)] {
        let timer = reactor.timer.clone();
        let add = move || Timer::at(&timer, timer.now() + SECOND * seconds).unwrap();
        kept.push(reactor.react(|longest| {
            assert_eq!(longest, limit.map(|seconds| SECOND * seconds));
            std::thread::spawn(add).join().unwrap()
        }));
        let count = notified.0.load(SeqCst);
        assert_eq!(count, notifications, "a timer after {seconds} s");
    }
    kept.drain(1..);
    reactor.react(|_| ());
    reactor.react(|limit| assert_eq!(limit, Some(SECOND * 20), "dropped timers are gone"));
}
