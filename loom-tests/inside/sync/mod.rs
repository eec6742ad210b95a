pub(crate) use super::model::inside::Count;
pub use super::model::inside::take_spawned;
