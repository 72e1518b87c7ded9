//! `peft`: Predict Earliest Finish Time (Arabnejad, Barbosa 2014, "List scheduling algorithm for
//! heterogeneous systems by an optimistic cost table").
//!
//! The optimistic cost of a node on a device is the least time that the rest of the graph takes
//! after it: the longest path to the end, where each node on it runs where this is best, with no
//! regard to other nodes (eq. 5). A ready list takes nodes by their mean optimistic cost. Each goes
//! to the device with the least sum of its finish, in a gap if it fits (insertion), and its
//! optimistic cost there (eq. 7). So a node may finish later than it could if what follows it
//! gains.
//!
//! Beyond the paper: only legal devices count. What [`placewright_guest::schedule`] says of groups,
//! constants, memory and chips holds here.

use placewright_guest::DeviceSet;
use placewright_guest::Graph;
use placewright_guest::NONE;
use placewright_guest::PlaceError;
use placewright_guest::Plan;
use placewright_guest::Policy;
use placewright_guest::export_policy;
use placewright_guest::schedule;
use placewright_guest::schedule::ListSchedule;
use placewright_guest::schedule::TaskGraph;

/// Maximum number of nodes times devices: their table takes 8 bytes each.
const TABLE_MAX: usize = 32 << 20;

/// The policy. It keeps no state between calls.
#[derive(Debug, Default)]
pub struct Peft;

impl Policy for Peft {
    const NAME: &'static str = "peft";
    const DESCRIPTION: &'static str = "Predict Earliest Finish Time (Arabnejad, Barbosa 2014): each node where its finish and an \
        optimistic cost of what follows it are least";

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
        if graph.len().saturating_mul(devices.len()) > TABLE_MAX {
            let (n_nodes, n_devices) = (graph.len(), devices.len());
            return Err(PlaceError::Declined(format!(
                "{n_nodes} nodes x {n_devices} devices are too many for the table of optimistic \
                 costs; `heft` has no such table"
            )));
        }
        let tasks = TaskGraph::new(graph, devices);
        let costs = OptimisticCosts::new(&tasks);
        let order = tasks.ready_order(&costs.means(&tasks));
        let offered = schedule::offer(graph, devices, plan, |memory| {
            let mut schedule = ListSchedule::new(&tasks, memory);
            for &node in &order {
                let row = costs.row(node);
                let choice = schedule.best(node, |choice| {
                    choice.finish_ns + row[choice.device as usize]
                });
                schedule.place(node, &choice);
            }
            schedule.finish()
        })?;
        offered.explain(graph, plan, "least finish plus optimistic cost");
        Ok(())
    }
}

/// The least time from the end of each node on each device to the end of the graph, in ns.
struct OptimisticCosts {
    n_devices: usize,
    after_ns: Vec<f64>,
}

impl OptimisticCosts {
    fn new(tasks: &TaskGraph<'_, '_>) -> Self {
        let n_devices = tasks.n_devices();
        let mut costs = Self {
            n_devices,
            after_ns: vec![0.0; tasks.graph().len() * n_devices],
        };
        // Per device: the time from a node's start there to the end of the graph.
        let mut from_start = vec![0.0; n_devices];
        // The rows of consumers are complete before those of their producers.
        for node in tasks.nodes().rev() {
            from_start.fill(f64::INFINITY);
            let mut least = f64::INFINITY;
            let row = costs.row(node);
            for &device in tasks.candidates(node) {
                let time = row[device as usize] + tasks.work_ns(node, device);
                from_start[device as usize] = time;
                least = if time < least { time } else { least };
            }
            if least == f64::INFINITY {
                continue; // no device has a cost for it
            }
            for input in tasks.inputs(node) {
                let elsewhere = least + tasks.mean_transfer_ns(&input);
                let start = input.producer as usize * n_devices;
                let of_producer = &mut costs.after_ns[start..start + n_devices];
                for (after, &here) in of_producer.iter_mut().zip(&from_start) {
                    let way = if here < elsewhere { here } else { elsewhere };
                    *after = if way > *after { way } else { *after };
                }
            }
        }
        costs
    }

    fn row(&self, node: u32) -> &[f64] {
        let start = node as usize * self.n_devices;
        &self.after_ns[start..start + self.n_devices]
    }

    /// Returns the mean of each node over its candidates (eq. 6).
    #[expect(clippy::cast_precision_loss, reason = "devices are few")]
    fn means(&self, tasks: &TaskGraph<'_, '_>) -> Vec<f64> {
        let mean = |node: u32| {
            let (row, legal) = (self.row(node), tasks.candidates(node));
            let sum: f64 = legal.iter().map(|&device| row[device as usize]).sum();
            sum / legal.len() as f64
        };
        let n_nodes = u32::try_from(tasks.graph().len()).unwrap_or(NONE);
        (0..n_nodes).map(mean).collect()
    }
}

export_policy!(Peft, feature = "export");

#[cfg(test)]
mod tests {
    use placewright_guest::log::Log;
    use placewright_guest::testing::GraphBuilder;
    use placewright_guest::testing::cluster;
    use placewright_guest::testing::papers;
    use placewright_guest::testing::place;

    use super::*;

    #[test]
    fn the_papers_example_has_the_published_ranks_and_makespan() {
        let (devices, graph) = papers::arabnejad();
        let offer = place(&mut Peft, &graph, &devices).unwrap();
        assert_eq!(offer.metric("makespan_ns"), Some(122.0));
        let log = Log::silent();
        let (graph, devices) = (Graph::new(&graph, &log), DeviceSet::new(&devices, &log));
        let tasks = TaskGraph::new(&graph, &devices);
        let costs = OptimisticCosts::new(&tasks);
        assert_eq!(costs.row(0), [64.0, 68.0, 86.0]);
        let published = [72.7, 41.0, 37.0, 43.7, 31.0, 41.7, 17.0, 20.7, 16.3, 0.0];
        for (mean, published) in costs.means(&tasks).iter().zip(published) {
            assert!((mean - published).abs() < 0.05, "{mean} {published}");
        }
    }

    #[test]
    fn a_node_may_finish_later_so_that_what_follows_finishes_earlier() {
        let devices = cluster("1xA,1xB").with_links(0.0, 1.0);
        let mut graph = GraphBuilder::new(&devices);
        let first = graph.node("first", &[10.0, 12.0]);
        let second = graph.node("second", &[100.0, 10.0]);
        graph.edge(first, second, 50);
        let graph = graph.build();
        let offer = place(&mut Peft, &graph, &devices).unwrap();
        assert_eq!(offer.devices, [1, 1]);
        assert_eq!(offer.makespan_ns, 22.0);
    }
}
