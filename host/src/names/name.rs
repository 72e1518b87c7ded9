//! Parsed device names (TensorFlow `DeviceNameUtils::ParsedName`).

use std::fmt;
use std::sync::Arc;

/// A device name, possibly partial: each part that is set must match, the others match anything.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct DeviceName {
    /// Job, an identifier.
    pub job: Option<Arc<str>>,
    /// Replica within the job.
    pub replica: Option<u32>,
    /// Task within the replica.
    pub task: Option<u32>,
    /// Device type, case sensitive.
    pub device_type: Option<Arc<str>>,
    /// Index among the devices of that type in the task.
    pub index: Option<u32>,
}

/// Why a text is no device name, or two names do not go together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not a device name.
    #[error(
        "`{0}` is no device name; expected `/job:J/replica:R/task:T/device:TYPE:INDEX`, any part of it, or `TYPE:INDEX`"
    )]
    Malformed(String),
    /// A full name is needed.
    #[error("`{0}` is not fully specified")]
    NotFull(String),
    /// Merging found two values for one part.
    #[error("incompatible {part}: `{target}` and `{other}`")]
    Incompatible {
        /// `jobs`, `replicas`, `tasks`, `types` or `ids`.
        part: &'static str,
        /// The name merged into.
        target: String,
        /// The name merged from.
        other: String,
    },
}

/// What merging does where type or index differ; job, replica and task never give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MergeMode {
    /// An error.
    Hard,
    /// The part, and what follows it, is unset.
    Soft,
    /// The other name's value counts.
    Override,
}

impl fmt::Display for DeviceName {
    /// The canonical spelling; an index without a type is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        if let Some(device_type) = &self.device_type {
            match self.index {
                Some(index) => write!(f, "/device:{device_type}:{index}")?,
                None => write!(f, "/device:{device_type}:*")?,
            }
        }
        Ok(())
    }
}

impl DeviceName {
    /// A fully specified name.
    pub fn full(job: &str, replica: u32, task: u32, device_type: &str, index: u32) -> Self {
        Self {
            job: Some(job.into()),
            replica: Some(replica),
            task: Some(task),
            device_type: Some(device_type.into()),
            index: Some(index),
        }
    }
}
