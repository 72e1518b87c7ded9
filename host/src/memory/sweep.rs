//! Live tensors at each step of a run that one thread executes.

use super::fits;
use super::order::serial_order;
use crate::graph::Graph;
use crate::plan::ExecutionPlan;
use crate::plan::MemorySpace;
use crate::plan::Settled;
use crate::plan::StepId;
use crate::plan::StepKind;
use crate::tensor::Shape;

/// A memory that is not counted.
const UNCOUNTED: u32 = u32::MAX;

/// The tensors of one run of a plan, each with its own allocation from its producer to its last
/// reader.
#[derive(Debug)]
pub(crate) struct Sweep<'a> {
    plan: &'a ExecutionPlan,
    graph: &'a Graph,
    order: Vec<StepId>,
    /// Per value its bytes; 0 if it is fixed or of unknown size.
    bytes: Vec<u64>,
    is_fetched: Vec<bool>,
    /// Per value its memory, or [`UNCOUNTED`].
    memory_of: Vec<u32>,
    /// Per device its memory.
    memory_of_device: Vec<u32>,
    n_memories: usize,
}

/// The peak of a run in one memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Peak {
    pub(crate) bytes: u64,
    /// The first step that reaches it.
    pub(crate) step: Option<StepId>,
}

impl<'a> Sweep<'a> {
    /// Prepares a sweep. `shapes`: per value, as far as known. `memory_of_device`: per device the
    /// number of its memory; memories on the host are not counted.
    pub(crate) fn new(
        plan: &'a ExecutionPlan,
        graph: &'a Graph,
        settled: &Settled,
        shapes: &[Option<Shape>],
        memory_of_device: &[u32],
    ) -> Self {
        let mut is_fetched = vec![false; plan.values().len()];
        for step in plan.steps() {
            if matches!(step.kind, StepKind::Fetch(_)) {
                for value in &step.inputs {
                    is_fetched[value.index()] = true;
                }
            }
        }
        let values = plan.values().iter().zip(shapes).enumerate();
        let bytes = values.map(|(index, (value, shape))| {
            let dtype = graph.tensor_dtypes()[value.tensor.index()];
            match shape {
                Some(shape) if !settled.is_fixed(index) && dtype.size_bytes().is_some() => {
                    let bytes = shape.size_bytes(dtype).unwrap_or(usize::MAX);
                    u64::try_from(bytes).unwrap_or(u64::MAX)
                }
                _ => 0,
            }
        });
        let memory_of = plan.values().iter().map(|value| match value.space {
            MemorySpace::Host => UNCOUNTED,
            MemorySpace::Device => memory_of_device[value.device.index()],
        });
        let mut bytes: Vec<u64> = bytes.collect();
        // A reference refers to state, which is counted on the device that keeps it.
        for step in plan.steps() {
            if matches!(step.kind, StepKind::Execute(_)) {
                for value in step.outputs() {
                    if graph.tensor_is_ref(plan.values()[value.index()].tensor) {
                        bytes[value.index()] = 0;
                    }
                }
            }
        }
        Self {
            bytes,
            memory_of: memory_of.collect(),
            order: serial_order(plan, &settled.is_settled).steps,
            plan,
            graph,
            is_fetched,
            n_memories: memory_of_device
                .iter()
                .map(|&memory| memory as usize + 1)
                .max()
                .unwrap_or(0),
            memory_of_device: memory_of_device.to_vec(),
        }
    }

    /// Leaves a value out of the count: a constant that depends on something, whose bytes all runs
    /// share.
    pub(crate) fn leave_out(&mut self, value: usize) {
        self.bytes[value] = 0;
    }

    /// Returns per memory the peak bytes, including workspaces.
    pub(crate) fn peaks(&self) -> Vec<Peak> {
        let mut peaks = vec![Peak::default(); self.n_memories];
        self.walk(|step, held, workspace| {
            let at = self.memory_of_device[self.plan.step(step).device.index()] as usize;
            let outputs = self.plan.step(step).output_range();
            let touched = outputs.map(|value| self.memory_of[value]);
            let touched = touched.filter(|&memory| memory != UNCOUNTED);
            for memory in touched.map(|memory| memory as usize).chain([at]) {
                let extra = if memory == at { workspace } else { 0 };
                let bytes = held.bytes[memory].saturating_add(extra);
                if bytes > peaks[memory].bytes {
                    peaks[memory] = Peak {
                        bytes,
                        step: Some(step),
                    };
                }
            }
        });
        peaks
    }

    /// Returns the values that a memory holds at a step, with their bytes.
    pub(crate) fn alive(&self, memory: usize, at: StepId) -> Vec<(usize, u64)> {
        let mut alive = Vec::new();
        self.walk(|step, held, _| {
            if step == at {
                let values = held.is_alive.iter().enumerate();
                let values = values.filter(|&(value, &is_alive)| {
                    is_alive && self.memory_of[value] as usize == memory
                });
                alive = values
                    .map(|(value, _)| (value, self.bytes[value]))
                    .collect();
            }
        });
        alive
    }

    /// Returns the first step at which a memory holds more than `limit_bytes`.
    pub(crate) fn first_beyond(&self, memory: usize, limit_bytes: u64) -> Option<StepId> {
        let mut first = None;
        self.walk(|step, held, workspace| {
            let is_here =
                self.memory_of_device[self.plan.step(step).device.index()] as usize == memory;
            let extra = if is_here { workspace } else { 0 };
            let needed = held.bytes[memory].saturating_add(extra);
            if first.is_none() && !fits(needed, limit_bytes) {
                first = Some(step);
            }
        });
        first
    }

    /// Calls `at_step` for each step, while both its outputs and its inputs are live, with the
    /// workspace bytes of its node.
    fn walk(&self, mut at_step: impl FnMut(StepId, &Held, u64)) {
        let mut held = Held {
            bytes: vec![0; self.n_memories],
            is_alive: vec![false; self.bytes.len()],
        };
        let values = self.plan.values().iter();
        let mut n_readers: Vec<u32> = values.map(|value| value.n_readers).collect();
        for &id in &self.order {
            let step = self.plan.step(id);
            for value in step.output_range() {
                held.add(value, self.bytes[value], self.memory_of[value]);
            }
            let workspace = match step.kind {
                StepKind::Execute(node) => self.graph.workspace_bytes()[node.index()],
                _ => 0,
            };
            at_step(id, &held, workspace);
            let sent = match step.kind {
                // What is sent stays live until it is received.
                StepKind::Send(transfer) => {
                    if let Some(sent) = self.plan.transfers()[transfer.index()].sent {
                        n_readers[sent.index()] += 1;
                    }
                    None
                }
                StepKind::Receive(transfer) => self.plan.transfers()[transfer.index()].sent,
                _ => None,
            };
            let unread = step.outputs().filter(|value| n_readers[value.index()] == 0);
            let unread: Vec<_> = unread.collect();
            for value in step.inputs.iter().chain(&sent) {
                n_readers[value.index()] -= 1;
                if n_readers[value.index()] == 0 && !self.is_fetched[value.index()] {
                    let value = value.index();
                    held.remove(value, self.bytes[value], self.memory_of[value]);
                }
            }
            for value in unread {
                if !self.is_fetched[value.index()] {
                    let value = value.index();
                    held.remove(value, self.bytes[value], self.memory_of[value]);
                }
            }
        }
    }
}

/// The live values.
#[derive(Debug)]
struct Held {
    /// Per memory.
    bytes: Vec<u64>,
    /// Per value.
    is_alive: Vec<bool>,
}

impl Held {
    fn add(&mut self, value: usize, bytes: u64, memory: u32) {
        self.is_alive[value] = true;
        if memory != UNCOUNTED {
            let held = &mut self.bytes[memory as usize];
            *held = held.saturating_add(bytes);
        }
    }

    fn remove(&mut self, value: usize, bytes: u64, memory: u32) {
        if std::mem::replace(&mut self.is_alive[value], false) && memory != UNCOUNTED {
            let held = &mut self.bytes[memory as usize];
            *held = held.saturating_sub(bytes);
        }
    }
}
