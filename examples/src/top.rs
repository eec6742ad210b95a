//! How a running program shows its timers to `wheel-top`, in another terminal.
//!
//! Two lines make a program one that can be watched: a field of its options, and a call once the timer is built.
//!
//! ```
//! use clap::Parser;
//! use hashed_wheel::HashedWheelTimer;
//! use hashed_wheel_examples::top::Top;
//!
//! #[derive(Parser)]
//! struct Options {
//!     #[command(flatten)]
//!     top: Top,
//! }
//!
//! let options = Options::parse_from(["program", "--top", "127.0.0.1:0"]);
//! let timer = HashedWheelTimer::default();
//! options.top.watch("connections", &timer);
//! ```
//!
//! Who connects to that address is told of all timers ten times a second: a [`Frame`] a line, in JSON.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use clap::error::ErrorKind;
use hashed_wheel::HashedWheelTimer;
use serde::{Deserialize, Serialize};

/// How often viewers are told.
pub const EVERY: Duration = Duration::from_millis(100);

/// The option, for those of a program.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Top {
    /// Show the timer to `wheel-top ADDRESS` while this runs, at an address such as 127.0.0.1:7070
    #[arg(long = "top", value_name = "ADDRESS")]
    address: Option<SocketAddr>,

    #[arg(skip)]
    show: OnceLock<Show>,
}

impl Top {
    /// Shows this timer from now on, as [`Show::watch`] does. Does nothing without `--top`; ends the program if the address
    /// cannot be had.
    pub fn watch(&self, name: &str, timer: &HashedWheelTimer) {
        if let Some(show) = self.start() {
            show.watch(name, timer);
        }
    }

    /// The same where several processes have the option: the first one that gets the address shows its timer there, and when it
    /// ends, the next one that begins.
    pub fn watch_one_of_several(&self, name: &str, timer: &HashedWheelTimer) {
        if self.show.get().is_none() {
            let show = self.address.and_then(|address| Show::at(address).ok());
            show.and_then(|show| self.show.set(show).ok());
        }
        if let Some(show) = self.show.get() {
            show.watch(name, timer);
        }
    }

    /// The option again, for a process that this one starts.
    pub fn option(&self) -> impl Iterator<Item = String> {
        self.address.into_iter().flat_map(|address| ["--top".to_owned(), address.to_string()])
    }

    /// Starts to show before there is a timer: for who counts threads.
    pub fn start(&self) -> Option<&Show> {
        let address = self.address?;
        let show = self.show.get_or_init(|| match Show::at(address) {
            Ok(show) => {
                // Not among the results.
                eprintln!("To look at the timer: wheel-top {}", show.address);
                show
            }
            Err(error) => clap::Error::raw(ErrorKind::Io, format!("--top {address}: {error}\n")).exit(),
        });
        Some(show)
    }
}

/// A thread that shows timers to whoever connects.
#[derive(Debug, Clone)]
pub struct Show {
    address: SocketAddr,
    watch: Sender<Watched>,
}

/// A timer that is shown. Once it is stopped, only what was last seen of it is kept.
#[derive(Debug)]
struct Watched {
    timer: Option<HashedWheelTimer>,
    last: Snapshot,
}

impl Show {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// If the address, or a thread, cannot be had.
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let (watch, new) = mpsc::channel();
        let show = Self { address: listener.local_addr()?, watch };
        thread::Builder::new().name("top".into()).spawn(move || tell(&listener, &new))?;
        Ok(show)
    }

    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows this timer, until it is stopped, beside the others.
    ///
    /// It has a handle of it, so the timer has to be [stopped](HashedWheelTimer::stop), or to last as long as the program.
    pub fn watch(&self, name: &str, timer: &HashedWheelTimer) {
        let last = Snapshot { name: name.to_owned(), ..Snapshot::default() };
        // The thread is there as long as the program is.
        let _ = self.watch.send(Watched { timer: Some(timer.clone()), last });
    }
}

fn tell(listener: &TcpListener, new: &Receiver<Watched>) {
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
        watched.retain_mut(|watched| watched.look(!viewers.is_empty()));
        if !viewers.is_empty() {
            let timers = watched.iter().map(|watched| watched.last.clone()).collect();
            let frame = Frame { program: program.clone(), age: began.elapsed(), timers };
            let mut line = serde_json::to_vec(&frame).expect("a frame can be written");
            line.push(b'\n');
            viewers.retain_mut(|viewer| viewer.tell(&line).is_ok());
        }
        thread::sleep(EVERY);
    }
}

/// Nobody waits for it.
struct Viewer {
    stream: TcpStream,
    /// Of a line, what there was no room for.
    unsent: Vec<u8>,
}

impl Viewer {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, unsent: Vec::new() })
    }

    /// Sends as much as there is room for. Who has not got the last line misses this one.
    fn tell(&mut self, line: &[u8]) -> io::Result<()> {
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
    /// Says whether it is to be looked at again: not if its clock has panicked.
    fn look(&mut self, has_viewers: bool) -> bool {
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

/// A program and its timers, at one moment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Frame {
    pub program: String,
    /// Since it began to serve.
    pub age: Duration,
    pub timers: Vec<Snapshot>,
}

/// A timer at one moment: [`Stats`](hashed_wheel::Stats) and [`Occupancy`](hashed_wheel::Occupancy), as far as they are shown.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    pub name: String,
    /// And all its timeouts have ended.
    pub is_stopped: bool,
    pub tick: Duration,
    pub ticks_per_wheel: usize,
    /// `None`: it was in the middle of a turn, is stopped, or has [too many slots](Self::has_too_many_slots).
    pub wheel: Option<Wheel>,
    pub pending: u64,
    pub scheduled: u64,
    pub expired: u64,
    pub periodic_runs: u64,
    pub cancelled: u64,
    pub reset: u64,
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
    /// How many were so late: up to a bound, and more than the one before. The last has none.
    pub lateness: Vec<(Option<Duration>, u64)>,
}

/// What is in the wheel.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Wheel {
    /// The tick that it is.
    pub tick: u64,
    pub on_the_way: usize,
    pub levels: Vec<Level>,
}

/// One ring of slots.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Level {
    pub ticks_per_slot: u64,
    /// How many slots there are.
    pub size: usize,
    pub present: usize,
    /// The number of entries in each slot; where there are very many slots, in some that are next to each other.
    pub slots: Vec<usize>,
}

/// More slots than this are not told one by one.
pub const MOST_SLOTS: usize = 1_024;

/// A wheel with more slots than this is not looked at: its worker would wait for that, some milliseconds or seconds long.
const MOST_LOOKED_AT: usize = 1 << 16;

/// A turn is over soon, most often: so often is tried to see the wheel after it.
const TRIES: usize = 5;

impl Snapshot {
    #[must_use]
    pub fn of(name: &str, timer: &HashedWheelTimer) -> Self {
        let is_closed = timer.is_stopped();
        let stats = timer.stats();
        // `stop` may be ending the last ones.
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
            reset: stats.resets,
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

    /// Whether its wheel is too large to be looked at.
    #[must_use]
    pub fn has_too_many_slots(&self) -> bool {
        self.ticks_per_wheel > MOST_LOOKED_AT
    }
}

impl Wheel {
    fn of(timer: &HashedWheelTimer) -> Option<Self> {
        let occupancy = (0..TRIES).find_map(|attempt| {
            if attempt > 0 {
                thread::sleep(Duration::from_millis(1));
            }
            timer.occupancy()
        })?;
        let levels = occupancy.levels.iter().map(|level| Level {
            ticks_per_slot: level.ticks_per_slot,
            size: level.slots.len(),
            present: level.current_slot,
            slots: merge(&level.slots, MOST_SLOTS),
        });
        Some(Self { tick: occupancy.tick, on_the_way: occupancy.queued, levels: levels.collect() })
    }
}

/// Adds up neighbours until no more than `most` numbers are left.
#[must_use]
pub fn merge(slots: &[usize], most: usize) -> Vec<usize> {
    let count = slots.len().min(most);
    let begin = |part| part * slots.len() / count;
    (0..count).map(|part| slots[begin(part)..begin(part + 1)].iter().sum()).collect()
}
