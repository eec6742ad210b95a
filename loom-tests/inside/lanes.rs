//! Lanes without a timer.

use super::{Door, Inbox, Sender};
use crate::sync::Mutex;

/// Some lanes and who takes from them.
pub struct Lanes {
    door: Door,
    inbox: Mutex<Inbox>,
}

/// A thread's end of one. Messages are numbers but zero.
pub struct Lane(Sender);

impl Lanes {
    #[allow(clippy::new_without_default, reason = "only where loom runs")]
    pub fn new() -> Self {
        Self { door: Door::new(), inbox: Mutex::default() }
    }

    pub fn open(&self) -> Lane {
        Lane(self.door.open())
    }

    /// What waits, zeros and all; and whether more does.
    pub fn take(&self, most: usize) -> (Vec<u64>, bool) {
        let mut messages = Vec::new();
        let (count, more) = self.inbox.lock().take(&self.door, most, |taken| {
            messages.extend(taken.iter().map(|taken| taken.message));
        });
        assert_eq!(count, messages.len());
        (messages, more)
    }

    /// How many lanes more may come from.
    pub fn count(&self) -> usize {
        self.inbox.lock().lanes.len()
    }
}

impl Lane {
    pub fn push(&mut self, message: u64) -> u64 {
        let ticket = self.0.ticket();
        self.0.push(message);
        ticket
    }

    pub fn take_back(&self, ticket: u64, message: u64) -> bool {
        self.0.take_back(ticket, message)
    }

    pub fn retire(&self) {
        self.0.retire();
    }
}
