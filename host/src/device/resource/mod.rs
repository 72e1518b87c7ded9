//! What stays on a device between runs: variables, tables, queues.

mod container;
mod error;
mod manager;

pub use container::ContainerInfo;
pub use error::ResourceError;
pub use manager::Resource;
pub use manager::ResourceManager;
