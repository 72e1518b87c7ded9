//! Conflicting constraints and suggested changes, for users who have to change the graph, the
//! options or the machine.

use std::fmt;

use serde::Serialize;

use crate::names::DeviceName;

/// More device names than this are counted rather than listed.
const MAX_DEVICES_NAMED: usize = 8;

/// More nodes than this are counted rather than named.
const MAX_NODES_NAMED: usize = 3;

/// Devices of this prefix are shown without it.
const LOCAL_PREFIX: &str = "/job:localhost/replica:0/task:0/device:";

/// The smallest set of constraints that leaves some nodes without a device: no device meets all of
/// them, but without any one of them the others can be met. (If hundreds of constraints tie nodes
/// together, the shortest chain is shown without checking that each is necessary.)
///
/// Nodes with the same request, or the same op, and the same cause share one conflict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Conflict {
    /// The constraints in the order of the chain that ties the nodes together: the request of the
    /// first node, the constraint that ties it to the next, and so on.
    pub constraints: Vec<Constraint>,
    /// Changes that resolve this conflict, the smallest first; may be empty.
    pub suggestions: Vec<Suggestion>,
}

/// A condition that limits the devices of a node, or ties nodes to one device.
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
        /// The node; all nodes of the op with this conflict, in node order.
        nodes: Vec<String>,
        /// Their op.
        op: String,
        /// Types of the device set with a kernel; most preferred first.
        device_types: Vec<String>,
    },
    /// The node or the device scope requests a device.
    Request {
        /// The node; all nodes of this request with this conflict, in node order.
        nodes: Vec<String>,
        /// The requested name, merged with the device scope.
        request: String,
        /// Full names of the devices that match it.
        devices: Vec<String>,
        /// Full names of all devices, if none matches.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        available: Vec<String>,
    },
    /// The node was assigned earlier, or is pinned.
    Assigned {
        /// The node.
        node: String,
        /// Full name of the device.
        device: String,
    },
    /// An edge whose ends must share a device.
    Edge {
        /// The tensor: `NODE:SLOT`.
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
        /// Name of the group, which is often the name of one of its nodes.
        group: String,
    },
    /// The node reads a list whose elements only exist in host memory, so it runs on a CPU.
    HostOnly {
        /// The node.
        node: String,
        /// The node that determines the element type.
        list: String,
        /// Their type.
        element_dtype: String,
    },
    /// The function of a call colocates the producers of its arguments with the readers of its
    /// results.
    Call {
        /// The calling node.
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
    /// Request this device instead: the legal device that is closest to the request.
    Request {
        /// The nodes, in node order.
        nodes: Vec<String>,
        /// The new request, as complete as the old one; empty = none.
        request: String,
    },
    /// Assign the node to this device instead.
    Assign {
        /// The node.
        node: String,
        /// Full name of the device.
        device: String,
    },
    /// Allow soft placement, which drops requests and groups that cannot be met.
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

impl Constraint {
    /// Returns the nodes of a constraint that several nodes can have.
    pub(super) fn nodes_mut(&mut self) -> Option<&mut Vec<String>> {
        match self {
            Self::Kernels { nodes, .. } | Self::Request { nodes, .. } => Some(nodes),
            _ => None,
        }
    }
}

impl fmt::Display for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Definition { node, op, problem } => write!(f, "`{node}` ({op}): {problem}"),
            Self::Kernels {
                nodes,
                op,
                device_types,
            } => {
                match &nodes[..] {
                    [node] => write!(f, "`{node}` ({op}) has ")?,
                    _ => write!(f, "{} of op {op} have ", list_nodes(nodes))?,
                }
                match device_types.is_empty() {
                    true => f.write_str("no kernel"),
                    false => write!(f, "kernels on [{}] only", device_types.join(", ")),
                }
            }
            Self::Request {
                nodes,
                request,
                devices,
                available,
            } if devices.is_empty() => write!(
                f,
                "`{request}` requested by {}: {}; available devices: {}",
                match &nodes[..] {
                    [node] => format!("`{node}`"),
                    _ => list_nodes(nodes),
                },
                missing_device(request, available),
                list_devices(available)
            ),
            Self::Request {
                nodes,
                request,
                devices,
                ..
            } => {
                match &nodes[..] {
                    [node] => write!(f, "`{node}` requests `{request}`")?,
                    _ => write!(f, "{} request `{request}`", list_nodes(nodes))?,
                }
                match &devices[..] {
                    [device] if device.ends_with(request) => Ok(()),
                    _ => write!(f, " ({})", list_devices(devices)),
                }
            }
            Self::Assigned { node, device } => write!(f, "`{node}` is assigned to `{device}`"),
            Self::Edge {
                tensor,
                consumer,
                carries,
            } => write!(
                f,
                "`{consumer}` reads `{tensor}` ({carries}) on the device that produces it"
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
                "`{node}` reads a list of {element_dtype} from `{list}`, which only a CPU can hold"
            ),
            Self::Call { node, function } => write!(
                f,
                "function `{function}`, called by `{node}`, colocates its arguments with its results"
            ),
        }
    }
}

impl fmt::Display for Suggestion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request { nodes, request } => {
                match request.is_empty() {
                    true => f.write_str("remove the request of ")?,
                    false => write!(f, "request `{request}` for ")?,
                }
                match &nodes[..] {
                    [node] => write!(f, "`{node}`"),
                    _ => f.write_str(&list_nodes(nodes)),
                }
            }
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

impl fmt::Display for Conflict {
    /// One line: `A; B; C => change this, or that`.
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

/// `` 37 nodes (`a`, `b`, `c` and 34 more) ``.
fn list_nodes(nodes: &[String]) -> String {
    let named = nodes.iter().take(MAX_NODES_NAMED);
    let named: Vec<String> = named.map(|node| format!("`{node}`")).collect();
    let names = match (nodes.len() - named.len(), named.split_last()) {
        (0, Some((last, rest))) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        (0, _) => named.join(", "),
        (n_more, _) => format!("{} and {n_more} more", named.join(", ")),
    };
    format!("{} nodes ({names})", nodes.len())
}

/// `CPU:0, CPU:1`; of many devices their number alone.
fn list_devices(devices: &[String]) -> String {
    if devices.len() > MAX_DEVICES_NAMED {
        return format!("{} devices", devices.len());
    }
    let names: Vec<&str> = devices.iter().map(|name| short_device_name(name)).collect();
    names.join(", ")
}

/// Which part of a request no device has.
fn missing_device(request: &str, available: &[String]) -> String {
    let parse = |name: &str| DeviceName::parse_full(name).unwrap_or_default();
    let wanted = parse(request);
    let available: Vec<DeviceName> = available.iter().map(|name| parse(name)).collect();
    let has = |wanted: &DeviceName| available.iter().any(|name| wanted.matches(name));
    let of_type = DeviceName {
        device_type: wanted.device_type.clone(),
        ..DeviceName::default()
    };
    let task = wanted.address_space();
    match wanted.device_type {
        Some(device_type) if !has(&of_type) => format!("no device of type {device_type}"),
        _ if !has(&task) => format!("no device in `{task}`"),
        _ => "no such device".to_owned(),
    }
}

/// A device's name without the parts that all devices of one process have: `CPU:0`.
pub(crate) fn short_device_name(name: &str) -> &str {
    name.strip_prefix(LOCAL_PREFIX).unwrap_or(name)
}
