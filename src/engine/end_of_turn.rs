//! What tasks leave for the end of the turn in which they run.
//!
//! Only the worker uses it, in a turn. The worker lock orders all accesses, and has a bit that says
//! whether there are any calls.

use std::mem;

use crate::sync::unmodelled::{Mutex, PoisonError};

#[derive(Default)]
pub(super) struct EndOfTurn(Mutex<Vec<EndCall>>);

/// A call, which may panic.
pub(crate) struct EndCall {
    /// For reports.
    pub(crate) name: &'static str,
    pub(crate) call: Box<dyn FnOnce() + Send>,
}

impl EndOfTurn {
    pub(super) fn push(&self, call: EndCall) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    /// Takes all calls.
    pub(super) fn take(&self) -> Vec<EndCall> {
        mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::tests::Driven;
    use crate::sync::mpsc::channel;

    #[test]
    fn all_calls_are_made_once_at_the_end_of_a_turn() {
        let mut t = Driven::new();
        let (sender, made) = channel();
        for number in 0..3 {
            let sender = sender.clone();
            let call = Box::new(move || sender.send(number).unwrap());
            t.shared().at_end_of_turn(EndCall { name: "a call", call });
        }
        for expected in [vec![0, 1, 2], vec![]] {
            t.turn();
            assert_eq!(Vec::from_iter(made.try_iter()), expected);
        }
    }
}
