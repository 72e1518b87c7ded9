//! Graphs and devices that exist only to be placed: what the benchmarks measure on.

use std::sync::Arc;

use anyhow::Context;
use anyhow::Result;

use crate::cli::random::SplitMix;
use crate::device::AllocatorAttributes;
use crate::device::Device;
use crate::device::DeviceAttributes;
use crate::device::DeviceProfile;
use crate::device::DeviceSet;
use crate::device::KernelDef;
use crate::device::KernelRegistry;
use crate::device::LinkProfile;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::names::DeviceName;
use crate::tensor::Allocator;
use crate::tensor::DType;
use crate::tensor::HostAllocator;
use crate::tensor::PartialShape;

/// Ops of the graphs; each has a kernel on both device types.
const OPS: [&str; 16] = [
    "Bench0", "Bench1", "Bench2", "Bench3", "Bench4", "Bench5", "Bench6", "Bench7", "Bench8",
    "Bench9", "Bench10", "Bench11", "Bench12", "Bench13", "Bench14", "Bench15",
];

/// Sizes of work and of results that a node may have: 512 different nodes, and so 512 rows of the cost table at most.
const N_SIZES: u64 = 32;

/// A layered random graph: `sqrt(n_nodes)` nodes a layer, each with one to four inputs (2.5 on average), four in five
/// from the layer before, the others from any earlier one. The same for the same arguments, on every machine.
pub(super) fn layered_graph(n_nodes: usize, seed: u64) -> Result<Graph> {
    let mut random = SplitMix::new(seed, "layered graph");
    let width = n_nodes.isqrt().max(1);
    let mut assembler = GraphAssembler::new(format!("layered-{n_nodes}"));
    let mut inputs: Vec<Input> = Vec::new();
    let mut name = String::new();
    for index in 0..n_nodes {
        let layer_start = index / width * width;
        inputs.clear();
        if layer_start > 0 {
            for _ in 0..1 + random.below(4) {
                let (first, count) = if random.below(5) < 4 {
                    (layer_start - width, width)
                } else {
                    (0, layer_start)
                };
                let offset = random.below(count as u64);
                let node = NodeId(u32::try_from(first as u64 + offset).context("too many nodes")?);
                inputs.push(Input::Data { node, slot: 0 });
            }
        }
        let size = random.below(N_SIZES);
        let op = usize::try_from(random.below(OPS.len() as u64)).unwrap_or(0);
        name.clear();
        std::fmt::Write::write_fmt(&mut name, format_args!("n{index}"))?;
        assembler.add_node(&NodeSpec {
            name: &name,
            op: OPS[op],
            inputs: &inputs,
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::new(&[Some(1 << (6 + size % 12))]),
            }],
            stateful: false,
            work: work(size),
        })?;
    }
    Ok(assembler.finish())
}

/// From a microsecond to some hundred on one core, spread over the sizes.
#[expect(clippy::cast_precision_loss, reason = "small numbers")]
fn work(size: u64) -> Work {
    Work {
        flops: 1e5 * (1.0 + size as f64).powi(2),
        traffic_bytes: 4096 * (1 + size),
        resident_bytes: 0,
        workspace_bytes: 0,
    }
}

/// `n_devices` devices, every other one of a second type that computes ten times as fast behind a slower link. They
/// can be planned for, not executed on.
pub(super) fn devices(n_devices: u32) -> DeviceSet {
    DeviceSet::new((0..n_devices).map(|id| {
        let device_type = if id % 2 == 0 { "CPU" } else { "GPU" };
        Arc::new(SyntheticDevice::new(device_type, id / 2)) as Arc<dyn Device>
    }))
}

/// A kernel of every op on both device types, for placement only.
pub(super) fn kernels() -> KernelRegistry {
    let mut registry = KernelRegistry::empty();
    for op in OPS {
        for device_type in ["CPU", "GPU"] {
            registry.register(KernelDef::new(op, device_type));
        }
    }
    registry
}

#[derive(Debug)]
struct SyntheticDevice {
    attributes: DeviceAttributes,
    name: DeviceName,
    allocator: Arc<HostAllocator>,
}

impl SyntheticDevice {
    /// Large enough never to be full: the benchmarks measure placing, not packing.
    const MEMORY_BYTES: u64 = 1 << 50;

    fn new(device_type: &str, index: u32) -> Self {
        let name = DeviceName::full("localhost", 0, 0, device_type, index);
        Self {
            attributes: DeviceAttributes::new(&name, device_type, Self::MEMORY_BYTES),
            allocator: Arc::new(HostAllocator::new(name.to_string(), 0)),
            name,
        }
    }
}

impl Device for SyntheticDevice {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn name(&self) -> &DeviceName {
        &self.name
    }

    fn allocator(&self, _attributes: AllocatorAttributes) -> Arc<dyn Allocator> {
        Arc::clone(&self.allocator) as Arc<dyn Allocator>
    }

    fn memory_capacity_bytes(&self) -> u64 {
        Self::MEMORY_BYTES
    }

    fn profile(&self) -> DeviceProfile {
        let cpu = DeviceProfile::default_cpu(1);
        if self.attributes.device_type == "CPU" {
            return cpu;
        }
        DeviceProfile {
            flops_per_s: cpu.flops_per_s * 10.0,
            memory_bytes_per_s: cpu.memory_bytes_per_s * 10.0,
            launch_ns: 5_000.0,
            host_link: LinkProfile {
                latency_ns: 10_000.0,
                ns_per_byte: 0.08,
            },
            ..cpu
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_have_about_two_and_a_half_edges_a_node() {
        let graph = layered_graph(10_000, 1).expect("a graph");
        let edges = graph.n_edges();
        assert_eq!(graph.n_nodes(), 10_000);
        assert!((24_000..26_000).contains(&edges), "{edges} edges");
    }

    #[test]
    fn graphs_depend_on_the_seed_alone() {
        let edges = |seed| {
            let graph = layered_graph(500, seed).expect("a graph");
            graph.predecessors().items.clone()
        };
        assert_eq!(edges(1), edges(1));
        assert_ne!(edges(1), edges(2));
    }

    #[test]
    fn half_of_the_devices_are_of_the_faster_type() {
        let devices = devices(8);
        let of_type = |device_type| {
            devices
                .iter()
                .filter(|(_, device)| device.attributes().device_type == device_type)
                .count()
        };
        assert_eq!((of_type("CPU"), of_type("GPU")), (4, 4));
    }
}
