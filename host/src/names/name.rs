//! Parsed device names (TensorFlow `DeviceNameUtils::ParsedName`): the type, its string forms, and
//! names derived from it.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A device name, possibly partial. Each part that is set must match; an unset part matches
/// anything.
///
/// Names are ordered as in TensorFlow: part by part, unset before set, numbers by value.
///
/// ```
/// use placewright::names::DeviceName;
///
/// let name = DeviceName::parse_full("/job:worker/replica:0/task:1/gpu:2")?;
/// assert_eq!(name.to_string(), "/job:worker/replica:0/task:1/device:GPU:2");
/// assert!(DeviceName::parse_full("/device:GPU:*")?.matches(&name));
/// # Ok::<(), placewright::names::NameError>(())
/// ```
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
    /// Index among the devices of that type in the task. It may be set without a type, but is then
    /// not printed.
    pub index: Option<u32>,
}

/// Why a string is not a device name, or why two names cannot be merged.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// Not a device name.
    #[error(
        "`{0}` is not a device name; expected `/job:J/replica:R/task:T/device:TYPE:INDEX`, any part of it, or `TYPE:INDEX`"
    )]
    Malformed(String),
    /// Not a device name, although only names of existing devices are expected here: a bug of the
    /// caller.
    #[error(
        "`{0}` has no host CPU: it is not a device name; expected `/job:J/replica:R/task:T/device:TYPE:INDEX`, or any part of it"
    )]
    MalformedDevice(String),
    /// Not a device specification of TensorFlow's front end.
    #[error("`{spec}` is not a device specification: `{piece}`: {reason}")]
    Spec {
        /// The whole specification.
        spec: String,
        /// The invalid piece.
        piece: String,
        /// What is expected.
        reason: &'static str,
    },
    /// Not the key of a transfer.
    #[error(
        "`{key}` is not a rendezvous key: {reason}; expected `SOURCE;INCARNATION;DESTINATION;EDGE;FRAME:ITERATION`"
    )]
    Key {
        /// The whole key.
        key: String,
        /// What is wrong.
        reason: &'static str,
    },
    /// A full name is required.
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

impl fmt::Display for DeviceName {
    /// Formats the name as TensorFlow prints it: an index without a type is left out.
    /// [`Self::request_text`] keeps it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.write_task(f)?;
        if let Some(device_type) = &self.device_type {
            match self.index {
                Some(index) => write!(f, "/device:{device_type}:{index}")?,
                None => write!(f, "/device:{device_type}:*")?,
            }
        }
        Ok(())
    }
}

impl FromStr for DeviceName {
    type Err = NameError;

    /// Parses the full grammar, like [`Self::parse_full`].
    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse_full(text)
    }
}

impl DeviceName {
    /// Creates a fully specified name.
    pub fn full(job: &str, replica: u32, task: u32, device_type: &str, index: u32) -> Self {
        Self {
            job: Some(job.into()),
            replica: Some(replica),
            task: Some(task),
            device_type: Some(device_type.into()),
            index: Some(index),
        }
    }

    /// Names a device of any task by type and index.
    pub fn local(device_type: &str, index: u32) -> Self {
        Self {
            device_type: Some(device_type.into()),
            index: Some(index),
            ..Self::default()
        }
    }

    /// Returns the name as a request spells it, without loss: as printed, but with an index without
    /// a type as `/device:*:INDEX`. Used in messages. Parses to the same name.
    ///
    /// ```
    /// use placewright::names::DeviceName;
    ///
    /// let name = DeviceName::parse_full("/job:worker/device:*:1")?;
    /// assert_eq!(name.to_string(), "/job:worker");
    /// assert_eq!(name.request_text(), "/job:worker/device:*:1");
    /// # Ok::<(), placewright::names::NameError>(())
    /// ```
    pub fn request_text(&self) -> String {
        match (&self.device_type, self.index) {
            (None, Some(index)) => format!("{self}/device:*:{index}"),
            _ => self.to_string(),
        }
    }

    /// Returns whether all five parts are set.
    pub fn is_fully_specified(&self) -> bool {
        self.has_task() && self.device_type.is_some() && self.index.is_some()
    }

    /// Returns whether any part is set. A name without details matches every device.
    pub fn has_details(&self) -> bool {
        self.job.is_some()
            || self.replica.is_some()
            || self.task.is_some()
            || self.device_type.is_some()
            || self.index.is_some()
    }

    /// Returns `/job:J/replica:R/task:T/type:INDEX` with the type in lower case, the form of full
    /// names before TensorFlow 1.1. `None` unless fully specified.
    pub fn legacy_full_name(&self) -> Option<String> {
        if !self.is_fully_specified() {
            return None;
        }
        let device_type = self.device_type.as_ref()?.to_ascii_lowercase();
        Some(format!(
            "{}/{device_type}:{}",
            self.address_space(),
            self.index?
        ))
    }

    /// Returns `/device:TYPE:INDEX`; `None` unless both are set.
    pub fn local_name(&self) -> Option<String> {
        Some(format!(
            "/device:{}:{}",
            self.device_type.as_ref()?,
            self.index?
        ))
    }

    /// Returns `TYPE:INDEX`, the local name of TensorFlow 1.0; `None` unless both are set.
    pub fn legacy_local_name(&self) -> Option<String> {
        Some(format!("{}:{}", self.device_type.as_ref()?, self.index?))
    }

    /// Returns the forms under which a device set finds a full name: canonical and legacy. Empty
    /// unless fully specified.
    pub fn mapping_names(&self) -> Vec<String> {
        match self.legacy_full_name() {
            Some(legacy) => vec![self.to_string(), legacy],
            None => Vec::new(),
        }
    }

    /// Returns the canonical and legacy forms of the local name. Empty unless type and index are
    /// set.
    pub fn local_mapping_names(&self) -> Vec<String> {
        self.local_name()
            .into_iter()
            .chain(self.legacy_local_name())
            .collect()
    }

    /// Returns the name with job, replica and task only.
    #[must_use]
    pub fn address_space(&self) -> Self {
        Self {
            device_type: None,
            index: None,
            ..self.clone()
        }
    }

    /// Returns `/job:J/replica:R/task:T`; `None` unless all three are set.
    pub fn task_name(&self) -> Option<String> {
        self.has_task().then(|| self.address_space().to_string())
    }

    /// Splits the name into the parts of its task that are set, and `TYPE:INDEX`. `None` unless
    /// type and index are set.
    pub fn split(&self) -> Option<(String, String)> {
        Some((self.address_space().to_string(), self.legacy_local_name()?))
    }

    /// Returns CPU 0 of the same task.
    #[must_use]
    pub fn host_cpu(&self) -> Self {
        Self {
            device_type: Some("CPU".into()),
            index: Some(0),
            ..self.address_space()
        }
    }

    /// Compares two names given as strings. Strings that do not parse come first, in string order;
    /// the others follow, part by part.
    pub fn compare_names(a: &str, b: &str) -> Ordering {
        match (Self::parse_full(a), Self::parse_full(b)) {
            (Ok(a), Ok(b)) => a.cmp(&b),
            (Ok(_), Err(_)) => Ordering::Greater,
            (Err(_), Ok(_)) => Ordering::Less,
            (Err(_), Err(_)) => a.cmp(b),
        }
    }

    fn has_task(&self) -> bool {
        self.job.is_some() && self.replica.is_some() && self.task.is_some()
    }

    fn write_task(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(job) = &self.job {
            write!(f, "/job:{job}")?;
        }
        if let Some(replica) = self.replica {
            write!(f, "/replica:{replica}")?;
        }
        if let Some(task) = self.task {
            write!(f, "/task:{task}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spellings_of_a_full_name() {
        let name = DeviceName::full("a", 0, 1, "Foo", 2);
        assert_eq!(name.to_string(), "/job:a/replica:0/task:1/device:Foo:2");
        assert_eq!(
            name.legacy_full_name().as_deref(),
            Some("/job:a/replica:0/task:1/foo:2")
        );
        assert_eq!(name.local_mapping_names(), ["/device:Foo:2", "Foo:2"]);
        assert_eq!(name.task_name().as_deref(), Some("/job:a/replica:0/task:1"));
        assert_eq!(
            name.host_cpu().to_string(),
            "/job:a/replica:0/task:1/device:CPU:0"
        );
    }

    #[test]
    fn partial_names_have_no_mapping_names() {
        let name = DeviceName::local("CPU", 1);
        assert!(name.mapping_names().is_empty());
        assert_eq!(name.split(), Some((String::new(), "CPU:1".to_owned())));
        assert_eq!(DeviceName::default().split(), None);
    }

    #[test]
    fn order_is_numeric() {
        let less = DeviceName::compare_names("/device:GPU:2", "/device:GPU:10");
        assert_eq!(less, Ordering::Less);
        assert_eq!(DeviceName::compare_names("bogus", "/job:a"), Ordering::Less);
    }
}
