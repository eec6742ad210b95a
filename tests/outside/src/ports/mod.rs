//! Small ports of what others have built on timers. They stay possible, and short.

mod cache;
mod http_read;
mod mailbox;
mod reactor;

use crate::driven::{Driven, SECOND};
