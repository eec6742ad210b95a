pub use super::model::inside::take_spawned;
