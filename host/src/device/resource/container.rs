//! The container and name of a stateful node's resource.

use super::error::ResourceError;
use super::manager::ResourceManager;
use crate::graph::AttrSet;

/// Container and name of a stateful node's resource, from its attributes `container` and
/// `shared_name` (TensorFlow `ContainerInfo`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContainerInfo {
    /// Attribute `container`, or the manager's default.
    pub container: String,
    /// Attribute `shared_name`, or the node's name if the op allows it, or a unique name.
    pub name: String,
    /// Whether the resource belongs to the kernel alone, and is dropped with it.
    pub is_private_to_kernel: bool,
}

impl ContainerInfo {
    /// Resolves the attributes of a node of this name. `use_node_name`: a resource without
    /// `shared_name` gets the node's name, so that nodes of that name in other sessions share it;
    /// otherwise it belongs to the kernel alone.
    ///
    /// # Errors
    /// [`ResourceError::MalformedContainer`], [`ResourceError::ReservedName`].
    pub fn resolve(
        manager: &ResourceManager,
        node: &str,
        attrs: &AttrSet,
        use_node_name: bool,
    ) -> Result<Self, ResourceError> {
        let container = attrs.text("container").unwrap_or("");
        let shared_name = attrs.text("shared_name").unwrap_or("");
        if !container.is_empty() && !is_container(container) {
            return Err(ResourceError::MalformedContainer(container.to_owned()));
        }
        if shared_name.starts_with('_') {
            return Err(ResourceError::ReservedName(shared_name.to_owned()));
        }
        let is_private_to_kernel = shared_name.is_empty() && !use_node_name;
        let name = if !shared_name.is_empty() {
            shared_name.to_owned()
        } else if use_node_name {
            node.to_owned()
        } else {
            format!("_{}_{node}", manager.next_unnamed())
        };
        let container = match container {
            "" => manager.default_container(),
            container => container,
        };
        Ok(Self {
            container: container.to_owned(),
            name,
            is_private_to_kernel,
        })
    }
}

fn is_container(text: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphanumeric() || c == '.';
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c == '-' || c == '/')
}
