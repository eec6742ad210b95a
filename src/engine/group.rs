//! Many timeouts at once.
//!
//! A random timeout is not in the processor's cache, so operations one by one wait for one cache
//! line after the other. Here the timeouts are taken in groups. All of a group are prefetched. Then
//! one pass through the thread's cache cancels or re-arms them, with one fence and one look at the
//! state after the last push.
//!
//! One fence per group is enough for the proofs of [`sleep`](super::sleep) and
//! [`end`](super::end), because a fence orders all pushes before it. The worker sees the messages,
//! or this thread sees that it has to wake the worker. The ends are counted after the pushes, so a
//! `stop` waits for them.

use std::borrow::Borrow;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;
use std::{mem, ptr};

use super::dispatch::call_cancelled;
use super::inner::{Inner, Timeout};
use super::thread_cache;
use crate::node::{NodesGuard, Reset};

/// How many timeouts a group has at most. With 32, a random cancel takes a fifth longer
/// (`cargo bench -p hashed-wheel-benches --bench each`).
const GROUP: usize = if cfg!(hashed_wheel_loom) { 2 } else { 64 };

/// Cancels timeouts and drops their handles. Returns how many it has cancelled.
pub(crate) fn cancel_each(timeouts: impl IntoIterator<Item = Timeout>) -> usize {
    in_groups(timeouts, |group| {
        let plain = discard_plain(group);
        let others = by_timer(group).map(|(timer, members)| timer.cancel_group(members));
        plain + others.sum::<usize>()
    })
}

/// Re-arms timeouts. Returns how many it has re-armed.
pub(crate) fn reset_each<'a>(
    timeouts: impl IntoIterator<Item = &'a Timeout>,
    deadline: Instant,
) -> usize {
    let reset =
        |(timer, members): (&Inner, &[_])| timer.reset_group(members, timer.clock.at(deadline));
    in_groups(timeouts, |group| by_timer(group).map(reset).sum())
}

/// Passes timeouts to `work` in groups. Returns the sum of what it returns.
fn in_groups<T: Borrow<Timeout>>(
    timeouts: impl IntoIterator<Item = T>,
    mut work: impl FnMut(&mut Vec<T>) -> usize,
) -> usize {
    let mut timeouts = timeouts.into_iter();
    let (mut group, mut sum) = (Vec::with_capacity(GROUP), 0);
    loop {
        let next = timeouts.by_ref().take(GROUP);
        let next = next.inspect(|timeout| timeout.borrow().handle.prefetch());
        // If the iterator panics, what it has returned before is not left out.
        let taken = catch_unwind(AssertUnwindSafe(|| group.extend(next)));
        let is_last = group.len() < GROUP;
        sum += work(&mut group);
        group.clear();
        taken.unwrap_or_else(|panic| resume_unwind(panic));
        if is_last {
            return sum;
        }
    }
}

/// Divides a group into rows of timeouts that are of one timer.
fn by_timer<T: Borrow<Timeout>>(group: &[T]) -> impl Iterator<Item = (&Inner, &[T])> {
    let timer_of = |timeout: &T| ptr::from_ref(timeout.borrow().handle.timer());
    let rows = group.chunk_by(move |a, b| timer_of(a) == timer_of(b));
    rows.map(|row| (row[0].borrow().handle.timer(), row))
}

/// Cancels those timeouts of a group that leave no task, and gives up their handles. They are of
/// the timer of the first one. The others stay in the group.
fn discard_plain(group: &mut Vec<Timeout>) -> usize {
    let timer = group.first().map(|first| first.handle.to_arc());
    // Nothing is cached of a stopped timer.
    let Some(timer) = timer.filter(|timer| !timer.is_stopped_hint()) else {
        return 0;
    };
    timer.cancel_with_cache(|nodes| {
        let (mut count, mut leaves_memory) = (0, false);
        let discard = |Timeout { handle }| {
            if !ptr::eq(handle.timer(), &*timer) {
                return Some(Timeout { handle });
            }
            match nodes.discard(handle) {
                Ok(leaves) => (count, leaves_memory) = (count + 1, leaves_memory | leaves),
                Err(handle) => return Some(Timeout { handle }),
            }
            None
        };
        *group = mem::take(group).into_iter().filter_map(discard).collect();
        (count, leaves_memory)
    })
}

impl Inner {
    /// Does `cancel`, which returns how many timeouts it has cancelled, and whether the worker has
    /// memory to reclaim. Counts them, and wakes the worker if that is needed. Returns how many.
    fn cancel_with_cache(
        &self,
        cancel: impl FnOnce(&mut NodesGuard<'_, Self>) -> (u64, bool),
    ) -> usize {
        let (count, wakes) = thread_cache::with(self, |cache| {
            let (count, leaves_memory) = cancel(&mut cache.nodes);
            let wakes = leaves_memory && cache.look_after_push().wakes_to_reclaim();
            // After all pushes, and in the pass, as for one timeout.
            cache.counts.cancel(count);
            (count, wakes)
        });
        self.pending_counts.release_places(count);
        if wakes {
            self.wake();
        }
        count as usize
    }

    /// Cancels timeouts of this timer, which are at most a group. Returns how many.
    fn cancel_group(&self, group: &[Timeout]) -> usize {
        if group.iter().all(|timeout| timeout.handle.end().is_some()) {
            return 0;
        }
        let mut claims = [const { None }; GROUP];
        let count = self.cancel_with_cache(|nodes| {
            let (mut count, mut leaves_memory) = (0, false);
            for (Timeout { handle }, claim) in group.iter().zip(&mut claims) {
                let seen = handle.not_ended();
                if let Some(cancelled) = seen.and_then(|seen| nodes.cancel(handle, seen)) {
                    count += 1;
                    leaves_memory |= cancelled.leaves_memory;
                    *claim = cancelled.task;
                }
            }
            (count, leaves_memory)
        });
        for (timeout, claim) in group.iter().zip(claims) {
            if let Some(claim) = claim {
                call_cancelled(claim, timeout);
            }
        }
        count
    }

    /// Re-arms timeouts of this timer, which are at most a group. Returns how many.
    fn reset_group(&self, group: &[&Timeout], deadline: u64) -> usize {
        let mut count = self.reset_plain(group, deadline);
        if count < group.len() {
            // After the pushes, because it waits for the task, and may call a waker: both may stop
            // the timer, and `stop` waits for the messages.
            let staying = group.iter().filter(|timeout| timeout.handle.stays());
            let reset = staying.filter(|timeout| self.reset_staying(&timeout.handle, deadline));
            count += reset.count();
        }
        count
    }

    /// Re-arms those whose tasks leave their nodes when they are due. Returns how many.
    fn reset_plain(&self, group: &[&Timeout], deadline: u64) -> usize {
        let (mut count, mut is_earlier, mut messages) = (0, false, [const { None }; GROUP]);
        for (timeout, message) in group.iter().zip(&mut messages) {
            match timeout.handle.reset(deadline) {
                Reset::Refused | Reset::Stays => continue,
                Reset::Later => {}
                Reset::Earlier => is_earlier = true,
                Reset::EarlierInWheel(moved) => *message = Some(moved),
            }
            count += 1;
        }
        let mut messages = messages.into_iter().flatten().peekable();
        let state = if messages.peek().is_some() {
            thread_cache::with(self, |cache| {
                messages.for_each(|message| cache.nodes.push(message));
                cache.look_after_push()
            })
        } else if is_earlier {
            self.state.fence_after_push()
        } else {
            return count;
        };
        if state.is_asleep() {
            // The deadlines as they are now, as for a single reset.
            let pending = group.iter().map(|timeout| &timeout.handle);
            let pending = pending.filter(|handle| handle.end().is_none());
            let first = pending.map(|handle| handle.deadline()).min();
            first.inspect(|&first| self.wake_if_needed(state, first));
        }
        count
    }
}
