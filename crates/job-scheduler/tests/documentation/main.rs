//! What the pages of this crate print works as printed.

mod pages;
mod pool;
mod readme;
