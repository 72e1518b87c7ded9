//! `dmdas`: deque model, data aware, sorted (Augonnet, Thibault, Namyst, Wacrenier 2011, "StarPU: a
//! unified platform for task scheduling on heterogeneous multicore architectures").
//!
//! As `dmda`, each ready task goes where it is expected to complete first. But of tasks that are
//! ready together, that with the highest priority chooses first, and queues are sorted by priority.
//! The priority is what the user requests; if nobody requests any, it is the longest path from the
//! node to the end (upward rank, Topcuoglu et al. 2002), as StarPU's documentation advises.
//!
//! In a plan, the start order sorts the queues. Online, the host has the queues: the policy sorts
//! each batch of tasks, and expects a task to wait for all that is queued, whatever its priority.

use placewright_guest::Completion;
use placewright_guest::Config;
use placewright_guest::ConfigError;
use placewright_guest::DeviceChange;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::OnlinePolicy;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::ReadyTask;
use placewright_guest::Setting;
use placewright_guest::export_policy;
use placewright_guest::schedule::TaskGraph;
use placewright_guest::schedule::fleet::Fleet;
use placewright_guest::schedule::fleet::offer_simulated;
use policy_dmda::Model;

/// The policy. Between calls it keeps the online runs in progress.
#[derive(Debug, Default)]
pub struct Dmdas {
    /// How a device is chosen.
    pub model: Model,
    fleet: Fleet,
    runs: Vec<Run>,
    /// The order of a batch: kept, so that batches allocate nothing.
    order: Vec<usize>,
}

/// The priorities of a run.
#[derive(Debug)]
struct Run {
    id: u32,
    of_node: Vec<f64>,
}

impl Dmdas {
    /// Returns the priority of a task; the lowest if it belongs to no run.
    fn priority(&self, task: &ReadyTask) -> f64 {
        let run = self.runs.iter().find(|run| run.id == task.run);
        let of_node = run.and_then(|run| run.of_node.get(task.node as usize));
        of_node.copied().unwrap_or(f64::NEG_INFINITY)
    }
}

/// Returns the priority of each node, larger first: the user's, or the upward rank if all of the
/// user's are equal.
fn priorities(graph: &Graph<'_>, devices: &DeviceSet<'_>) -> Vec<f64> {
    let requested = graph.user_priority();
    let is_set = requested.windows(2).any(|pair| pair[0] != pair[1]);
    match is_set {
        true => requested.iter().copied().map(f64::from).collect(),
        false => TaskGraph::new(graph, devices).upward_ranks(),
    }
}

impl Policy for Dmdas {
    const NAME: &'static str = "dmdas";
    const DESCRIPTION: &'static str = "deque model, data aware, sorted (StarPU, Augonnet \
        et al. 2011): as dmda, high priorities first";
    const SETTINGS: &'static [Setting] = Model::SETTINGS;

    fn configure(&mut self, config: &Config) -> Result<(), ConfigError> {
        self.model = Model::parse(config)?;
        Ok(())
    }

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        if devices.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let model = self.model;
        let priorities = priorities(graph, devices);
        let score = |bid: &_| model.completion_ns(bid);
        let simulated = offer_simulated(graph, devices, plan, Some(&priorities), score)?;
        let offered = simulated.offered;
        offered.explain(graph, plan, "expected to complete first there");
        Ok(())
    }
}

impl OnlinePolicy for Dmdas {
    fn begin(
        &mut self,
        run: u32,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        self.end(run);
        self.fleet.begin(run, graph, devices);
        self.runs.push(Run {
            id: run,
            of_node: priorities(graph, devices),
        });
        // A batch has at most all nodes.
        self.order.reserve(graph.len());
        Ok(())
    }

    fn pick(&mut self, task: &ReadyTask) -> Option<u32> {
        let model = self.model;
        self.fleet.pick(task, |bid| model.completion_ns(bid))
    }

    fn pick_batch(&mut self, tasks: &[ReadyTask], devices: &mut Vec<u32>) {
        let mut order = std::mem::take(&mut self.order);
        order.clear();
        order.extend(0..tasks.len());
        order.sort_unstable_by(|&a, &b| {
            let by_priority = self
                .priority(&tasks[b])
                .total_cmp(&self.priority(&tasks[a]));
            by_priority.then(a.cmp(&b))
        });
        let start = devices.len();
        devices.resize(start + tasks.len(), NONE);
        for &at in &order {
            devices[start + at] = self.pick(&tasks[at]).unwrap_or(NONE);
        }
        self.order = order;
    }

    fn observe(&mut self, done: &[Completion], changes: &[DeviceChange]) {
        self.fleet.observe(done, changes);
    }

    fn end(&mut self, run: u32) {
        self.fleet.end(run);
        self.runs.retain(|other| other.id != run);
    }
}

export_policy!(Dmdas, online, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::log::Log;
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;
    use policy_dmda::Dmda;

    use super::*;

    /// A short node, then a long one with a node behind it. All prefer the first device, which is
    /// twice as fast.
    fn short_and_long() -> (TestDevices, GraphBuilder) {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        graph.node("short", &[10.0, 15.0]);
        let long = graph.node("long", &[20.0, 29.0]);
        let after = graph.node("after", &[50.0, 100.0]);
        graph.edge(long, after, 100);
        (devices, graph)
    }

    #[test]
    fn the_longest_path_chooses_first() {
        let (devices, graph) = short_and_long();
        let graph = graph.build();
        // By id: `long` takes 10 + 20 or 29, and its output moves.
        let unsorted = place(&mut Dmda::default(), &graph, &devices).unwrap();
        assert_eq!(unsorted.devices, [0, 1, 1]);
        assert_eq!(unsorted.metric("makespan_ns"), Some(129.0));
        // By rank: `long` takes 20, then `short` 20 + 10 or 15.
        let offer = place(&mut Dmdas::default(), &graph, &devices).unwrap();
        assert_eq!(offer.devices, [1, 0, 0]);
        assert_eq!(offer.metric("makespan_ns"), Some(70.0));
        let reason = offer.reason_of(0);
        assert_eq!(reason, Some("expected to complete first there"));
    }

    #[test]
    fn priorities_of_the_user_come_before_ranks() {
        let (devices, mut graph) = short_and_long();
        graph.user_priority(0, 1);
        let offer = place(&mut Dmdas::default(), &graph.build(), &devices).unwrap();
        assert_eq!(offer.devices, [0, 1, 1]);
    }

    #[test]
    fn queues_are_sorted_by_priority() {
        let devices = cluster("1xA");
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &[10.0]);
        let [low, high] = ["low", "high"].map(|name| graph.node(name, &[10.0]));
        let after = graph.node("after", &[30.0]);
        for node in [low, high] {
            graph.control_edge(first, node);
        }
        graph.edge(high, after, 8);
        let graph = graph.build();
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let ranks = priorities(&graph, &devices);
        assert_eq!(ranks, [50.0, 10.0, 40.0, 30.0]);
        let tasks = TaskGraph::new(&graph, &devices);
        let mut pick = |_: &ReadyTask, legal: &[u32]| legal[0];
        let simulate = placewright_guest::schedule::online::simulate;
        let scheduled = simulate(&tasks, None, Some(&ranks), &mut pick);
        // `after` is queued last, and passes `low`.
        assert_eq!(scheduled.start_ns, [0.0, 50.0, 10.0, 20.0]);
    }

    #[test]
    fn topcuoglus_example_is_scheduled_legally_and_repeatably() {
        let (devices, graph) = papers::topcuoglu();
        let offer = place(&mut Dmdas::default(), &graph, &devices).unwrap();
        let makespan_ns = offer.metric("makespan_ns").unwrap();
        assert!(offer.makespan_ns <= makespan_ns);
        assert!((73.0..=127.0).contains(&makespan_ns), "{makespan_ns}");
        assert_eq!(
            place(&mut Dmdas::default(), &graph, &devices).unwrap(),
            offer
        );
    }

    #[test]
    fn batches_of_two_runs_are_sorted_and_answered_in_their_order() {
        let (test_devices, graph) = short_and_long();
        let graph = graph.build();
        let log = Log::silent();
        let (view, devices) = (
            Graph::new(&graph, &log),
            DeviceSet::new(&test_devices, &log),
        );
        let mut policy = Dmdas::default();
        policy.begin(1, &view, &devices, 0).unwrap();
        policy.begin(2, &view, &devices, 0).unwrap();
        let task = |run, node| ReadyTask {
            run,
            node,
            cost_row: node,
            candidate_set: 0,
            input_bytes: 0,
            home: NONE,
            now_ns: 0.0,
        };
        let mut answers = vec![7];
        policy.pick_batch(&[task(1, 0), task(1, 1), task(9, 0)], &mut answers);
        assert_eq!(answers, [7, 1, 0, NONE]);
        // The first device is busy until 20, the second until 15: 20 + 20, or 15 + 29.
        assert_eq!(policy.pick(&task(2, 1)), Some(0));
        policy.end(1);
        let down = DeviceChange {
            device: 0,
            is_up: false,
            memory_free_bytes: 0,
            load: 0.0,
        };
        policy.observe(&[], &[down]);
        answers.clear();
        policy.pick_batch(&[task(2, 0), task(1, 1)], &mut answers);
        assert_eq!(answers, [1, NONE], "one device is down, one run is over");
    }
}
