//! Why a proposal is refused.

use crate::graph::NodeId;
use crate::placement::shortage::MemoryShortage;

/// The first rule that a proposal breaks. Rules are tried in the order of the variants, nodes in
/// their order.
///
/// What crosses to a policy is [`Self::rule`], [`Self::node`] and the text.
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
    /// An index is no device of the set.
    #[error(
        "node `{name}`: device {device} does not exist, the set has {n_devices}; legal are {legal}"
    )]
    Device {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The index.
        device: u32,
        /// Size of the set.
        n_devices: usize,
        /// Its candidates.
        legal: String,
    },
    /// The node was fixed to another device.
    #[error("node `{name}`: {device} proposed, but it is pinned to {pinned}")]
    Pinned {
        /// The node.
        node: NodeId,
        /// Its name.
        name: String,
        /// The device.
        device: String,
        /// Where it must be.
        pinned: String,
    },
    /// The device cannot run the node, or the user asked for another one.
    #[error("node `{name}`: {device} is no candidate; legal are {legal}")]
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
        "node `{name}`: {device} proposed, but it is colocated with node `{other}`, which is on {other_device}"
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
    /// A memory is too small for what the plan puts there.
    #[error("{shortage}")]
    Memory {
        /// The node with which the memory no longer suffices.
        node: NodeId,
        /// How much is lacking, and what helps.
        shortage: Box<MemoryShortage>,
    },
    /// A queue that its device does not have.
    #[error("node `{name}`: queue {queue} proposed, but {device} has {n_queues}")]
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

impl Violation {
    /// Name of the rule, as the contract spells it: `length`, `device`, `pinned`, `candidate`,
    /// `group`, `memory`, `queue`.
    pub fn rule(&self) -> &'static str {
        match self {
            Self::Length { .. } => "length",
            Self::Device { .. } => "device",
            Self::Candidate { .. } => "candidate",
            Self::Pinned { .. } => "pinned",
            Self::Group { .. } => "group",
            Self::Memory { .. } => "memory",
            Self::Queue { .. } => "queue",
        }
    }

    /// The node that breaks it; node 0 where the whole plan does.
    pub fn node(&self) -> NodeId {
        match self {
            Self::Length { .. } => NodeId(0),
            Self::Device { node, .. }
            | Self::Candidate { node, .. }
            | Self::Pinned { node, .. }
            | Self::Group { node, .. }
            | Self::Memory { node, .. }
            | Self::Queue { node, .. } => *node,
        }
    }
}
