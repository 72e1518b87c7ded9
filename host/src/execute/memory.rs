//! The memory that runs of a plan need, known before the first run.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashSet;

use super::compile::ArenaPlan;
use super::compile::Compiled;
use super::prepare::Program;
use crate::memory::MemoryPlan;
use crate::memory::PlannedMemory;
use crate::memory::Sweep;
use crate::memory::fits;
use crate::names::DeviceId;
use crate::ops::RefinedShapes;
use crate::plan::MemorySpace;
use crate::plan::StepKind;
use crate::tensor::Buffer;
use crate::tensor::Shape;
use crate::tensor::Tensor;

impl MemoryPlan {
    pub(super) fn new(program: &Program, with_threads: bool) -> Self {
        let plan = &program.plan;
        let fed = |feed: u32| {
            let tensor = plan.feeds()[feed as usize].tensor;
            program.graph.tensor_shape(tensor).to_shape()
        };
        let shapes = value_shapes(program, fed);
        let compiled = Compiled::new(program, &shapes, with_threads);
        Self {
            memories: memories(program, &shapes, &compiled.arenas),
            n_unplanned: compiled.n_unplanned(program, &shapes),
        }
    }

    /// Replaces `run_bytes` by the bytes that a run needs without arenas, if memory is too short
    /// for arenas: then each tensor has its own allocation, and one operation executes at a time,
    /// in the order that this plan assumes. A device that continues to work after its kernels
    /// return may keep their tensors longer.
    pub(super) fn without_arenas_where_short(mut self, program: &Program) -> Self {
        if program.short_memory(&self.memories).is_none() {
            return self;
        }
        let devices = program.devices.iter();
        let memory_of_device: Vec<u32> = devices.map(|(device, _)| device.0).collect();
        let shapes = value_shapes(program, |feed| {
            let tensor = program.plan.feeds()[feed as usize].tensor;
            program.graph.tensor_shape(tensor).to_shape()
        });
        let sweep = Sweep::new(
            &program.plan,
            &program.graph,
            &program.settled,
            &shapes,
            &memory_of_device,
        );
        let peaks = sweep.peaks();
        for memory in self.memories.iter_mut().filter(|memory| !memory.on_host) {
            let peak = peaks[memory.device.index()].bytes;
            memory.run_bytes = peak.saturating_sub(memory.fetched_bytes);
        }
        self
    }
}

/// Returns the memory that runs need with these arenas, by memory space.
pub(super) fn memories(
    program: &Program,
    shapes: &[Option<Shape>],
    arenas: &[ArenaPlan],
) -> Vec<PlannedMemory> {
    let plan = &program.plan;
    let mut memories = Memories::default();
    for partition in plan.partitions() {
        memories.get(partition.device, false);
    }
    // Several values of a memory may be one constant.
    let mut counted = FxHashSet::default();
    for (index, (value, tensor)) in plan.values().iter().zip(&program.fixed).enumerate() {
        if let Some(constant) = tensor
            && !constant.is_released()
            && counted.insert((
                program.settled.held_constant(index),
                value.device,
                value.space,
            ))
        {
            let on_host = value.space == MemorySpace::Host;
            memories.get(value.device, on_host).constant_bytes += len_bytes(constant);
        }
    }
    // Several kernels may share a prepacked tensor.
    let mut counted = FxHashSet::default();
    for (step, prepacked_inputs) in plan.steps().iter().zip(&program.prepacked) {
        for tensor in prepacked_inputs.iter().flatten() {
            let memory = tensor.buffer().and_then(Buffer::memory);
            let address = memory.map(|memory| Arc::as_ptr(memory).cast::<()>());
            let is_first = address.is_none_or(|address| counted.insert(address));
            if is_first {
                memories.get(step.device, false).prepacked_bytes += len_bytes(tensor);
            }
        }
    }
    for arena in arenas {
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
    memories.0.into_values().collect()
}

impl Program {
    /// Returns the first memory that is too small for the arenas of all concurrent runs.
    pub(super) fn short_memory<'a>(
        &self,
        memories: &'a [PlannedMemory],
    ) -> Option<&'a PlannedMemory> {
        memories.iter().find(|memory| {
            let capacity = self.devices.get(memory.device);
            let capacity = capacity.map_or(u64::MAX, |device| device.memory_capacity_bytes());
            let one_run = memory.run_bytes.saturating_add(memory.fetched_bytes);
            let staying = memory.constant_bytes.saturating_add(memory.prepacked_bytes);
            let needed = staying.saturating_add(one_run.saturating_mul(self.n_runs));
            !memory.on_host && !fits(needed, capacity)
        })
    }
}

/// Memories by device and by whether they are host memory.
#[derive(Debug, Default)]
struct Memories(BTreeMap<(DeviceId, bool), PlannedMemory>);

impl Memories {
    fn get(&mut self, device: DeviceId, on_host: bool) -> &mut PlannedMemory {
        let entry = self.0.entry((device, on_host));
        entry.or_insert_with(|| PlannedMemory::empty(device, on_host))
    }
}

/// Returns the shape of each value, as far as the graph and the fed tensors determine it.
pub(super) fn value_shapes(
    program: &Program,
    fed: impl Fn(u32) -> Option<Shape>,
) -> Vec<Option<Shape>> {
    let (plan, graph) = (&program.plan, &program.graph);
    let mut fed_shapes = Vec::with_capacity(plan.feeds().len());
    let mut says_more = false;
    for (feed, fed_to) in (0..).zip(plan.feeds()) {
        if let Some(shape) = fed(feed) {
            says_more |= graph.tensor_shape(fed_to.tensor).to_shape().as_ref() != Some(&shape);
            fed_shapes.push((fed_to.tensor, shape));
        }
    }
    let tensors = plan.values().iter().map(|value| value.tensor);
    let refined = program
        .ops
        .as_ref()
        .filter(|_| says_more)
        .map(|ops| RefinedShapes::new(graph, ops, fed_shapes, tensors.clone()));
    let shape = |tensor| match &refined {
        Some(refined) => refined.shape(tensor).to_shape(),
        None => graph.tensor_shape(tensor).to_shape(),
    };
    let mut shapes: Vec<Option<Shape>> = tensors.map(shape).collect();
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
