//! The plan: a policy sets an assignment, asks the host to evaluate it, and offers it.

use crate::NONE;
use crate::graph::Graph;
use crate::log::Log;
use crate::memory::free_constants;
pub use crate::source::BudgetUnit;
use crate::source::PlanSink;
use crate::source::Violation;

/// The plan that a policy writes.
///
/// Setting an assignment evaluates nothing, so a policy that does not search pays one copy per
/// column.
#[derive(Clone, Copy)]
pub struct Plan<'a> {
    sink: &'a dyn PlanSink,
    log: &'a Log,
}

impl<'a> Plan<'a> {
    /// Creates a view of the host's plan.
    pub fn new(sink: &'a dyn PlanSink, log: &'a Log) -> Self {
        Self { sink, log }
    }

    /// Sets a complete assignment, one device per node.
    pub fn set_devices(&self, device: &[u32]) {
        self.sink.set_devices(device);
    }

    /// Returns the current assignment, one device per node: what was set and then moved. Empty
    /// until devices are set. Every call copies the column.
    pub fn devices(&self) -> Vec<u32> {
        self.sink.devices()
    }

    /// Sets a complete assignment and offers it, as most policies do at their end.
    ///
    /// # Errors
    /// As [`Self::offer`].
    pub fn offer_devices(&self, device: &[u32]) -> Result<(), Violation> {
        self.set_devices(device);
        self.offer()
    }

    /// Moves nodes, each with its whole colocation group, to a device. Ignores nodes that do not
    /// exist, and does nothing until an assignment of the right length is set.
    pub fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.sink.move_nodes(nodes, device);
    }

    /// Returns the makespan of the current plan in ns, as the host's cost model estimates it; +inf
    /// if the plan is not legal.
    pub fn makespan_ns(&self) -> f64 {
        self.sink.makespan_ns()
    }

    /// Returns the first rule that the current plan breaks.
    pub fn violation(&self) -> Option<Violation> {
        self.sink.violation()
    }

    /// Returns the bytes that one run of the current plan moves between devices; 0 if the plan is
    /// not legal.
    pub fn transfer_bytes(&self) -> u64 {
        self.sink.transfer_bytes()
    }

    /// Returns the peak memory of the current plan per device. A plan that breaks only the rule
    /// `memory` has its peaks too, so that a policy learns how much is missing. All zero for a plan
    /// that breaks another rule.
    pub fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.sink.peak_bytes_per_device()
    }

    /// Sets the start order within each device, larger first. Until it is set, the host decides.
    pub fn set_start_order(&self, order: &[i32]) {
        self.sink.set_start_order(order);
    }

    /// Sets the compute queue of each node. Until it is set, the host decides.
    pub fn set_queues(&self, queue: &[u32]) {
        self.sink.set_queues(queue);
    }

    /// Sets the constants that are streamed: each stays on the device of its own node, and every
    /// run copies it to the readers on other devices, when their other inputs are there. Until it
    /// is set, no constant is streamed, and each is held by the devices that read it.
    pub fn set_streamed(&self, constants: &[u32]) {
        self.sink.set_streamed(constants);
    }

    /// Returns whether anyone reads reasons. If not, [`Self::explain`] does nothing.
    pub fn explain_wanted(&self) -> bool {
        self.sink.explain_wanted()
    }

    /// Gives the reason why nodes are on their devices. `reason` is only called if reasons are
    /// wanted. Two host calls; [`Reasons`] groups nodes that share a reason.
    pub fn explain(&self, nodes: &[u32], reason: impl FnOnce() -> String) {
        if self.explain_wanted() {
            self.sink.explain(nodes, &reason());
        }
    }

    /// Reports a number. The unit is the last part of its name: `makespan_ns`, `rounds`.
    pub fn metric(&self, name: &str, value: f64) {
        self.sink.metric(name, value);
    }

    /// Offers the current plan. The last legal offer is the answer, even if a limit ends the call
    /// afterwards.
    ///
    /// # Errors
    /// The first rule that the plan breaks. The last legal offer remains the answer.
    pub fn offer(&self) -> Result<(), Violation> {
        self.sink.offer()
    }

    /// Returns the remaining budget of the call, in the unit of [`Self::budget_unit`]; `u64::MAX`
    /// if the call has no limit, as in native builds.
    ///
    /// A search that reads the budget at its start and stops at a fraction of it works with every
    /// unit. It also needs a stop condition of its own, for calls without a limit:
    ///
    /// ```
    /// # fn search(plan: &placewright_guest::Plan<'_>, rounds: u32) {
    /// let reserve = plan.budget_left() / 10;
    /// for _ in 0..rounds {
    ///     if plan.budget_left() <= reserve {
    ///         break;
    ///     }
    ///     // Improve the plan, and offer it.
    /// }
    /// # }
    /// ```
    ///
    /// Fuel is the same on every machine; time is not. So a search that reads its budget under a
    /// deadline may return different plans from run to run.
    pub fn budget_left(&self) -> u64 {
        self.sink.budget_left()
    }

    /// Returns what [`Self::budget_left`] counts: fuel, or the nanoseconds until the deadline in
    /// steps of 1 ms.
    pub fn budget_unit(&self) -> BudgetUnit {
        self.sink.budget_unit()
    }

    /// Returns the log of this call.
    pub fn log(&self) -> &Log {
        self.log
    }
}

impl std::fmt::Debug for Plan<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").finish_non_exhaustive()
    }
}

/// Nodes per host call. A host that keeps a limited number of bytes then drops only the last nodes
/// of a long list.
const NODES_PER_EXPLANATION: usize = 1 << 16;

/// Reasons that many nodes share, for [`Plan::explain`]: one host call per reason and 65,536 nodes.
///
/// The host keeps a limited number of bytes of explanations, by default 64 MiB. It counts the
/// reason of each node plus 32 bytes. A million nodes fit if their reasons have up to 35 bytes.
#[derive(Debug, Default)]
pub struct Reasons {
    nodes_of: Vec<(&'static str, Vec<u32>)>,
}

impl Reasons {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a node with its reason. Searches the list of distinct reasons linearly, so a policy
    /// should have few.
    pub fn add(&mut self, node: u32, reason: &'static str) {
        match self.nodes_of.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, nodes)) => nodes.push(node),
            None => self.nodes_of.push((reason, vec![node])),
        }
    }

    /// Returns the reason for a node that has no choice, `None` for all other nodes.
    pub fn without_choice(graph: &Graph<'_>, node: u32) -> Option<&'static str> {
        if graph.pinned()[node as usize] != NONE {
            Some("pinned")
        } else if graph.candidates_of(node).len() == 1 {
            Some("only candidate")
        } else {
            None
        }
    }

    /// Explains a whole plan to the host. `rule` returns the reason for a node that had a choice
    /// and does not follow its group. Does nothing if nobody reads reasons.
    pub fn by_rule(graph: &Graph<'_>, plan: &Plan<'_>, rule: impl Fn(u32) -> &'static str) {
        if !plan.explain_wanted() {
            return;
        }
        let is_free_constant = free_constants(graph);
        let mut reasons = Self::new();
        let mut is_decided = vec![false; graph.counts().groups as usize];
        for node in graph.nodes() {
            let of_group = &mut is_decided[graph.group()[node as usize] as usize];
            let reason = if is_free_constant[node as usize] {
                "constant: placed with its reader"
            } else if let Some(reason) = Self::without_choice(graph, node) {
                reason
            } else if *of_group {
                "follows its colocation group"
            } else {
                rule(node)
            };
            *of_group = true;
            reasons.add(node, reason);
        }
        reasons.explain(plan);
    }

    /// Gives the reasons to the host.
    pub fn explain(&self, plan: &Plan<'_>) {
        for (reason, nodes) in &self.nodes_of {
            for nodes in nodes.chunks(NODES_PER_EXPLANATION) {
                plan.explain(nodes, || (*reason).to_owned());
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::testing::GraphBuilder;
    use crate::testing::TestPlan;
    use crate::testing::cluster;

    #[test]
    fn reasons_are_grouped_and_long_lists_are_split() {
        let devices = cluster("1xCPU");
        let graph = GraphBuilder::new(&devices).build();
        let sink = TestPlan::new(&graph, &devices);
        let log = Log::silent();
        let plan = Plan::new(&sink, &log);
        let mut reasons = Reasons::new();
        for node in 0..100_000 {
            reasons.add(node, if node == 7 { "pinned" } else { "next" });
        }
        reasons.explain(&plan);
        plan.offer_devices(&[]).unwrap();
        let offer = sink.into_offer().unwrap();
        let lengths: Vec<_> = offer
            .reasons
            .iter()
            .map(|(nodes, reason)| (nodes.len(), reason.as_str()))
            .collect();
        assert_eq!(lengths, [(65_536, "next"), (34_463, "next"), (1, "pinned")]);
    }
}
