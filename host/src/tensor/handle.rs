//! Handles of resources that stay on a device between runs.

use std::fmt;

use super::DType;
use super::PartialShape;

/// Identifies a resource of a device: the element of a tensor of type `resource` (TensorFlow
/// `ResourceHandle`).
#[derive(Debug, Clone, PartialEq)]
pub struct ResourceHandle {
    /// Full name of the device that the resource is on.
    pub device: String,
    /// Container in the device's resource manager.
    pub container: String,
    /// Name in the container.
    pub name: String,
    /// Hash of the resource's type, constant within one build of the program.
    pub type_hash: u64,
    /// Name of the type, for messages.
    pub type_name: String,
    /// Types and shapes of the tensors in the resource, as far as they are known.
    pub dtypes_and_shapes: Vec<(DType, PartialShape)>,
}

impl fmt::Display for ResourceHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} on {}", self.container, self.name, self.device)
    }
}
