//! Two timers with some load, for users without a program to watch.

use std::collections::VecDeque;
use std::f64::consts::TAU;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use crate::show::Show;
use fastrand::Rng;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError, Timeout};

const TICK: Duration = Duration::from_millis(10);

/// The maximum number of open requests. Above it, the oldest request is answered.
const OPEN: usize = 4_000;

/// The limit of the timers. Some requests of a burst are rejected if many are open.
const LIMIT: usize = 4_200;

const STEP: Duration = Duration::from_millis(5);

/// Starts the timers and returns the address of their view.
pub(crate) fn start() -> io::Result<SocketAddr> {
    let show = Show::at((Ipv4Addr::LOCALHOST, 0).into())?;
    let builder = || {
        let builder = HashedWheelTimer::builder()
            .tick(TICK)
            .max_pending_timeouts(Some(LIMIT));
        builder.slow_task_threshold(Some(Duration::from_millis(5)))
    };
    // Delays of up to two rounds of the wheel.
    let hashed = builder().build().map_err(io::Error::other)?;
    show.watch("hashed", &hashed);
    thread::spawn(move || {
        Service::new(hashed, |random| 1.0 + 6.0 * random.f64() * random.f64()).run();
    });
    // Delays from 20 ms to an hour.
    let hierarchical = builder()
        .hierarchical(true)
        .ticks_per_wheel(64)
        .build()
        .map_err(io::Error::other)?;
    show.watch("hierarchical", &hierarchical);
    thread::spawn(move || {
        Service::new(hierarchical, |random| 0.02 * 180_000_f64.powf(random.f64())).run();
    });
    Ok(show.address())
}

/// Requests with deadlines. Most of them are answered in time.
struct Service {
    timer: HashedWheelTimer,
    /// Returns the delay of a deadline in seconds.
    deadline: fn(&mut Rng) -> f64,
    random: Rng,
    open: VecDeque<Timeout>,
}

impl Service {
    fn new(timer: HashedWheelTimer, deadline: fn(&mut Rng) -> f64) -> Self {
        Self {
            timer,
            deadline,
            random: Rng::with_seed(1),
            open: VecDeque::new(),
        }
    }

    fn run(mut self) {
        let began = Instant::now();
        for step in 0_u64.. {
            // The rate varies like a wave, and sometimes there is a burst.
            let wave = 1.0 + (began.elapsed().as_secs_f64() * TAU / 8.0).sin();
            for _ in 0..(wave * 10.0) as usize {
                let deadline = (self.deadline)(&mut self.random);
                self.ask(Duration::from_secs_f64(deadline));
            }
            if step % 700 == 699 {
                (0..500).for_each(|n| self.ask(Duration::from_millis(2_000 + n)));
            }
            self.answer();
            thread::sleep(STEP);
        }
    }

    fn ask(&mut self, deadline: Duration) {
        // A few of the tasks are slow and delay the others.
        let is_slow = self.random.usize(..5_000) == 0;
        let late = move |_: &Timeout| {
            if is_slow {
                thread::sleep(TICK + TICK / 2);
            }
        };
        match self.timer.new_timeout(late, deadline) {
            Ok(timeout) => self.open.push_back(timeout),
            Err(NewTimeoutError::TooManyPending { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn answer(&mut self) {
        for _ in 0..self.random.usize(..12) {
            let chosen = self.random.usize(..=self.open.len());
            if let Some(request) = self.open.swap_remove_back(chosen) {
                request.cancel();
            }
        }
        // Some requests take long and report progress.
        for _ in 0..30 {
            let chosen = self.random.usize(..=self.open.len());
            if let Some(request) = self.open.get(chosen) {
                _ = request.reset(Duration::from_secs_f64((self.deadline)(&mut self.random)));
            }
        }
        while self.open.len() > OPEN {
            self.open
                .pop_front()
                .expect("there are open requests")
                .cancel();
        }
    }
}
