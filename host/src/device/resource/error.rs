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
        /// What was looked for in it.
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
    /// The owner of an unowned resource has let it go.
    #[error("resource `{container}/{name}` of type {type_name} is gone: its owner has dropped it")]
    Expired {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// A resource of that name and type is there.
    #[error(
        "resource `{container}/{name}` of type {type_name} exists already; delete it first, or give the new one another name"
    )]
    AlreadyExists {
        /// The container.
        container: String,
        /// The name.
        name: String,
        /// The type.
        type_name: &'static str,
    },
    /// The manager does not own it, so it cannot delete it.
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
    /// Nothing may be created any more.
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
    /// The code that makes a resource asked the manager that waits for it.
    #[error(
        "the code that creates resource `{container}/{name}` called the resource manager that waits for it; look up what it needs before"
    )]
    CalledBack {
        /// Container of the resource that is being made.
        container: String,
        /// Its name.
        name: String,
    },
    /// The attribute `container` of a node.
    #[error(
        "container `{0}` is malformed; it starts with a letter, a digit or a dot, and goes on with these, dashes and slashes"
    )]
    MalformedContainer(String),
    /// The attribute `shared_name` of a node.
    #[error("shared_name `{0}` starts with `_`, which is reserved; choose another name")]
    ReservedName(String),
    /// A handle that another device has made.
    #[error(
        "resource `{name}` is on {handle_device} and cannot be used on {device}; place the op where the resource is"
    )]
    OtherDevice {
        /// The resource.
        name: String,
        /// The device that the handle names.
        handle_device: String,
        /// The device that uses it.
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
        /// The type that was asked for.
        expected: &'static str,
        /// The type that the handle names.
        found: String,
    },
}

impl ResourceError {
    /// Its category.
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
