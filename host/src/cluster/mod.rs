//! Machines on paper: devices and links that a file describes, for placing and simulating graphs
//! without them.
//!
//! A [`ClusterSpec`] has a device set, whose devices execute nothing, and the costs of kernels on
//! them. [`ClusterSpec::of_devices`] describes the devices of this process in the same form. The
//! catalogue has the figures of known processors and links, with their sources.
//!
//! ```
//! use placewright::cluster::ClusterSpec;
//!
//! let cluster = ClusterSpec::parse(
//!     r#"
//!     [[host]]
//!     device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 8 }]
//!     "#,
//! )?;
//! assert_eq!(cluster.devices().len(), 9);
//! # Ok::<(), placewright::cluster::ClusterSpecError>(())
//! ```

mod build;
mod catalogue;
mod changes;
mod costs;
mod device;
mod error;
mod export;
mod file;
pub(crate) mod quantity;
#[cfg(test)]
mod tests;

pub use build::ClusterSpec;
pub use catalogue::CatalogueEntry;
pub use catalogue::catalogue;
pub use changes::Changes;
pub use error::ClusterSpecError;
pub(crate) use error::OneLine;
pub use error::Place;
