#[cfg(not(hashed_wheel_shuttle))]
pub use super::model::inside::HeavyFence;
pub use super::model::inside::take_spawned;
pub(crate) use super::model::inside::{Count, PageWord, has_heavy_fence, heavy_fence, model_page_words};
