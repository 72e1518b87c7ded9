//! Graphs and devices that stand for no model and no machine: for benchmarks of placement, and for tests.
//!
//! Everything is drawn from a seed, so that two runs measure the same.

use std::sync::Arc;

use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceProfile;
use crate::device::DeviceSet;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::LinkProfile;
use crate::device::SimpleDevice;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::names::DeviceName;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// Types of the synthetic devices, with the priorities of TensorFlow's factories.
const TYPES: [(&str, i32); 3] = [("GPU", 210), ("SYCL", 200), ("CPU", 60)];

/// Ops of the synthetic graphs: name, and the device types that have a kernel.
const OPS: [(&str, &[&str]); 6] = [
    ("SyntheticSource", &["CPU", "GPU", "SYCL"]),
    ("SyntheticMatMul", &["CPU", "GPU", "SYCL"]),
    ("SyntheticConv", &["CPU", "GPU"]),
    ("SyntheticElementwise", &["CPU", "GPU", "SYCL"]),
    ("SyntheticReduce", &["CPU", "GPU", "SYCL"]),
    ("SyntheticDecode", &["CPU"]),
];

/// Shape of a synthetic graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyntheticGraph {
    /// Number of nodes.
    pub n_nodes: u32,
    /// Nodes of one layer; 0 = the square root of the number of nodes.
    pub width: u32,
    /// What all draws follow from.
    pub seed: u64,
}

impl SyntheticGraph {
    /// A graph of so many nodes, as wide as it is deep.
    pub fn new(n_nodes: u32, seed: u64) -> Self {
        Self {
            n_nodes,
            width: 0,
            seed,
        }
    }

    /// The same, with layers of this width.
    #[must_use]
    pub fn with_width(mut self, width: u32) -> Self {
        self.width = width;
        self
    }

    /// The graph: layers whose nodes read two or three nodes, nine in ten from the layer before and the others from the three
    /// before that, about 2.5 edges a node. Work and tensor sizes spread log-uniformly over three orders of magnitude; one
    /// node in twenty holds parameters.
    pub fn build(&self) -> Graph {
        let mut random = SplitMix(self.seed);
        let width = match self.width {
            0 => self.n_nodes.isqrt().max(1),
            width => width,
        };
        let mut assembler = GraphAssembler::new(format!("synthetic-{}", self.n_nodes));
        let mut name = String::new();
        let mut inputs = Vec::new();
        for index in 0..self.n_nodes {
            let layer_start = index / width * width;
            inputs.clear();
            if layer_start > 0 {
                for _ in 0..2 + random.below(2) {
                    let producer = random.producer(layer_start, width);
                    inputs.push(Input::Data {
                        node: NodeId(producer),
                        slot: 0,
                    });
                }
            }
            let kind = match (layer_start, random.below(20)) {
                (0, _) => 0,
                (_, 0) => 5,
                (_, draw) => 1 + draw as usize % 4,
            };
            let n_elements = random.log_uniform(1e3, 1e6);
            let output = Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::new(&[Some(n_elements as usize)]),
            };
            let holds_parameters = random.below(20) == 0;
            name.clear();
            name.push('n');
            name.push_str(&index.to_string());
            let spec = NodeSpec {
                name: &name,
                op: OPS[kind].0,
                inputs: &inputs,
                requested_device: "",
                attrs: AttrSet::default(),
                outputs: std::slice::from_ref(&output),
                stateful: false,
                work: Work {
                    flops: random.log_uniform(1e6, 1e9),
                    traffic_bytes: (n_elements * 12.0) as u64,
                    resident_bytes: if holds_parameters {
                        random.log_uniform(1e3, 1e6) as u64
                    } else {
                        0
                    },
                    workspace_bytes: 0,
                },
            };
            assembler
                .add_node(&spec)
                .expect("layers read earlier layers, and names are numbers");
        }
        assembler.finish()
    }
}

/// A layered random graph of so many nodes; see [`SyntheticGraph::build`].
pub fn graph(n_nodes: u32, seed: u64) -> Arc<Graph> {
    Arc::new(SyntheticGraph::new(n_nodes, seed).build())
}

/// So many devices: the first is a CPU, the others are two kinds of GPU, SYCL devices and CPUs in turn. Each has a link of its
/// own rate, hence a link domain of its own, and so much memory that every synthetic graph fits.
pub fn devices(n: u32) -> DeviceSet {
    let device = |index: u32| -> Arc<dyn Device> {
        let (device_type, flops_per_s, memory_bytes_per_s, launch_ns) = match index % 4 {
            0 => ("CPU", 4e11, 5e10, 500.0),
            1 => ("GPU", 2e13, 9e11, 5_000.0),
            2 => ("GPU", 6e12, 3e11, 6_000.0),
            _ => ("SYCL", 3e12, 2e11, 10_000.0),
        };
        // Of each type the devices are numbered from 0.
        let ordinal = match index % 4 {
            1 => index / 4 * 2,
            2 => index / 4 * 2 + 1,
            _ => index / 4,
        };
        let name = DeviceName::full("localhost", 0, 0, device_type, ordinal);
        let attributes = DeviceAttributes::new(&name, device_type, 1 << 40);
        let device = SimpleDevice::new(attributes).expect("the name is full");
        Arc::new(device.with_profile(DeviceProfile {
            flops_per_s,
            memory_bytes_per_s,
            launch_ns,
            is_calibrated: false,
            queues: 1,
            host_link: LinkProfile {
                latency_ns: 10_000.0,
                ns_per_byte: 0.08 + 0.001 * f64::from(index),
            },
        }))
    };
    DeviceSet::new((0..n).map(device)).with_type_priorities(TYPES)
}

/// Registrations for the ops of synthetic graphs, without anything to execute.
pub fn kernels() -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    for (op, types) in OPS {
        for device_type in types {
            registry.register(KernelDef::new(op, *device_type));
        }
    }
    registry
}

/// The generator `SplitMix64` (Steele et al. 2014): three lines, and the same everywhere.
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

    /// `0..n`; the bias of a power of two over `n` does not matter here.
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

    #[test]
    fn equal_seeds_give_equal_graphs_of_the_promised_shape() {
        let (a, b, c) = (graph(2000, 1), graph(2000, 1), graph(2000, 2));
        assert_eq!(a.predecessors().items, b.predecessors().items);
        assert_eq!(a.flops(), b.flops());
        assert_ne!(a.flops(), c.flops());
        let edges_per_node = a.n_edges() as f64 / a.n_nodes() as f64;
        assert!((2.3..2.7).contains(&edges_per_node), "{edges_per_node}");
    }

    #[test]
    fn names_of_devices_are_unique() {
        let set = devices(17);
        for (id, device) in set.iter() {
            assert_eq!(set.find_by_name(&device.attributes().name), Some(id));
        }
    }
}
