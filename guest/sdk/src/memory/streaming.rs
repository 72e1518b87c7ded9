//! Weight streaming: constants stay in a larger memory, and each run copies them to their readers.

use std::cmp::Reverse;

use super::capacities;
use super::constants_read;
use super::free_constants;
use crate::NONE;
use crate::algorithm::LinkMatrix;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::plan::Plan;

/// Attempts to make a plan fit. The copies themselves take memory while their readers execute, so
/// the first selection may be too small.
const ROUNDS: u32 = 8;

/// A constant that nodes of a memory read.
struct Read {
    constant: u32,
    device: u32,
    /// How often its readers there execute in one run, at most.
    executions: f64,
}

/// Makes a plan fit into memory that lacks it only because of constants: streams those whose
/// readers execute least often, of these the largest ones, until the host finds no memory too
/// small. Each stays on the device with the fastest link to its reader, of those that have room for
/// it.
///
/// `placed` has the device of each node. Those of streamed constants are changed to the devices
/// that keep them; all others stay. Returns the streamed constants, ascending: none if the plan
/// fits as it is. The host's plan is then the one that fits, with the start order that it had, not
/// offered. Returns `None`, and streams nothing, if the plan does not fit in this way or breaks a
/// rule other than `memory`.
pub fn stream(
    graph: &Graph<'_>,
    devices: &DeviceSet<'_>,
    plan: &Plan<'_>,
    placed: &mut [u32],
) -> Option<Vec<u32>> {
    let before = placed.to_vec();
    let streamed = Streaming::new(graph, devices, placed).fit(plan, placed);
    if streamed.is_none() {
        placed.copy_from_slice(&before);
        plan.set_devices(placed);
        plan.set_streamed(&[]);
    }
    streamed
}

struct Streaming<'t, 'g> {
    graph: &'t Graph<'g>,
    domains: &'t [u32],
    capacity: Vec<u64>,
    links: LinkMatrix,
    /// Those that are streamed first come first.
    reads: Vec<Read>,
    is_streamed: Vec<bool>,
}

impl<'t, 'g> Streaming<'t, 'g> {
    fn new(graph: &'t Graph<'g>, devices: &'t DeviceSet<'_>, placed: &[u32]) -> Self {
        let is_constant = graph.constants();
        // Those that are pinned or colocated stay as they are.
        let is_free = free_constants(graph);
        let bytes = graph.resident_bytes();
        let mut reads: Vec<Read> = Vec::new();
        for node in graph.nodes() {
            for constant in constants_read(graph, &is_constant, node) {
                if is_free[constant as usize] && bytes[constant as usize] > 0 {
                    reads.push(Read {
                        constant,
                        device: placed[node as usize],
                        executions: graph.executions()[node as usize],
                    });
                }
            }
        }
        reads.sort_by(|a, b| {
            let by_place = (a.constant, a.device).cmp(&(b.constant, b.device));
            by_place.then(b.executions.total_cmp(&a.executions))
        });
        reads.dedup_by_key(|read| (read.constant, read.device));
        reads.sort_by(|a, b| {
            let by_use = a.executions.total_cmp(&b.executions);
            let size = |read: &Read| Reverse(bytes[read.constant as usize]);
            by_use.then_with(|| (size(a), a.constant).cmp(&(size(b), b.constant)))
        });
        Self {
            graph,
            domains: devices.memory_domains(),
            capacity: capacities(devices),
            links: LinkMatrix::new(devices),
            reads,
            is_streamed: vec![false; graph.len()],
        }
    }

    fn fit(mut self, plan: &Plan<'_>, placed: &mut [u32]) -> Option<Vec<u32>> {
        for _ in 0..ROUNDS {
            let streamed = self.streamed();
            plan.set_devices(placed);
            plan.set_streamed(&streamed);
            match plan.violation() {
                None => return Some(streamed),
                Some(violation) if violation.rule != "memory" => return None,
                Some(_) => {}
            }
            if !self.stream_more(&plan.peak_bytes_per_device(), placed) {
                return None;
            }
        }
        None
    }

    fn streamed(&self) -> Vec<u32> {
        let nodes = self.graph.nodes();
        nodes
            .filter(|&node| self.is_streamed[node as usize])
            .collect()
    }

    /// Streams constants of each memory that is too small. Returns whether there were any.
    fn stream_more(&mut self, peaks: &[u64], placed: &mut [u32]) -> bool {
        let mut free = self.capacity.clone();
        let mut lacking = vec![0_u64; free.len()];
        for (&domain, &peak) in self.domains.iter().zip(peaks) {
            let (free, lacking) = (&mut free[domain as usize], &mut lacking[domain as usize]);
            *lacking = lacking.saturating_add(peak.saturating_sub(*free));
            *free = free.saturating_sub(peak);
        }
        let mut has_more = false;
        for read in &self.reads {
            let domain = self.domains[read.device as usize] as usize;
            let at = read.constant as usize;
            if lacking[domain] == 0 || self.is_streamed[at] {
                continue;
            }
            let bytes = self.graph.resident_bytes()[at];
            let Some(keeper) = self.keeper(read, bytes, &free) else {
                continue;
            };
            self.is_streamed[at] = true;
            placed[at] = keeper;
            lacking[domain] = lacking[domain].saturating_sub(bytes);
            free[self.domains[keeper as usize] as usize] -= bytes;
            has_more = true;
        }
        has_more
    }

    /// Returns a device of another memory that has room for a constant.
    fn keeper(&self, read: &Read, bytes: u64, free: &[u64]) -> Option<u32> {
        let domain = |device: u32| self.domains[device as usize];
        let legal = self.graph.candidates_of(read.constant).iter().copied();
        let others = legal.filter(|&device| {
            device != NONE
                && domain(device) != domain(read.device)
                && free[domain(device) as usize] >= bytes
        });
        let time = |device: u32| self.links.transfer_ns(device, read.device, bytes);
        others.min_by(|&a, &b| time(a).total_cmp(&time(b)))
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::*;
    use crate::log::Log;
    use crate::memory::place_constants;
    use crate::testing::GraphBuilder;
    use crate::testing::TestDevices;
    use crate::testing::TestGraph;
    use crate::testing::TestPlan;
    use crate::testing::cluster;

    /// Layers that run on device 1 only, each with a constant of these bytes, which takes 1 ns per
    /// byte to copy.
    fn layers(capacity: u64, sizes: &[(u64, f64)]) -> (TestDevices, TestGraph) {
        let devices = cluster("1xA,1xB")
            .with_links(0.0, 1.0)
            .with_memory(0, 1_000)
            .with_memory(1, capacity);
        let mut graph = GraphBuilder::new(&devices);
        let mut last = None;
        for (index, &(bytes, executions)) in sizes.iter().enumerate() {
            let weights = graph.constant(&format!("weights{index}"), bytes);
            let layer = graph.node(&format!("layer{index}"), &[f64::INFINITY, 10.0]);
            graph.candidates(layer, &[1]);
            graph.executions(layer, executions);
            graph.edge(weights, layer, bytes);
            if let Some(last) = last {
                graph.edge(last, layer, 0);
            }
            last = Some(layer);
        }
        (devices, graph.build())
    }

    fn streamed(devices: &TestDevices, graph: &TestGraph) -> Option<(Vec<u32>, Vec<u32>, f64)> {
        let log = Log::silent();
        let sink = TestPlan::new(graph, devices);
        let plan = Plan::new(&sink, &log);
        let (graph, devices) = (Graph::new(graph, &log), DeviceSet::new(devices, &log));
        let mut placed = vec![1; graph.len()];
        place_constants(&graph, &free_constants(&graph), &mut placed);
        let streamed = stream(&graph, &devices, &plan, &mut placed)?;
        assert_eq!(plan.violation(), None);
        Some((streamed, placed, plan.makespan_ns()))
    }

    #[test]
    fn nothing_is_streamed_where_all_fits() {
        let (devices, graph) = layers(300, &[(100, 1.0), (100, 1.0), (100, 1.0)]);
        let (streamed, placed, makespan_ns) = streamed(&devices, &graph).unwrap();
        assert_eq!((&streamed[..], makespan_ns), (&[][..], 30.0));
        assert_eq!(placed, [1; 6]);
    }

    #[test]
    fn the_largest_of_equally_used_constants_are_streamed_until_the_rest_fits() {
        // Without the 120: 100 + 90, and 120 for the copy. Without the 100, too: 90 + 120.
        let (devices, graph) = layers(220, &[(100, 1.0), (120, 1.0), (90, 1.0)]);
        let (streamed, placed, makespan_ns) = streamed(&devices, &graph).unwrap();
        assert_eq!(streamed, [0, 2]);
        assert_eq!(placed, [0, 1, 0, 1, 1, 1]);
        assert_eq!(makespan_ns, 30.0 + 100.0 + 120.0);
    }

    #[test]
    fn constants_of_rarely_executed_nodes_come_first() {
        let (devices, graph) = layers(200, &[(90, 0.25), (100, 1.0), (100, 1.0)]);
        let (streamed, ..) = streamed(&devices, &graph).unwrap();
        assert_eq!(streamed[0], 0);
    }

    #[test]
    fn a_constant_that_does_not_fit_beside_its_reader_stays_unplaced() {
        let (devices, graph) = layers(100, &[(101, 1.0)]);
        assert_eq!(streamed(&devices, &graph), None);
    }
}
