//! Partitions, steps and values.

use std::ops::Range;

use smallvec::SmallVec;

use crate::graph::{Csr, NodeId, TensorId};
use crate::names::DeviceId;

use super::transfer::{MemorySpace, Transfer, TransferId};

/// A step of one plan, `0..plan.steps().len()`. The numbers are a topological order of the whole
/// plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StepId(pub u32);

/// A value of one plan, `0..plan.values().len()`; the outputs of one step are consecutive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl StepId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl ValueId {
    /// As an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a step does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StepKind {
    /// Executes a node. One output value per output of the node.
    Execute(NodeId),
    /// Hands a transfer's tensor over; reads [`Transfer::sent`].
    Send(TransferId),
    /// Takes a transfer's tensor in; writes [`Transfer::received`]. Waits for the send.
    Receive(TransferId),
    /// Takes feed `n` (of [`Plan::feeds`]) from the caller, once per device and memory that reads
    /// it.
    Feed(u32),
    /// Hands fetch `n` (of [`Plan::fetches`]) to the caller.
    Fetch(u32),
}

/// One thing that a device does in a run.
#[derive(Debug, Clone)]
pub struct Step {
    /// What.
    pub kind: StepKind,
    /// Where.
    pub device: DeviceId,
    /// Values that it reads, in slot order; one entry per read.
    pub inputs: SmallVec<[ValueId; 3]>,
    /// First of the values that it writes.
    pub first_output: u32,
    /// Number of values that it writes.
    pub n_outputs: u32,
    /// Number of edges that lead here: entries of [`Plan::successors`] that name this step.
    pub n_waits: u32,
    /// Of the steps that could start, the largest starts first; then the smallest [`StepId`].
    pub priority: i32,
    /// Compute queue of the device that the placement asks for. Advice: devices with one queue, as
    /// all of type CPU, and the executor, which starts any step that is ready, do not look at
    /// it.
    pub queue: u32,
}

impl Step {
    /// The values that it writes, in slot order.
    pub fn outputs(&self) -> impl ExactSizeIterator<Item = ValueId> + use<> {
        (self.first_output..self.first_output + self.n_outputs).map(ValueId)
    }

    /// The same, as positions in [`Plan::values`].
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
    /// In which of its memories.
    pub space: MemorySpace,
    /// Number of reads; it is dropped after the last one. 0 = dropped at once.
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

/// A tensor that the caller gives.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Feed {
    /// The tensor that is replaced.
    pub tensor: TensorId,
    /// The steps that take it in, one per device and memory that reads it; none where nothing that
    /// runs reads it.
    pub steps: Vec<StepId>,
}

/// A tensor that the caller wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fetch {
    /// Handed out by a step.
    Step(TensorId, StepId),
    /// The very tensor that the caller feeds.
    Fed(TensorId, u32),
}

impl Fetch {
    /// The tensor.
    pub fn tensor(&self) -> TensorId {
        match *self {
            Self::Step(tensor, _) | Self::Fed(tensor, _) => tensor,
        }
    }
}

/// What a run does, on which devices, in which order. Immutable, and valid for any number of runs,
/// also at one time.
///
/// [`crate::placement::Placement::cut`] alone makes plans and holds their invariants: no cycle;
/// each node at most once; steps of different devices meet only in transfers; every value is
/// written by one step.
#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub(crate) partitions: Vec<Partition>,
    pub(crate) steps: Vec<Step>,
    pub(crate) successors: Csr,
    pub(crate) values: Vec<Value>,
    pub(crate) transfers: Vec<Transfer>,
    pub(crate) feeds: Vec<Feed>,
    pub(crate) fetches: Vec<Fetch>,
    pub(crate) back_edges: Vec<(NodeId, NodeId)>,
}

impl Plan {
    /// One partition per device that does something, in the order of the device set.
    pub fn partitions(&self) -> &[Partition] {
        &self.partitions
    }

    /// All steps, in a topological order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// A step.
    ///
    /// # Panics
    /// If there is none of this id.
    pub fn step(&self, id: StepId) -> &Step {
        &self.steps[id.index()]
    }

    /// Steps that wait for each step: one entry per value read, per control edge, and from each
    /// send to its receive.
    pub fn successors(&self) -> &Csr {
        &self.successors
    }

    /// All values.
    pub fn values(&self) -> &[Value] {
        &self.values
    }

    /// All transfers between devices, or between the memories of one, those of constants too, which
    /// no run makes ([`Transfer::is_once`]). Feeds and fetches are not among them.
    pub fn transfers(&self) -> &[Transfer] {
        &self.transfers
    }

    /// What the caller gives, in the order asked for.
    pub fn feeds(&self) -> &[Feed] {
        &self.feeds
    }

    /// What the caller gets, in the order asked for.
    pub fn fetches(&self) -> &[Fetch] {
        &self.fetches
    }

    /// (from, to) nodes of the loops' back edges.
    pub fn back_edges(&self) -> &[(NodeId, NodeId)] {
        &self.back_edges
    }

    /// Nodes that run, in a topological order, with their devices.
    pub fn nodes(&self) -> impl Iterator<Item = (NodeId, DeviceId)> + '_ {
        self.steps.iter().filter_map(|step| match step.kind {
            StepKind::Execute(node) => Some((node, step.device)),
            _ => None,
        })
    }

    /// The transfers that each run makes.
    pub fn run_transfers(&self) -> impl Iterator<Item = &Transfer> {
        self.transfers.iter().filter(|transfer| !transfer.is_once)
    }

    /// Bytes that the transfers of one run move, where known: (sum of the known, at most
    /// `u64::MAX`; number of unknown ones).
    pub fn transfer_bytes(&self) -> (u64, usize) {
        self.run_transfers()
            .fold((0, 0), |(bytes, unknown), transfer| match transfer.bytes {
                Some(known) => (bytes.saturating_add(known), unknown),
                None => (bytes, unknown + 1),
            })
    }

    /// Ids of all steps.
    pub fn step_ids(&self) -> Range<u32> {
        0..u32::try_from(self.steps.len()).expect("step ids are 32 bits wide")
    }
}
