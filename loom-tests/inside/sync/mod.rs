#[cfg(not(hashed_wheel_shuttle))]
pub use super::model::inside::HeavyFence;
pub(crate) use super::model::inside::{ChunkPtr, Count, OnceLock, PageWord};
pub use super::model::inside::{Threads, take_spawned};
pub(crate) use super::model::inside::{has_heavy_fence, heavy_fence, model_chunks, model_page_words};
