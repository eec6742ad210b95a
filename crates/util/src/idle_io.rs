//! An idle timeout for a stream of bytes: feature `tokio`.

use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Wake, Waker, ready};
use std::time::{Duration, Instant};

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use hashed_wheel::{HashedWheelTimer, Sleep, TimeoutError};

use crate::sync::{Arc, AtomicBool, Ordering};

pin_project! {
    /// A connection that fails with [`TimedOut`](io::ErrorKind::TimedOut) after a time without
    /// traffic: Netty's `IdleStateHandler` for tokio's `AsyncRead` and `AsyncWrite`. With the
    /// feature `tokio`.
    ///
    /// It has up to three [times](IdleTimes). An operation that has to wait fails once one of its
    /// times is over:
    ///
    /// | time | limits | each byte that is … starts it anew |
    /// |---|---|---|
    /// | [`all`](IdleTimes::all) | reads, writes, flushes, shutdowns | read or written |
    /// | [`reader`](IdleTimes::reader) | reads | read |
    /// | [`writer`](IdleTimes::writer) | writes, flushes, shutdowns | written |
    ///
    /// A time does not begin before the operation waits: one that begins after a rest has its full
    /// time. If an operation is given up, for example in `select!`, it counts as waiting until one
    /// of its direction is ready. Before the next one after a rest, call
    /// [`set_times`](Self::set_times). A flush that is ready ends the wait of a write, as in
    /// tokio-io-timeout: do not flush before each poll of a write that waits. An operation that
    /// need not wait succeeds, whatever the time.
    /// After the failure an operation that has to wait fails again, until there is traffic or
    /// [`set_times`](Self::set_times) is called.
    ///
    /// A timeout fires up to one tick of the timer later, and never early. A time too large to
    /// represent is no limit.
    ///
    /// # Examples
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::IdleIo;
    /// use std::time::Duration;
    /// use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    ///
    /// async fn echo(timer: &HashedWheelTimer, socket: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<()> {
    ///     let mut socket = IdleIo::new(socket, timer, Duration::from_secs(60));
    ///     let mut buffer = [0; 1_024];
    ///     loop {
    ///         match socket.read(&mut buffer).await? {
    ///             0 => return Ok(()),
    ///             n => socket.write_all(&buffer[..n]).await?,
    ///         }
    ///     }
    /// }
    ///
    /// # let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// # tokio::runtime::Builder::new_current_thread().build()?.block_on(echo(&timer, tokio::io::empty()))?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Which one
    ///
    /// | for | use |
    /// |---|---|
    /// | a proxy, a tunnel, a chat: both ends may be silent, but not both for long | `IdleIo` with `all` |
    /// | a client that waits for answers | [`IoTimeout`](crate::IoTimeout) for reads and writes |
    /// | a server behind hyper or axum | `IdleIo` with an `all` that is longer than the time of a handler, or [`IoTimeout`](crate::IoTimeout) for writes alone; [`HyperTimer`](crate::HyperTimer) for the time of a request's head; [`tower`](crate::tower) for that of a handler: example `http_server` |
    ///
    /// Beware of a time for reads under hyper and axum. They read while a handler works, to see
    /// whether the client is gone. So a handler that is slower than `all`, `reader` or a read
    /// timeout loses its connection, without an answer.
    ///
    /// Traffic is bytes through this value. If the inner connection has a buffer or encrypts, what
    /// it moves in a flush or a shutdown is not seen: wrap the socket itself.
    ///
    /// The two directions may be in different tasks, as after `tokio::io::split`. When the time for
    /// all is over, each of them fails.
    ///
    /// # Cost
    ///
    /// Traffic and the beginning of a wait read the clock, and move the deadline of at most two
    /// timeouts, by [`Sleep::reset_at`]. An operation that waits schedules a timeout if its
    /// direction has none, whatever the number of times. The timeouts are cancelled when this is
    /// dropped.
    ///
    /// # Errors
    ///
    /// - [`TimedOut`](io::ErrorKind::TimedOut): a time of the operation is over. The inner error is
    ///   [`TimeoutError::Elapsed`].
    /// - What a [`NewTimeoutError`](hashed_wheel::NewTimeoutError) converts into: an operation has
    ///   to wait, and the timer is stopped or rejects the timeout.
    /// - Errors of the inner connection are returned as they are.
    #[derive(Debug)]
    #[doc(alias("IdleStateHandler", "keepalive", "idle_timeout"))]
    pub struct IdleIo<T> {
        #[pin]
        io: T,
        idle: Idle,
    }
}

impl<T> IdleIo<T> {
    /// Wraps `io`. The times begin now. A `Duration` is the time for all operations.
    ///
    /// # Examples
    ///
    /// A peer may be silent for a minute, and must accept what it is sent within 10 seconds:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use std::time::Duration;
    /// use hashed_wheel_util::{IdleIo, IdleTimes};
    ///
    /// let timer = HashedWheelTimer::default();
    /// let times = IdleTimes::new().all(Duration::from_secs(60)).writer(Duration::from_secs(10));
    /// let socket = IdleIo::new(tokio::io::empty(), &timer, times);
    /// assert_eq!(socket.times(), times);
    /// ```
    pub fn new(io: T, timer: &HashedWheelTimer, times: impl Into<IdleTimes>) -> Self {
        let [clock, of_reader, of_writer] = [(); 3].map(|()| timer.sleep(Duration::MAX));
        let mut idle = Idle {
            clock,
            times: times.into(),
            last: [timer.now(); 2],
            begin: [None; 2],
            deadlines: [None; 2],
            sleeps: [of_reader, of_writer],
            unlimited: [None, None],
            last_polls: [None, None],
        };
        idle.rearm();
        Self { io, idle }
    }

    /// Returns the times without traffic after which an operation fails.
    pub fn times(&self) -> IdleTimes {
        self.idle.times
    }

    /// Sets the times without traffic after which an operation fails. They begin now, also for an
    /// operation that waits.
    ///
    /// # Examples
    ///
    /// A client that has logged in may be silent for longer:
    ///
    /// ```
    /// # use hashed_wheel::HashedWheelTimer;
    /// # use hashed_wheel_util::IdleIo;
    /// # use std::time::Duration;
    /// use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
    ///
    /// async fn log_in(timer: &HashedWheelTimer, socket: impl AsyncRead + Unpin) -> std::io::Result<String> {
    ///     let mut socket = BufReader::new(IdleIo::new(socket, timer, Duration::from_secs(10)));
    ///     let mut name = String::new();
    ///     socket.read_line(&mut name).await?;
    ///     socket.get_mut().set_times(Duration::from_secs(600));
    ///     // … the session …
    ///     Ok(name)
    /// }
    /// # let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// # let name = tokio::runtime::Builder::new_current_thread().build()?.block_on(log_in(&timer, &b"ada\n"[..]))?;
    /// # assert_eq!(name, "ada\n");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_times(&mut self, times: impl Into<IdleTimes>) {
        self.set_times_and_begin(times.into(), &[READ, WRITE]);
    }

    /// Sets the times. Those of the given directions begin now.
    pub(crate) fn set_times_and_begin(&mut self, times: IdleTimes, directions: &[usize]) {
        let now = self.idle.now();
        self.idle.times = times;
        for &direction in directions {
            self.idle.last[direction] = now;
        }
        self.idle.rearm();
        for &direction in directions {
            self.idle.unlimited[direction]
                .take()
                .into_iter()
                .for_each(Waker::wake);
        }
    }

    /// Returns a reference to the inner connection.
    pub fn get_ref(&self) -> &T {
        &self.io
    }

    /// Returns a mutable reference to the inner connection. Traffic through it is not seen.
    pub fn get_mut(&mut self) -> &mut T {
        &mut self.io
    }

    /// Returns a pinned mutable reference to the inner connection. Traffic through it is not seen.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut T> {
        self.project().io
    }

    /// Returns the inner connection, without the times.
    pub fn into_inner(self) -> T {
        self.io
    }
}

/// After which times without traffic the operations of an [`IdleIo`] fail: its type has a table of
/// them. The times of Netty's `IdleStateHandler`.
///
/// A `Duration` converts into the time for all operations.
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::IdleTimes;
/// use std::time::Duration;
///
/// const MINUTE: Duration = Duration::from_secs(60);
///
/// assert_eq!(IdleTimes::from(MINUTE), IdleTimes::new().all(MINUTE));
/// assert_eq!(IdleTimes::new().reader(MINUTE).reader(None), IdleTimes::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[must_use = "times do nothing until a connection has them"]
pub struct IdleTimes {
    reader: Option<Duration>,
    writer: Option<Duration>,
    all: Option<Duration>,
}

impl IdleTimes {
    /// No times: no operation fails.
    pub const fn new() -> Self {
        Self {
            reader: None,
            writer: None,
            all: None,
        }
    }

    /// Sets the time without a byte that was read, after which a read fails. `None` is no limit.
    pub fn reader(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.reader = time.into();
        self
    }

    /// Sets the time without a byte that was written, after which a write, a flush or a shutdown
    /// fails. `None` is no limit.
    pub fn writer(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.writer = time.into();
        self
    }

    /// Sets the time without a byte in either direction, after which each operation fails. `None`
    /// is no limit.
    pub fn all(mut self, time: impl Into<Option<Duration>>) -> Self {
        self.all = time.into();
        self
    }
}

/// The time for all operations.
impl From<Duration> for IdleTimes {
    fn from(all: Duration) -> Self {
        Self::new().all(all)
    }
}

/// The timeouts of a connection.
#[derive(Debug)]
struct Idle {
    /// Tells the time, and is never polled. A handle would keep the timer running, and stop it if
    /// it were the last one, perhaps in a task that must not wait.
    clock: Sleep,
    times: IdleTimes,
    /// When the last bytes were read and written.
    last: [Instant; 2],
    /// Since when an operation waits.
    begin: [Option<Instant>; 2],
    /// Those of `sleeps`; `None` if the direction has no limit.
    deadlines: [Option<Instant>; 2],
    /// One per direction, because two tasks may wait, each with its own waker. One that was never
    /// polled is in no wheel.
    sleeps: [Sleep; 2],
    /// Wakes an operation that waits without a limit, so that it gets the limit that is set.
    unlimited: [Option<Waker>; 2],
    /// The time is over, and the operation gets one more poll.
    last_polls: [Option<Arc<LastPoll>>; 2],
}

/// The waker of an operation that gets one more poll. It may be polled several times before.
#[derive(Debug)]
struct LastPoll {
    was_woken: AtomicBool,
    task: Waker,
}

impl Wake for LastPoll {
    fn wake(self: Arc<Self>) {
        self.was_woken.store(true, Ordering::Release);
        self.task.wake_by_ref();
    }
}

/// Indices of the arrays of [`Idle`].
pub(crate) const READ: usize = 0;
pub(crate) const WRITE: usize = 1;

impl Idle {
    fn now(&mut self) -> Instant {
        self.clock.reset(Duration::ZERO);
        self.clock.deadline()
    }

    /// Moves the deadlines that have changed. (One that has passed may stay although the other
    /// direction moves bytes. Then its operation must not get one more poll each time.)
    fn rearm(&mut self) {
        let Self {
            times, last, begin, ..
        } = *self;
        for direction in [READ, WRITE] {
            let own = [times.reader, times.writer][direction];
            let end = |last: Instant, time| {
                begin[direction]
                    .map_or(last, |begin| begin.max(last))
                    .checked_add(time)
            };
            let ends = [
                own.and_then(|time| end(last[direction], time)),
                times
                    .all
                    .and_then(|time| end(last[READ].max(last[WRITE]), time)),
            ];
            let deadline = ends.into_iter().flatten().min();
            if self.deadlines[direction] != deadline {
                self.deadlines[direction] = deadline;
                self.last_polls[direction] = None;
                if let Some(deadline) = deadline {
                    self.sleeps[direction].reset_at(deadline);
                }
            }
        }
    }

    /// Re-arms the timeouts if the operation has moved bytes, and limits its time if it waits.
    fn transfer<R>(
        &mut self,
        direction: usize,
        context: &mut Context<'_>,
        result: Poll<io::Result<R>>,
        moved: impl FnOnce(&R) -> bool,
    ) -> Poll<io::Result<R>> {
        if matches!(&result, Poll::Ready(Ok(output)) if moved(output)) {
            self.last[direction] = self.now();
            self.rearm();
        }
        self.limit(direction, context, result)
    }

    /// Limits the time of an operation if it waits.
    fn limit<R>(
        &mut self,
        direction: usize,
        context: &mut Context<'_>,
        result: Poll<io::Result<R>>,
    ) -> Poll<io::Result<R>> {
        let last_poll = self.last_polls[direction].take();
        if result.is_ready() {
            self.begin[direction] = None;
            return result;
        }
        if self.begin[direction].is_none() {
            self.begin[direction] = Some(self.now());
            self.rearm();
        }
        let Some(deadline) = self.deadlines[direction] else {
            self.unlimited[direction] = Some(context.waker().clone());
            return result;
        };
        let mut sleep = Pin::new(&mut self.sleeps[direction]);
        let mut end = sleep.as_mut().poll(context);
        if end.is_pending() && sleep.remaining().is_zero() {
            // The timer is late. The reset looks at the clock.
            sleep.reset_at(deadline);
            end = sleep.poll(context);
        }
        let end = ready!(end);
        let is_last_poll = last_poll.is_some_and(|last| last.was_woken.load(Ordering::Acquire));
        if end.is_ok() && !is_last_poll {
            // The timer may have woken this task before the runtime, which was busy, has looked at
            // its connections; or the task has used up its budget. `yield_now` wakes the task after
            // that look, with a new budget.
            let last_poll = Arc::new(LastPoll {
                was_woken: AtomicBool::new(false),
                task: context.waker().clone(),
            });
            self.last_polls[direction] = Some(Arc::clone(&last_poll));
            let waker = Waker::from(last_poll);
            let _ = pin!(yield_now()).poll(&mut Context::from_waker(&waker));
            return Poll::Pending;
        }
        Poll::Ready(Err(end
            .map_or_else(TimeoutError::Timer, |()| TimeoutError::Elapsed)
            .into()))
    }
}

impl<T: AsyncRead> AsyncRead for IdleIo<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.project();
        let before = buffer.filled().len();
        let result = this.io.poll_read(context, buffer);
        this.idle
            .transfer(READ, context, result, |()| buffer.filled().len() > before)
    }
}

impl<T: AsyncWrite> AsyncWrite for IdleIo<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.io.poll_write(context, bytes);
        this.idle
            .transfer(WRITE, context, result, |&written| written > 0)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.io.poll_write_vectored(context, slices);
        this.idle
            .transfer(WRITE, context, result, |&written| written > 0)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let result = this.io.poll_flush(context);
        this.idle.limit(WRITE, context, result)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.project();
        let result = this.io.poll_shutdown(context);
        this.idle.limit(WRITE, context, result)
    }
}
