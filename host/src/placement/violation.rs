//! Why a proposal is refused.

use std::fmt;

use crate::graph::NodeId;
use crate::memory::show_bytes;

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
    /// A memory is too small for what the plan puts there: the constants that runs read, state, and
    /// the tensors of the runs that go on at one time.
    #[error("{device} {lack}; {}", remedy(name, &lack.elsewhere))]
    Memory {
        /// The node with which the memory no longer suffices.
        node: NodeId,
        /// Its name.
        name: String,
        /// The device whose memory it is.
        device: String,
        /// What it needs and has.
        lack: Box<MemoryLack>,
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

/// What a memory needs and has ([`Violation::Memory`]).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryLack {
    /// What the plan needs there, in bytes.
    pub needed_bytes: u64,
    /// What plans may use, in bytes.
    pub capacity_bytes: u64,
    /// Of the needed bytes, constants that runs read there.
    pub constant_bytes: u64,
    /// State of other nodes, such as variables.
    pub state_bytes: u64,
    /// The most that one run holds at one time.
    pub run_bytes: u64,
    /// Runs that may go on at one time.
    pub n_runs: u64,
    /// The largest of what is held, by name, with their bytes.
    pub holders: Vec<(String, u64)>,
    /// Other devices where the node could be; empty = none.
    pub elsewhere: String,
}

impl fmt::Display for MemoryLack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lacking = self.needed_bytes.saturating_sub(self.capacity_bytes);
        write!(
            f,
            "needs {}, {} more than plans may use ({}): {}; most of it is {}",
            show_bytes(self.needed_bytes),
            show_bytes(lacking),
            show_bytes(self.capacity_bytes),
            parts(
                self.constant_bytes,
                self.state_bytes,
                self.run_bytes,
                self.n_runs
            ),
            holders_in_words(&self.holders)
        )
    }
}

/// `constants 157.7 MiB, one run 84.2 MiB`; what is nothing is left out.
fn parts(constant_bytes: u64, state_bytes: u64, run_bytes: u64, n_runs: u64) -> String {
    let runs = match n_runs {
        1 => "one run".to_owned(),
        n => format!("each of {n} runs"),
    };
    let parts = [
        ("constants", constant_bytes),
        ("state", state_bytes),
        (&runs, run_bytes),
    ];
    let parts = parts.iter().filter(|(_, bytes)| *bytes > 0);
    let parts = parts.map(|(name, bytes)| format!("{name} {}", show_bytes(*bytes)));
    parts.collect::<Vec<_>>().join(", ")
}

/// `` `a` (1.5 MiB), `b` (640 B) ``.
fn holders_in_words(holders: &[(String, u64)]) -> String {
    let words = holders.iter();
    let words = words.map(|(name, bytes)| format!("`{name}` ({})", show_bytes(*bytes)));
    words.collect::<Vec<_>>().join(", ")
}

fn remedy(name: &str, elsewhere: &str) -> String {
    match elsewhere {
        "" => format!("node `{name}` can run nowhere else, so raise the capacity"),
        others => {
            format!("place node `{name}` or others elsewhere ({others}), or raise the capacity")
        }
    }
}
