//! Task graphs on paper: tasks, data and dependencies that a file describes, for placing and
//! simulating them on any devices.
//!
//! A [`TaskGraph`] is read from a JSON file, in the format that `GUIDE.md` describes or in WfFormat
//! 1.5 and 1.6, in which [WfCommons](https://wfcommons.org) publishes workflows. Nothing of it can
//! be executed here. With a device set, it makes the candidates that a policy is asked about. The
//! devices of a [`ClusterSpec`](crate::cluster::ClusterSpec) exist on paper, too.
//!
//! ```
//! use placewright::cluster::ClusterSpec;
//! use placewright::dag::TaskGraph;
//!
//! let tasks = TaskGraph::parse(
//!     r#"{ "tasks": [
//!         { "name": "decode", "time": { "CPU": "40 ms" },
//!           "writes": [{ "name": "frames", "bytes": "2 GB" }] },
//!         { "name": "train", "time": { "GPU": "1 s" }, "reads": ["frames"] }
//!     ] }"#,
//! )?;
//! let cluster = ClusterSpec::parse(
//!     r#"
//!     [[host]]
//!     device = [{ profile = "epyc-9654" }, { profile = "h100-sxm", count = 2 }]
//!     "#,
//! )?;
//! let candidates = tasks.candidates(cluster.devices())?;
//! let train = tasks.graph().find_node("train").expect("it is in the file");
//! assert_eq!(candidates.of_node(train).len(), 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod assemble;
mod candidates;
mod cycle;
mod draft;
mod error;
mod file;
mod names;
mod own;
#[cfg(test)]
mod tests;
mod text;
mod wfformat;

pub use assemble::TaskGraph;
pub use error::TaskGraphError;
