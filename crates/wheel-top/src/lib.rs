//! Shows the timers of a running program to `wheel-top`, which runs in another terminal.
//!
//! ```
//! use hashed_wheel::HashedWheelTimer;
//! use std::net::{Ipv4Addr, SocketAddr};
//! use wheel_top::Show;
//!
//! let timer = HashedWheelTimer::default();
//! let show = Show::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
//! show.watch("connections", &timer);
//! # std::io::Result::Ok(())
//! ```
//!
//! A client of that address receives the state of all timers ten times per second, as one JSON
//! [`Frame`] per line.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::HashedWheelTimer;
use serde::{Deserialize, Serialize};

/// The interval between two frames.
pub const INTERVAL: Duration = Duration::from_millis(100);

/// A thread that sends the state of timers to its clients.
#[derive(Debug, Clone)]
pub struct Show {
    address: SocketAddr,
    watch: Sender<Watched>,
}

/// A watched timer. After the timer has been stopped, only its last state is kept.
#[derive(Debug)]
struct Watched {
    timer: Option<HashedWheelTimer>,
    last: Snapshot,
}

impl Show {
    /// Starts the thread.
    ///
    /// # Errors
    ///
    /// If it cannot listen on the address, or the thread cannot be started.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (watch, new) = mpsc::channel();
        let show = Self { address: listener.local_addr()?, watch };
        thread::Builder::new().name("top".into()).spawn(move || serve(&listener, &new))?;
        Ok(show)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows this timer together with the others until it is stopped.
    ///
    /// `Show` holds a handle of the timer. Therefore the program must
    /// [stop](HashedWheelTimer::stop) the timer, unless the timer should live as long as the
    /// program.
    pub fn watch(&self, name: &str, timer: &HashedWheelTimer) {
        let last = Snapshot { name: name.to_owned(), ..Snapshot::default() };
        // This cannot fail: the thread runs as long as the program.
        let _ = self.watch.send(Watched { timer: Some(timer.clone()), last });
    }
}

fn serve(listener: &TcpListener, new: &Receiver<Watched>) {
    let program = std::env::args().next().unwrap_or_default();
    let program = Path::new(&program).file_stem().unwrap_or_default().to_string_lossy().into_owned();
    let began = Instant::now();
    let mut viewers = Vec::new();
    let mut watched: Vec<Watched> = Vec::new();
    loop {
        while let Ok((stream, _)) = listener.accept() {
            viewers.extend(Viewer::new(stream));
        }
        for new in new.try_iter() {
            watched.retain(|other| other.timer.is_some());
            watched.push(new);
        }
        watched.retain_mut(|watched| watched.update(!viewers.is_empty()));
        if !viewers.is_empty() {
            let timers = watched.iter().map(|watched| watched.last.clone()).collect();
            let frame = Frame { program: program.clone(), age: began.elapsed(), timers };
            let mut line = serde_json::to_vec(&frame).expect("a frame can be serialised");
            line.push(b'\n');
            viewers.retain_mut(|viewer| viewer.send(&line).is_ok());
        }
        thread::sleep(INTERVAL);
    }
}

/// A client. The thread never blocks on it.
struct Viewer {
    stream: TcpStream,
    /// The rest of a line that the socket's buffer had no space for.
    unsent: Vec<u8>,
}

impl Viewer {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, unsent: Vec::new() })
    }

    /// Sends as much as the buffer has space for. A client that has not received the previous line
    /// completely misses this one.
    fn send(&mut self, line: &[u8]) -> io::Result<()> {
        if self.unsent.is_empty() {
            self.unsent.extend(line);
        }
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => drop(self.unsent.drain(..sent)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

impl Watched {
    /// Updates the last state. Returns false if the clock of the timer has panicked: the timer is
    /// then no longer watched.
    fn update(&mut self, has_viewers: bool) -> bool {
        let Some(timer) = &self.timer else { return true };
        if has_viewers || timer.is_stopped() {
            let seen = panic::catch_unwind(AssertUnwindSafe(|| Snapshot::of(&self.last.name, timer)));
            let Ok(seen) = seen else { return false };
            self.last = seen;
            if self.last.is_stopped {
                self.timer = None;
            }
        }
        true
    }
}

/// The state of a program and its timers at one time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub program: String,
    /// The time since the thread was started.
    pub age: Duration,
    pub timers: Vec<Snapshot>,
}

/// The state of a timer at one time: the displayed part of [`Stats`](hashed_wheel::Stats) and
/// [`Occupancy`](hashed_wheel::Occupancy).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// The timer is stopped and all of its timeouts have ended.
    pub is_stopped: bool,
    pub tick: Duration,
    pub ticks_per_wheel: usize,
    /// `None` if the timer was in the middle of a turn, is stopped, or has [too many
    /// slots](Self::has_too_many_slots).
    pub wheel: Option<Wheel>,
    pub pending: u64,
    pub scheduled: u64,
    pub expired: u64,
    pub periodic_runs: u64,
    pub cancelled: u64,
    pub refused: u64,
    pub panicked: u64,
    pub dropped: u64,
    pub slow: u64,
    pub turns: u64,
    pub wake_ups: u64,
    pub long_turns: u64,
    pub longest_turn: Duration,
    pub busy: Duration,
    pub worst_lateness: Duration,
    /// A histogram: the upper bound of each bucket and its count. The last bucket has no bound.
    pub lateness: Vec<(Option<Duration>, u64)>,
}

/// The content of the wheel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Wheel {
    /// The current tick.
    pub tick: u64,
    pub on_the_way: usize,
    pub levels: Vec<Level>,
}

/// One level of the wheel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    pub ticks_per_slot: u64,
    /// The number of slots.
    pub size: usize,
    pub present: usize,
    /// The number of entries in each slot. If there are very many slots, each number is a sum over
    /// adjacent slots.
    pub slots: Vec<usize>,
}

/// A level with more slots is sent as sums over adjacent slots.
pub const MAX_SENT_SLOTS: usize = 1_024;

/// The state of a wheel with more slots is not read: that would block the worker for milliseconds
/// or seconds.
const MAX_READ_SLOTS: usize = 1 << 16;

/// The number of attempts to read the wheel. Most turns are short, so a later attempt usually
/// succeeds.
const TRIES: usize = 5;

impl Snapshot {
    #[must_use]
    pub fn of(name: &str, timer: &HashedWheelTimer) -> Self {
        let is_closed = timer.is_stopped();
        let stats = timer.stats();
        // `stop` may still be ending the last timeouts.
        let is_stopped = is_closed && stats.pending == 0;
        let mut seen = Self {
            name: name.to_owned(),
            is_stopped,
            tick: timer.tick_duration(),
            ticks_per_wheel: timer.ticks_per_wheel(),
            wheel: None,
            pending: stats.pending,
            scheduled: stats.scheduled,
            expired: stats.expired,
            periodic_runs: stats.periodic_runs,
            cancelled: stats.cancelled,
            refused: stats.rejected,
            panicked: stats.panics,
            dropped: stats.dropped_tasks,
            slow: stats.slow_tasks,
            turns: stats.turns,
            wake_ups: stats.wake_ups,
            long_turns: stats.long_turns,
            longest_turn: stats.longest_turn,
            busy: stats.busy_time,
            worst_lateness: stats.lateness.max,
            lateness: stats.lateness.buckets().collect(),
        };
        if !is_closed && !seen.has_too_many_slots() {
            seen.wheel = Wheel::of(timer);
        }
        seen
    }

    /// Whether the wheel has too many slots to be read.
    #[must_use]
    pub fn has_too_many_slots(&self) -> bool {
        self.ticks_per_wheel > MAX_READ_SLOTS
    }
}

impl Wheel {
    fn of(timer: &HashedWheelTimer) -> Option<Self> {
        let occupancy = (0..TRIES).find_map(|attempt| {
            if attempt > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            timer.occupancy().ok()
        })?;
        let levels = occupancy.levels.iter().map(|level| Level {
            ticks_per_slot: level.ticks_per_slot,
            size: level.slots.len(),
            present: level.current_slot,
            slots: merge(&level.slots, MAX_SENT_SLOTS),
        });
        Some(Self { tick: occupancy.tick, on_the_way: occupancy.queued, levels: levels.collect() })
    }
}

/// Adds adjacent numbers until there are at most `max` numbers.
#[must_use]
pub fn merge(slots: &[usize], max: usize) -> Vec<usize> {
    let count = slots.len().min(max);
    let begin = |part| part * slots.len() / count;
    (0..count).map(|part| slots[begin(part)..begin(part + 1)].iter().sum()).collect()
}
