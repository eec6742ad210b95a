//! Wakes waiting callers when Redis sends a message for them.
//!
//! A client has one connection that receives messages, from its first waiting caller on. Redis
//! forgets messages while there is no connection. So after each connect all callers try again, and
//! each tries again after a while without a message.

use std::collections::HashMap;
use std::future::poll_fn;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use futures_core::Stream;
use hashed_wheel::HashedWheelTimer;
use redis::Msg;
use redis::aio::{PubSub, PubSubStream};
use tokio::runtime::Handle;
use tokio::sync::{Notify, watch};
use tokio::task::AbortHandle;

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
    /// This caller is the first of the queue, and the lease of the holder ends at this time.
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
    pub(crate) async fn until(&self, mut deadline: Instant, limit: Option<Instant>) {
        loop {
            let next = limit.map_or(deadline, |limit| limit.min(deadline));
            // An error means that the time is over, or that the timer is stopped. The next call to
            // Redis fails with the reason.
            match self.wakeups.timer.timeout_at(next, self.mailbox.next()).await {
                Ok(Wake::TryAt(lease_end)) => deadline = deadline.min(lease_end),
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
        self.waiting().insert(Arc::clone(owner), Arc::clone(&mailbox));
        let waiting = Waiting { wakeups: Arc::clone(self), owner: Arc::clone(owner), mailbox };
        self.receiver.get_or_init(|| self.start());
        let mut is_ready = self.is_ready.subscribe();
        let _ = self.timer.timeout(timeout, is_ready.wait_for(|&is_ready| is_ready)).await;
        // The caller tries now anyway.
        waiting.mailbox.take();
        waiting
    }

    fn start(self: &Arc<Self>) -> AbortOnDrop {
        AbortOnDrop(self.runtime.spawn(receive(Arc::downgrade(self))).abort_handle())
    }

    fn wake(&self, message: &str) {
        let Some((owner, milliseconds)) = message.split_once(' ') else { return };
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
        self.waiting().values().for_each(|mailbox| mailbox.put(Wake::TryNow));
    }

    fn waiting(&self) -> MutexGuard<'_, HashMap<Arc<str>, Arc<Mailbox>>> {
        // Nothing panics while it is locked.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Receives messages until the client is dropped or the timer is stopped.
async fn receive(wakeups: Weak<Wakeups>) {
    let mut attempts = 0..;
    while let Some(alive) = wakeups.upgrade() {
        let (calls, timer, channel) =
            (Arc::clone(&alive.calls), alive.timer.clone(), Arc::clone(&alive.channel));
        drop(alive);
        let connection = &calls.connection;
        let subscribed = connection.server.subscribe(&channel, attempts.next().unwrap_or_default());
        if let Some(pubsub) = connection.within(TIMEOUT, subscribed).await {
            receive_from(pubsub, &timer, &wakeups).await;
        }
        if timer.sleep(PAUSE).await.is_err() {
            return;
        }
    }
}

/// Receives messages until the connection fails.
async fn receive_from(pubsub: PubSub, timer: &HashedWheelTimer, wakeups: &Weak<Wakeups>) {
    let (mut sink, mut stream) = pubsub.split();
    if let Some(wakeups) = wakeups.upgrade() {
        wakeups.is_ready.send_replace(true);
        wakeups.wake_all();
    }
    loop {
        let message = timer.timeout(CHECK, next(&mut stream)).await;
        let Some(wakeups) = wakeups.upgrade() else { return };
        match message {
            Ok(Some(message)) => message.get_payload::<String>().iter().for_each(|text| wakeups.wake(text)),
            Ok(None) => {
                wakeups.is_ready.send_replace(false);
                return;
            }
            // A peer that is not reachable any more does not close its connection.
            Err(_) if !is_alive(&mut sink, timer).await => {
                wakeups.is_ready.send_replace(false);
                return;
            }
            Err(_) => {}
        }
    }
}

async fn is_alive(sink: &mut redis::aio::PubSubSink, timer: &HashedWheelTimer) -> bool {
    matches!(timer.timeout(TIMEOUT, sink.ping::<redis::Value>()).await, Ok(Ok(_)))
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
}
