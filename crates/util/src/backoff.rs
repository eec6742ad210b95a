//! Pauses between attempts.

use std::iter::FusedIterator;
use std::time::Duration;

use crate::deadlines::nanos;
use crate::random::random;

/// The pauses between the attempts of an operation: each may be twice as long as the one before, up
/// to a maximum, and is random within that.
///
/// It is an iterator, so [`Iterator::take`] limits the number of attempts. A `client::Client` takes
/// it in its policy, backon as its `BackoffBuilder`, and tower's `retry::Policy` calls
/// [`next`](Iterator::next).
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::Backoff;
/// use std::io;
/// use std::net::TcpStream;
/// use std::thread;
/// use std::time::Duration;
///
/// /// Makes at most five attempts.
/// fn connect(address: &str) -> io::Result<TcpStream> {
///     let mut pauses = Backoff::new(Duration::from_millis(10)).take(4);
///     loop {
///         let failure = match TcpStream::connect(address) {
///             Ok(stream) => return Ok(stream),
///             Err(failure) => failure,
///         };
///         thread::sleep(pauses.next().ok_or(failure)?);
///     }
/// }
/// # assert!(connect("the address").is_err());
/// ```
///
/// With backon:
///
/// ```
/// use backon::BlockingRetryable;
/// use hashed_wheel_util::Backoff;
/// use std::time::Duration;
///
/// # let read = || std::fs::read("Cargo.toml");
/// let pauses = Backoff::new(Duration::from_millis(10)).max_total(Duration::from_secs(1));
/// let file = read.retry(pauses).sleep(std::thread::sleep).call();
/// # assert!(file.is_ok());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use = "pauses do nothing until something waits for them"]
#[doc(alias("exponential", "retry", "ExponentialBackoff", "ExponentialBuilder"))]
pub struct Backoff {
    /// The longest that the next pause may be, if it is less than `max_pause`.
    longest: Duration,
    max_pause: Duration,
    /// How long the pauses may still be together. `None`: the last one did not fit.
    left: Option<Duration>,
    jitter: Jitter,
}

/// How random the pauses of a [`Backoff`] are.
///
/// Without jitter, all callers that failed at the same time try again at the same time. The names
/// are those of the article [Exponential Backoff And Jitter][article], which compares them.
///
/// [article]: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
///
/// # Examples
///
/// ```
/// use hashed_wheel_util::{Backoff, Jitter};
/// use std::time::Duration;
///
/// let pauses = Backoff::new(Duration::from_millis(10)).jitter(Jitter::None).take(3);
/// assert!(pauses.eq([10, 20, 40].map(Duration::from_millis)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Jitter {
    /// A pause is random, from zero to its longest time.
    #[default]
    Full,
    /// A pause is random, from half its longest time to all of it.
    Equal,
    /// A pause has its longest time.
    None,
}

impl Backoff {
    /// Makes pauses without an end. The first one is at most `first` long.
    pub const fn new(first: Duration) -> Self {
        Self {
            longest: first,
            max_pause: Duration::from_secs(10),
            left: Some(Duration::MAX),
            jitter: Jitter::Full,
        }
    }

    /// Sets the limit up to which the pauses double. Initially 10 s.
    pub const fn max_pause(mut self, max_pause: Duration) -> Self {
        self.max_pause = max_pause;
        self
    }

    /// Sets how long all pauses may be together. They end before the first one that would make them
    /// longer. Initially, and with [`Duration::MAX`], they never end.
    #[doc(alias("max_elapsed_time", "with_total_delay"))]
    pub const fn max_total(mut self, total: Duration) -> Self {
        self.left = Some(total);
        self
    }

    /// Sets how random the pauses are. Initially [`Jitter::Full`].
    pub const fn jitter(mut self, jitter: Jitter) -> Self {
        self.jitter = jitter;
        self
    }
}

impl Iterator for Backoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let longest = self.longest.min(self.max_pause);
        self.longest = longest.saturating_mul(2);
        let shortest = match self.jitter {
            Jitter::Full => Duration::ZERO,
            Jitter::Equal => longest / 2,
            Jitter::None => longest,
        };
        let pause = shortest + Duration::from_nanos(random() % (nanos(longest - shortest) + 1));
        self.left = self.left?.checked_sub(pause);
        self.left.map(|_| pause)
    }
}

impl FusedIterator for Backoff {}
