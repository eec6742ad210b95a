//! Checks of the repository itself: of its documents, its structure and its public API. No code of
//! the library runs.
#![cfg(not(miri))]

mod design_doc;
mod examples;
mod files;
mod imports;
mod limits;
mod links;
mod names;
mod public_api;
mod readme;
mod structure;
