//! The entries that leave a map, for async code.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Context, Poll, Waker, ready};
use std::{fmt, mem};

use super::cause::Removed;
use super::room::smaller_room;
use crate::sync::{Arc, Mutex, Weak};

/// The entries that leave an [`ExpiringMap`](crate::ExpiringMap):
/// [`with_receiver`](crate::ExpiringMap::with_receiver).
///
/// It is the receiver of an unbounded channel, as tokio's `mpsc::UnboundedReceiver`, and works on
/// any runtime. With [a bound](crate::ExpiringMapBuilder::build_with_bounded_receiver), insertions
/// fail while it is full. Entries that leave the map by calls of one thread come in the order of
/// these calls; two entries of one key that leave it by two threads may come in either order. With
/// feature `stream` it is a `Stream` of [`Removed`].
///
/// If it is dropped, entries that leave the map later are dropped.
#[must_use = "entries that leave the map after this was dropped are dropped"]
pub struct RemovedEntries<K, V> {
    queue: Arc<Queue<K, V>>,
}

/// The other end, in the map and in the tasks of its entries. Its drop closes the channel.
pub(super) struct Sender<K, V>(Weak<Queue<K, V>>);

type Queue<K, V> = Mutex<State<K, V>>;

struct State<K, V> {
    entries: VecDeque<Removed<K, V>>,
    /// The waker of the last poll that found no entry.
    waker: Option<Waker>,
    is_closed: bool,
}

impl<K, V> State<K, V> {
    /// Takes entries out. Frees room that is not needed: after a burst it would stay for as long as
    /// the receiver.
    fn take<R>(&mut self, take: impl FnOnce(&mut VecDeque<Removed<K, V>>) -> R) -> R {
        let taken = take(&mut self.entries);
        if let Some(room) = smaller_room(self.entries.len(), self.entries.capacity()) {
            self.entries.shrink_to(room);
        }
        taken
    }
}

pub(super) fn channel<K, V>() -> (Sender<K, V>, RemovedEntries<K, V>) {
    let state = State {
        entries: VecDeque::new(),
        waker: None,
        is_closed: false,
    };
    let queue = Arc::new(Queue::new(state));
    (Sender(Arc::downgrade(&queue)), RemovedEntries { queue })
}

impl<K, V> Sender<K, V> {
    pub(super) fn send(&self, entry: Removed<K, V>) {
        self.update(|state| state.entries.push_back(entry));
    }

    /// Returns how many entries were not received.
    pub(super) fn len(&self) -> usize {
        let queue = self.0.upgrade();
        queue.map_or(0, |queue| queue.lock().entries.len())
    }

    /// Changes the state, if there is a receiver, and wakes it.
    fn update(&self, change: impl FnOnce(&mut State<K, V>)) {
        let Some(queue) = self.0.upgrade() else {
            return;
        };
        let mut state = queue.lock();
        change(&mut state);
        let waker = state.waker.take();
        // Release the lock first, because a waker is user code.
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<K, V> Drop for Sender<K, V> {
    fn drop(&mut self) {
        self.update(|state| state.is_closed = true);
    }
}

impl<K, V> RemovedEntries<K, V> {
    /// Receives the next entry that has left the map. `tokio::sync::mpsc::UnboundedReceiver::recv`.
    ///
    /// Returns `None` once the map is gone and all entries were received: the last handle of the
    /// map was dropped, and no task of an entry runs.
    ///
    /// The end of the timer does not end it. It sends the entries that are left, as
    /// [`Stopped`](crate::Cause::Stopped), and none comes any more: drop the map too.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no entry is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel_util::RemovedEntries;
    /// async fn log_out(mut ended: RemovedEntries<String, u64>) {
    ///     while let Some(session) = ended.recv().await {
    ///         println!("{} after {} bytes: {:?}", session.key, session.value, session.cause);
    ///     }
    /// }
    /// ```
    pub async fn recv(&mut self) -> Option<Removed<K, V>> {
        poll_fn(|context| self.poll_recv(context)).await
    }

    /// Receives entries, at least one and at most `limit`, and appends them to `buffer`.
    /// Returns how many these are. `tokio::sync::mpsc::UnboundedReceiver::recv_many`.
    ///
    /// For work that is cheaper for many entries than for each: one transaction, one message.
    /// Returns zero once the map is gone and all entries were received, and if `limit` is zero.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, no entry is lost.
    ///
    /// # Examples
    ///
    /// ```
    /// # use hashed_wheel_util::{Removed, RemovedEntries};
    /// # async fn delete_all(_: &[Removed<u64, String>]) {}
    /// async fn delete(mut leases: RemovedEntries<u64, String>) {
    ///     let mut batch = Vec::new();
    ///     while leases.recv_many(&mut batch, 1_000).await > 0 {
    ///         delete_all(&batch).await; // in one transaction
    ///         batch.clear();
    ///     }
    /// }
    /// ```
    pub async fn recv_many(&mut self, buffer: &mut Vec<Removed<K, V>>, limit: usize) -> usize {
        poll_fn(|context| self.poll_recv_many(context, buffer, limit)).await
    }

    /// Polls for entries: [`recv_many`](Self::recv_many) without `async`.
    /// `tokio::sync::mpsc::UnboundedReceiver::poll_recv_many`.
    ///
    /// The waker is as for [`poll_recv`](Self::poll_recv).
    pub fn poll_recv_many(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut Vec<Removed<K, V>>,
        limit: usize,
    ) -> Poll<usize> {
        if limit == 0 {
            return Poll::Ready(0);
        }
        let Some(first) = ready!(self.poll_recv(context)) else {
            return Poll::Ready(0);
        };
        buffer.push(first);
        // `buffer` may have to grow: without the lock, which the worker may want.
        let more: Vec<_> = self.queue.lock().take(|entries| {
            let count = entries.len().min(limit - 1);
            entries.drain(..count).collect()
        });
        let count = 1 + more.len();
        buffer.extend(more);
        Poll::Ready(count)
    }

    /// Polls for the next entry: [`recv`](Self::recv) without `async`.
    /// `tokio::sync::mpsc::UnboundedReceiver::poll_recv`.
    ///
    /// If it returns [`Poll::Pending`], the waker of the last call is woken when there is an entry,
    /// or when the map is gone.
    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Removed<K, V>>> {
        // Cloned and dropped without the lock, because a waker is user code.
        let mut waker = Some(context.waker().clone());
        let mut state = self.queue.lock();
        let entry = state.take(VecDeque::pop_front);
        if entry.is_some() || state.is_closed {
            return Poll::Ready(entry);
        }
        mem::swap(&mut state.waker, &mut waker);
        Poll::Pending
    }

    /// Returns how many entries have left the map and were not received.
    /// `tokio::sync::mpsc::UnboundedReceiver::len`.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.lock().entries.len()
    }

    /// Returns whether [`len`](Self::len) is zero.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the map is gone and all entries were received.
    #[cfg(feature = "stream")]
    pub(crate) fn has_ended(&self) -> bool {
        let state = self.queue.lock();
        state.is_closed && state.entries.is_empty()
    }
}

impl<K, V> fmt::Debug for RemovedEntries<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemovedEntries")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiring_map::Cause;
    use crate::expiring_map::room::MAX_IDLE;

    fn entry(key: usize) -> Removed<usize, ()> {
        let (value, cause) = ((), Cause::Expired);
        Removed { key, value, cause }
    }

    #[test]
    #[cfg_attr(miri, ignore = "takes minutes")]
    fn a_receiver_frees_its_room_after_a_burst() {
        const ENTRIES: usize = 50_000;
        let (sender, mut expired) = channel();
        let mut context = Context::from_waker(Waker::noop());
        let room = |expired: &RemovedEntries<_, _>| expired.queue.lock().entries.capacity();
        for limit in [1, 7, ENTRIES] {
            (0..ENTRIES).for_each(|key| sender.send(entry(key)));
            assert!(room(&expired) >= ENTRIES);
            let mut all = Vec::new();
            while expired
                .poll_recv_many(&mut context, &mut all, limit)
                .is_ready()
            {}
            assert!(all.iter().map(|entry| entry.key).eq(0..ENTRIES));
            assert!(room(&expired) <= MAX_IDLE, "room for {}", room(&expired));
        }
    }
}
