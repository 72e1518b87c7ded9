//! Synthetic graphs and devices for benchmarks of placement and tests.
//!
//! Everything is drawn from a seed, so that runs are comparable.

use std::sync::Arc;

use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceRates;
use crate::device::DeviceSet;
use crate::device::HostLink;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::LinkRates;
use crate::device::SimpleDevice;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::names::DeviceName;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Types of the synthetic devices, with the priorities of TensorFlow's factories.
const TYPES: [(&str, i32); 3] = [("GPU", 210), ("SYCL", 200), ("CPU", 60)];

/// Ops of the synthetic graphs: name, and the device types that have a kernel. All have one on a
/// CPU, so that nodes of any ops may form a group.
const OPS: [(&str, &[&str]); 7] = [
    ("SyntheticSource", &["CPU", "GPU", "SYCL"]),
    ("SyntheticMatMul", &["CPU", "GPU", "SYCL"]),
    ("SyntheticConv", &["CPU", "GPU"]),
    ("SyntheticElementwise", &["CPU", "GPU", "SYCL"]),
    ("SyntheticReduce", &["CPU", "GPU", "SYCL"]),
    ("SyntheticDecode", &["CPU"]),
    ("SyntheticVariable", &["CPU", "GPU", "SYCL"]),
];

/// Position in [`OPS`].
const SOURCE: usize = 0;
const DECODE: usize = 5;
const VARIABLE: usize = 6;

/// Draws of groups and of readers do not disturb those of the layers: a graph with groups differs
/// from the one without in nothing else.
const GROUPS_SEED: u64 = 0x6772_6f75_7073;
const READERS_SEED: u64 = 0x7265_6164_6572;

/// Shape of a synthetic graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticGraph {
    /// Number of nodes.
    pub n_nodes: u32,
    /// Nodes of one layer; 0 means the square root of the number of nodes.
    pub width: u32,
    /// Colocation groups that nodes name in their attribute `_class`; at most half as many as
    /// nodes.
    pub n_groups: u32,
    /// Number of nodes that are variables, less than the number of nodes. Variables come first and
    /// tie their readers together.
    pub n_variables: u32,
    /// Seed of all draws.
    pub seed: u64,
}

impl SyntheticGraph {
    /// Describes a graph of so many nodes that is as wide as it is deep.
    pub fn new(n_nodes: u32, seed: u64) -> Self {
        Self {
            n_nodes,
            width: 0,
            n_groups: 0,
            n_variables: 0,
            seed,
        }
    }

    /// Sets the width of layers.
    #[must_use]
    pub fn with_width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    /// Sets the number of colocation groups.
    #[must_use]
    pub fn with_groups(mut self, n_groups: u32) -> Self {
        self.n_groups = n_groups;
        self
    }

    /// Sets the number of variables among the nodes.
    #[must_use]
    pub fn with_variables(mut self, n_variables: u32) -> Self {
        self.n_variables = n_variables;
        self
    }

    /// Builds the graph. Nodes of a layer read two or three nodes, nine in ten from the previous
    /// layer and the others from the three layers before it, which gives about 2.5 edges per
    /// node. Work and tensor sizes are log-uniform over three orders of magnitude. One node in
    /// twenty holds parameters.
    ///
    /// Half of the groups have two members, the others three to eight, drawn from all nodes. All
    /// members but one name that one in a list `_class` with one entry `loc:@NAME`. A variable
    /// outputs a resource that three nodes read on average, in addition to their other inputs.
    ///
    /// # Panics
    /// With more groups or variables than the fields allow.
    pub fn build(&self) -> Graph {
        let n_layered = self.n_nodes.saturating_sub(self.n_variables);
        assert!(
            self.n_variables == 0 || n_layered > 0,
            "some nodes are no variables"
        );
        let mut random = SplitMix(self.seed);
        let mut readers = SplitMix(self.seed ^ READERS_SEED);
        let named = self.named_groups();
        let width = match self.width {
            0 => n_layered.isqrt().max(1),
            width => width,
        };
        let mut assembler = GraphAssembler::new(format!("synthetic-{}", self.n_nodes));
        for node in 0..self.n_variables {
            let output = Output {
                dtype: DType::Resource,
                is_ref: false,
                shape: PartialShape::scalar(),
            };
            let attrs = class_attrs(named.get(node as usize));
            add(
                &mut assembler,
                VARIABLE,
                attrs,
                &[],
                &output,
                Work::default(),
            );
        }
        let mut inputs = Vec::new();
        for index in 0..n_layered {
            let layer_start = index / width * width;
            inputs.clear();
            if layer_start > 0 {
                for _ in 0..2 + random.below(2) {
                    let producer = random.producer(layer_start, width);
                    inputs.push(first_output(self.n_variables + producer));
                }
                let reads = u64::from(readers.below(n_layered));
                if reads < 3 * u64::from(self.n_variables) {
                    inputs.push(first_output(readers.below(self.n_variables)));
                }
            }
            let op = match (layer_start, random.below(20)) {
                (0, _) => SOURCE,
                (_, 0) => DECODE,
                (_, draw) => 1 + draw as usize % 4,
            };
            let n_elements = random.log_uniform(1e3, 1e6);
            let output = Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::new(&[Some(n_elements as usize)]),
            };
            let holds_parameters = random.below(20) == 0;
            let work = Work {
                flops: random.log_uniform(1e6, 1e9),
                traffic_bytes: (n_elements * 12.0) as u64,
                resident_bytes: if holds_parameters {
                    random.log_uniform(1e3, 1e6) as u64
                } else {
                    0
                },
                workspace_bytes: 0,
            };
            let attrs = class_attrs(named.get((self.n_variables + index) as usize));
            add(&mut assembler, op, attrs, &inputs, &output, work);
        }
        assembler.finish()
    }

    /// Draws per node the node whose group it names, or [`NONE`]; empty without groups.
    fn named_groups(&self) -> Vec<u32> {
        if self.n_groups == 0 {
            return Vec::new();
        }
        assert!(
            self.n_groups <= self.n_nodes / 2,
            "a group has two members at least"
        );
        let mut random = SplitMix(self.seed ^ GROUPS_SEED);
        let mut nodes: Vec<u32> = (0..self.n_nodes).collect();
        let mut named = vec![NONE; nodes.len()];
        let mut n_dealt = 0;
        for group in 0..self.n_groups {
            let drawn = match random.below(2) {
                0 => 2,
                _ => 3 + random.below(6),
            };
            // Two nodes remain for every further group.
            let to_come = 2 * (self.n_groups - group - 1);
            let n_members = drawn.min(self.n_nodes - n_dealt - to_come);
            let members = n_dealt as usize..(n_dealt + n_members) as usize;
            for position in members.clone() {
                let other = n_dealt + random.below(self.n_nodes - n_dealt);
                nodes.swap(position, other as usize);
                n_dealt += 1;
            }
            let (head, others) = nodes[members]
                .split_first()
                .expect("a group has two members at least");
            for &member in others {
                named[member as usize] = *head;
            }
        }
        named
    }
}

fn first_output(node: u32) -> Input {
    Input::Data {
        node: NodeId(node),
        slot: 0,
    }
}

/// Returns the attributes of a node that names the group of another.
fn class_attrs(named: Option<&u32>) -> AttrSet {
    match named {
        None | Some(&NONE) => AttrSet::default(),
        Some(head) => {
            let entry = AttrValue::Bytes(format!("loc:@n{head}").into_bytes().into());
            AttrSet::new([("_class".into(), AttrValue::List([entry].into()))])
        }
    }
}

/// Adds a node of this op, named by its number.
fn add(
    assembler: &mut GraphAssembler,
    op: usize,
    attrs: AttrSet,
    inputs: &[Input],
    output: &Output,
    work: Work,
) {
    let spec = NodeSpec {
        name: &format!("n{}", assembler.n_nodes()),
        op: OPS[op].0,
        inputs,
        requested_device: "",
        attrs,
        outputs: std::slice::from_ref(output),
        stateful: op == VARIABLE,
        work,
    };
    assembler
        .add_node(&spec)
        .expect("layers read earlier layers, and names are numbers");
}

/// Builds a layered random graph of so many nodes; see [`SyntheticGraph::build`].
pub fn graph(n_nodes: u32, seed: u64) -> Arc<Graph> {
    Arc::new(SyntheticGraph::new(n_nodes, seed).build())
}

/// Builds so many devices: the first is a CPU, the others alternate between two kinds of GPU, SYCL
/// devices and CPUs. Each has its own link rate, hence its own link domain, and enough memory for
/// every synthetic graph.
pub fn devices(n: u32) -> DeviceSet {
    let device = |index: u32| -> Arc<dyn Device> {
        let (device_type, flops_per_s, memory_bytes_per_s, launch_ns) = match index % 4 {
            0 => ("CPU", 4e11, 5e10, 500.0),
            1 => ("GPU", 2e13, 9e11, 5_000.0),
            2 => ("GPU", 6e12, 3e11, 6_000.0),
            _ => ("SYCL", 3e12, 2e11, 10_000.0),
        };
        // Devices of each type are numbered from 0.
        let ordinal = match index % 4 {
            1 => index / 4 * 2,
            2 => index / 4 * 2 + 1,
            _ => index / 4,
        };
        let name = DeviceName::full("localhost", 0, 0, device_type, ordinal);
        let attributes = DeviceAttributes::new(&name, device_type, 1 << 40);
        let device = SimpleDevice::new(attributes).expect("the name is full");
        Arc::new(device.with_rates(DeviceRates {
            flops_per_s,
            memory_bytes_per_s,
            launch_ns,
            is_calibrated: false,
            queues: 1,
            host_link: HostLink::same(LinkRates {
                latency_ns: 10_000.0,
                ns_per_byte: 0.08 + 0.001 * f64::from(index),
            }),
        }))
    };
    DeviceSet::new((0..n).map(device)).with_type_priorities(TYPES)
}

/// Returns kernel registrations for the ops of synthetic graphs, for placement only.
pub fn kernels() -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    for (op, types) in OPS {
        for device_type in types {
            registry.register(KernelDef::new(op, *device_type));
        }
    }
    registry
}

/// The generator `SplitMix64` (Steele et al. 2014), equal on every machine.
#[derive(Debug, Clone)]
struct SplitMix(u64);

impl SplitMix {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws from `0..n`; the slight bias does not matter here.
    fn below(&mut self, n: u32) -> u32 {
        (((self.next() >> 32) * u64::from(n)) >> 32) as u32
    }

    fn log_uniform(&mut self, low: f64, high: f64) -> f64 {
        let unit = (self.next() >> 11) as f64 / (1u64 << 53) as f64;
        low * (high / low).powf(unit)
    }

    fn producer(&mut self, layer_start: u32, width: u32) -> u32 {
        let back = if self.below(10) == 0 {
            2 + self.below(3)
        } else {
            1
        };
        let start = layer_start.saturating_sub(back * width);
        start + self.below(width)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidates::PlacementOptions;
    use crate::candidates::enumerate;

    #[test]
    fn equal_seeds_give_equal_graphs_of_the_promised_shape() {
        let (a, b, c) = (graph(2000, 1), graph(2000, 1), graph(2000, 2));
        assert_eq!(a.predecessors().items, b.predecessors().items);
        assert_eq!(a.flops(), b.flops());
        assert_ne!(a.flops(), c.flops());
        let edges_per_node = a.n_edges() as f64 / a.n_nodes() as f64;
        assert!((2.3..2.7).contains(&edges_per_node), "{edges_per_node}");
    }

    /// Returns the sizes of the candidates' groups of more than one node.
    fn group_sizes(graph: Graph) -> Vec<usize> {
        let devices = Arc::new(devices(4));
        let options = PlacementOptions::default();
        let found = enumerate(&Arc::new(graph), &devices, &kernels(), &options).unwrap();
        let mut sizes = vec![0; found.nodes().n_groups as usize];
        for &group in &found.nodes().group {
            sizes[group as usize] += 1;
        }
        sizes.retain(|&size| size > 1);
        sizes.sort_unstable();
        sizes
    }

    #[test]
    fn so_many_groups_are_found_as_were_asked_for() {
        let alone = SyntheticGraph::new(2000, 1);
        let sizes = group_sizes(alone.with_groups(200).build());
        assert_eq!(sizes.len(), 200);
        assert!((80..120).contains(&sizes.partition_point(|&size| size == 2)));
        assert!(sizes[199] == 8, "{sizes:?}");
        // As many as there can be: then every node is in one.
        assert_eq!(group_sizes(alone.with_groups(1000).build()), [2; 1000]);

        let (grouped, alone) = (alone.with_groups(200).build(), alone.build());
        assert_eq!(grouped.predecessors().items, alone.predecessors().items);
        assert_eq!(grouped.flops(), alone.flops());
    }

    #[test]
    fn variables_tie_their_readers() {
        let graph = SyntheticGraph::new(2000, 1).with_variables(100).build();
        assert_eq!(graph.n_nodes(), 2000);
        let sizes = group_sizes(graph);
        let n_readers: usize = sizes.iter().map(|size| size - 1).sum();
        assert!((230..370).contains(&n_readers), "{n_readers}");
        // Few are read by none.
        assert!((85..=100).contains(&sizes.len()), "{sizes:?}");
    }

    #[test]
    fn names_of_devices_are_unique() {
        let set = devices(17);
        for (id, device) in set.iter() {
            assert_eq!(set.find_by_name(&device.attributes().name), Some(id));
        }
    }
}
