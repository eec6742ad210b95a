//! Wakes waiting callers when Redis sends a message for them.
//!
//! A client has one connection that receives messages, from its first waiting caller on. Redis
//! forgets messages while there is no connection. So after each connect all callers try again, and
//! each tries again after a while without a message.

use std::collections::HashMap;
use std::future::{pending, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use std::{mem, thread};

use futures_core::Stream;
use hashed_wheel::{HashedWheelTimer, NewTimeoutError, TimeoutError};
use redis::Msg;
use redis::aio::{PubSub, PubSubStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::{self, AbortHandle, JoinHandle};

use crate::calls::Calls;

/// The pause before another attempt to connect.
const PAUSE: Duration = Duration::from_millis(200);

/// The maximum time to connect and for an answer.
const TIMEOUT: Duration = Duration::from_secs(2);

/// After which time without a message the connection is checked.
const CHECK: Duration = Duration::from_secs(10);

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wake {
    /// The lock is free.
    TryNow,
    /// The lock may be free at this time.
    TryAt(Instant),
}

/// The unread message for a waiting caller.
#[derive(Default)]
struct Mailbox {
    unread: Mutex<Option<Wake>>,
    arrived: Notify,
}

impl Mailbox {
    /// Replaces the unread message, unless that one says that the lock is free: the caller has to
    /// try soon after it, otherwise it loses its place in the queue and gets no other message.
    fn put(&self, wake: Wake) {
        let mut unread = self.unread();
        if *unread != Some(Wake::TryNow) {
            *unread = Some(wake);
        }
        drop(unread);
        self.arrived.notify_one();
    }

    fn take(&self) -> Option<Wake> {
        mem::take(&mut self.unread())
    }

    /// Waits for a message. If the future is dropped, none is lost.
    async fn next(&self) -> Wake {
        loop {
            if let Some(wake) = self.take() {
                return wake;
            }
            self.arrived.notified().await;
        }
    }

    fn unread(&self) -> MutexGuard<'_, Option<Wake>> {
        // Nothing panics while it is locked.
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiting callers of a client.
pub(crate) struct Wakeups {
    /// On which Redis sends the messages.
    channel: Arc<str>,
    calls: Arc<Calls>,
    timer: HashedWheelTimer,
    runtime: Handle,
    waiting: Mutex<HashMap<Arc<str>, Arc<Mailbox>>>,
    is_ready: watch::Sender<bool>,
    receiver: OnceLock<AbortOnDrop>,
}

struct AbortOnDrop(AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// A waiting caller, until it is dropped.
pub(crate) struct Waiting {
    wakeups: Arc<Wakeups>,
    owner: Arc<str>,
    mailbox: Arc<Mailbox>,
}

impl Waiting {
    /// Waits for a message, at most until `deadline`.
    pub(crate) async fn until(&self, deadline: Instant, limit: Option<Instant>) {
        let latest = limit.map_or(deadline, |limit| limit.min(deadline));
        let mut next = latest;
        loop {
            // An error means that the time is over, or that the timer is stopped. The next call to
            // Redis fails with the reason.
            match self
                .wakeups
                .timer
                .timeout_at(next, self.mailbox.next())
                .await
            {
                // It replaces an earlier one: another owner has the lock since.
                Ok(Wake::TryAt(time)) => next = latest.min(time),
                Ok(Wake::TryNow) | Err(_) => return,
            }
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.wakeups.waiting().remove(&self.owner);
    }
}

impl Wakeups {
    pub(crate) fn new(
        channel: String,
        calls: &Arc<Calls>,
        timer: &HashedWheelTimer,
        runtime: &Handle,
    ) -> Arc<Self> {
        Arc::new(Self {
            channel: channel.into(),
            calls: Arc::clone(calls),
            timer: timer.clone(),
            runtime: runtime.clone(),
            waiting: Mutex::default(),
            is_ready: watch::Sender::new(false),
            receiver: OnceLock::new(),
        })
    }

    /// Registers a waiting caller. Returns when messages for it are received, or after `timeout`.
    pub(crate) async fn wait(self: &Arc<Self>, owner: &Arc<str>, timeout: Duration) -> Waiting {
        let mailbox = Arc::<Mailbox>::default();
        self.waiting()
            .insert(Arc::clone(owner), Arc::clone(&mailbox));
        let waiting = Waiting {
            wakeups: Arc::clone(self),
            owner: Arc::clone(owner),
            mailbox,
        };
        self.receiver.get_or_init(|| self.start());
        let mut is_ready = self.is_ready.subscribe();
        let _ = self
            .timer
            .timeout(timeout, is_ready.wait_for(|&is_ready| is_ready))
            .await;
        // The caller tries now anyway.
        waiting.mailbox.take();
        waiting
    }

    fn start(self: &Arc<Self>) -> AbortOnDrop {
        AbortOnDrop(
            self.runtime
                .spawn(receive(Arc::downgrade(self)))
                .abort_handle(),
        )
    }

    fn wake(&self, message: &str) {
        let Some((owner, milliseconds)) = message.split_once(' ') else {
            return;
        };
        let wake = match milliseconds.parse() {
            Ok(0) | Err(_) => Wake::TryNow,
            // Redis rounds down, and the lock is free after the end of the lease.
            Ok(milliseconds) => match Instant::now()
                .checked_add(Duration::from_millis(milliseconds) + Duration::from_millis(1))
            {
                Some(end) => Wake::TryAt(end),
                None => return,
            },
        };
        if let Some(mailbox) = self.waiting().get(owner) {
            mailbox.put(wake);
        }
    }

    fn wake_all(&self) {
        self.waiting()
            .values()
            .for_each(|mailbox| mailbox.put(Wake::TryNow));
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Mailbox>>> {
        // Nothing panics while it is locked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The timer is stopped. Then no lock can be taken, so messages have no use.
#[derive(Debug, PartialEq, Eq)]
struct Stopped;

/// Receives messages until the client is dropped or the timer is stopped. It goes on while the
/// timer is full, because nothing would start it again.
async fn receive(wakeups: Weak<Wakeups>) {
    let Some(timer) = wakeups.upgrade().map(|alive| alive.timer.clone()) else {
        return;
    };
    let (mut attempts, mut limiter) = (0.., Limiter { timer, pause: None });
    while let Some(alive) = wakeups.upgrade() {
        let (calls, channel) = (Arc::clone(&alive.calls), Arc::clone(&alive.channel));
        drop(alive);
        let connection = &calls.connection;
        let subscribed = connection
            .server
            .subscribe(&channel, attempts.next().unwrap_or_default());
        let ended = match limiter.at_most(TIMEOUT, subscribed).await {
            Ok(Some(Ok(pubsub))) => receive_from(pubsub, &mut limiter, &wakeups).await,
            Ok(Some(Err(_)) | None) => Ok(()),
            Err(stopped) => Err(stopped),
        };
        if ended.is_err() || limiter.at_most(PAUSE, pending::<()>()).await.is_err() {
            return;
        }
    }
}

/// Receives messages until the connection fails or the client is dropped.
async fn receive_from(
    pubsub: PubSub,
    limiter: &mut Limiter,
    wakeups: &Weak<Wakeups>,
) -> Result<(), Stopped> {
    let (mut sink, mut stream) = pubsub.split();
    if let Some(wakeups) = wakeups.upgrade() {
        wakeups.is_ready.send_replace(true);
        wakeups.wake_all();
    }
    loop {
        let message = limiter.at_most(CHECK, next(&mut stream)).await?;
        let Some(wakeups) = wakeups.upgrade() else {
            return Ok(());
        };
        let is_open = match message {
            Some(Some(message)) => {
                message
                    .get_payload::<String>()
                    .iter()
                    .for_each(|text| wakeups.wake(text));
                true
            }
            Some(None) => false,
            // A peer that is not reachable any more does not close its connection.
            None => matches!(
                limiter
                    .at_most(TIMEOUT, sink.ping::<redis::Value>())
                    .await?,
                Some(Ok(_))
            ),
        };
        if !is_open {
            wakeups.is_ready.send_replace(false);
            return Ok(());
        }
    }
}

/// Limits the times of the receiver. While the timer is full, a thread measures them in pauses.
struct Limiter {
    timer: HashedWheelTimer,
    /// The present pause. There is one at a time, however many messages arrive meanwhile.
    pause: Option<JoinHandle<()>>,
}

impl Limiter {
    /// Waits for a future, at most for this time. Returns `None` after it.
    async fn at_most<T>(
        &mut self,
        time: Duration,
        future: impl Future<Output = T>,
    ) -> Result<Option<T>, Stopped> {
        let (mut future, end) = (pin!(future), Instant::now() + time);
        loop {
            match self.timer.timeout_at(end, future.as_mut()).await {
                Ok(output) => return Ok(Some(output)),
                Err(TimeoutError::Timer(error)) if !may_pass(&error) => return Err(Stopped),
                Err(_) if Instant::now() >= end => return Ok(None),
                Err(_) => {}
            }
            // The runtime of the client may have no timer of its own.
            let pause = self
                .pause
                .get_or_insert_with(|| task::spawn_blocking(|| thread::sleep(PAUSE)));
            let output = poll_fn(|context| match future.as_mut().poll(context) {
                Poll::Ready(output) => Poll::Ready(Some(output)),
                // An error means that the runtime ends, and this task with it.
                Poll::Pending => Pin::new(&mut *pause).poll(context).map(|_| None),
            });
            match output.await {
                None => self.pause = None,
                output => return Ok(output),
            }
        }
    }
}

/// Returns whether the timer may accept the next timeout: it is full, or the operating system could
/// not start its thread.
fn may_pass(error: &NewTimeoutError) -> bool {
    matches!(
        error,
        NewTimeoutError::TooManyPending { .. } | NewTimeoutError::Spawn { .. }
    )
}

async fn next(stream: &mut PubSubStream) -> Option<Msg> {
    poll_fn(|context| Pin::new(&mut *stream).poll_next(context)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lease_of_another_owner_does_not_replace_an_unread_message_that_the_lock_is_free() {
        let (mailbox, end) = (Mailbox::default(), Wake::TryAt(Instant::now()));
        mailbox.put(end);
        mailbox.put(Wake::TryNow);
        mailbox.put(end);
        assert_eq!(mailbox.next().await, Wake::TryNow);
        assert_eq!(mailbox.take(), None);
        // After it is read, later messages count.
        mailbox.put(end);
        assert_eq!(mailbox.next().await, end);
    }

    #[tokio::test]
    async fn a_full_timer_limits_the_time_and_a_stopped_one_ends_the_waiting() {
        let builder = HashedWheelTimer::builder().max_pending_timeouts(Some(1));
        let timer = builder.build().unwrap();
        let _full = timer
            .new_timeout(|_| (), Duration::from_secs(3_600))
            .unwrap();
        let mut limiter = Limiter {
            timer: timer.clone(),
            pause: None,
        };
        let begin = Instant::now();
        assert_eq!(limiter.at_most(PAUSE * 2, pending::<()>()).await, Ok(None));
        assert!(begin.elapsed() >= PAUSE * 2, "{:?}", begin.elapsed());
        // The future is ready during a pause.
        let woken = Notify::new();
        let wake = async {
            task::yield_now().await;
            woken.notify_one();
        };
        let hour = Duration::from_secs(3_600);
        let (received, ()) = tokio::join!(limiter.at_most(hour, woken.notified()), wake);
        assert_eq!(received, Ok(Some(())));
        timer.stop();
        assert_eq!(limiter.at_most(hour, pending::<()>()).await, Err(Stopped));
    }
}
