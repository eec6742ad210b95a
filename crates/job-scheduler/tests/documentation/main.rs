//! What the pages of this crate print works as printed.

mod pool;
mod readme;
