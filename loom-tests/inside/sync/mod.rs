pub(crate) use super::model::inside::{ChunkPtr, Count, OnceLock, PageWord};
pub use super::model::inside::{Threads, take_spawned};
pub(crate) use super::model::inside::{model_chunks, model_page_words};
