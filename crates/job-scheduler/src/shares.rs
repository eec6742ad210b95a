//! What each handler of a node has, so that none of them takes everything.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::caught::lock;

/// A handler takes one more place if it has less than this many times the free ones. So one handler
/// takes at most seven eighths, and the next one at most seven eighths of the rest. A few with
/// backlogs can take all: of 1024 places, that are four.
const MOST: usize = 7;

/// A place of a handler. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place(#[expect(dead_code, reason = "it is counted")] Arc<()>);

/// The numbers of places that the handlers have.
#[derive(Debug, Default)]
pub(crate) struct Shares(Mutex<HashMap<String, Arc<()>>>);

impl Shares {
    pub(crate) fn take(&self, handler: &str) -> Place {
        Place(lock(&self.0).entry(handler.to_owned()).or_default().clone())
    }

    pub(crate) fn count(&self, handler: &str) -> usize {
        lock(&self.0)
            .get(handler)
            .map_or(0, |place| Arc::strong_count(place) - 1)
    }

    /// Returns how many of the free places a handler may take, if there are other handlers.
    pub(crate) fn room(&self, handler: &str, free: usize) -> usize {
        (MOST * free)
            .saturating_sub(self.count(handler))
            .div_ceil(MOST + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_handler_takes_all() {
        for (places, first, second) in [(1, 1, 0), (4, 4, 0), (8, 7, 1), (1_024, 896, 112)] {
            let shares = Shares::default();
            let take = |handler, free| {
                let room = shares.room(handler, free);
                (0..room).map(|_| shares.take(handler)).collect::<Vec<_>>()
            };
            let a = take("a", places);
            assert_eq!(a.len(), first);
            assert_eq!(shares.room("a", places - first), 0);
            let b = take("b", places - first);
            assert_eq!(b.len(), second);
            drop(a);
            assert_eq!((shares.count("a"), shares.count("b")), (0, second));
        }
    }
}
