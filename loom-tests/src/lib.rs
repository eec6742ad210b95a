//! The library, changed by `mutants.rs` (see `build.rs`), and what its models see of its inside.

#![allow(unused_parens, clippy::double_parens, reason = "where a mutant takes the place of an expression")]

include!(concat!(env!("OUT_DIR"), "/src/lib.rs"));
