//! What a policy answers.

/// A complete assignment as a policy offered it: **untrusted** until [`crate::placement`] has
/// checked it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Proposal {
    /// Device per node, as an index into the device set.
    pub devices: Vec<u32>,
    /// Start order within each device, larger first; `None` = the host decides.
    pub start_order: Option<Vec<i32>>,
    /// Compute queue per node; `None` = the host decides.
    pub queues: Option<Vec<u32>>,
    /// Reasons that the policy gave.
    pub explanations: Vec<Explanation>,
    /// Numbers for reports, by name.
    pub metrics: Vec<(String, f64)>,
}

/// A reason that a policy gave for some nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The nodes, by id.
    pub nodes: Vec<u32>,
    /// The reason.
    pub reason: String,
}
