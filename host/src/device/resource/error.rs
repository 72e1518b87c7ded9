//! Errors about resources.

use crate::device::status::StatusCode;

/// Why a resource is unavailable, or cannot be created or deleted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ResourceError {
    /// Nothing was ever created in the container, or it was cleaned up.
    #[error(
        "container `{container}` does not exist (while looking for resource `{name}` of type {type_name}); create the resource first"
    )]
    NoContainer {
        /// The container.
        container: String,
        /// The name that was looked up.
        name: String,
        /// Its type.
        type_name: &'static str,
    },
    /// The container has no resource of that name and type.
    #[error(
        "resource `{container}/{name}` of type {type_name} does not exist; create or initialize it first"
    )]
    NotFound {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// The owner of an unowned resource has dropped it.
    #[error(
        "resource `{container}/{name}` of type {type_name} no longer exists: its owner has dropped it"
    )]
    Expired {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// A resource of that name and type already exists.
    #[error(
        "resource `{container}/{name}` of type {type_name} already exists; delete it first, or give the new one another name"
    )]
    AlreadyExists {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// The manager does not own the resource, so it cannot delete it.
    #[error(
        "resource `{container}/{name}` of type {type_name} is not owned by the manager; its owner deletes it by dropping it"
    )]
    NotOwned {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// The manager is finalized: nothing can be created any more.
    #[error(
        "resource `{container}/{name}` of type {type_name} cannot be created: the resource manager is finalized"
    )]
    Finalized {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// The code that creates a resource called the manager, which waits for it.
    #[error(
        "the code that creates resource `{container}/{name}` called the resource manager that waits for it; look up what it needs before"
    )]
    CalledBack {
        /// Container of the resource that is being created.
        container: String,
        /// Its name.
        name: String,
    },
    /// The attribute `container` of a node is malformed.
    #[error(
        "container `{0}` is malformed; it must start with a letter, a digit or a dot, followed by these, dashes and slashes"
    )]
    MalformedContainer(String),
    /// The attribute `shared_name` of a node is reserved.
    #[error("shared_name `{0}` starts with `_`, which is reserved; choose another name")]
    ReservedName(String),
    /// A handle of another device.
    #[error(
        "resource `{name}` is on {handle_device} and cannot be used on {device}; place the op where the resource is"
    )]
    OtherDevice {
        /// The resource.
        name: String,
        /// The device that the handle names.
        handle_device: String,
        /// The device that uses the handle.
        device: String,
    },
    /// A variable was read before it was assigned.
    #[error(
        "variable `{container}/{name}` is not initialized; assign it first, in a run before or with a control dependency"
    )]
    Uninitialized {
        /// The container.
        container: String,
        /// The variable.
        name: String,
    },
    /// A handle to a resource of another type.
    #[error("resource `{name}` is of type {found}, not {expected}")]
    OtherType {
        /// The resource.
        name: String,
        /// The requested type.
        expected: &'static str,
        /// The type in the handle.
        found: String,
    },
}

impl ResourceError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::NoContainer { .. } | Self::NotFound { .. } | Self::Expired { .. } => {
                StatusCode::NotFound
            }
            Self::AlreadyExists { .. } => StatusCode::AlreadyExists,
            Self::NotOwned { .. } => StatusCode::Internal,
            Self::Finalized { .. } | Self::CalledBack { .. } | Self::Uninitialized { .. } => {
                StatusCode::FailedPrecondition
            }
            Self::MalformedContainer(_)
            | Self::ReservedName(_)
            | Self::OtherDevice { .. }
            | Self::OtherType { .. } => StatusCode::InvalidArgument,
        }
    }
}
