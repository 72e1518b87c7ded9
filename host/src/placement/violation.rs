//! The reasons for which a proposal is refused.

use std::fmt;

use crate::graph::NONE;
use crate::graph::NodeId;
use crate::placement::shortage::MemoryShortage;

/// The first rule that a proposal breaks. Rules are checked in a fixed order ([`super::check`]),
/// each for all nodes in their order.
///
/// Policies receive [`Self::rule`], [`Self::node`] and the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A column does not have one entry per node.
    #[error("{column} has {found} entries, the graph has {expected} nodes")]
    Length {
        /// `devices`, `start order` or `queues`.
        column: &'static str,
        /// Number of nodes.
        expected: usize,
        /// Number of entries.
        found: usize,
    },
    /// The device set has no device of this index.
    #[error("node `{name}`: {}; candidates are {legal}", NoDevice(*device, *n_devices))]
    Device {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The index.
        device: u32,
        /// Number of devices.
        n_devices: usize,
        /// Its candidates.
        legal: String,
    },
    /// The node is pinned to another device.
    #[error("node `{name}`: proposed on {device}, but pinned to {pinned}")]
    Pinned {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The device.
        device: String,
        /// The device that it is pinned to.
        pinned: String,
    },
    /// The device cannot run the node, or the user asked for another one.
    #[error("{device} is not a candidate for node `{name}`; candidates are {legal}")]
    Candidate {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The device.
        device: String,
        /// Its candidates.
        legal: String,
    },
    /// Two nodes of one colocation group are on different devices.
    #[error(
        "node `{name}`: proposed on {device}, but colocated with node `{other}`, which is on {other_device}"
    )]
    Group {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The device.
        device: String,
        /// The first node of the group.
        other: String,
        /// The device of that node.
        other_device: String,
    },
    /// Only constants can be streamed.
    #[error("only constants (op Const without inputs) can be streamed, not {what}")]
    Streamed {
        /// The node; node 0 if it does not exist.
        node: NodeId,
        /// Its name and op.
        what: String,
    },
    /// A memory is too small for what the plan puts there.
    #[error("{shortage}")]
    Memory {
        /// The node with which the memory no longer suffices.
        node: NodeId,
        /// How much is lacking, and what helps.
        shortage: Box<MemoryShortage>,
    },
    /// The device does not have this queue.
    #[error("node `{name}`: queue {queue} does not exist, {device} has {n_queues}")]
    Queue {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The queue.
        queue: u32,
        /// The device.
        device: String,
        /// Number of its queues.
        n_queues: u32,
    },
}

/// Why a device index is invalid. [`NONE`] is the entry of a node that was never given a device.
struct NoDevice(u32, usize);

impl fmt::Display for NoDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self(NONE, _) => f.write_str("it has no device"),
            Self(device, n_devices) => {
                write!(
                    f,
                    "device {device} does not exist, there are {n_devices} devices"
                )
            }
        }
    }
}

impl Violation {
    /// Returns the name of the rule in the contract: `length`, `device`, `pinned`, `candidate`,
    /// `group`, `streamed`, `memory`, `queue`.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Length { .. } => "length",
            Self::Device { .. } => "device",
            Self::Candidate { .. } => "candidate",
            Self::Pinned { .. } => "pinned",
            Self::Group { .. } => "group",
            Self::Streamed { .. } => "streamed",
            Self::Memory { .. } => "memory",
            Self::Queue { .. } => "queue",
        }
    }

    /// Returns the node that breaks the rule; node 0 if the whole plan does.
    pub fn node(&self) -> NodeId {
        match self {
            Self::Length { .. } => NodeId(0),
            Self::Device { node, .. }
            | Self::Candidate { node, .. }
            | Self::Pinned { node, .. }
            | Self::Group { node, .. }
            | Self::Streamed { node, .. }
            | Self::Memory { node, .. }
            | Self::Queue { node, .. } => *node,
        }
    }
}
