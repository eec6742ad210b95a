//! The messages about a node from a caller to the worker.
//!
//! At most one message about a node is under way at a time, and the node is not recycled until the
//! worker has it; the [state word](super::word) says why. A message travels through a
//! [lane](mod@super::lane) as a number that is not zero: its kind, and the number of the node.

#![allow(unsafe_code)]

use super::refs::{Handle, Owner};

/// The content of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A new timeout. The message owns the wheel's reference.
    New = 1,
    /// The same, for a timeout that takes the place of another one: a timer that closes accepts it.
    Replacement = 4,
    /// The deadline has become earlier, or a periodic task has its next one. The wheel's reference
    /// is in the wheel, or the worker met the node there and left the reference to this message.
    Moved = 2,
    /// The timeout has ended. The wheel's reference as for `Moved`.
    Ended = 3,
    /// The timeout was cancelled, and the message owns the reference of the handle too. The wheel's
    /// reference as for `Moved`.
    Discarded = 5,
}

impl Kind {
    pub(super) fn encode(self, number: u32) -> u64 {
        (self as u64) << 32 | u64::from(number)
    }

    #[inline]
    pub(super) fn decode(message: u64) -> (Self, u32) {
        let kind = match message >> 32 {
            1 => Self::New,
            2 => Self::Moved,
            3 => Self::Ended,
            4 => Self::Replacement,
            _ => Self::Discarded,
        };
        (kind, message as u32)
    }
}

/// A message that has to be pushed, about the node of a handle.
#[must_use = "the worker waits for this message"]
pub(crate) struct Message<'a, S: Owner> {
    handle: &'a Handle<S>,
    kind: Kind,
}

impl<'a, S: Owner> Message<'a, S> {
    /// # Safety
    ///
    /// The caller has just made a transition of the node's word that requires this message, and
    /// makes no other one about it.
    #[inline]
    pub(super) unsafe fn new(handle: &'a Handle<S>, kind: Kind) -> Self {
        Self { handle, kind }
    }

    /// The message as a lane has it.
    #[inline]
    pub(super) fn encode(&self) -> u64 {
        self.kind.encode(self.handle.number)
    }

    #[inline]
    pub(crate) fn handle(&self) -> &'a Handle<S> {
        self.handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_not_zero_and_names_its_kind_and_its_node() {
        for kind in [
            Kind::New,
            Kind::Replacement,
            Kind::Moved,
            Kind::Ended,
            Kind::Discarded,
        ] {
            for number in [0, 1, 64, u32::MAX] {
                let message = kind.encode(number);
                assert_ne!(message, 0);
                assert_eq!(Kind::decode(message), (kind, number));
            }
        }
    }
}
