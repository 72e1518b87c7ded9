//! The reasons for which a node has no device.

use std::fmt;

use crate::candidates::conflict::Conflict;
use crate::device::KernelLookupError;
use crate::device::StatusCode;
use crate::functions::is_call;
use crate::graph::GraphError;
use crate::names::NameError;
use crate::ops::NodeDefError;
use crate::tensor::show_bytes;

/// Why candidates cannot be enumerated. Each error names the node, its request, and the available
/// alternatives.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CandidatesError {
    /// The device set is empty. The message starts with TensorFlow's.
    #[error("No devices are registered; create at least a CPU device")]
    NoDevices,
    /// A request is not a device name.
    #[error("node `{node}`: malformed device specification: {source}")]
    MalformedRequest {
        /// The node.
        node: String,
        /// The name, and the expected form.
        r#source: NameError,
    },
    /// No device type of the set has a kernel for the node.
    #[error(
        "node `{node}`: no kernel for op `{op}` ({dtypes}) on device types [{device_types}]{}; {}",
        mismatch_text(*.has_mismatch),
        Registrations { op, listing: registered }
    )]
    NoKernel {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Element types of its data inputs and outputs, `float, int32 -> float`.
        dtypes: String,
        /// Device types of the set.
        device_types: String,
        /// Whether kernels of these types exist that do not accept the node's attributes.
        has_mismatch: bool,
        /// The op's registrations ([`crate::device::KernelRegistry::listing`]).
        registered: Box<str>,
    },
    /// A node without a kernel contradicts the definition of its op.
    #[error("node `{node}` ({op}): {source}")]
    NodeDef {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The contradiction.
        r#source: Box<NodeDefError>,
    },
    /// The kernel registry has no unique kernel for the node.
    #[error("node `{node}`: {source}")]
    KernelLookup {
        /// The node.
        node: String,
        /// The error of the registry.
        r#source: Box<KernelLookupError>,
    },
    /// No device of the set matches the request.
    #[error(
        "cannot assign a device for operation {node}: {{{{node {node}}}}} was explicitly assigned to `{request}`, but available devices are [{available}]{}{}",
        gpu_remedy(request),
        conflict_text(conflict)
    )]
    NoSuchDevice {
        /// The node.
        node: String,
        /// Its request, merged with the device scope.
        request: String,
        /// All devices, sorted.
        available: String,
        /// The conflict, if known.
        conflict: Option<Box<Conflict>>,
    },
    /// The requested device exists, but has no kernel for the node or its colocation group.
    #[error(
        "cannot assign a device for operation {node}: no kernel for op `{op}` on the requested device `{request}`; device types with a kernel for it and its colocation group: [{supported}]; allow soft placement to use another device; registered:{registered}{}",
        conflict_text(conflict)
    )]
    NoKernelForRequest {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Its request.
        request: String,
        /// Device types that support all of the group.
        supported: Box<str>,
        /// The op's registrations.
        registered: Box<str>,
        /// The conflict, if known.
        conflict: Option<Box<Conflict>>,
    },
    /// The colocation group needs a device that does not exist or has no kernel.
    #[error(
        "cannot assign a device for operation {node}: Could not satisfy explicit device specification `{request}`, because the node is colocated with a group that requires the incompatible device `{group_request}`; available devices: [{devices}]; colocation group: {group}{}",
        conflict_text(conflict)
    )]
    GroupRequest {
        /// The node.
        node: String,
        /// Its own request; may be empty.
        request: String,
        /// The request of its group.
        group_request: String,
        /// All devices, in set order.
        devices: Box<str>,
        /// Op types of the group with their device types, and its members.
        group: Box<str>,
        /// The conflict, if known.
        conflict: Option<Box<Conflict>>,
    },
    /// Two nodes must share a device but cannot.
    #[error(
        "cannot colocate nodes `{first}` and `{second}`: {reason}; requested devices: `{first_request}` and `{second_request}`{}",
        conflict_text(conflict)
    )]
    CannotColocate {
        /// One node.
        first: String,
        /// The other one.
        second: String,
        /// The request of the first node's group.
        first_request: Box<str>,
        /// The request of the second node's group.
        second_request: Box<str>,
        /// Why they must share a device, and why they cannot.
        reason: Box<str>,
        /// The conflict, with the shortest chain of constraints, if known.
        conflict: Option<Box<Conflict>>,
    },
    /// The device of a pin cannot run the node or its colocation group, the node is pinned to
    /// another device as well, or the pin has an id that the graph or the device set does not have.
    /// (A session resolves pins by names before: that error is `placewright::Error::Pin`.)
    #[error("cannot pin node `{node}` to `{device}`: {reason}")]
    PinNotLegal {
        /// The node.
        node: String,
        /// The device.
        device: String,
        /// The problem.
        reason: String,
    },
    /// The earlier assigned device of a node does not exist or cannot run it.
    #[error("node `{node}` ({op}): {reason}")]
    AssignedDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device and the problem.
        reason: Box<str>,
    },
    /// A called function does not exist or does not fit the call.
    #[error("node `{node}` calls function `{function}`: {problem}")]
    CalledFunction {
        /// The call.
        node: String,
        /// The function.
        function: String,
        /// The problem.
        problem: Box<str>,
    },
    /// A function calls itself, or calls are nested too deeply.
    #[error(
        "node `{node}` calls function `{function}` within the calls {stack}: recursive calls and calls of more than {depth_max} levels are not supported"
    )]
    RecursiveCall {
        /// The call.
        node: String,
        /// The function.
        function: String,
        /// The functions around the call, outermost first.
        stack: String,
        /// The maximum number of levels.
        depth_max: usize,
    },
    /// The body of a called function cannot be placed.
    #[error("in function `{function}`, which node `{node}` calls: {source}")]
    InFunction {
        /// The function.
        function: String,
        /// The call.
        node: String,
        /// The reason.
        r#source: Box<CandidatesError>,
    },
    /// The nodes that placement inserts cannot be added to the graph.
    #[error("isolating function calls: {0}")]
    Graph(GraphError),
    /// A cost is negative or not a number.
    #[error(
        "node `{node}`: {cost_ns} ns is not a valid cost; use +inf for devices that cannot run the node"
    )]
    BadCost {
        /// The node.
        node: String,
        /// The cost.
        cost_ns: f64,
    },
    /// A number of executions is negative or not finite.
    #[error(
        "node `{node}`: {executions} is not a valid number of executions; use a finite number from 0"
    )]
    BadExecutions {
        /// The node.
        node: String,
        /// The number.
        executions: f64,
    },
    /// The cost of a link is negative or not a number.
    #[error(
        "link from `{source_device}` to `{destination_device}`: {latency_ns} ns and {ns_per_byte} ns per byte are not valid costs; use +inf if nothing can be transferred"
    )]
    BadLink {
        /// The sending device.
        source_device: String,
        /// The receiving device.
        destination_device: String,
        /// The fixed cost.
        latency_ns: f64,
        /// The cost per byte.
        ns_per_byte: f64,
    },
    /// The node or its colocation group costs +inf on every device.
    #[error(
        "node `{node}`: it or its colocation group costs +inf on every device; set a finite cost on one"
    )]
    NoDeviceAtAnyCost {
        /// The node.
        node: String,
    },
    /// The node or its colocation group costs +inf on every device that it is restricted to.
    #[error(
        "node `{node}`: no device that it and its colocation group are restricted to can run all of them; restrict them less, or set a finite cost on one of the devices"
    )]
    NoAllowedDevice {
        /// The node.
        node: String,
    },
    /// No candidate of the node, or of its colocation group, can allocate one of its tensors.
    #[error(
        "node `{node}`: tensor `{tensor}` takes {}, but one allocation on `{device}` has at most {}; split the tensor, or let the node run on another device",
        show_bytes(*bytes),
        show_bytes(*limit_bytes)
    )]
    TensorTooLarge {
        /// The node.
        node: String,
        /// The tensor.
        tensor: String,
        /// Its size in bytes.
        bytes: u64,
        /// The most preferred candidate, or the device that the node is pinned to.
        device: String,
        /// The largest allocation of the device, in bytes.
        limit_bytes: u64,
    },
    /// The default local device does not exist.
    #[error("default local device {0} does not exist in the device set")]
    NoSuchDefaultDevice(u32),
}

/// The registered kernels of an op, or that the graph must be lowered.
struct Registrations<'a> {
    op: &'a str,
    listing: &'a str,
}

impl fmt::Display for Registrations<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if is_call(self.op) {
            return f.write_str("`functions::lower` replaces such nodes; call it first");
        }
        write!(f, "registered:{}", self.listing)
    }
}

fn mismatch_text(has_mismatch: bool) -> &'static str {
    if has_mismatch {
        " takes the node's attributes (kernels were found, but attributes did not match)"
    } else {
        ""
    }
}

fn conflict_text(conflict: &Option<Box<Conflict>>) -> String {
    match conflict {
        Some(conflict) => format!("; conflict: {conflict}"),
        None => String::new(),
    }
}

impl CandidatesError {
    /// Returns the smallest set of conflicting constraints, with suggestions; `None` if the error
    /// has no such set.
    pub fn conflict(&self) -> Option<&Conflict> {
        match self {
            Self::NoSuchDevice { conflict, .. }
            | Self::NoKernelForRequest { conflict, .. }
            | Self::GroupRequest { conflict, .. }
            | Self::CannotColocate { conflict, .. } => conflict.as_deref(),
            Self::InFunction { source, .. } => source.conflict(),
            _ => None,
        }
    }

    /// Adds the conflict.
    pub(super) fn with_conflict(mut self, found: Option<Conflict>) -> Self {
        if let Self::NoSuchDevice { conflict, .. }
        | Self::NoKernelForRequest { conflict, .. }
        | Self::GroupRequest { conflict, .. }
        | Self::CannotColocate { conflict, .. } = &mut self
        {
            *conflict = found.map(Box::new);
        }
        self
    }

    /// Returns the category of the error.
    pub fn code(&self) -> StatusCode {
        match self {
            Self::NoDevices => StatusCode::FailedPrecondition,
            Self::AssignedDevice { .. } => StatusCode::Internal,
            Self::RecursiveCall { .. } => StatusCode::Unimplemented,
            Self::InFunction { source, .. } => source.code(),
            Self::KernelLookup { source, .. } => source.code(),
            _ => StatusCode::InvalidArgument,
        }
    }
}

/// TensorFlow adds this message when a GPU is requested in a build without GPUs.
fn gpu_remedy(request: &str) -> &'static str {
    if request.to_ascii_lowercase().contains("/device:gpu:") {
        "; CUDA is not enabled here, or no driver was found: see `placewright devices`"
    } else {
        ""
    }
}
