//! The answer of a policy.

/// A complete assignment as a policy offered it: **untrusted** until [`crate::placement`] has
/// checked it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// Device per node, as an index into the device set.
    pub devices: Vec<u32>,
    /// Start order within each device, larger first; `None` if the host decides.
    pub start_order: Option<Vec<i32>>,
    /// Compute queue per node; `None` if the host decides.
    pub queues: Option<Vec<u32>>,
    /// The policy's reasons.
    pub explanations: Vec<Explanation>,
    /// The policy's metrics, by name.
    pub metrics: Vec<(String, f64)>,
}

/// A policy's reason for placing some nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The nodes, by id.
    pub nodes: Vec<u32>,
    /// The reason.
    pub reason: String,
}
