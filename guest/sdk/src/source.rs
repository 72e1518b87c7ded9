//! The traits through which the views get their columns: from the sandbox's imports in wasm, from
//! the host's own memory natively.
//!
//! Policy authors do not use this module. The host implements these traits for native policies;
//! the SDK implements them over the WIT imports. Columns have the names, meanings and units of
//! `wit/v0.1/policy.wit`.

use std::borrow::Cow;
use std::fmt;

/// Sizes of a graph (WIT `graphs.counts`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct Counts {
    pub nodes: u32,
    pub edges: u32,
    pub tensors: u32,
    pub candidate_sets: u32,
    pub groups: u32,
    pub cost_rows: u32,
    pub cost_classes: u32,
}

/// Rows of different lengths: row `i` is `items[offsets[i]..offsets[i + 1]]`.
#[derive(Debug, Clone)]
pub struct Csr<'a> {
    /// Start of each row in `items`, and the end of the last one.
    pub offsets: Cow<'a, [u32]>,
    /// The rows, concatenated.
    pub items: Cow<'a, [u32]>,
}

/// String `i` is bytes `offsets[i]..offsets[i + 1]` of `text`.
#[derive(Debug, Clone)]
pub struct Strings<'a> {
    /// Start of each string in `text`, and the end of the last one.
    pub offsets: Cow<'a, [u32]>,
    /// All strings, concatenated.
    pub text: Cow<'a, str>,
}

/// Dims of tensor `i` are `sizes[offsets[i]..offsets[i + 1]]`; -1 = unknown, a single -2 = unknown
/// rank.
#[derive(Debug, Clone)]
pub struct Dims<'a> {
    /// Start of each tensor's dims in `sizes`, and the end of the last one.
    pub offsets: Cow<'a, [u32]>,
    /// The dims of all tensors, concatenated.
    pub sizes: Cow<'a, [i64]>,
}

/// Cost of a transfer: `latency_ns + bytes * ns_per_byte`.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[expect(missing_docs, reason = "documented on the type")]
pub struct LinkCost {
    pub latency_ns: f64,
    pub ns_per_byte: f64,
}

/// The attributes of a device (WIT `types.device-attributes`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct DeviceAttributes {
    pub name: String,
    pub device_type: String,
    pub memory_limit: u64,
    pub locality: Locality,
    pub incarnation: u64,
    pub physical_description: String,
    pub type_preference: i32,
    pub properties: Vec<(String, String)>,
}

/// Where a device is in its machine (WIT `types.locality`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct Locality {
    pub bus_id: i32,
    pub numa_node: i32,
    /// (device, kind, strength)
    pub links: Vec<(u32, String, i32)>,
}

/// Partial device name; an absent part matches anything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct DeviceSpec {
    pub job: Option<String>,
    pub replica: Option<u32>,
    pub task: Option<u32>,
    pub device_type: Option<String>,
    pub index: Option<u32>,
}

/// Measurements of an earlier run (WIT `graphs.profile`).
#[derive(Debug, Clone, Default)]
#[expect(missing_docs, reason = "documented in the contract")]
pub struct Profile {
    pub devices: Vec<u32>,
    pub makespan_ns: f64,
    pub node: Vec<u32>,
    pub device: Vec<u32>,
    pub mean_ns: Vec<f64>,
    pub samples: Vec<u32>,
    pub runs: u32,
    pub starts_ns: Vec<f64>,
    pub transfer_mean_ns: Vec<f64>,
}

/// The reason why a plan is refused (WIT `planning.violation`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Name of the rule: `length`, `device`, `pinned`, `candidate`, `group`, `streamed`, `memory`
    /// or `queue`.
    pub rule: String,
    /// The first node that breaks it.
    pub node: u32,
    /// A description.
    pub explanation: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            rule,
            node,
            explanation,
        } = self;
        write!(f, "plan breaks rule `{rule}` at node {node}: {explanation}")
    }
}

impl std::error::Error for Violation {}

/// What [`PlanSink::budget_left`] counts (WIT `planning.budget-unit`).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BudgetUnit {
    /// Nothing: the call has no limit.
    Unlimited,
    /// Units of fuel.
    Fuel,
    /// Nanoseconds until the deadline.
    Nanoseconds,
    /// A unit that this version of the SDK does not know.
    Other(String),
}

/// The graph's columns (WIT `graphs.graph`).
#[expect(missing_docs, reason = "documented in the contract, method by method")]
pub trait GraphSource {
    fn counts(&self) -> Counts;
    fn predecessors(&self) -> Csr<'_>;
    fn successors(&self) -> Csr<'_>;
    fn edge_tensors(&self) -> Cow<'_, [u32]>;
    fn edge_kinds(&self) -> Cow<'_, [u8]>;
    fn tensor_bytes(&self) -> Cow<'_, [u64]>;
    fn tensor_nodes(&self) -> Cow<'_, [u32]>;
    fn tensor_dtypes(&self) -> Cow<'_, [u32]>;
    fn tensor_dims(&self) -> Dims<'_>;
    fn back_edges(&self) -> Cow<'_, [u32]>;
    fn op_type(&self) -> Cow<'_, [u32]>;
    fn op_type_names(&self) -> Vec<String>;
    fn executions(&self) -> Cow<'_, [f64]>;
    fn flops(&self) -> Cow<'_, [f64]>;
    fn resident_bytes(&self) -> Cow<'_, [u64]>;
    fn workspace_bytes(&self) -> Cow<'_, [u64]>;
    fn user_priority(&self) -> Cow<'_, [i32]>;
    fn candidate_set(&self) -> Cow<'_, [u32]>;
    fn candidates(&self) -> Csr<'_>;
    fn group(&self) -> Cow<'_, [u32]>;
    fn pinned(&self) -> Cow<'_, [u32]>;
    fn placement_hints(&self) -> Cow<'_, [u8]>;
    fn follow(&self) -> Cow<'_, [u32]>;
    fn requested(&self) -> Strings<'_>;
    fn frame(&self) -> Cow<'_, [u32]>;
    fn frame_parents(&self) -> Cow<'_, [u32]>;
    fn options(&self) -> Vec<(String, String)>;
    fn cost_row(&self) -> Cow<'_, [u32]>;
    fn costs(&self) -> Cow<'_, [f64]>;
    fn cost_samples(&self) -> Cow<'_, [u32]>;
    fn cost(&self, node: u32, device: u32) -> f64;
    fn node_name(&self, node: u32) -> String;
    fn node_names(&self) -> Strings<'_>;
    fn last_run(&self) -> Option<Profile>;
}

/// The devices (WIT `devices.device-set`).
#[expect(missing_docs, reason = "documented in the contract, method by method")]
pub trait DeviceSource {
    fn count(&self) -> u32;
    fn attributes(&self, device: u32) -> Option<DeviceAttributes>;
    fn all(&self) -> Vec<DeviceAttributes>;
    fn by_name(&self, name: &str) -> Option<u32>;
    fn by_spec(&self, spec: &DeviceSpec) -> Vec<u32>;
    /// # Errors
    /// The reason why the string is malformed.
    fn by_spec_text(&self, spec: &str) -> Result<Vec<u32>, String>;
    fn prioritized_types(&self) -> Vec<String>;
    fn of_type(&self, device_type: &str) -> Vec<u32>;
    fn client_device(&self) -> Option<u32>;
    fn cost_classes(&self) -> Cow<'_, [u32]>;
    fn link_domains(&self) -> Cow<'_, [u32]>;
    fn chips(&self) -> Cow<'_, [u32]>;
    fn memory_domains(&self) -> Cow<'_, [u32]>;
    fn memory_capacity(&self) -> Cow<'_, [u64]>;
    fn memory_free(&self) -> Cow<'_, [u64]>;
    fn loads(&self) -> Cow<'_, [f64]>;
    fn calibrated(&self) -> Cow<'_, [u8]>;
    fn queues(&self) -> Cow<'_, [u32]>;
    fn links(&self) -> Vec<LinkCost>;
    fn link(&self, src: u32, dst: u32) -> LinkCost;
}

/// The plan (WIT `planning.plan`). Methods take `&self`: the host's side has its own state.
#[expect(missing_docs, reason = "documented in the contract, method by method")]
pub trait PlanSink {
    fn set_devices(&self, device: &[u32]);
    fn devices(&self) -> Vec<u32>;
    fn move_nodes(&self, nodes: &[u32], device: u32);
    fn makespan_ns(&self) -> f64;
    fn violation(&self) -> Option<Violation>;
    fn transfer_bytes(&self) -> u64;
    fn peak_bytes_per_device(&self) -> Vec<u64>;
    fn set_start_order(&self, order: &[i32]);
    fn set_queues(&self, queue: &[u32]);
    fn set_streamed(&self, constants: &[u32]);
    fn explain_wanted(&self) -> bool;
    fn explain(&self, nodes: &[u32], reason: &str);
    fn metric(&self, name: &str, value: f64);
    /// # Errors
    /// The first rule that the plan breaks. The last legal offer remains the answer.
    fn offer(&self) -> Result<(), Violation>;
    fn budget_left(&self) -> u64;
    fn budget_unit(&self) -> BudgetUnit;
}

/// Severity of a message (WIT `log.level`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "documented in the contract")]
pub enum LogLevel {
    Trace,
    Debug,
    Info,
    Warn,
    Error,
}

/// The log (WIT `log`).
/// `Send` and `Sync`, because a native policy that keeps a log may be moved between threads.
pub trait LogSink: fmt::Debug + Send + Sync {
    /// Returns the lowest level that is kept; messages below it need not be formatted.
    fn threshold(&self) -> LogLevel;
    /// Logs one message.
    fn emit(&self, level: LogLevel, message: &str);
}
