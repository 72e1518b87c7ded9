//! What list schedulers ask about a graph.

use std::collections::BinaryHeap;

use super::lanes::later;
use crate::NONE;
use crate::algorithm::LinkMatrix;
use crate::algorithm::Members;
use crate::algorithm::mean_work;
use crate::algorithm::upward_ranks;
use crate::devices::DeviceSet;
use crate::graph::Graph;
use crate::memory::free_constants;
use crate::source::LinkCost;

/// A graph as tasks: nodes with their work per device, and their inputs.
///
/// Constants are created before any run on each device that reads them, so nobody waits for them,
/// and free ones ([`free_constants`]) are no tasks. Times contain all expected executions of a
/// node.
#[derive(Debug)]
pub struct TaskGraph<'a, 'g> {
    graph: &'a Graph<'g>,
    cost_class: &'a [u32],
    /// Per device, numbered from 0 without gaps.
    chip: Vec<u32>,
    n_chips: usize,
    links: LinkMatrix,
    mean_link: LinkCost,
    is_constant: Vec<bool>,
    is_free_constant: Vec<bool>,
    members: Members,
    mean_work_ns: Vec<f64>,
}

/// A tensor that a node reads, or a control edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Input {
    /// The node that produces it.
    pub producer: u32,
    /// Its size; 0 for control edges.
    pub bytes: u64,
    /// How often it is transferred: the executions of the producer.
    pub times: f64,
}

impl<'a, 'g> TaskGraph<'a, 'g> {
    /// Reads the columns that schedules need.
    pub fn new(graph: &'a Graph<'g>, devices: &'a DeviceSet<'_>) -> Self {
        let chip = chips(devices);
        let links = LinkMatrix::new(devices);
        Self {
            graph,
            cost_class: devices.cost_classes(),
            n_chips: chip.iter().max().map_or(0, |&last| last as usize + 1),
            chip,
            mean_link: links.mean(),
            links,
            is_constant: graph.constants(),
            is_free_constant: free_constants(graph),
            members: Members::new(graph),
            mean_work_ns: mean_work(graph, devices),
        }
    }

    /// Returns the graph.
    pub fn graph(&self) -> &'a Graph<'g> {
        self.graph
    }

    /// Returns the nodes that are tasks, producers before consumers.
    pub fn nodes(&self) -> impl DoubleEndedIterator<Item = u32> + '_ {
        self.graph.nodes().filter(|&node| self.is_task(node))
    }

    /// Returns whether a node is a task.
    pub fn is_task(&self, node: u32) -> bool {
        !self.is_free_constant[node as usize]
    }

    /// Returns the number of devices.
    pub fn n_devices(&self) -> usize {
        self.cost_class.len()
    }

    /// Returns the number of chips.
    pub fn n_chips(&self) -> usize {
        self.n_chips
    }

    /// Returns the chip of a device, below [`Self::n_chips`].
    pub fn chip(&self, device: u32) -> usize {
        self.chip[device as usize] as usize
    }

    /// Returns the devices that a node may run on, most preferred first.
    pub fn candidates(&self, node: u32) -> &'a [u32] {
        self.graph.candidates_of(node)
    }

    /// Returns the members of a node's colocation group, the node included; nothing if the node is
    /// alone.
    pub fn members(&self, node: u32) -> &[u32] {
        self.members.of(self.graph.group()[node as usize])
    }

    /// Returns the time of a node on a device, in ns; +inf if it cannot run there.
    #[inline]
    pub fn work_ns(&self, node: u32, device: u32) -> f64 {
        let n_classes = self.graph.counts().cost_classes as usize;
        let row = self.graph.cost_row()[node as usize] as usize * n_classes;
        let class = self.cost_class[device as usize] as usize;
        self.graph.costs()[row + class] * self.graph.executions()[node as usize]
    }

    /// Returns the mean time of each node over its candidates, in ns.
    pub fn mean_work_ns(&self) -> &[f64] {
        &self.mean_work_ns
    }

    /// Returns what a node waits for: one entry per edge, without edges from constants.
    pub fn inputs(&self, node: u32) -> impl Iterator<Item = Input> + '_ {
        let predecessors = self.graph.predecessors();
        let range = predecessors.range(node);
        let tensors = &self.graph.edge_tensors()[range.clone()];
        let edges = predecessors.items[range].iter().zip(tensors);
        edges
            .filter(|&(&producer, _)| !self.is_constant[producer as usize])
            .map(|(&producer, &tensor)| Input {
                producer,
                bytes: match tensor {
                    NONE => 0,
                    tensor => self.graph.tensor_bytes()[tensor as usize],
                },
                times: self.graph.executions()[producer as usize].max(f64::MIN_POSITIVE),
            })
    }

    /// Returns the nodes that wait for a node, one entry per edge; none if it is a constant.
    pub fn consumers(&self, node: u32) -> &'a [u32] {
        if self.is_constant[node as usize] {
            return &[];
        }
        self.graph.successors().row(node)
    }

    /// Returns the time to transfer an input from one device to another, in ns; 0 within a device.
    #[inline]
    pub fn transfer_ns(&self, input: &Input, src: u32, dst: u32) -> f64 {
        if src == dst {
            return 0.0;
        }
        self.links.transfer_ns(src, dst, input.bytes) * input.times
    }

    /// Returns the time to transfer an input over the mean link, in ns.
    #[expect(clippy::cast_precision_loss, reason = "sizes are below 2^53")]
    pub fn mean_transfer_ns(&self, input: &Input) -> f64 {
        // 0 times a rate of +inf would be NaN.
        let moved = if input.bytes > 0 {
            input.bytes as f64 * self.mean_link.ns_per_byte
        } else {
            0.0
        };
        (self.mean_link.latency_ns + moved) * input.times
    }

    /// Returns the upward rank of each node, in ns: the longest path from its start to the end of
    /// the graph, with mean costs and mean transfers (Topcuoglu et al. 2002, eq. 8).
    pub fn upward_ranks(&self) -> Vec<f64> {
        upward_ranks(self.graph, &self.mean_work_ns, self.mean_link)
    }

    /// Returns the downward rank of each node, in ns: the longest path from the begin of the graph
    /// to the node's start, with mean costs and mean transfers (Topcuoglu et al. 2002, eq. 10).
    pub fn downward_ranks(&self) -> Vec<f64> {
        let mut rank = vec![0.0; self.graph.len()];
        for node in self.nodes() {
            rank[node as usize] = self.inputs(node).fold(0.0, |longest, input| {
                let producer = input.producer as usize;
                let way = rank[producer] + self.mean_work_ns[producer];
                later(longest, way + self.mean_transfer_ns(&input))
            });
        }
        rank
    }

    /// Returns the tasks in the order in which a ready list takes them: each time, of the nodes
    /// whose producers are taken, that with the largest key, ties by smaller id.
    pub fn ready_order(&self, keys: &[f64]) -> Vec<u32> {
        let mut n_waits = vec![0_u32; self.graph.len()];
        let mut ready = BinaryHeap::new();
        let entry = |node: u32| Ready {
            key: keys[node as usize],
            node,
        };
        for node in self.nodes() {
            let n_inputs = self.inputs(node).count();
            n_waits[node as usize] = u32::try_from(n_inputs).unwrap_or(NONE);
            if n_inputs == 0 {
                ready.push(entry(node));
            }
        }
        let mut order = Vec::with_capacity(self.graph.len());
        while let Some(Ready { node, .. }) = ready.pop() {
            order.push(node);
            for &consumer in self.consumers(node) {
                let n_waits = &mut n_waits[consumer as usize];
                *n_waits -= 1;
                if *n_waits == 0 {
                    ready.push(entry(consumer));
                }
            }
        }
        order
    }

    /// Returns a lower bound on the makespan, in ns: the longest path if each node ran on its
    /// fastest device and no transfer took time. Plans on devices that fuse nodes may be shorter.
    pub fn lower_bound_ns(&self) -> f64 {
        self.longest_path_ns(|node| {
            let legal = self.candidates(node).iter();
            let times = legal.map(|&device| self.work_ns(node, device));
            let least = times.reduce(|a, b| if b < a { b } else { a });
            least.filter(|time| time.is_finite()).unwrap_or(0.0)
        })
    }

    fn longest_path_ns(&self, work_ns: impl Fn(u32) -> f64) -> f64 {
        let mut longest = 0.0;
        let mut end = vec![0.0; self.graph.len()];
        for node in self.nodes() {
            let ready = self.inputs(node).fold(0.0, |ready, input| {
                later(ready, end[input.producer as usize])
            });
            end[node as usize] = ready + work_ns(node);
            longest = later(longest, end[node as usize]);
        }
        longest
    }

    /// Returns 1.5 times the longest path through the graph, or 1.5 times all work divided among
    /// the chips if that is longer: a rough estimate of the makespan, in ns.
    #[expect(clippy::cast_precision_loss, reason = "a rough number")]
    pub(super) fn horizon_ns(&self) -> f64 {
        let longest = self.longest_path_ns(|node| self.mean_work_ns[node as usize]);
        let shared = self.mean_work_ns.iter().sum::<f64>() / self.n_chips.max(1) as f64;
        1.5 * later(longest, shared)
    }
}

/// Returns the chip of each device, numbered from 0 without gaps.
pub(super) fn chips(devices: &DeviceSet<'_>) -> Vec<u32> {
    let mut chips = devices.chips().to_vec();
    chips.sort_unstable();
    chips.dedup();
    let number = |chip: &u32| chips.partition_point(|other| other < chip);
    let number = |chip: &u32| u32::try_from(number(chip)).unwrap_or(NONE);
    devices.chips().iter().map(number).collect()
}

/// A node whose producers are taken.
#[derive(PartialEq)]
struct Ready {
    key: f64,
    node: u32,
}

impl Eq for Ready {}

impl Ord for Ready {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        let by_key = self.key.total_cmp(&other.key);
        by_key.then_with(|| other.node.cmp(&self.node))
    }
}

impl PartialOrd for Ready {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
