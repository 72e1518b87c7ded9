//! What a search minimizes: the time of a run, or other figures of a plan.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use crate::NONE;
use crate::graph::EdgeKind;
use crate::plan::Plan;
use crate::schedule::Input;
use crate::schedule::TaskGraph;
use crate::source::BudgetUnit;
use crate::source::PlanSink;
use crate::source::Violation;

/// What a search minimizes: a figure of the plan, or a weighted sum of several.
///
/// Written as `latency`, or with weights as `latency=1,bytes=0.5`. The sum adds up parts: times as
/// parts of the work of the whole graph if each node runs where it is fastest, bytes as parts of
/// all tensors and parameters of the graph. So weights of 1 make a run that is a tenth of that work
/// longer as bad as a tenth of all bytes more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Objective {
    /// By figure, in the order of [`Figure`].
    weights: [f64; N_FIGURES],
}

/// A figure of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Figure {
    /// The time of one run: the host's estimate, in ns.
    Latency,
    /// The time per run while many are in flight, in ns: that of the busiest chip, or of the
    /// busiest direction of a device's transfers.
    Throughput,
    /// The most bytes that one device holds.
    Memory,
    /// The bytes that one run transfers.
    Bytes,
}

const N_FIGURES: usize = 4;

/// Names in settings, and names of metrics.
const FIGURES: [(Figure, &str, &str); N_FIGURES] = [
    (Figure::Latency, "latency", "makespan_ns"),
    (Figure::Throughput, "throughput", "bottleneck_ns"),
    (Figure::Memory, "memory", "peak_bytes"),
    (Figure::Bytes, "bytes", "transfer_bytes"),
];

/// A text that is no objective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ObjectiveError(String);

impl Default for Objective {
    fn default() -> Self {
        Self::of(Figure::Latency)
    }
}

impl Objective {
    /// Returns the objective to minimize one figure.
    pub fn of(figure: Figure) -> Self {
        let mut weights = [0.0; N_FIGURES];
        weights[figure as usize] = 1.0;
        Self { weights }
    }

    /// Returns the weight of a figure.
    pub fn weight(&self, figure: Figure) -> f64 {
        self.weights[figure as usize]
    }

    /// Returns whether only the time of one run counts, which the host estimates.
    pub fn is_latency(&self) -> bool {
        self.figures().all(|figure| figure == Figure::Latency)
    }

    /// Returns whether the host partitions the graph for each plan that is weighed.
    pub fn needs_partitions(&self) -> bool {
        self.weight(Figure::Memory) > 0.0
    }

    /// Returns the figures with a weight.
    pub fn figures(&self) -> impl Iterator<Item = Figure> + '_ {
        let all = FIGURES.iter().map(|(figure, ..)| *figure);
        all.filter(|figure| self.weight(*figure) > 0.0)
    }
}

impl FromStr for Objective {
    type Err = ObjectiveError;

    fn from_str(text: &str) -> Result<Self, ObjectiveError> {
        let mut weights = [0.0; N_FIGURES];
        for part in text.split(',').map(str::trim) {
            let (name, weight) = match part.split_once('=') {
                Some((name, weight)) => (name.trim(), weight.trim().parse().ok()),
                None => (part, Some(1.0)),
            };
            let figure = FIGURES.iter().find(|(_, known, _)| *known == name);
            let weight = weight.filter(|weight: &f64| *weight >= 0.0 && weight.is_finite());
            let (Some((figure, ..)), Some(weight)) = (figure, weight) else {
                return Err(ObjectiveError(part.to_owned()));
            };
            weights[*figure as usize] = weight;
        }
        if weights.iter().all(|weight| *weight == 0.0) {
            return Err(ObjectiveError(text.to_owned()));
        }
        Ok(Self { weights })
    }
}

impl fmt::Display for ObjectiveError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "`{}` is not an objective; expected latency, throughput, memory or bytes, or several \
             with weights from 0, such as latency=1,bytes=0.5",
            self.0
        )
    }
}

impl std::error::Error for ObjectiveError {}

/// A plan whose makespan is its score by an objective, so that what compares plans by makespan
/// minimizes the objective. The score of an illegal plan is +inf.
///
/// # Examples
/// `let scored = Scored::new(objective, &tasks, *plan); let plan = Plan::new(&scored, plan.log());`
pub struct Scored<'a, 't, 'g> {
    objective: Objective,
    tasks: &'t TaskGraph<'t, 'g>,
    plan: Plan<'a>,
    /// What the figures are related to.
    work_ns: f64,
    all_bytes: f64,
}

impl<'a, 't, 'g> Scored<'a, 't, 'g> {
    /// Scores what is set in `plan`.
    #[expect(clippy::cast_precision_loss, reason = "a scale")]
    pub fn new(objective: Objective, tasks: &'t TaskGraph<'t, 'g>, plan: Plan<'a>) -> Self {
        let graph = tasks.graph();
        let least_ns = |node: u32| {
            let legal = tasks.candidates(node).iter();
            let times = legal.map(|&device| tasks.work_ns(node, device));
            times.fold(
                f64::INFINITY,
                |least, time| if time < least { time } else { least },
            )
        };
        let work_ns: f64 = tasks
            .nodes()
            .map(least_ns)
            .filter(|time| time.is_finite())
            .sum();
        let bytes = graph.tensor_bytes().iter().chain(graph.resident_bytes());
        let all_bytes = bytes.fold(0_u64, |sum, &bytes| sum.saturating_add(bytes));
        Self {
            objective,
            tasks,
            plan,
            work_ns: work_ns.max(1.0),
            all_bytes: (all_bytes as f64).max(1.0),
        }
    }

    /// Returns a figure of the plan that is set; +inf for the times of an illegal plan.
    #[expect(clippy::cast_precision_loss, reason = "a figure")]
    pub fn figure(&self, figure: Figure) -> f64 {
        match figure {
            Figure::Latency => self.plan.makespan_ns(),
            Figure::Throughput => {
                let makespan_ns = self.plan.makespan_ns();
                match makespan_ns.is_finite() {
                    true => bottleneck_ns(self.tasks, &self.plan.devices()),
                    false => makespan_ns,
                }
            }
            Figure::Memory => {
                let peaks = self.plan.peak_bytes_per_device();
                peaks.iter().copied().max().unwrap_or(0) as f64
            }
            Figure::Bytes => self.plan.transfer_bytes() as f64,
        }
    }

    /// Reports the figures that have a weight, of the plan that is set.
    pub fn report(&self) {
        for (figure, _, metric) in FIGURES {
            if self.objective.weight(figure) > 0.0 || figure == Figure::Latency {
                self.plan.metric(metric, self.figure(figure));
            }
        }
    }

    fn score_ns(&self) -> f64 {
        let makespan_ns = self.plan.makespan_ns();
        if !makespan_ns.is_finite() {
            return makespan_ns;
        }
        let figures = self.objective.figures().map(|figure| {
            let part = match figure {
                Figure::Latency => makespan_ns / self.work_ns,
                Figure::Throughput => {
                    bottleneck_ns(self.tasks, &self.plan.devices()) / self.work_ns
                }
                Figure::Memory | Figure::Bytes => self.figure(figure) / self.all_bytes,
            };
            self.objective.weight(figure) * part
        });
        self.work_ns * figures.sum::<f64>()
    }
}

impl fmt::Debug for Scored<'_, '_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scored")
            .field("objective", &self.objective)
            .finish_non_exhaustive()
    }
}

/// Returns the time per run while many runs are in flight, in ns: the work of the busiest chip, or
/// the transfers of the busiest device in one direction, whichever is longer.
pub fn bottleneck_ns(tasks: &TaskGraph<'_, '_>, devices: &[u32]) -> f64 {
    let mut work_ns = vec![0.0; tasks.n_chips()];
    let mut transfers_ns = vec![[0.0; 2]; tasks.n_devices()];
    let graph = tasks.graph();
    let predecessors = graph.predecessors();
    // Tensor and destination.
    let mut sent = BTreeSet::new();
    for node in tasks.nodes() {
        let to = devices[node as usize];
        work_ns[tasks.chip(to)] += tasks.work_ns(node, to);
        for edge in predecessors.range(node) {
            let producer = predecessors.items[edge];
            let (from, tensor) = (devices[producer as usize], graph.edge_tensors()[edge]);
            let is_idle = tensor == NONE || graph.edge_kinds()[edge] & EdgeKind::PRELOADED != 0;
            if from != to && !is_idle && sent.insert((tensor, to)) {
                let input = Input {
                    producer,
                    bytes: graph.tensor_bytes()[tensor as usize],
                    times: graph.executions()[producer as usize],
                };
                let time = tasks.transfer_ns(&input, from, to);
                transfers_ns[from as usize][0] += time;
                transfers_ns[to as usize][1] += time;
            }
        }
    }
    let transfers = transfers_ns.iter().flatten();
    work_ns.iter().chain(transfers).copied().fold(0.0, f64::max)
}

impl PlanSink for Scored<'_, '_, '_> {
    fn makespan_ns(&self) -> f64 {
        self.score_ns()
    }

    fn set_devices(&self, device: &[u32]) {
        self.plan.set_devices(device);
    }

    fn devices(&self) -> Vec<u32> {
        self.plan.devices()
    }

    fn move_nodes(&self, nodes: &[u32], device: u32) {
        self.plan.move_nodes(nodes, device);
    }

    fn violation(&self) -> Option<Violation> {
        self.plan.violation()
    }

    fn transfer_bytes(&self) -> u64 {
        self.plan.transfer_bytes()
    }

    fn peak_bytes_per_device(&self) -> Vec<u64> {
        self.plan.peak_bytes_per_device()
    }

    fn set_start_order(&self, order: &[i32]) {
        self.plan.set_start_order(order);
    }

    fn set_queues(&self, queue: &[u32]) {
        self.plan.set_queues(queue);
    }

    fn set_streamed(&self, constants: &[u32]) {
        self.plan.set_streamed(constants);
    }

    fn explain_wanted(&self) -> bool {
        self.plan.explain_wanted()
    }

    fn explain(&self, nodes: &[u32], reason: &str) {
        self.plan.explain(nodes, || reason.to_owned());
    }

    fn metric(&self, name: &str, value: f64) {
        self.plan.metric(name, value);
    }

    fn offer(&self) -> Result<(), Violation> {
        self.plan.offer()
    }

    fn budget_left(&self) -> u64 {
        self.plan.budget_left()
    }

    fn budget_unit(&self) -> BudgetUnit {
        self.plan.budget_unit()
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::devices::DeviceSet;
    use crate::graph::Graph;
    use crate::log::Log;
    use crate::testing::GraphBuilder;
    use crate::testing::TestPlan;
    use crate::testing::cluster;

    #[test]
    fn objectives_are_figures_with_weights() {
        let weights = |text: &str| text.parse().map(|it: Objective| it.weights);
        assert_eq!(weights("latency"), Ok([1.0, 0.0, 0.0, 0.0]));
        assert_eq!(weights("memory"), Ok([0.0, 0.0, 1.0, 0.0]));
        let mixed = "latency=1, bytes = 0.5,throughput=0";
        assert_eq!(weights(mixed), Ok([1.0, 0.0, 0.0, 0.5]));
        assert_eq!(weights("latency"), Ok(Objective::default().weights));
        for wrong in [
            "",
            "speed",
            "latency=",
            "latency=-1",
            "bytes=inf",
            "latency=0",
            "a=1,b",
        ] {
            let error = weights(wrong).unwrap_err().to_string();
            assert!(error.contains("latency=1,bytes=0.5"), "{wrong}: {error}");
        }
    }

    #[test]
    fn a_score_is_the_weighted_sum_of_parts() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &[30.0, 60.0]);
        let second = graph.node("second", &[70.0, 70.0]);
        graph.edge(first, second, 40);
        graph.resident_bytes(second, 60);
        let graph = graph.build();
        let log = Log::silent();
        let (view, set) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let tasks = TaskGraph::new(&view, &set);
        let sink = TestPlan::new(&graph, &devices);
        let plan = Plan::new(&sink, &log);
        let score = |objective: &str, assigned: &[u32]| {
            plan.set_devices(assigned);
            let scored = Scored::new(objective.parse().unwrap(), &tasks, plan);
            Plan::new(&scored, &log).makespan_ns()
        };
        // The work of the graph is 100 ns, and it has 100 bytes.
        for (objective, apart, together) in [
            ("latency", 30.0 + 40.0 + 70.0, 100.0),
            ("throughput", 70.0, 100.0),
            ("bytes", 40.0, 0.0),
            ("latency=1,bytes=2", 140.0 + 80.0, 100.0),
        ] {
            let rounded = |assigned| (score(objective, assigned) * 1e6).round() / 1e6;
            assert_eq!(rounded(&[0, 1]), apart, "{objective}");
            assert_eq!(rounded(&[0, 0]), together, "{objective}");
        }
        let memory = score("memory", &[0, 1]);
        assert_eq!(memory, plan_peak(&plan, &[0, 1]));
        for objective in ["bytes", "throughput"] {
            assert!(score(objective, &[0, 7]).is_infinite(), "no such device");
        }
        let scored = Scored::new(Objective::of(Figure::Throughput), &tasks, plan);
        assert!(scored.figure(Figure::Throughput).is_infinite());
    }

    #[expect(clippy::cast_precision_loss, reason = "small")]
    fn plan_peak(plan: &Plan<'_>, devices: &[u32]) -> f64 {
        plan.set_devices(devices);
        let peaks = plan.peak_bytes_per_device();
        peaks.iter().copied().max().unwrap() as f64
    }

    #[test]
    fn transfers_count_where_they_leave_and_arrive_and_feeds_do_not() {
        let devices = cluster("3xA").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let source = graph.node("source", &[1.0]);
        for index in 0..4 {
            let reader = graph.node(&format!("reader{index}"), &[1.0]);
            graph.edge(source, reader, 50);
        }
        // What is fed is where it is read.
        let fed = graph.node("fed", &[0.0]);
        graph.preloaded(fed);
        let last = graph.node("last", &[0.0]);
        graph.edge(fed, last, 9_000);
        let graph = graph.build();
        let log = Log::silent();
        let (view, set) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let tasks = TaskGraph::new(&view, &set);
        assert_eq!(bottleneck_ns(&tasks, &[0; 7]), 5.0);
        assert_eq!(bottleneck_ns(&tasks, &[0, 1, 1, 1, 1, 0, 1]), 200.0);
        assert_eq!(
            bottleneck_ns(&tasks, &[0, 1, 1, 2, 2, 0, 1]),
            200.0,
            "all leave it"
        );
    }
}
