//! The wheels without their entries, for entries that are stored elsewhere, such as in an arena or
//! in the nodes of another data structure.
//!
//! An entry is a number below `u32::MAX`. Whoever stores the entries implements [`Entries`]: the
//! deadline of each, and its position, which the wheel gives. So a wheel costs an entry four or
//! eight bytes. The methods are those of [`HashedWheel`](crate::HashedWheel) and
//! [`HierarchicalWheel`](crate::HierarchicalWheel), which are an order with entries of their own.
//!
//! The orders do not check what they are given. After a wrong number, deadline or position they may
//! panic, or give out other entries than those that are due.
//!
//! # Examples
//!
//! ```
//! use timing_wheels::order::{Entries, Hashed};
//!
//! /// The sessions of a server, each with its place in the wheel.
//! struct Session {
//!     deadline: u64,
//!     position: u32,
//! }
//!
//! struct Sessions(Vec<Session>);
//!
//! impl Entries for Sessions {
//!     fn deadline(&self, entry: u32) -> u64 {
//!         self.0[entry as usize].deadline
//!     }
//!
//!     fn set_position(&mut self, entry: u32, position: u32) {
//!         self.0[entry as usize].position = position;
//!     }
//! }
//!
//! let mut sessions = Sessions(Vec::new());
//! let mut wheel = Hashed::try_new(64).unwrap();
//! for (entry, deadline) in (0..).zip([30, 10, 20]) {
//!     let position = wheel.insert(deadline, entry);
//!     sessions.0.push(Session { deadline, position });
//! }
//! let Session { deadline, position } = sessions.0[2];
//! wheel.remove(deadline, position, &mut sessions);
//!
//! wheel.advance(&mut sessions, 25);
//! assert_eq!(wheel.pop_due(&sessions), Some(1));
//! assert_eq!(wheel.pop_due(&sessions), None);
//! assert_eq!(wheel.next_deadline(), Some(30));
//! ```

pub use crate::entries::Entries;
pub use crate::hashed::Hashed;
pub use crate::hierarchical::Hierarchical;
pub use crate::ring::SlotCounts;
