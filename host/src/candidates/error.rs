//! Why some node has no device.

use crate::candidates::refusal::Refusal;
use crate::device::KernelLookupError;
use crate::device::StatusCode;
use crate::graph::GraphError;
use crate::names::NameError;
use crate::ops::NodeDefError;

/// Why candidates cannot be listed. Each names the node, what it asked for, and what there is.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CandidatesError {
    /// The device set is empty.
    #[error("No devices are registered; create at least a CPU device")]
    NoDevices,
    /// A request is no device name.
    #[error("node `{node}`: malformed device specification: {source}")]
    MalformedRequest {
        /// The node.
        node: String,
        /// The text, and what was expected.
        r#source: NameError,
    },
    /// No device type of the set has a kernel for the node.
    #[error(
        "node `{node}`: no kernel for op `{op}` ({dtypes}) on device types [{device_types}]{}; registered:{registered}",
        mismatch_text(*.has_mismatch)
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
        /// Whether kernels of these types were found that do not take the node's attributes.
        has_mismatch: bool,
        /// The op's registrations, as [`crate::device::KernelRegistry::listing`] gives them.
        registered: Box<str>,
    },
    /// A node that nothing has a kernel for contradicts the definition of its op.
    #[error("node `{node}` ({op}): {source}")]
    NodeDef {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The contradiction.
        r#source: Box<NodeDefError>,
    },
    /// The kernel registry has no single answer for the node.
    #[error("node `{node}`: {source}")]
    KernelLookup {
        /// The node.
        node: String,
        /// The registry's answer.
        r#source: Box<KernelLookupError>,
    },
    /// No device of the set bears the requested name.
    #[error(
        "cannot assign a device for operation {node}: {{{{node {node}}}}} was explicitly assigned to `{request}`, but available devices are [{available}]{}{}",
        gpu_remedy(request),
        clash_text(refusal)
    )]
    NoSuchDevice {
        /// The node.
        node: String,
        /// What it asked for, the device scope merged in.
        request: String,
        /// All devices, sorted.
        available: String,
        /// What clashes, where that is known.
        refusal: Option<Box<Refusal>>,
    },
    /// The requested device exists, but has no kernel for the node, or for its colocation group.
    #[error(
        "cannot assign a device for operation {node}: no kernel for op `{op}` on the requested device `{request}`; device types with a kernel for it and its colocation group: [{supported}]; allow soft placement to use another device; registered:{registered}{}",
        clash_text(refusal)
    )]
    NoKernelForRequest {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// What it asked for.
        request: String,
        /// Device types that support all of the group.
        supported: Box<str>,
        /// The op's registrations.
        registered: Box<str>,
        /// What clashes, where that is known.
        refusal: Option<Box<Refusal>>,
    },
    /// The colocation group needs a device that does not exist or has no kernel.
    #[error(
        "cannot assign a device for operation {node}: Could not satisfy explicit device specification `{request}`, because the node is colocated with a group that requires the incompatible device `{group_request}`; devices are [{devices}]; colocation group: {group}{}",
        clash_text(refusal)
    )]
    GroupRequest {
        /// The node.
        node: String,
        /// What it asked for itself; may be empty.
        request: String,
        /// What its group asked for.
        group_request: String,
        /// All devices, in set order.
        devices: Box<str>,
        /// Op types of the group with their device types, and its members.
        group: Box<str>,
        /// What clashes, where that is known.
        refusal: Option<Box<Refusal>>,
    },
    /// Two nodes must share a device, and cannot.
    #[error(
        "cannot colocate nodes `{first}` and `{second}`: {reason}; requested devices: `{first_request}` and `{second_request}`{}",
        clash_text(refusal)
    )]
    Conflict {
        /// One node.
        first: String,
        /// The other one.
        second: String,
        /// What the first one's group asked for.
        first_request: Box<str>,
        /// What the second one's group asked for.
        second_request: Box<str>,
        /// Why they must share, and why they cannot.
        reason: Box<str>,
        /// The shortest chain of constraints that ties what clashes, where that is known.
        refusal: Option<Box<Refusal>>,
    },
    /// A pin names no device of the set, no node of the graph, or a device that cannot run the
    /// node.
    #[error("cannot pin node `{node}` to `{device}`: {reason}")]
    PinNotLegal {
        /// The node.
        node: String,
        /// The device.
        device: String,
        /// What is wrong.
        reason: String,
    },
    /// A node was assigned before to a device that is none of the set, or cannot run it.
    #[error("node `{node}` ({op}): {reason}")]
    AssignedDevice {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The device, and what is wrong with it.
        reason: Box<str>,
    },
    /// A call names a function that does not exist, or that does not fit the call.
    #[error("node `{node}` calls function `{function}`: {problem}")]
    CalledFunction {
        /// The call.
        node: String,
        /// The function.
        function: String,
        /// What is wrong.
        problem: Box<str>,
    },
    /// A function calls itself, or calls nest too deep.
    #[error(
        "node `{node}` calls function `{function}` within the calls {stack}: recursive calls are not placed, nor calls of more than {depth_max} levels"
    )]
    RecursiveCall {
        /// The call.
        node: String,
        /// The function.
        function: String,
        /// The functions around the call, outermost first.
        stack: String,
        /// Most levels.
        depth_max: usize,
    },
    /// The body of a called function cannot be placed.
    #[error("in function `{function}`, which node `{node}` calls: {source}")]
    InFunction {
        /// The function.
        function: String,
        /// The call.
        node: String,
        /// Why.
        r#source: Box<CandidatesError>,
    },
    /// The graph cannot be put together with what placement adds to it.
    #[error("isolating function calls: {0}")]
    Graph(GraphError),
    /// A cost that cannot be compared.
    #[error(
        "node `{node}`: a cost of {cost_ns} ns is no duration; use +inf where the node cannot run"
    )]
    BadCost {
        /// The node.
        node: String,
        /// The cost.
        cost_ns: f64,
    },
    /// A number of executions that nothing can be multiplied with.
    #[error(
        "node `{node}`: {executions} is no number of executions; give a finite one that is not negative"
    )]
    BadExecutions {
        /// The node.
        node: String,
        /// The number.
        executions: f64,
    },
    /// A link whose transfers take no duration.
    #[error(
        "link from `{source_device}` to `{destination_device}`: {latency_ns} ns and {ns_per_byte} ns per byte are no durations; use +inf where nothing can be moved"
    )]
    BadLink {
        /// The device that sends.
        source_device: String,
        /// The device that receives.
        destination_device: String,
        /// The fixed part.
        latency_ns: f64,
        /// The part that grows with the size.
        ns_per_byte: f64,
    },
    /// Every device is too dear for the node, or for its colocation group.
    #[error(
        "node `{node}`: it, or its colocation group, costs +inf on every device; give it a finite cost on one"
    )]
    NoDeviceAtAnyCost {
        /// The node.
        node: String,
    },
    /// The default local device is no device of the set.
    #[error("default local device {0} does not exist in the device set")]
    NoSuchDefaultDevice(u32),
}

fn mismatch_text(has_mismatch: bool) -> &'static str {
    if has_mismatch {
        " takes the node's attributes (kernels were found, but attributes did not match)"
    } else {
        ""
    }
}

fn clash_text(refusal: &Option<Box<Refusal>>) -> String {
    match refusal {
        Some(refusal) => format!("; what clashes: {refusal}"),
        None => String::new(),
    }
}

impl CandidatesError {
    /// The constraints that clash, as the smallest set, with suggestions; `None` where the error
    /// speaks for itself.
    pub fn refusal(&self) -> Option<&Refusal> {
        match self {
            Self::NoSuchDevice { refusal, .. }
            | Self::NoKernelForRequest { refusal, .. }
            | Self::GroupRequest { refusal, .. }
            | Self::Conflict { refusal, .. } => refusal.as_deref(),
            Self::InFunction { source, .. } => source.refusal(),
            _ => None,
        }
    }

    /// The same, with what clashes.
    pub(super) fn with_refusal(mut self, found: Option<Refusal>) -> Self {
        if let Self::NoSuchDevice { refusal, .. }
        | Self::NoKernelForRequest { refusal, .. }
        | Self::GroupRequest { refusal, .. }
        | Self::Conflict { refusal, .. } = &mut self
        {
            *refusal = found.map(Box::new);
        }
        self
    }

    /// Its category.
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

/// TensorFlow says so when a GPU is asked for in a build without GPUs.
fn gpu_remedy(request: &str) -> &'static str {
    if request.to_ascii_lowercase().contains("/device:gpu:") {
        "; CUDA is not enabled here, or no driver was found: see `placewright devices`"
    } else {
        ""
    }
}
