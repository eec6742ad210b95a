//! The library with the changes of `mutants.rs` and the modules of `inside/`; see `build.rs`.

#![allow(
    unused_parens,
    clippy::collapsible_if,
    clippy::double_parens,
    reason = "a mutant is put around an expression, or before a statement"
)]

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
