//! Changes of a cluster: what if a device were slower, absent or smaller?

use super::error::ClusterSpecError;
use crate::names::DeviceName;

/// Changes of single devices. They are named as in requests, `GPU:1` or `/job:worker/device:GPU:*`,
/// or by their type, `GPU`.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct Changes {
    /// Devices that take so many times as long for everything but transfers.
    pub slower: Vec<(String, f64)>,
    /// Devices that are absent.
    pub without: Vec<String>,
    /// Devices with so many bytes of memory.
    pub memory_bytes: Vec<(String, u64)>,
}

impl Changes {
    /// Makes devices take `factor` times as long for everything but transfers.
    #[must_use]
    pub fn with_slower(mut self, devices: impl Into<String>, factor: f64) -> Self {
        self.slower.push((devices.into(), factor));
        self
    }

    /// Removes devices.
    #[must_use]
    pub fn without(mut self, devices: impl Into<String>) -> Self {
        self.without.push(devices.into());
        self
    }

    /// Sets the memory of devices.
    #[must_use]
    pub fn with_memory_bytes(mut self, devices: impl Into<String>, bytes: u64) -> Self {
        self.memory_bytes.push((devices.into(), bytes));
        self
    }

    /// Whether nothing changes.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Returns the positions of the devices that `spec` names, at least one.
pub(super) fn find<'a>(
    spec: &str,
    names: impl Iterator<Item = &'a DeviceName>,
) -> Result<Vec<usize>, ClusterSpecError> {
    let wanted = match DeviceName::parse_full_or_local(spec) {
        Ok(wanted) => wanted,
        Err(_) if spec.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') => DeviceName {
            device_type: Some(spec.into()),
            ..DeviceName::default()
        },
        Err(error) => return Err(ClusterSpecError::Change(error.to_string())),
    };
    let (mut found, mut all) = (Vec::new(), Vec::new());
    for (index, name) in names.enumerate() {
        if wanted.matches(name) {
            found.push(index);
        }
        all.push(name.to_string());
    }
    if found.is_empty() {
        const SHOWN_MAX: usize = 8;
        let n_more = all.len().saturating_sub(SHOWN_MAX);
        all.truncate(SHOWN_MAX);
        let more = match n_more {
            0 => String::new(),
            n_more => format!(" and {n_more} more"),
        };
        return Err(ClusterSpecError::Change(format!(
            "no device is named {spec}; there are {}{more}",
            all.join(", ")
        )));
    }
    Ok(found)
}
