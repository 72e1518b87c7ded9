//! Status codes: the small set of numbers by which TensorFlow and its clients classify errors.

use std::fmt;

use crate::device::error::DeviceError;
use crate::device::error::KernelError;
use crate::device::factory_registry::RegisterError;
use crate::device::kernel_creation::KernelCreationError;
use crate::device::kernel_registry::KernelLookupError;
use crate::names::NameError;
use crate::tensor::TensorError;

/// The category of an error (TensorFlow `error.Code`, which is gRPC's). An error's message says
/// what happened; programs decide by the category, which is sent as a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum StatusCode {
    /// No error.
    Ok = 0,
    /// The caller cancelled the operation.
    Cancelled = 1,
    /// An error of unknown category.
    Unknown = 2,
    /// An argument is wrong, regardless of the state of the system.
    InvalidArgument = 3,
    /// The operation took longer than allowed.
    DeadlineExceeded = 4,
    /// Something that was named does not exist.
    NotFound = 5,
    /// Something that was to be created already exists.
    AlreadyExists = 6,
    /// The caller may not do this.
    PermissionDenied = 7,
    /// A resource is exhausted: memory, handles.
    ResourceExhausted = 8,
    /// The system is not in the required state.
    FailedPrecondition = 9,
    /// Aborted because of a concurrent event; may be retried.
    Aborted = 10,
    /// Beyond the end of a range.
    OutOfRange = 11,
    /// Allowed, but not implemented.
    Unimplemented = 12,
    /// An invariant is violated: a bug, or a broken device.
    Internal = 13,
    /// Not reachable now; may be retried.
    Unavailable = 14,
    /// Data is lost or damaged.
    DataLoss = 15,
    /// The caller is not authenticated.
    Unauthenticated = 16,
}

impl StatusCode {
    /// All codes, by number.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns the number of the code (`error.Code`).
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// Returns the code of a number; `None` if there is none (a newer peer may send others: treat
    /// them as [`Self::Unknown`]).
    pub fn from_number(number: i32) -> Option<Self> {
        let index = usize::try_from(number).ok()?;
        Self::ALL.get(index).copied()
    }

    /// Returns the name: `InvalidArgument`, `NotFound` and so on.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ok => "Ok",
            Self::Cancelled => "Cancelled",
            Self::Unknown => "Unknown",
            Self::InvalidArgument => "InvalidArgument",
            Self::DeadlineExceeded => "DeadlineExceeded",
            Self::NotFound => "NotFound",
            Self::AlreadyExists => "AlreadyExists",
            Self::PermissionDenied => "PermissionDenied",
            Self::ResourceExhausted => "ResourceExhausted",
            Self::FailedPrecondition => "FailedPrecondition",
            Self::Aborted => "Aborted",
            Self::OutOfRange => "OutOfRange",
            Self::Unimplemented => "Unimplemented",
            Self::Internal => "Internal",
            Self::Unavailable => "Unavailable",
            Self::DataLoss => "DataLoss",
            Self::Unauthenticated => "Unauthenticated",
        }
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl DeviceError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::Absent { .. } | Self::Topology(_) => StatusCode::FailedPrecondition,
            Self::InvalidArgument(_) | Self::Input { .. } => StatusCode::InvalidArgument,
            Self::NotFound(_) => StatusCode::NotFound,
            Self::Failed { .. } | Self::Work { .. } | Self::Build { .. } => StatusCode::Internal,
            Self::Lost { .. } => StatusCode::Unavailable,
            Self::OutOfMemory(_) => StatusCode::ResourceExhausted,
        }
    }
}

impl KernelError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::InvalidArgument(_) => StatusCode::InvalidArgument,
            Self::Unimplemented(_) => StatusCode::Unimplemented,
            Self::Tensor(error) => of_tensor(error),
            Self::Device(error) => error.code(),
            Self::Resource(error) => error.code(),
            Self::Cancelled | Self::Closed(_) => StatusCode::Cancelled,
            Self::OutOfRange(_) => StatusCode::OutOfRange,
            Self::InNode { source, .. } => source.code(),
        }
    }
}

fn of_tensor(error: &TensorError) -> StatusCode {
    match error {
        TensorError::OutOfMemory(_) => StatusCode::ResourceExhausted,
        // A kernel read what its device never handed it.
        TensorError::NotOnHost => StatusCode::Internal,
        TensorError::NoFixedSize(_) => StatusCode::Unimplemented,
        TensorError::Stored(_) => StatusCode::DataLoss,
        TensorError::TooLarge(_)
        | TensorError::LengthMismatch { .. }
        | TensorError::WrongDType { .. } => StatusCode::InvalidArgument,
    }
}

impl KernelLookupError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::EmptyConstraint { .. } => StatusCode::Unimplemented,
            Self::Ambiguous { .. }
            | Self::AmbiguousDefault { .. }
            | Self::BadConstraint { .. }
            | Self::UnknownHostMemoryArg { .. } => StatusCode::InvalidArgument,
        }
    }
}

impl KernelCreationError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::NodeDef(_) => StatusCode::InvalidArgument,
            Self::Lookup(error) => error.code(),
            Self::NotFound { .. } => StatusCode::NotFound,
            Self::PlacementOnly => StatusCode::Unimplemented,
            Self::Kernel(error) => error.code(),
        }
    }
}

impl RegisterError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        StatusCode::AlreadyExists
    }
}

impl NameError {
    /// Returns the status code of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::MalformedDevice(_) => StatusCode::Internal,
            _ => StatusCode::InvalidArgument,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::names::DeviceName;
    use crate::tensor::OutOfMemory;

    #[test]
    fn numbers_are_those_of_the_wire() {
        for (number, code) in (0..).zip(StatusCode::ALL) {
            assert_eq!(code.number(), number);
            assert_eq!(StatusCode::from_number(number), Some(code));
        }
        assert_eq!(StatusCode::InvalidArgument.number(), 3);
        assert_eq!(StatusCode::Unauthenticated.number(), 16);
        assert_eq!(StatusCode::from_number(17), None);
        assert_eq!(StatusCode::from_number(-1), None);
        assert_eq!(format!("{:>9}", StatusCode::NotFound), " NotFound");
    }

    #[test]
    fn an_error_has_the_category_of_what_caused_it() {
        let full = OutOfMemory {
            allocator: "CPU:0".to_owned(),
            requested_bytes: 2,
            in_use_bytes: 0,
            limit_bytes: 1,
        };
        let error = KernelError::Tensor(TensorError::OutOfMemory(full.clone()));
        assert_eq!(error.code(), StatusCode::ResourceExhausted);
        let error = KernelError::Device(DeviceError::OutOfMemory(full));
        assert_eq!(error.code(), StatusCode::ResourceExhausted);
        let error = KernelError::Device(DeviceError::NotFound("no such".to_owned()));
        assert_eq!(error.code(), StatusCode::NotFound);
        let error = DeviceName::parse_full("nonsense").unwrap_err();
        assert_eq!(error.code(), StatusCode::InvalidArgument);
        let error = DeviceName::host_cpu_of("nonsense").unwrap_err();
        assert_eq!(error.code(), StatusCode::Internal);
    }
}
