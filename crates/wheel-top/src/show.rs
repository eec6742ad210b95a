//! Sends the state of watched timers to all instances of `wheel-top` that are connected.

#[cfg(test)]
mod tests;

use std::env;
use std::ffi::OsStr;
use std::fmt;
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hashed_wheel::{HashedWheelTimer, WeakTimer};

use crate::frame::{Frame, INTERVAL, MAX_TIMERS, Snapshot};

/// The environment variable with the address of the process.
const VARIABLE: &str = "WHEEL_TOP";

const DEFAULT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7070);

/// The view of this process, after the first successful call of [`watch`].
static SHOW: Mutex<Option<Show>> = Mutex::new(None);

/// Shows this timer to `wheel-top`, under this name. Returns the address to call `wheel-top` with.
///
/// The address is that of the environment variable `WHEEL_TOP`, by default `127.0.0.1:7070`. It
/// must be an address of this machine only ([`Ipv4Addr::is_loopback`]). With port 0 the system
/// chooses a free port. The first call listens on the address and starts a thread, named
/// `wheel-top`. Further calls add timers to the view, in this order. The names need not differ.
/// [`Show`] explains when a timer leaves the view.
///
/// # Errors
///
/// - [`InvalidInput`](io::ErrorKind::InvalidInput): `WHEEL_TOP` is not such an address.
/// - Any other error: the process cannot listen on the address, or cannot start the thread. The
///   kind is [`AddrInUse`](io::ErrorKind::AddrInUse) if another process has the port, such as
///   another instance of the service.
///
/// The text of the error names the address and the variable. The timer is then not in the view, and
/// the next call tries again. A service that should run without a view logs the error and
/// continues.
///
/// # Examples
///
/// ```no_run
/// let timer = hashed_wheel::HashedWheelTimer::default();
/// match wheel_top::watch("connections", &timer) {
///     Ok(address) => println!("To watch the timer: wheel-top {address}"),
///     Err(error) => eprintln!("The timer cannot be watched: {error}"),
/// }
/// ```
pub fn watch(name: &str, timer: &HashedWheelTimer) -> io::Result<SocketAddr> {
    let show = {
        let mut show = lock(&SHOW);
        match &*show {
            Some(show) => show.clone(),
            None => show.insert(show_of_process()?).clone(),
        }
    };
    show.watch(name, timer);
    Ok(show.address())
}

fn show_of_process() -> io::Result<Show> {
    let address = address_of_process(env::var_os(VARIABLE).as_deref())?;
    Show::at(address).map_err(|error| {
        let why = format!(
            "cannot listen on {address}: {error}; set {VARIABLE} to another address, such as 127.0.0.1:0"
        );
        io::Error::new(error.kind(), why)
    })
}

fn address_of_process(variable: Option<&OsStr>) -> io::Result<SocketAddr> {
    let Some(variable) = variable else {
        return Ok(DEFAULT_ADDRESS);
    };
    let address = variable.to_str().and_then(|text| text.parse().ok());
    address.filter(|address: &SocketAddr| address.ip().is_loopback()).ok_or_else(|| {
        let why = format!(
            "the environment variable {VARIABLE} is {variable:?}, but must be an address of this \
             machine only, with a port, such as {DEFAULT_ADDRESS} or [::1]:7070"
        );
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// Locks, even if a thread has panicked: no critical section here leaves a value half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A view of timers on an address of its own. [`watch()`] has one for the process.
///
/// A thread serves the view until the process ends, also after the last `Show` was dropped. Clones
/// refer to the same view.
///
/// A timer leaves the view when its last handle was dropped. A stopped timer stays as long as the
/// service has a handle. A timer whose [`Clock`](hashed_wheel::Clock) panics while it is read
/// leaves the view too. If there are more than 256 timers, the first 256 are shown.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use std::net::{Ipv4Addr, SocketAddr};
/// use wheel_top::Show;
///
/// let timer = HashedWheelTimer::default();
/// let show = Show::at(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
/// show.watch("connections", &timer);
/// println!("To watch the timer: wheel-top {}", show.address());
/// # std::io::Result::Ok(())
/// ```
#[derive(Clone)]
pub struct Show {
    address: SocketAddr,
    timers: Arc<Mutex<Vec<Arc<Watched>>>>,
}

struct Watched {
    number: u64,
    name: String,
    timer: WeakTimer,
}

/// The number of the next timer.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

impl Show {
    /// Listens on the address and starts the thread. With port 0 the system chooses a free port.
    ///
    /// The view has no password and no encryption. Everybody who can reach the address sees the
    /// name of the program, since when it has shown timers, and the names, counters and slots of
    /// the timers, and can change nothing. So the address should be of this machine only, which
    /// [`watch()`] requires. This function does not: in a container, it may have to be another one.
    ///
    /// # Errors
    ///
    /// If it cannot listen on the address, or the thread cannot be started.
    ///
    /// # Examples
    ///
    /// See [`Show`].
    pub fn at(address: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        let show = Self {
            address: listener.local_addr()?,
            timers: Arc::default(),
        };
        let served = show.clone();
        thread::Builder::new()
            .name("wheel-top".into())
            .spawn(move || served.serve(&listener))?;
        Ok(show)
    }

    /// Returns the address on which the view listens, with the port that the system has chosen.
    ///
    /// # Examples
    ///
    /// See [`Show`].
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds the timer to the view, after those that are there. It never waits for a viewer.
    ///
    /// It looks which of the other timers have ended. If the last handle of one is dropped
    /// meanwhile, that timer ends on this thread, and the call waits for it as the drop would.
    ///
    /// # Examples
    ///
    /// See [`Show`].
    pub fn watch(&self, name: &str, timer: &HashedWheelTimer) {
        // While no program watches, only this call can remove timers that have ended.
        let ended: Vec<_> = self
            .timers()
            .into_iter()
            .filter(|watched| watched.timer.upgrade().is_none())
            .collect();
        self.remove(&ended);
        lock(&self.timers).push(Arc::new(Watched {
            number: NEXT_NUMBER.fetch_add(1, Relaxed),
            name: name.to_owned(),
            timer: timer.downgrade(),
        }));
    }

    /// Returns the timers. They are used without the lock: the drop of a last handle ends the
    /// timer, and so may run code of the service, which may call `watch`.
    fn timers(&self) -> Vec<Arc<Watched>> {
        lock(&self.timers).clone()
    }

    fn remove(&self, ended: &[Arc<Watched>]) {
        if !ended.is_empty() {
            lock(&self.timers)
                .retain(|watched| !ended.iter().any(|ended| Arc::ptr_eq(ended, watched)));
        }
    }

    fn serve(&self, listener: &TcpListener) {
        let began = Instant::now();
        loop {
            // Blocks, so the thread costs nothing while there is no viewer.
            let served = listener
                .accept()
                .and_then(|(stream, _)| self.serve_viewers(listener, stream, began));
            if served.is_err() {
                // A lasting error, such as too many open files, must not occupy a processor.
                thread::sleep(INTERVAL);
            }
        }
    }

    /// Sends frames until all viewers have left.
    fn serve_viewers(
        &self,
        listener: &TcpListener,
        first: TcpStream,
        began: Instant,
    ) -> io::Result<()> {
        let program = env::args_os().next().unwrap_or_default();
        let program = Path::new(&program)
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        let mut viewers = vec![Viewer::new(first)?];
        listener.set_nonblocking(true)?;
        while !viewers.is_empty() {
            // Bounded, because clients may connect faster than they are accepted.
            for _ in 0..MAX_VIEWERS {
                let Ok((stream, _)) = listener.accept() else {
                    break;
                };
                // One too many is closed.
                if viewers.len() < MAX_VIEWERS {
                    viewers.extend(Viewer::new(stream));
                }
            }
            let frame = Frame {
                program: program.clone(),
                age: began.elapsed(),
                timers: self.snapshots(),
            };
            let mut line = serde_json::to_vec(&frame).expect("a frame can be serialised");
            line.push(b'\n');
            let now = Instant::now();
            viewers.retain_mut(|viewer| viewer.send(&line, now).is_ok());
            thread::sleep(INTERVAL);
        }
        listener.set_nonblocking(false)
    }

    fn snapshots(&self) -> Vec<Snapshot> {
        let (mut snapshots, mut ended) = (Vec::new(), Vec::new());
        for watched in self.timers() {
            if snapshots.len() == MAX_TIMERS {
                break;
            }
            // The clock of the timer and the drop of its last handle may panic.
            let read = || Snapshot::of(watched.number, &watched.name, &watched.timer);
            match panic::catch_unwind(AssertUnwindSafe(read)) {
                Ok(Some(snapshot)) => snapshots.push(snapshot),
                Ok(None) | Err(_) => ended.push(watched),
            }
        }
        self.remove(&ended);
        snapshots
    }
}

impl fmt::Debug for Show {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let timers = self.timers();
        let names: Vec<_> = timers.iter().map(|watched| &*watched.name).collect();
        f.debug_struct("Show")
            .field("address", &self.address)
            .field("timers", &names)
            .finish()
    }
}

/// The maximum number of viewers. Each needs an open file and memory for a frame.
const MAX_VIEWERS: usize = 32;

/// A viewer that has received nothing for this long is disconnected. Otherwise viewers that are
/// stopped would hold all places.
const PATIENCE: Duration = Duration::from_secs(10);

/// A connected `wheel-top`. The thread never blocks on it.
struct Viewer {
    stream: TcpStream,
    /// The rest of a line that the socket's buffer had no space for.
    unsent: Vec<u8>,
    /// When the buffer had space last.
    progress: Instant,
}

impl Viewer {
    fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            unsent: Vec::new(),
            progress: Instant::now(),
        })
    }

    /// Sends as much as the buffer has space for. A client that has not received the previous line
    /// completely misses this one.
    fn send(&mut self, line: &[u8], now: Instant) -> io::Result<()> {
        if self.unsent.is_empty() {
            self.unsent.extend(line);
        }
        while !self.unsent.is_empty() {
            match self.stream.write(&self.unsent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(sent) => {
                    self.unsent.drain(..sent);
                    self.progress = now;
                }
                Err(error)
                    if error.kind() == io::ErrorKind::WouldBlock
                        && now.saturating_duration_since(self.progress) < PATIENCE =>
                {
                    break;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}
