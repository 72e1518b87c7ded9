//! Resources that stay on a device between runs: variables, tables, queues.

mod container;
mod error;
mod handle;
mod manager;

pub use container::ContainerInfo;
pub use error::ResourceError;
pub use handle::make_resource_handle;
pub use manager::Resource;
pub use manager::ResourceManager;

#[cfg(test)]
mod tests;
