//! A limit of retries and hedges.

use crate::sync::{Arc, AtomicU64, Ordering};

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
    tokens: Arc<AtomicU64>,
    max_tokens: u64,
    price: u64,
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
        let price = u64::from(calls_per_retry);
        // The product of two `u32`, and another one, are less than 2^64.
        let tokens = u64::from(reserve) * price;
        Self {
            tokens: Arc::new(AtomicU64::new(tokens)),
            // Room to save for one more.
            max_tokens: tokens + price,
            price,
        }
    }

    pub(super) fn earn(&self) {
        let add = |tokens| (tokens < self.max_tokens).then(|| tokens + 1);
        let _full = self
            .tokens
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub(super) fn spend(&self) -> bool {
        let take = |tokens: u64| tokens.checked_sub(self.price);
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

    #[test]
    fn largest_budgets_have_all_of_their_reserve() {
        for (reserve, calls) in [(u32::MAX, 1), (u32::MAX, u32::MAX), (1, u32::MAX)] {
            let budget = Budget::new(reserve, calls);
            let (reserve, price) = (u64::from(reserve), u64::from(calls));
            let tokens = || budget.tokens.load(Ordering::Relaxed);
            assert_eq!(tokens(), reserve * price);
            budget.earn();
            assert_eq!(tokens(), reserve * price + 1);
            assert!(budget.spend());
            assert_eq!(tokens(), (reserve - 1) * price + 1);
            budget.tokens.store(budget.max_tokens, Ordering::Relaxed);
            budget.earn();
            assert_eq!(tokens(), (reserve + 1) * price, "it is full");
        }
    }
}
