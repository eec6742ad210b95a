//! An idle timeout for a stream of bytes: feature `tokio`.

use std::io::{self, IoSlice};
use std::mem;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::task::yield_now;

use hashed_wheel::{HashedWheelTimer, Sleep, TimeoutError};

pin_project! {
    /// A connection that fails with [`TimedOut`](io::ErrorKind::TimedOut) after a time without
    /// traffic: Netty's `IdleStateHandler` for tokio's `AsyncRead` and `AsyncWrite`. With the
    /// feature `tokio`.
    ///
    /// Each byte that is read or written, in either direction, starts the time anew. An operation
    /// that has to wait fails once the time is over: a read, a write, a flush or a shutdown. One
    /// that need not wait succeeds, whatever the time. After the failure an operation that has to
    /// wait fails again, until there is traffic or [`set_timeout`](Self::set_timeout) is called.
    ///
    /// The time begins when this is made. The timeout fires up to one tick of the timer later, and
    /// never early. With a timeout too large to represent no operation fails.
    ///
    /// The time is that of bytes through this value. If the inner connection has a buffer or
    /// encrypts, what it moves in a flush or a shutdown is not seen: wrap the socket itself.
    ///
    /// The two directions may be in different tasks, as after `tokio::io::split`. Each of them
    /// fails.
    ///
    /// # Cost
    ///
    /// Traffic moves the deadline of at most two timeouts, by [`Sleep::reset`]. An operation that
    /// waits schedules a timeout if its direction has none. The timeouts are cancelled when this is
    /// dropped.
    ///
    /// # Errors
    ///
    /// - [`TimedOut`](io::ErrorKind::TimedOut): nothing was read or written for the time. The inner
    ///   error is [`TimeoutError::Elapsed`].
    /// - What a [`NewTimeoutError`](hashed_wheel::NewTimeoutError) converts into: an operation has
    ///   to wait, and the timer is stopped or rejects the timeout.
    /// - Errors of the inner connection are returned as they are.
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
    #[derive(Debug)]
    pub struct IdleIo<T> {
        #[pin]
        io: T,
        idle: Idle,
    }
}

impl<T> IdleIo<T> {
    /// Wraps `io`. The time begins now.
    pub fn new(io: T, timer: &HashedWheelTimer, timeout: Duration) -> Self {
        let sleeps = [timer.sleep(timeout), timer.sleep(timeout)];
        Self { io, idle: Idle { timeout, sleeps, is_last_poll: [false; 2] } }
    }

    /// Returns the time without traffic after which an operation fails.
    pub fn timeout(&self) -> Duration {
        self.idle.timeout
    }

    /// Sets the time without traffic after which an operation fails. It begins now, also for an
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
    ///     socket.get_mut().set_timeout(Duration::from_secs(600));
    ///     // … the session …
    ///     Ok(name)
    /// }
    /// # let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// # let name = tokio::runtime::Builder::new_current_thread().build()?.block_on(log_in(&timer, &b"ada\n"[..]))?;
    /// # assert_eq!(name, "ada\n");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    pub fn set_timeout(&mut self, timeout: Duration) {
        self.idle.timeout = timeout;
        self.idle.rearm();
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

    /// Returns the inner connection, without the timeout.
    pub fn into_inner(self) -> T {
        self.io
    }
}

/// The timeout of a connection.
#[derive(Debug)]
struct Idle {
    timeout: Duration,
    /// One per direction, because two tasks may wait, each with its own waker. Both have the same
    /// deadline. One that was never polled is in no wheel.
    sleeps: [Sleep; 2],
    /// The time is over, and the operation gets one more poll.
    is_last_poll: [bool; 2],
}

/// Indices of [`Idle::sleeps`].
const READ: usize = 0;
const WRITE: usize = 1;

impl Idle {
    fn rearm(&mut self) {
        self.sleeps.iter_mut().for_each(|sleep| sleep.reset(self.timeout));
        self.is_last_poll = [false; 2];
    }

    /// Re-arms the timeout if the operation has moved bytes, and limits its time if it waits.
    fn transfer<R>(
        &mut self,
        direction: usize,
        context: &mut Context<'_>,
        result: Poll<io::Result<R>>,
        moved: impl FnOnce(&R) -> bool,
    ) -> Poll<io::Result<R>> {
        if matches!(&result, Poll::Ready(Ok(output)) if moved(output)) {
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
        let is_last_poll = mem::take(&mut self.is_last_poll[direction]);
        if result.is_ready() {
            return result;
        }
        let end = ready!(Pin::new(&mut self.sleeps[direction]).poll(context));
        if end.is_ok() && !is_last_poll {
            // The timer may have woken this task before the runtime, which was busy, has looked at
            // its connections; or the task has used up its budget. `yield_now` wakes the task after
            // that look, with a new budget.
            self.is_last_poll[direction] = true;
            let _ = pin!(yield_now()).poll(context);
            return Poll::Pending;
        }
        Poll::Ready(Err(end.map_or_else(TimeoutError::Timer, |()| TimeoutError::Elapsed).into()))
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
        this.idle.transfer(READ, context, result, |()| buffer.filled().len() > before)
    }
}

impl<T: AsyncWrite> AsyncWrite for IdleIo<T> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.io.poll_write(context, bytes);
        this.idle.transfer(WRITE, context, result, |&written| written > 0)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.project();
        let result = this.io.poll_write_vectored(context, slices);
        this.idle.transfer(WRITE, context, result, |&written| written > 0)
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
