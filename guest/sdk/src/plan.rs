//! The answer: assignments go in, the host's opinion of them comes out.

use crate::log::Log;
use crate::source::PlanSink;
use crate::source::Violation;

/// Where a policy writes its plan.
///
/// Setting a plan evaluates nothing, so a policy that does not search pays one copy per column.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    sink: &'a dyn PlanSink,
    log: &'a Log,
}

impl<'a> Plan<'a> {
    /// A view of the host's plan.
    pub fn new(sink: &'a dyn PlanSink, log: &'a Log) -> Self {
        Self { sink, log }
    }

    /// Sets a complete assignment, one device per node.
    pub fn set_devices(&self, device: &[u32]) {
        self.sink.set_devices(device);
    }

    /// Sets a complete assignment and hands it in: what most policies end with.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn offer_devices(&self, device: &[u32]) -> Result<(), Violation> {
        self.set_devices(device);
        self.offer()
    }

    /// Moves some nodes, with their whole groups, each group once. Nodes that do not exist are
    /// ignored, as is everything while there is not one device per node.
    pub fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.sink.move_nodes(nodes, device);
    }

    /// What the host's cost model expects of the plan as it stands, in ns; +inf = not legal.
    pub fn makespan_ns(&self) -> f64 {
        self.sink.makespan_ns()
    }

    /// The first rule that the plan as it stands breaks.
    pub fn violation(&self) -> Option<Violation> {
        self.sink.violation()
    }

    /// Bytes that the plan as it stands moves between devices; 0 = not legal.
    pub fn transfer_bytes(&self) -> u64 {
        self.sink.transfer_bytes()
    }

    /// Peak memory of the plan as it stands, per device. Also told of a plan that breaks the rule
    /// `memory` and no other, so that one learns how much is too much; zeroes for one that
    /// breaks another rule.
    pub fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.sink.peak_bytes_per_device()
    }

    /// Start order within each device, larger first; unset = the host decides.
    pub fn set_start_order(&self, order: &[i32]) {
        self.sink.set_start_order(order);
    }

    /// Compute queue per node; unset = the host decides.
    pub fn set_queues(&self, queue: &[u32]) {
        self.sink.set_queues(queue);
    }

    /// Whether somebody reads reasons; where not, build no texts.
    pub fn explain_wanted(&self) -> bool {
        self.sink.explain_wanted()
    }

    /// Why the nodes are where they are. The text is built only where somebody reads it.
    pub fn explain(&self, nodes: &[u32], reason: impl FnOnce() -> String) {
        if self.explain_wanted() {
            self.sink.explain(nodes, &reason());
        }
    }

    /// A number for reports, unit last in its name: `makespan_ns`, `rounds`.
    pub fn metric(&self, name: &str, value: f64) {
        self.sink.metric(name, value);
    }

    /// Hands in the plan as it stands. The last accepted offer is the answer, also when a limit
    /// ends the call afterwards.
    ///
    /// # Errors
    /// The first rule that the plan breaks; what was offered before stays the answer.
    pub fn offer(&self) -> Result<(), Violation> {
        self.sink.offer()
    }

    /// Fuel left for this call, `u64::MAX` where it is not metered by fuel.
    pub fn budget_left(&self) -> u64 {
        self.sink.budget_left()
    }

    /// Where messages go.
    pub fn log(&self) -> &Log {
        self.log
    }
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}
