//! The examples in the pages of this crate work as printed.

mod pool;
mod readme;
