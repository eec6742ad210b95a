//! A time for the reads and the writes of a stream of bytes: feature `tokio`.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hashed_wheel::HashedWheelTimer;
use pin_project_lite::pin_project;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::idle_io::{IdleIo, IdleTimes, READ, WRITE};

pin_project! {
    /// A connection whose reads and writes fail with [`TimedOut`](io::ErrorKind::TimedOut) if they
    /// wait for too long: tokio-io-timeout's `TimeoutStream`. With the feature `tokio`.
    ///
    /// A time runs only while a read, or a write, flush or shutdown, waits. Each operation that
    /// makes progress ends it. Initially there is no time. [`IdleIo`] has a table that says when to
    /// use which, and the example `http_server` shows a server's times.
    ///
    /// A timeout fires up to one tick of the timer later, and never early. If an operation is given
    /// up, for example in `select!`, its time continues until one of its direction is ready, or
    /// until its time is set.
    ///
    /// # Examples
    ///
    /// A client that expects each part of an answer within five seconds:
    ///
    /// ```
    /// use hashed_wheel::HashedWheelTimer;
    /// use hashed_wheel_util::IoTimeout;
    /// use std::time::Duration;
    /// use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
    ///
    /// async fn ask(timer: &HashedWheelTimer, socket: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<Vec<u8>> {
    ///     let mut socket = IoTimeout::new(socket, timer);
    ///     socket.set_read_timeout(Duration::from_secs(5));
    ///     socket.set_write_timeout(Duration::from_secs(1));
    ///     socket.write_all(b"question").await?;
    ///     let mut answer = Vec::new();
    ///     socket.read_to_end(&mut answer).await?;
    ///     Ok(answer)
    /// }
    ///
    /// # let timer = HashedWheelTimer::new(Duration::from_millis(1), 512);
    /// # let socket = tokio::io::join(&b"answer"[..], tokio::io::sink());
    /// # let answer = tokio::runtime::Builder::new_current_thread().build()?.block_on(ask(&timer, socket))?;
    /// # assert_eq!(answer, b"answer");
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`IdleIo`].
    #[derive(Debug)]
    #[doc(alias("TimeoutStream", "ReadTimeoutHandler", "WriteTimeoutHandler"))]
    pub struct IoTimeout<T> {
        #[pin]
        io: IdleIo<T>,
        read: Option<Duration>,
        write: Option<Duration>,
    }
}

impl<T> IoTimeout<T> {
    /// Wraps `io`, without times.
    pub fn new(io: T, timer: &HashedWheelTimer) -> Self {
        Self {
            io: IdleIo::new(io, timer, IdleTimes::new()),
            read: None,
            write: None,
        }
    }

    /// Returns the time for which a read may wait.
    pub fn read_timeout(&self) -> Option<Duration> {
        self.read
    }

    /// Sets the time for which a read may wait. It begins now, also for one that waits. `None` is
    /// no limit.
    pub fn set_read_timeout(&mut self, time: impl Into<Option<Duration>>) {
        self.read = time.into();
        self.set_times_and_begin(READ);
    }

    /// Returns the time for which a write, a flush or a shutdown may wait.
    pub fn write_timeout(&self) -> Option<Duration> {
        self.write
    }

    /// Sets the time for which a write, a flush or a shutdown may wait. It begins now, also for one
    /// that waits. `None` is no limit.
    pub fn set_write_timeout(&mut self, time: impl Into<Option<Duration>>) {
        self.write = time.into();
        self.set_times_and_begin(WRITE);
    }

    fn set_times_and_begin(&mut self, direction: usize) {
        let times = IdleTimes::new().reader(self.read).writer(self.write);
        self.io.set_times_and_begin(times, &[direction]);
    }

    /// Returns a reference to the inner connection.
    pub fn get_ref(&self) -> &T {
        self.io.get_ref()
    }

    /// Returns a mutable reference to the inner connection.
    pub fn get_mut(&mut self) -> &mut T {
        self.io.get_mut()
    }

    /// Returns a pinned mutable reference to the inner connection.
    pub fn get_pin_mut(self: Pin<&mut Self>) -> Pin<&mut T> {
        self.project().io.get_pin_mut()
    }

    /// Returns the inner connection, without the times.
    pub fn into_inner(self) -> T {
        self.io.into_inner()
    }
}

impl<T: AsyncRead> AsyncRead for IoTimeout<T> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.project().io.poll_read(context, buffer)
    }
}

impl<T: AsyncWrite> AsyncWrite for IoTimeout<T> {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.project().io.poll_write(context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.project().io.poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.project().io.poll_shutdown(context)
    }
}
