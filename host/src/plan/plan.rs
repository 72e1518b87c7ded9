//! Partitions, steps and values.

use std::ops::Range;

use smallvec::SmallVec;

use crate::graph::{Body, BodyId, Csr, NodeId, TensorId};
use crate::names::DeviceId;

use super::transfer::{MemorySpace, Transfer, TransferId};

/// The id of a step of one plan, `0..plan.steps().len()`. The ids are a topological order of the
/// whole plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u32);

/// The id of a value of one plan, `0..plan.values().len()`. The outputs of one step are
/// consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl StepId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// Returns the id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The kind of a step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepKind {
    /// Executes a node. Has one output value per output of the node.
    Execute(NodeId),
    /// Sends the tensor of a transfer; reads [`Transfer::sent`].
    Send(TransferId),
    /// Receives the tensor of a transfer; writes [`Transfer::received`]. Waits for the send.
    Receive(TransferId),
    /// Takes feed `n` (of [`ExecutionPlan::feeds`]) from the caller, once per device and memory
    /// that reads it.
    Feed(u32),
    /// Returns fetch `n` (of [`ExecutionPlan::fetches`]) to the caller.
    Fetch(u32),
}

/// One unit of work of a device in a run.
#[derive(Debug, Clone)]
pub struct Step {
    /// Kind of the step.
    pub kind: StepKind,
    /// Device that executes it.
    pub device: DeviceId,
    /// Values that it reads, in slot order; one entry per read.
    pub inputs: SmallVec<[ValueId; 3]>,
    /// First of the values that it writes.
    pub first_output: u32,
    /// Number of values that it writes.
    pub n_outputs: u32,
    /// Number of incoming edges: entries of [`ExecutionPlan::successors`] that name this step.
    pub n_waits: u32,
    /// Among ready steps, the one with the highest priority starts first; among equals, the one
    /// with the smallest [`StepId`].
    pub priority: i32,
    /// Compute queue of the device that the placement requests. This is a hint. Devices with one
    /// queue (such as all devices of type CPU) ignore it, and so does the executor, which starts
    /// any ready step.
    pub queue: u32,
    /// The body that executes it: once per run, or once per iteration of a loop. A transfer is
    /// executed by the body that writes what it sends, so what is the same in all iterations is
    /// sent once.
    pub body: BodyId,
}

impl Step {
    /// Returns the values that it writes, in slot order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = ValueId> + use<> {
        (self.first_output..self.first_output + self.n_outputs).map(ValueId)
    }

    /// Returns the values that it writes, as indices into [`ExecutionPlan::values`].
    pub fn output_range(&self) -> Range<usize> {
        let first = self.first_output as usize;
        first..first + self.n_outputs as usize
    }
}

/// A tensor in one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    /// The tensor of the graph.
    pub tensor: TensorId,
    /// The device that holds it.
    pub device: DeviceId,
    /// The memory space on that device.
    pub space: MemorySpace,
    /// Number of reads. The value is dropped after the last one; with 0, at once.
    pub n_readers: u32,
}

/// The steps of one device.
#[derive(Debug, Clone)]
pub struct Partition {
    /// The device.
    pub device: DeviceId,
    /// Its steps, in topological order.
    pub steps: Vec<StepId>,
}

/// A tensor that the caller feeds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    /// The tensor that the feed replaces.
    pub tensor: TensorId,
    /// The steps that take it, one per device and memory that reads it; empty if no executed step
    /// reads it.
    pub steps: Vec<StepId>,
}

/// A tensor that the caller fetches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// A tensor that a step returns.
    Step(TensorId, StepId),
    /// The tensor that the caller feeds, unchanged.
    Fed(TensorId, u32),
}

impl Fetch {
    /// Returns the fetched tensor.
    pub fn tensor(&self) -> TensorId {
        match *self {
            Self::Step(tensor, _) | Self::Fed(tensor, _) => tensor,
        }
    }
}

/// An input of a `Merge` that the previous iteration of its loop provides. No step waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackInput {
    /// The step that executes the `Merge`.
    pub step: StepId,
    /// Index among all data inputs of the node. [`Step::inputs`] has only the others.
    pub input: u32,
    /// What it reads, on its own device: the output of a `NextIteration`, or a transfer of it.
    pub value: ValueId,
}

/// The steps of a run, with their devices and order. Immutable, and valid for any number of runs,
/// including concurrent ones.
///
/// Only [`crate::placement::Placement::partition`] creates plans, and it guarantees their
/// invariants: there is no cycle; each node occurs at most once; steps of different devices
/// interact only by transfers; every value is written by one step.
#[derive(Debug, Clone, Default)]
pub struct ExecutionPlan {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) steps: Vec<Step>,
    pub(crate) successors: Csr,
    pub(crate) values: Vec<Value>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) feeds: Vec<Feed>,
    pub(crate) fetches: Vec<Fetch>,
    /// Empty if the graph has no loops.
    pub(crate) bodies: Vec<Body>,
    pub(crate) back_inputs: Vec<BackInput>,
}

impl ExecutionPlan {
    /// Returns one partition per device that has steps, in the order of the device set.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// Returns all steps, in topological order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// Returns a step.
    ///
    /// # Panics
    /// If no step has this id.
    pub fn step(&self, id: StepId) -> &Step {
        &self.steps[id.index()]
    }

    /// Returns the steps that depend on each step: one entry per value read, per control edge, and
    /// from each send to its receive.
    pub fn successors(&self) -> &Csr {
        &self.successors
    }

    /// Returns all values.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// Returns all transfers between devices or between the memories of one device. Includes
    /// transfers of constants, which no run executes ([`Transfer::is_once`]). Excludes feeds and
    /// fetches.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// Returns the feeds, in the order of the request.
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// Returns the fetches, in the order of the request.
    pub fn fetches(&self) -> &[Fetch] {
        &self.fetches
    }

    /// Returns the bodies of the graph, by [`Step::body`]; empty if it has no loops.
    pub fn bodies(&self) -> &[Body] {
        &self.bodies
    }

    /// Returns the inputs that the previous iteration of a loop provides, ordered by step and
    /// input.
    pub fn back_inputs(&self) -> &[BackInput] {
        &self.back_inputs
    }

    /// Returns the back inputs of a step.
    pub fn back_inputs_of(&self, step: StepId) -> &[BackInput] {
        let start = self.back_inputs.partition_point(|input| input.step < step);
        let rest = &self.back_inputs[start..];
        &rest[..rest.partition_point(|input| input.step == step)]
    }

    /// Returns the nodes that run, in topological order, with their devices.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, DeviceId)> + '_ {
        self.steps.iter().filter_map(|step| match step.kind {
            StepKind::Execute(node) => Some((node, step.device)),
            _ => None,
        })
    }

    /// Returns the transfers that each run executes.
    pub fn run_transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().filter(|transfer| !transfer.is_once)
    }

    /// Returns the bytes that the transfers of one run move: (sum of the known sizes, at most
    /// `u64::MAX`; number of transfers of unknown size).
    pub fn transfer_bytes(&self) -> (u64, usize) {
        self.run_transfers()
            .fold((0, 0), |(bytes, unknown), transfer| match transfer.bytes {
                Some(known) => (bytes.saturating_add(known), unknown),
                None => (bytes, unknown + 1),
            })
    }

    /// Returns the ids of all steps.
    pub fn step_ids(&self) -> Range<u32> {
        0..u32::try_from(self.steps.len()).expect("step ids are 32 bits wide")
    }
}
