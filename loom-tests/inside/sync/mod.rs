pub(crate) use super::model::inside::{
    Access, ChunkPtr, Count, IdleQueue, OnceLock, PageWord, SeenQueue, threads_come_and_go,
};
pub use super::model::inside::{Threads, take_spawned};
pub(crate) use super::model::inside::{model_chunks, model_page_words, set_fences};
