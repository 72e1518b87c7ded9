//! What the runs of a plan hold, known before the first one.

use std::collections::BTreeMap;

use super::compile::Compiled;
use super::prepare::Program;
use crate::names::DeviceId;
use crate::plan::MemorySpace;
use crate::plan::StepKind;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// What the runs of a plan hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// In the order of devices; a device's own memory before the host's.
    pub memories: Vec<PlannedMemory>,
    /// Tensors that have no size yet, because their shapes depend on what is fed or computed. They are allocated while the first
    /// run goes on; all but those for the caller get places after it.
    pub n_unplanned: usize,
}

/// One memory of a [`MemoryPlan`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlannedMemory {
    /// The device.
    pub device: DeviceId,
    /// Whether this is host memory of the device's host-memory arguments.
    pub on_host: bool,
    /// Constants, and copies of constants of other devices, in bytes: once, for all runs.
    pub constant_bytes: u64,
    /// Constants in the order in which kernels read them, in bytes: once, for all runs.
    pub packed_bytes: u64,
    /// Peak of the tensors that a run makes for itself, in bytes: for each run at one time. Of a device whose work may outlast its
    /// kernels, what is held in the order of the plan; tensors go back there as the device gets done with them.
    pub run_bytes: u64,
    /// Tensors that a run makes for the caller, in bytes: until the caller lets them go.
    pub fetched_bytes: u64,
}

impl PlannedMemory {
    /// Most bytes that are held while one run goes on.
    pub fn peak_bytes(&self) -> u64 {
        self.constant_bytes
            .saturating_add(self.packed_bytes)
            .saturating_add(self.run_bytes)
            .saturating_add(self.fetched_bytes)
    }
}

impl MemoryPlan {
    pub(super) fn new(program: &Program, with_threads: bool) -> Self {
        let plan = &program.plan;
        let fed = |feed: u32| {
            let tensor = plan.feeds()[feed as usize].tensor;
            program.graph.tensor_shape(tensor).to_shape()
        };
        let shapes = value_shapes(program, fed);
        let compiled = Compiled::new(program, &shapes, with_threads);
        let mut memories = Memories::default();
        for partition in plan.partitions() {
            memories.get(partition.device, false);
        }
        for (value, constant) in plan.values().iter().zip(&program.fixed) {
            if let Some(constant) = constant {
                let on_host = value.space == MemorySpace::Host;
                memories.get(value.device, on_host).constant_bytes += len_bytes(constant);
            }
        }
        for (step, packs) in plan.steps().iter().zip(&program.packed) {
            let packed = packs.iter().flatten().map(len_bytes).sum::<u64>();
            if packed > 0 {
                memories.get(step.device, false).packed_bytes += packed;
            }
        }
        for arena in &compiled.arenas {
            memories.get(arena.device, arena.on_host).run_bytes +=
                u64::try_from(arena.len_bytes).unwrap_or(u64::MAX);
        }
        for (value, shape) in shapes.iter().enumerate() {
            let bytes = shape.as_ref();
            let bytes = bytes.map_or(0, |shape| program.fetched_bytes(value, shape));
            if bytes > 0 {
                let place = &plan.values()[value];
                let memory = memories.get(place.device, place.space == MemorySpace::Host);
                memory.fetched_bytes = memory.fetched_bytes.saturating_add(bytes);
            }
        }
        Self {
            memories: memories.0.into_values().collect(),
            n_unplanned: compiled.n_unplanned(program, &shapes),
        }
    }
}

/// Memories by device and whether they are the host's.
#[derive(Debug, Default)]
struct Memories(BTreeMap<(DeviceId, bool), PlannedMemory>);

impl Memories {
    fn get(&mut self, device: DeviceId, on_host: bool) -> &mut PlannedMemory {
        self.0.entry((device, on_host)).or_insert(PlannedMemory {
            device,
            on_host,
            constant_bytes: 0,
            packed_bytes: 0,
            run_bytes: 0,
            fetched_bytes: 0,
        })
    }
}

/// Per value its shape, as far as the graph and the fed tensors say it.
pub(super) fn value_shapes(
    program: &Program,
    fed: impl Fn(u32) -> Option<Shape>,
) -> Vec<Option<Shape>> {
    let plan = &program.plan;
    let values = plan.values().iter();
    let mut shapes: Vec<Option<Shape>> = values
        .map(|value| program.graph.tensor_shape(value.tensor).to_shape())
        .collect();
    for step in plan.steps() {
        if let StepKind::Feed(feed) = step.kind {
            shapes[step.output_range()].fill(fed(feed));
        }
    }
    shapes
}

fn len_bytes(tensor: &Tensor) -> u64 {
    u64::try_from(tensor.len_bytes()).unwrap_or(u64::MAX)
}
