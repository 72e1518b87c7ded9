//! Constraints that clash, and what would mend them: for the user who has to change the graph, the
//! options or the machine.

use std::fmt;

use serde::Serialize;

/// More device names than this are counted rather than listed.
const MAX_DEVICES_NAMED: usize = 8;

/// The smallest set of constraints that leaves some nodes without a device: no device meets all of
/// them, and without any one of them the others can be met. (Where nodes are tied by hundreds of
/// ties, the shortest way is shown untried.)
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Refusal {
    /// Along the chain that ties the nodes together: what the first node asks for, what ties it to
    /// the next, and so on.
    pub constraints: Vec<Constraint>,
    /// What was found to mend this clash, the least change first; may be empty.
    pub suggestions: Vec<Suggestion>,
}

/// Something that limits which devices may run a node, or that ties nodes to one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Constraint {
    /// The node contradicts the definition of its op.
    Definition {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// The contradiction.
        problem: String,
    },
    /// Only these device types have a kernel for the node.
    Kernels {
        /// The node.
        node: String,
        /// Its op.
        op: String,
        /// Types of the device set with a kernel; most preferred first.
        device_types: Vec<String>,
    },
    /// The node, or the device scope, asks for a device.
    Request {
        /// The node.
        node: String,
        /// The name, the device scope merged in.
        request: String,
        /// Full names of the devices that bear it.
        devices: Vec<String>,
    },
    /// The node was assigned before, or is pinned.
    Assigned {
        /// The node.
        node: String,
        /// Full name of the device.
        device: String,
    },
    /// An edge whose ends must share a device.
    Edge {
        /// What is carried: `NODE:SLOT`.
        tensor: String,
        /// The node that reads it.
        consumer: String,
        /// `reference`, or the element type: `resource`, `variant`.
        carries: String,
    },
    /// The node is in a colocation group (attribute `_class`).
    ColocationGroup {
        /// The node.
        node: String,
        /// Name of the group; often that of another node, which is in it.
        group: String,
    },
    /// The node takes a list whose elements live on the host alone, so it runs on a CPU.
    HostOnly {
        /// The node.
        node: String,
        /// The node that says what the elements are.
        list: String,
        /// Their type.
        element_dtype: String,
    },
    /// The function that a node calls ties what feeds the call to what reads its results.
    Call {
        /// The node that calls.
        node: String,
        /// The function.
        function: String,
    },
}

/// A change after which the constraints can be met.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Suggestion {
    /// Ask for this device instead: the legal one that is nearest to what was asked for.
    Request {
        /// The node.
        node: String,
        /// What to ask for, as complete as the old request; empty = nothing.
        request: String,
    },
    /// Assign the node to this device instead.
    Assign {
        /// The node.
        node: String,
        /// Full name of the device.
        device: String,
    },
    /// Allow soft placement: requests and groups that cannot be met give way.
    SoftPlacement,
    /// Register a kernel.
    Kernel {
        /// The op.
        op: String,
        /// The device type.
        device_type: String,
    },
    /// Take the node out of a colocation group.
    LeaveGroup {
        /// The node.
        node: String,
        /// The group.
        group: String,
    },
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definition { node, op, problem } => write!(f, "`{node}` ({op}): {problem}"),
            Self::Kernels {
                node,
                op,
                device_types,
            } if device_types.is_empty() => write!(f, "`{node}` ({op}) has no kernel"),
            Self::Kernels {
                node,
                op,
                device_types,
            } => write!(
                f,
                "`{node}` ({op}) has kernels on [{}] only",
                device_types.join(", ")
            ),
            Self::Request {
                node,
                request,
                devices,
            } => {
                write!(f, "`{node}` asks for `{request}`")?;
                match devices.len() {
                    0 => f.write_str(", which no device is"),
                    1 if devices[0] == *request => Ok(()),
                    n if n > MAX_DEVICES_NAMED => write!(f, " ({n} devices)"),
                    _ => write!(f, " ({})", devices.join(", ")),
                }
            }
            Self::Assigned { node, device } => write!(f, "`{node}` is assigned to `{device}`"),
            Self::Edge {
                tensor,
                consumer,
                carries,
            } => write!(
                f,
                "`{consumer}` reads `{tensor}` ({carries}) where it is made"
            ),
            Self::ColocationGroup { node, group } => {
                write!(f, "`{node}` is in colocation group `{group}`")
            }
            Self::HostOnly {
                node,
                list,
                element_dtype,
            } => write!(
                f,
                "`{node}` takes a list of {element_dtype} (says `{list}`), which lives on a CPU"
            ),
            Self::Call { node, function } => write!(
                f,
                "function `{function}`, which `{node}` calls, ties what it is given to what it gives"
            ),
        }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { node, request } if request.is_empty() => {
                write!(f, "drop the request of `{node}`")
            }
            Self::Request { node, request } => write!(f, "request `{request}` for `{node}`"),
            Self::Assign { node, device } => write!(f, "assign `{node}` to `{device}`"),
            Self::SoftPlacement => f.write_str("allow soft placement"),
            Self::Kernel { op, device_type } => {
                write!(
                    f,
                    "register a kernel of `{op}` for device type {device_type}"
                )
            }
            Self::LeaveGroup { node, group } => {
                write!(f, "take `{node}` out of colocation group `{group}`")
            }
        }
    }
}

impl fmt::Display for Refusal {
    /// `A; B; C: change this, or that`, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, constraint) in self.constraints.iter().enumerate() {
            let before = if index == 0 { "" } else { "; " };
            write!(f, "{before}{constraint}")?;
        }
        for (index, suggestion) in self.suggestions.iter().enumerate() {
            let before = if index == 0 { " => " } else { ", or " };
            write!(f, "{before}{suggestion}")?;
        }
        Ok(())
    }
}
