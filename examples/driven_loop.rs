//! An event loop without another thread for the timer: the loop sleeps until the next timeout or
//! until another thread wakes it, and then turns the timer.
//!
//! ```text
//! on the thread of the loop: true
//! after 50 ms: true
//! ```

use std::io;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use polling::{Events, Poller};

fn main() -> io::Result<()> {
    // The loop's `epoll` or `kqueue`. A timeout that another thread schedules may be due earlier
    // than the loop would wake up: then the timer calls the waker.
    let poller = Arc::new(Poller::new()?);
    let waker = Arc::clone(&poller);
    let (timer, mut driver) = HashedWheelTimer::builder()
        .tick(Duration::from_millis(1))
        .waker(move || waker.notify().expect("the poller lives"))
        .build_driven()
        .map_err(io::Error::other)?;

    let (sender, done) = mpsc::channel();
    let handle = timer.clone();
    thread::spawn(move || {
        let begin = Instant::now();
        let report = move || sender.send((thread::current().id(), begin.elapsed()));
        handle.new_timeout(move |_| _ = report(), Duration::from_millis(50))
    });

    let mut events = Events::new();
    let (ran_on, time) = loop {
        poller.wait(&mut events, driver.next_turn())?;
        events.clear(); // a loop with sockets handles them here
        driver.turn();
        if let Ok(report) = done.try_recv() {
            break report;
        }
    };
    println!(
        "on the thread of the loop: {}",
        ran_on == thread::current().id()
    );
    println!("after 50 ms: {}", time >= Duration::from_millis(50));
    Ok(())
}
