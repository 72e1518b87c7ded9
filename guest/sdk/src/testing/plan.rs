//! A plan that checks offers by the host's rules and keeps the last legal one.

use std::cell::Cell;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::collections::BTreeSet;

use crate::EdgeKind;
use crate::NONE;
use crate::source::BudgetUnit;
use crate::source::DeviceSource;
use crate::source::PlanSink;
use crate::source::Violation;
use crate::testing::TestDevices;
use crate::testing::TestGraph;
use crate::testing::schedule::Schedule;

/// A plan that was accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Offer {
    /// Device per node.
    pub devices: Vec<u32>,
    /// The argument of `set_start_order`.
    pub start_order: Option<Vec<i32>>,
    /// The argument of `set_queues`.
    pub queues: Option<Vec<u32>>,
    /// The argument of `set_streamed`.
    pub streamed: Vec<u32>,
    /// The makespan that the host estimates for such a plan: the same schedule
    /// ([`crate::estimate`]) with the test's costs and links.
    pub makespan_ns: f64,
    /// Metrics reported until the end of the call; the last one of each name.
    pub metrics: Vec<(String, f64)>,
    /// Reasons given until the end of the call.
    pub reasons: Vec<(Vec<u32>, String)>,
    /// The message of the [`crate::PlaceError::Failed`] that the policy returned after the offer,
    /// which the host reports beside the plan.
    pub failure: Option<String>,
}

impl Offer {
    /// Returns a metric.
    pub fn metric(&self, name: &str) -> Option<f64> {
        let found = self.metrics.iter().find(|(metric, _)| metric == name);
        found.map(|&(_, value)| value)
    }

    /// Returns the reason for a node's device: the last one that the policy gave for it.
    pub fn reason_of(&self, node: u32) -> Option<&str> {
        let mut latest_first = self.reasons.iter().rev();
        let found = latest_first.find(|(nodes, _)| nodes.contains(&node));
        found.map(|(_, reason)| reason.as_str())
    }
}

/// Units of a budget for a call of the plan, as the host charges fuel.
const BUDGET_PER_CALL: u64 = 64;
/// The same for each node and edge of the graph, if the call evaluates the plan.
const BUDGET_PER_EVALUATED_ITEM: u64 = 8;

/// The plan of a test.
#[derive(Debug)]
pub struct TestPlan<'a> {
    graph: &'a TestGraph,
    devices: &'a TestDevices,
    budget_unit: BudgetUnit,
    budget_left: Cell<u64>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    devices: Vec<u32>,
    start_order: Option<Vec<i32>>,
    queues: Option<Vec<u32>>,
    streamed: Vec<u32>,
    metrics: Vec<(String, f64)>,
    reasons: Vec<(Vec<u32>, String)>,
    offer: Option<Offer>,
    refused: Vec<Violation>,
}

impl<'a> TestPlan<'a> {
    /// Creates an empty plan.
    pub fn new(graph: &'a TestGraph, devices: &'a TestDevices) -> Self {
        Self {
            graph,
            devices,
            budget_unit: BudgetUnit::Unlimited,
            budget_left: Cell::new(u64::MAX),
            state: RefCell::default(),
        }
    }

    /// Limits the call. Evaluations (`makespan_ns`, `violation`, `transfer_bytes`,
    /// `peak_bytes_per_device`, `offer`) take as much of the budget as the host charges in fuel: 64
    /// units, and 8 per node and edge. Nothing else is charged, and a used up budget only makes
    /// `budget_left` return 0; the host would end the call.
    pub fn with_budget(self, unit: BudgetUnit, left: u64) -> Self {
        Self {
            budget_unit: unit,
            budget_left: Cell::new(left),
            ..self
        }
    }

    /// Charges an evaluation.
    fn charge(&self) {
        if self.budget_unit != BudgetUnit::Unlimited {
            let counts = self.graph.counts;
            let items = u64::from(counts.nodes) + u64::from(counts.edges);
            let charge = BUDGET_PER_CALL + BUDGET_PER_EVALUATED_ITEM * items;
            self.budget_left
                .set(self.budget_left.get().saturating_sub(charge));
        }
    }

    fn makespan_of(&self, state: &State) -> f64 {
        match self.check(state) {
            Ok(()) => self.schedule(state).makespan_ns(),
            Err(_) => f64::INFINITY,
        }
    }

    /// Returns the violations of the refused offers, in order.
    pub fn refused(&self) -> Vec<Violation> {
        self.state.borrow().refused.clone()
    }

    /// Returns the last accepted offer, if any.
    pub fn into_offer(self) -> Option<Offer> {
        let State {
            offer,
            metrics,
            reasons,
            ..
        } = self.state.into_inner();
        offer.map(|offer| Offer {
            metrics,
            reasons,
            ..offer
        })
    }

    /// Checks the host's rules in the host's order: each rule for all nodes before the next rule.
    fn check(&self, state: &State) -> Result<(), Violation> {
        self.check_lengths(state)?;
        self.check_nodes(&state.devices)?;
        self.check_streamed(&state.streamed)?;
        self.check_memory(state)?;
        self.check_queues(state)
    }

    fn check_lengths(&self, state: &State) -> Result<(), Violation> {
        let n_nodes = self.graph.names.len();
        let lengths = [
            ("devices", Some(state.devices.len())),
            ("start order", state.start_order.as_ref().map(Vec::len)),
            ("queues", state.queues.as_ref().map(Vec::len)),
        ];
        for (column, length) in lengths {
            if let Some(n) = length
                && n != n_nodes
            {
                let explanation =
                    format!("{column} has {n} entries, the graph has {n_nodes} nodes");
                return broken("length", 0, explanation);
            }
        }
        Ok(())
    }

    fn check_nodes(&self, placed: &[u32]) -> Result<(), Violation> {
        let graph = self.graph;
        let find = |breaks: &dyn Fn(usize, u32) -> bool| {
            let mut nodes = placed.iter().copied().enumerate();
            nodes.find(|&(node, device)| breaks(node, device))
        };
        if let Some((node, device)) = find(&|_, device| device >= self.devices.count()) {
            return broken(
                "device",
                node,
                match device {
                    NONE => "it has no device".to_owned(),
                    _ => format!("there is no device {device}"),
                },
            );
        }
        let pin = |node: usize| graph.pinned[node];
        if let Some((node, device)) = find(&|node, device| ![NONE, device].contains(&pin(node))) {
            let explanation = format!("pinned to device {}, not {device}", pin(node));
            return broken("pinned", node, explanation);
        }
        let is_legal = |node: usize, device: u32| {
            let set = graph.candidate_set[node] as usize;
            let (start, end) = (
                graph.candidates.offsets[set] as usize,
                graph.candidates.offsets[set + 1] as usize,
            );
            graph.candidates.items[start..end].contains(&device)
        };
        if let Some((node, device)) = find(&|node, device| !is_legal(node, device)) {
            let explanation = format!("device {device} is not a candidate");
            return broken("candidate", node, explanation);
        }
        let mut of_group = vec![NONE; graph.counts.groups as usize];
        for (node, &device) in placed.iter().enumerate() {
            let first = &mut of_group[graph.group[node] as usize];
            if *first == NONE {
                *first = device;
            } else if *first != device {
                let explanation = format!("its group is on device {first}, not {device}");
                return broken("group", node, explanation);
            }
        }
        Ok(())
    }

    fn check_streamed(&self, streamed: &[u32]) -> Result<(), Violation> {
        let is_constant =
            |node: usize| node < self.graph.names.len() && self.graph.is_constant(node);
        let mut streamed = streamed.iter().map(|&node| node as usize);
        match streamed.find(|&node| !is_constant(node)) {
            Some(node) => broken("streamed", node, "it is no constant".to_owned()),
            None => Ok(()),
        }
    }

    /// Compares the bytes that stay in each memory, and its largest workspace with the copies of
    /// streamed constants, with the smallest capacity that its devices state.
    fn check_memory(&self, state: &State) -> Result<(), Violation> {
        let (placed, streamed) = (&state.devices, &state.streamed);
        let domains = &self.devices.memory_domains;
        let mut capacity: BTreeMap<u32, u64> = BTreeMap::new();
        for (&domain, &bytes) in domains.iter().zip(&self.devices.memory_capacity) {
            let smallest = capacity.entry(domain).or_insert(bytes);
            *smallest = bytes.min(*smallest);
        }
        let mut used: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
        let mut first_beyond = None;
        for (node, device, bytes) in self.graph.staying(placed, streamed) {
            let domain = domains[device as usize];
            let (resident, workspace) = used.entry(domain).or_default();
            *resident = resident.saturating_add(bytes);
            let copies = self.graph.streamed_reads(placed, streamed, node);
            let copies = copies.map(|(_, bytes)| bytes).sum::<u64>();
            *workspace = (self.graph.workspace_bytes[node] + copies).max(*workspace);
            if resident.saturating_add(*workspace) > capacity[&domain] {
                first_beyond.get_or_insert((node, device, domain));
            }
        }
        // The rest of the plan counts too, so that the message says how much is lacking.
        let Some((node, device, domain)) = first_beyond else {
            return Ok(());
        };
        let ((resident, workspace), capacity) = (used[&domain], capacity[&domain]);
        let needed = resident.saturating_add(workspace);
        let explanation = format!(
            "the memory of device {device} has {capacity} bytes, the plan needs {needed}: \
             {resident} that stay, {workspace} of workspace"
        );
        broken("memory", node, explanation)
    }

    fn check_queues(&self, state: &State) -> Result<(), Violation> {
        let queues = state.queues.iter().flatten();
        for (node, (&device, &queue)) in state.devices.iter().zip(queues).enumerate() {
            let n_queues = self.devices.queues[device as usize];
            if queue >= n_queues {
                let explanation = format!("queue {queue}, but device {device} has {n_queues}");
                return broken("queue", node, explanation);
            }
        }
        Ok(())
    }

    fn schedule(&self, state: &State) -> Schedule {
        Schedule::new(
            self.graph,
            self.devices,
            &state.devices,
            state.start_order.as_deref(),
            state.queues.as_deref(),
            &state.streamed,
        )
    }
}

fn broken(rule: &str, node: usize, explanation: String) -> Result<(), Violation> {
    Err(Violation {
        rule: rule.to_owned(),
        node: u32::try_from(node).unwrap_or(NONE),
        explanation,
    })
}

impl PlanSink for TestPlan<'_> {
    fn set_devices(&self, device: &[u32]) {
        self.state.borrow_mut().devices = device.to_vec();
    }

    fn devices(&self) -> Vec<u32> {
        self.state.borrow().devices.clone()
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        let mut state = self.state.borrow_mut();
        let group = &self.graph.group;
        if state.devices.len() != group.len() {
            return;
        }
        let listed = nodes.iter().filter_map(|&node| group.get(node as usize));
        let moved: BTreeSet<u32> = listed.copied().collect();
        for (placed, group) in state.devices.iter_mut().zip(group) {
            if moved.contains(group) {
                *placed = device;
            }
        }
    }

    fn makespan_ns(&self) -> f64 {
        self.charge();
        self.makespan_of(&self.state.borrow())
    }

    fn violation(&self) -> Option<Violation> {
        self.charge();
        self.check(&self.state.borrow()).err()
    }

    fn transfer_bytes(&self) -> u64 {
        self.charge();
        let state = self.state.borrow();
        let graph = self.graph;
        if self.check(&state).is_err() {
            return 0;
        }
        let mut moved = BTreeSet::new();
        for node in 0..graph.names.len() {
            for edge in graph.edges_into(node) {
                let producer = graph.predecessors.items[edge] as usize;
                let to = state.devices[node];
                let is_preloaded = graph.edge_kinds[edge] & EdgeKind::PRELOADED != 0;
                let is_data = graph.edge_tensors[edge] != NONE;
                if is_data && !is_preloaded && state.devices[producer] != to {
                    moved.insert((graph.edge_tensors[edge], to));
                }
            }
        }
        let moved = moved
            .iter()
            .map(|&(tensor, _)| graph.tensor_bytes[tensor as usize])
            .fold(0, u64::saturating_add);
        let nodes = 0..graph.names.len();
        let streamed = nodes
            .flat_map(|node| graph.streamed_reads(&state.devices, &state.streamed, node))
            .map(|(_, bytes)| bytes);
        streamed.fold(moved, u64::saturating_add)
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.charge();
        let state = self.state.borrow();
        let is_known = match self.check(&state) {
            Ok(()) => true,
            Err(violation) => violation.rule == "memory" && self.check_queues(&state).is_ok(),
        };
        if is_known {
            let schedule = self.schedule(&state);
            schedule.peak_bytes(self.graph, self.devices, &state.devices, &state.streamed)
        } else {
            vec![0; self.devices.memory_domains.len()]
        }
    }

    fn set_start_order(&self, order: &[i32]) {
        self.state.borrow_mut().start_order = Some(order.to_vec());
    }

    fn set_queues(&self, queue: &[u32]) {
        self.state.borrow_mut().queues = Some(queue.to_vec());
    }

    fn set_streamed(&self, constants: &[u32]) {
        self.state.borrow_mut().streamed = constants.to_vec();
    }

    fn explain_wanted(&self) -> bool {
        true
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        let reason = (nodes.to_vec(), reason.to_owned());
        self.state.borrow_mut().reasons.push(reason);
    }

    fn metric(&self, name: &str, value: f64) {
        let metrics = &mut self.state.borrow_mut().metrics;
        match metrics.iter_mut().find(|(known, _)| known == name) {
            Some((_, known)) => *known = value,
            None => metrics.push((name.to_owned(), value)),
        }
    }

    fn offer(&self) -> Result<(), Violation> {
        self.charge();
        let checked = self.check(&self.state.borrow());
        let makespan_ns = self.makespan_of(&self.state.borrow());
        let mut state = self.state.borrow_mut();
        match checked {
            Ok(()) => {
                state.offer = Some(Offer {
                    devices: state.devices.clone(),
                    start_order: state.start_order.clone(),
                    queues: state.queues.clone(),
                    streamed: state.streamed.clone(),
                    makespan_ns,
                    metrics: Vec::new(),
                    reasons: Vec::new(),
                    failure: None,
                });
                Ok(())
            }
            Err(violation) => {
                state.refused.push(violation.clone());
                Err(violation)
            }
        }
    }

    fn budget_left(&self) -> u64 {
        self.budget_left.get()
    }

    fn budget_unit(&self) -> BudgetUnit {
        self.budget_unit.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::GraphBuilder;
    use crate::testing::cluster;

    fn rule(plan: &TestPlan<'_>) -> Option<(String, u32)> {
        plan.violation()
            .map(|violation| (violation.rule, violation.node))
    }

    #[test]
    fn rules_are_tried_in_the_hosts_order() {
        let devices = cluster("2xCPU,1xGPU").with_memory(0, 100);
        let mut graph = GraphBuilder::new(&devices);
        let a = graph.node("a", &[10.0, 10.0]);
        let b = graph.node("b", &[10.0, 10.0]);
        let c = graph.node("c", &[10.0, 10.0]);
        graph.candidates(a, &[0, 1]);
        graph.pin(b, 1);
        graph.resident_bytes(c, 60);
        graph.workspace_bytes(c, 60);
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        let breaks = |rule: &str, node| Some((rule.to_owned(), node));
        assert_eq!(rule(&plan), breaks("length", 0));
        assert!(plan.devices().is_empty());
        assert_eq!(
            (plan.transfer_bytes(), plan.makespan_ns()),
            (0, f64::INFINITY)
        );
        // Each plan also breaks all later rules.
        plan.set_devices(&[2, 0, 9]);
        assert_eq!(rule(&plan), breaks("device", 2));
        plan.set_devices(&[2, 0, 0]);
        assert_eq!(rule(&plan), breaks("pinned", 1));
        plan.set_devices(&[2, 1, 0]);
        assert_eq!(rule(&plan), breaks("candidate", 0));
        assert_eq!(plan.peak_bytes_per_device(), [0, 0, 0]);
        plan.set_devices(&[0, 1, 0]);
        assert_eq!(rule(&plan), breaks("memory", 2));
        assert_eq!(plan.peak_bytes_per_device(), [120, 0, 0]);
        plan.set_queues(&[0, 0, 1]);
        assert_eq!(rule(&plan), breaks("memory", 2));
        assert_eq!(
            plan.peak_bytes_per_device(),
            [0, 0, 0],
            "a queue is missing too"
        );
        plan.move_nodes(&[c, 77], 2);
        assert_eq!(rule(&plan), breaks("queue", 2));
        assert_eq!(plan.devices(), [0, 1, 2]);
        plan.set_start_order(&[0; 2]);
        assert_eq!(rule(&plan), breaks("length", 0));
        plan.set_start_order(&[0; 3]);
        plan.set_queues(&[0; 3]);
        assert_eq!(rule(&plan), None);
        assert_eq!(plan.offer(), Ok(()));
    }

    #[test]
    fn a_memory_has_the_smallest_capacity_that_its_devices_state() {
        let mut devices = cluster("2xCPU").with_memory(0, 100).with_memory(1, 50);
        devices.memory_domains = vec![3, 3];
        let mut graph = GraphBuilder::new(&devices);
        let node = graph.node("n", &[1.0]);
        graph.resident_bytes(node, 60);
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        plan.set_devices(&[0]);
        assert_eq!(rule(&plan), Some(("memory".to_owned(), 0)));
    }

    #[test]
    fn a_plan_that_lacks_memory_states_what_all_its_nodes_need() {
        let devices = cluster("1xCPU").with_memory(0, 100);
        let mut graph = GraphBuilder::new(&devices);
        for name in ["a", "b", "c"] {
            let node = graph.node(name, &[1.0]);
            graph.resident_bytes(node, 60);
            graph.workspace_bytes(node, 5);
        }
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        plan.set_devices(&[0; 3]);
        let violation = plan.violation().unwrap();
        assert_eq!(violation.node, 1);
        assert_eq!(
            violation.explanation,
            "the memory of device 0 has 100 bytes, the plan needs 185: 180 that stay, 5 of \
             workspace"
        );
    }

    #[test]
    fn the_last_metric_of_a_name_counts() {
        let devices = cluster("1xCPU");
        let graph = GraphBuilder::new(&devices).build();
        let plan = TestPlan::new(&graph, &devices);
        plan.metric("rounds", 1.0);
        plan.metric("rounds", 2.0);
        plan.offer().unwrap();
        let offer = plan.into_offer().unwrap();
        assert_eq!(offer.metrics, [("rounds".to_owned(), 2.0)]);
    }

    #[test]
    fn the_last_reason_of_a_node_counts() {
        let devices = cluster("1xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let [a, b, c] = ["a", "b", "c"].map(|name| graph.node(name, &[1.0]));
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        plan.set_devices(&[0; 3]);
        plan.explain(&[a, b], "first");
        plan.explain(&[b], "second");
        plan.offer().unwrap();
        let offer = plan.into_offer().unwrap();
        assert_eq!(offer.reason_of(a), Some("first"));
        assert_eq!(offer.reason_of(b), Some("second"));
        assert_eq!(offer.reason_of(c), None);
    }

    #[test]
    fn an_undecided_node_has_no_device() {
        let devices = cluster("2xCPU");
        let mut graph = GraphBuilder::new(&devices);
        graph.node("a", &[1.0]);
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        let explanation = |device: u32| {
            plan.set_devices(&[device]);
            plan.violation().unwrap().explanation
        };
        assert_eq!(explanation(NONE), "it has no device");
        assert_eq!(explanation(2), "there is no device 2");
    }

    #[test]
    fn a_queue_does_not_wait_for_a_node_whose_inputs_are_on_their_way() {
        let devices = cluster("2xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let far = graph.node("far", &[100.0]);
        let late = graph.node("late", &[10.0]);
        graph.node("early", &[1000.0]);
        graph.edge(far, late, 0);
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        plan.set_devices(&[1, 0, 0]);
        // The start order prefers `late`, which is ready at 1,100 ns. A schedule that waits for it
        // would end at 2,110.
        plan.set_start_order(&[3, 2, 1]);
        assert_eq!(plan.makespan_ns(), 1110.0);
    }

    #[test]
    fn preloaded_tensors_are_not_transferred() {
        let devices = cluster("2xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let constant = graph.node("constant", &[0.0]);
        let reader = graph.node("reader", &[10.0]);
        graph.edge(constant, reader, 1 << 20);
        let moved = graph.clone().build();
        graph.preloaded(constant);
        let given = graph.build();
        let expected = |graph: &TestGraph| {
            let plan = TestPlan::new(graph, &devices);
            plan.set_devices(&[0, 1]);
            (plan.transfer_bytes(), plan.makespan_ns() > 10.0)
        };
        assert_eq!(expected(&moved), (1 << 20, true));
        assert_eq!(expected(&given), (0, false));
    }

    #[test]
    fn edges_override_the_start_order() {
        let devices = cluster("1xCPU");
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &[10.0]);
        let second = graph.node("second", &[5.0]);
        graph.edge(first, second, 8);
        let graph = graph.build();
        let plan = TestPlan::new(&graph, &devices);
        plan.set_devices(&[0, 0]);
        plan.set_start_order(&[1, 2]);
        assert_eq!(plan.makespan_ns(), 15.0);
        assert_eq!(plan.peak_bytes_per_device(), [8]);
    }
}
