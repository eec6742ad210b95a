//! A limit of retries and hedges.

use crate::sync::{Arc, AtomicU32, Ordering};

/// Limits the retries and hedges to a fraction of the calls, in addition to a reserve. Without a
/// limit, a server that is slow because of overload would get several times as many requests.
/// Finagle's `RetryBudget`. Clones share their state.
///
/// Only [`Client::call`](super::Client::call) and [`call_until`](super::Client::call_until) add to
/// it: operations that are not repeated do not count.
///
/// # Examples
///
/// ```
/// use hashed_wheel::HashedWheelTimer;
/// use hashed_wheel_util::client::{Budget, Client, Policy};
/// use std::time::Duration;
///
/// // 20 retries and hedges, and one more per 5 calls.
/// let budget = Budget::new(20, 5);
/// let timer = HashedWheelTimer::default();
/// let [reader, scanner] = [1, 30].map(|seconds| {
///     Client::with_budget(&timer, Policy::new(Duration::from_secs(seconds)), budget.clone())
/// });
/// ```
#[derive(Debug, Clone)]
pub struct Budget {
    /// One per call. A retry or hedge takes [`price`](Self::price) of them.
    tokens: Arc<AtomicU32>,
    max_tokens: u32,
    price: u32,
}

impl Budget {
    /// Makes a budget of one retry or hedge per `calls_per_retry` calls, in addition to a reserve
    /// of `reserve` of them, which is full now.
    ///
    /// # Panics
    ///
    /// If `calls_per_retry` is zero. For no limit give the [client](super::Client::with_budget)
    /// `None`.
    #[must_use]
    #[track_caller]
    pub fn new(reserve: u32, calls_per_retry: u32) -> Self {
        assert!(
            calls_per_retry > 0,
            "calls_per_retry is zero, but must be at least 1"
        );
        let tokens = reserve.saturating_mul(calls_per_retry);
        // Room to save for one more.
        let max_tokens = tokens.saturating_add(calls_per_retry);
        Self {
            tokens: Arc::new(AtomicU32::new(tokens)),
            max_tokens,
            price: calls_per_retry,
        }
    }

    pub(super) fn earn(&self) {
        let add = |tokens| (tokens < self.max_tokens).then_some(tokens + 1);
        let _full = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub(super) fn spend(&self) -> bool {
        let take = |tokens: u32| tokens.checked_sub(self.price);
        self.tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take)
            .is_ok()
    }
}

/// A reserve of 100 retries and hedges, and one per 10 calls.
impl Default for Budget {
    fn default() -> Self {
        Self::new(100, 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_budget_earns_no_more() {
        let budget = Budget::new(1, 1);
        (0..9).for_each(|_| budget.earn());
        assert_eq!(
            [(); 3].map(|()| budget.spend()),
            [true, true, false],
            "the reserve and one more"
        );
    }
}
