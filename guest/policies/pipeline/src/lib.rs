//! `pipeline`: stages for the throughput of repeated runs.
//!
//! If several runs are in flight, each device works on another one, and the slowest device decides
//! how many runs end per second. So the graph, producers first, is cut into consecutive stages, one
//! per device, whose longest is as short as possible. A stage takes the work of its nodes and the
//! transfers into it. As in chains-on-chains partitioning (Bokhari 1988; Pinar, Aykanat 2004), the
//! time of the longest stage is found by bisection: a time is possible if filling the devices one
//! after the other, none beyond it, places all nodes.
//!
//! The order of the devices is given: most preferred first, and the reverse. A node that may not
//! run on the device of its stage goes where it runs fastest, and counts there. Run with
//! `--concurrent-runs N`; the metric `bottleneck_ns` is the longest stage.

use placewright_guest::Assignment;
use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::MemoryBudget;
use placewright_guest::NONE;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::algorithm::most_preferred_first;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::Scheduled;
use placewright_guest::schedule::TaskGraph;

/// Bisections: the longest stage is then exact to a millionth.
const BISECTIONS: u32 = 24;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Pipeline;

impl Policy for Pipeline {
    const NAME: &'static str = "pipeline";
    const DESCRIPTION: &'static str = "consecutive stages whose longest is as short as possible, for the throughput of repeated runs";

    fn place(
        &mut self,
        graph: &Graph<'_>,
        devices: &DeviceSet<'_>,
        plan: &Plan<'_>,
        _seed: u64,
    ) -> Result<(), PlaceError> {
        let order = most_preferred_first(graph, devices);
        if order.is_empty() {
            return Err(PlaceError::Declined("there is no device".to_owned()));
        }
        let tasks = TaskGraph::new(graph, devices);
        let reversed: Vec<u32> = order.iter().rev().copied().collect();
        let mut bottleneck_ns = f64::INFINITY;
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let budget = memory.unwrap_or_else(|| MemoryBudget::new(graph, devices));
            let shortest = |order: &[u32]| Stages::shortest(&tasks, order, &budget);
            let (best, other) = (shortest(&order), shortest(&reversed));
            let best = if other.longest_ns < best.longest_ns {
                other
            } else {
                best
            };
            bottleneck_ns = best.longest_ns;
            Scheduled {
                devices: best.devices,
                start_ns: vec![0.0; graph.len()],
                makespan_ns: best.longest_ns,
                n_inserted: 0,
            }
        })?;
        plan.metric("bottleneck_ns", bottleneck_ns);
        offered.explain(graph, plan, "stage of consecutive nodes");
        Ok(())
    }
}

/// A division into stages.
struct Stages {
    devices: Vec<u32>,
    longest_ns: f64,
}

impl Stages {
    /// Returns the stages whose longest is as short as possible.
    fn shortest(tasks: &TaskGraph<'_, '_>, order: &[u32], memory: &MemoryBudget) -> Self {
        let all_ns: f64 = tasks.mean_work_ns().iter().sum();
        // Nothing is too long for the last attempt, but it may lack memory.
        let (mut too_short, mut best) = (0.0, Self::within(tasks, order, memory, f64::INFINITY));
        let mut long_enough = match &best {
            Ok(stages) => stages.longest_ns,
            Err(_) => all_ns,
        };
        for _ in 0..BISECTIONS {
            let middle = f64::midpoint(too_short, long_enough);
            match Self::within(tasks, order, memory, middle) {
                Ok(stages) => {
                    long_enough = middle.min(stages.longest_ns);
                    best = Ok(stages);
                }
                Err(_) => too_short = middle,
            }
        }
        match best {
            Ok(stages) | Err(stages) => stages,
        }
    }

    /// Fills the devices one after the other, none longer than `limit_ns`.
    ///
    /// # Errors
    /// The stages, of which the last is longer, or has too little memory.
    fn within(
        tasks: &TaskGraph<'_, '_>,
        order: &[u32],
        memory: &MemoryBudget,
        limit_ns: f64,
    ) -> Result<Self, Self> {
        let graph = tasks.graph();
        let mut memory = memory.clone();
        let mut assignment = Assignment::new(graph);
        let mut busy_ns = vec![0.0; tasks.n_devices()];
        let (mut at, mut fits) = (0, true);
        for node in tasks.nodes() {
            let group = graph.group()[node as usize];
            let time = |assignment: &Assignment<'_>, device: u32| {
                let transfers = tasks.inputs(node).map(|input| {
                    tasks.transfer_ns(&input, assignment.device(input.producer), device)
                });
                tasks.work_ns(node, device) + transfers.sum::<f64>()
            };
            let forced = assignment.forced(node);
            let legal = tasks.candidates(node);
            let device = loop {
                let device = order[at];
                if forced != NONE {
                    break forced;
                }
                if !legal.contains(&device) {
                    let by_time = |a: &u32, b: &u32| {
                        tasks.work_ns(node, *a).total_cmp(&tasks.work_ns(node, *b))
                    };
                    break legal.iter().copied().min_by(by_time).unwrap_or(device);
                }
                let end_ns = busy_ns[device as usize] + time(&assignment, device);
                if (end_ns <= limit_ns && memory.fits(group, device)) || at + 1 == order.len() {
                    break device;
                }
                at += 1;
            };
            busy_ns[device as usize] += time(&assignment, device);
            fits &= busy_ns[device as usize] <= limit_ns && memory.fits(group, device);
            assignment.decide(node, device);
            memory.take(group, device);
        }
        let stages = Self {
            devices: assignment.devices().to_vec(),
            longest_ns: busy_ns.iter().copied().fold(0.0, f64::max),
        };
        if fits { Ok(stages) } else { Err(stages) }
    }
}

export_policy!(Pipeline, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::TestDevices;
    use placewright_guest::testing::TestGraph;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::place;

    use super::*;

    fn chain(devices: &TestDevices, costs: &[[f64; 2]], bytes: u64) -> TestGraph {
        let mut graph = GraphBuilder::new(devices);
        for (index, costs) in (0_u32..).zip(costs) {
            let node = graph.node(&format!("n{index}"), costs);
            if index > 0 {
                graph.edge(node - 1, node, bytes);
            }
        }
        graph.build()
    }

    #[test]
    fn the_longest_stage_is_as_short_as_possible() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let costs = [
            [10.0, 20.0],
            [20.0, 40.0],
            [30.0, 60.0],
            [30.0, 30.0],
            [5.0, 10.0],
        ];
        let graph = chain(&devices, &costs, 4);
        let offer = place(&mut Pipeline, &graph, &devices).unwrap();
        // 60 | 4 + 40. The reverse order has no cut below 64.
        assert_eq!(offer.devices, [0, 0, 0, 1, 1]);
        assert_eq!(offer.metric("bottleneck_ns"), Some(60.0));
    }

    #[test]
    fn transfers_count_where_they_arrive() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let graph = chain(&devices, &[[10.0, 10.0], [10.0, 10.0]], 1_000);
        let offer = place(&mut Pipeline, &graph, &devices).unwrap();
        assert_eq!(
            offer.metric("bottleneck_ns"),
            Some(20.0),
            "one device does both"
        );
    }

    #[test]
    fn a_stage_ends_where_memory_does() {
        let devices = cluster("1xA,1xB").with_links(0.0, 0.0).with_memory(0, 100);
        let mut graph = GraphBuilder::new(&devices);
        for index in 0..4 {
            let node = graph.node(&format!("n{index}"), &[1.0, 9.0]);
            graph.resident_bytes(node, 60);
        }
        let offer = place(&mut Pipeline, &graph.build(), &devices).unwrap();
        assert_eq!(
            offer.devices.iter().filter(|&&device| device == 0).count(),
            1
        );
    }
}
