//! Creates the steps, values and transfers of a plan.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use super::prune::Pruned;
use super::{Assignment, PartitionError, RunRequest};
use crate::graph::{Bodies, BodyId, Csr, IDENTITY, NONE, NodeId, TensorId};
use crate::names::DeviceId;
use crate::plan::{
    BackInput, ExecutionPlan, Feed, Fetch, MemorySpace, Partition, Payload, Step, StepId, StepKind,
    Transfer, TransferId, Value, ValueId,
};

/// The priority of steps that only move tensors. They start before kernels, because a step
/// elsewhere waits for them.
const MOVES_FIRST: i32 = i32::MAX;

/// A plan under construction.
pub(super) struct Partitioner<'a> {
    assignment: &'a Assignment<'a>,
    pruned: &'a Pruned,
    bodies: &'a Bodies,
    plan: ExecutionPlan,
    /// Per value the step that writes it.
    writers: Vec<StepId>,
    /// Per node the step that executes it, or [`NONE`].
    executes: Vec<u32>,
    /// Tensors that arrive at a device, from another device or from the caller.
    arrivals: FxHashMap<(TensorId, DeviceId, MemorySpace), ValueId>,
    /// Control edges that arrive at a device: the receiving step.
    control_arrivals: FxHashMap<(NodeId, DeviceId), StepId>,
    /// (from, to) steps.
    edges: Vec<(StepId, StepId)>,
    fetches: &'a [TensorId],
}

impl<'a> Partitioner<'a> {
    pub(super) fn new(
        assignment: &'a Assignment<'a>,
        pruned: &'a Pruned,
        bodies: &'a Bodies,
        request: &'a RunRequest,
    ) -> Self {
        Self {
            assignment,
            pruned,
            bodies,
            plan: ExecutionPlan::default(),
            writers: Vec::new(),
            executes: vec![NONE; assignment.graph.n_nodes()],
            arrivals: FxHashMap::default(),
            control_arrivals: FxHashMap::default(),
            edges: Vec::new(),
            fetches: &request.fetches,
        }
    }

    pub(super) fn partition(
        mut self,
        request: &RunRequest,
    ) -> Result<ExecutionPlan, PartitionError> {
        self.plan.feeds = request
            .feeds
            .iter()
            .map(|&tensor| Feed {
                tensor,
                steps: Vec::new(),
            })
            .collect();
        // Node ids are topological, and a transfer is added with its first consumer. So step ids
        // are topological, too.
        for node in self.assignment.graph.nodes() {
            if self.pruned.runs[node.index()] && !self.passes_on_streamed(node) {
                self.execute(node, &[])?;
            }
        }
        for (index, &tensor) in (0u32..).zip(&request.fetches) {
            self.fetch(index, tensor)?;
        }
        if self.bodies.has_loops() {
            self.plan.bodies = self.bodies.all().to_vec();
            self.close_loops()?;
        }
        self.finish()
    }

    /// Checks whether a node is an `Identity` of a streamed constant. It executes when its first
    /// reader needs it, so that the constant does not arrive long before.
    fn passes_on_streamed(&self, node: NodeId) -> bool {
        let graph = self.assignment.graph;
        let edge = graph.predecessors().range(node.index()).start;
        graph.op(node) == IDENTITY
            && graph.is_preloaded(node)
            && self.assignment.columns.is_streamed(graph, edge)
            && graph.op(NodeId(graph.predecessors().items[edge])) != IDENTITY
    }

    /// Adds the step of a node, and the transfers that it reads. Streamed constants arrive after
    /// the steps `after`, and after all else that the node waits for: they take memory for as
    /// short a time as possible.
    fn execute(&mut self, node: NodeId, after: &[StepId]) -> Result<(), PartitionError> {
        let graph = self.assignment.graph;
        let device = self.assignment.device(node);
        let mut inputs: SmallVec<[ValueId; 3]> = SmallVec::new();
        let mut streamed: SmallVec<[(usize, usize); 3]> = SmallVec::new();
        let mut waits: SmallVec<[StepId; 4]> = SmallVec::new();
        for (slot, edge) in graph.predecessors().range(node.index()).enumerate() {
            let producer = NodeId(graph.predecessors().items[edge]);
            match graph.edge_tensors()[edge] {
                NONE => waits.extend(self.control_arrival(producer, device, to_u32(edge)?)?),
                _ if self.assignment.columns.is_streamed(graph, edge) => {
                    streamed.push((slot, edge));
                    inputs.push(ValueId(NONE));
                }
                tensor => {
                    let tensor = TensorId(tensor);
                    let space = self.input_space(node, slot, tensor);
                    inputs.push(self.arrival(tensor, device, space, to_u32(edge)?, &[])?);
                }
            }
        }
        let body = self.bodies.of_node(node);
        if !streamed.is_empty() {
            let mut after: SmallVec<[StepId; 4]> = SmallVec::from_slice(after);
            // A Merge executes although an input is dead, which must not end the others.
            if body == BodyId::OUTERMOST && !matches!(graph.op(node), "Merge" | "RefMerge") {
                let others = inputs.iter().filter(|&&value| value != ValueId(NONE));
                after.extend(others.map(|value| self.writers[value.index()]));
                after.extend_from_slice(&waits);
            }
            for (slot, edge) in streamed {
                let tensor = TensorId(graph.edge_tensors()[edge]);
                let producer = graph.producer(tensor).0;
                if !self.pruned.fed.contains_key(&tensor) {
                    // Its other readers may be in another branch.
                    let is_alone = graph.successors().row(producer.index()).len() == 1
                        && !self.fetches.contains(&tensor);
                    self.ensure_executed(producer, if is_alone { &after } else { &[] })?;
                }
                let space = self.input_space(node, slot, tensor);
                inputs[slot] = self.arrival(tensor, device, space, to_u32(edge)?, &after)?;
            }
        }
        let start_order = self.assignment.columns.start_order;
        let priority = start_order.map_or(0, |order| order[node.index()]);
        let step = self.push_step(StepKind::Execute(node), device, inputs, priority, body)?;
        if let Some(queues) = self.assignment.columns.queues {
            self.plan.steps[step.index()].queue = queues[node.index()];
        }
        self.edges
            .extend(waits.into_iter().map(|wait| (wait, step)));
        self.executes[node.index()] = step.0;
        for tensor in graph.output_range(node) {
            let tensor = TensorId(to_u32(tensor)?);
            let space = self.output_space(node, tensor);
            self.push_value(step, tensor, device, space)?;
        }
        Ok(())
    }

    /// Connects the back edges, after all steps that they connect have been added.
    fn close_loops(&mut self) -> Result<(), PartitionError> {
        let graph = self.assignment.graph;
        for edge in graph.back_inputs() {
            if !self.pruned.runs[edge.to.index()] {
                continue;
            }
            let device = self.assignment.device(edge.to);
            let space = self.input_space(edge.to, edge.input as usize, edge.tensor);
            // No forward edge has carried the tensor, so it has no number. Transfers are named by
            // the edges that they serve: this one by the first of the Merge.
            let first = graph.predecessors().range(edge.to.index()).start;
            let value = self.arrival(edge.tensor, device, space, to_u32(first)?, &[])?;
            self.plan.values[value.index()].n_readers += 1;
            self.plan.back_inputs.push(BackInput {
                step: StepId(self.executes[edge.to.index()]),
                input: edge.input,
                value,
            });
        }
        let order = |input: &BackInput| (input.step, input.input);
        self.plan.back_inputs.sort_unstable_by_key(order);
        Ok(())
    }

    fn fetch(&mut self, index: u32, tensor: TensorId) -> Result<(), PartitionError> {
        let fetch = if let Some(&feed) = self.pruned.fed.get(&tensor) {
            Fetch::Fed(tensor, feed)
        } else {
            let value = self.home(tensor)?;
            let device = self.plan.values[value.index()].device;
            let inputs = SmallVec::from_slice(&[value]);
            let kind = StepKind::Fetch(index);
            let body = BodyId::OUTERMOST;
            let step = self.push_step(kind, device, inputs, MOVES_FIRST, body)?;
            Fetch::Step(tensor, step)
        };
        self.plan.fetches.push(fetch);
        Ok(())
    }

    /// Returns the value that readers on `device` read: the producer's own value, or the one that a
    /// transfer or feed writes. `after`: the steps after which a streamed constant is sent.
    fn arrival(
        &mut self,
        tensor: TensorId,
        device: DeviceId,
        space: MemorySpace,
        edge: u32,
        after: &[StepId],
    ) -> Result<ValueId, PartitionError> {
        let key = (tensor, device, space);
        if let Some(&feed) = self.pruned.fed.get(&tensor) {
            if let Some(&value) = self.arrivals.get(&key) {
                return Ok(value);
            }
            let kind = StepKind::Feed(feed);
            let body = BodyId::OUTERMOST;
            let step = self.push_step(kind, device, SmallVec::new(), MOVES_FIRST, body)?;
            let value = self.push_value(step, tensor, device, space)?;
            self.plan.feeds[feed as usize].steps.push(step);
            self.arrivals.insert(key, value);
            return Ok(value);
        }
        let sent = self.home(tensor)?;
        let home = &self.plan.values[sent.index()];
        let (source, source_space) = (home.device, home.space);
        if (source, source_space) == (device, space) {
            return Ok(sent);
        }
        // A reference may change between two reads, so each reader has its own transfer. So has
        // each reader of a streamed constant: a copy that waits for the next one takes memory, and
        // is dead if what the reader waits for is dead.
        let graph = self.assignment.graph;
        let is_streamed = self.assignment.columns.is_streamed(graph, edge as usize);
        let is_shared = !graph.tensor_is_ref(tensor) && !is_streamed;
        if is_shared && let Some(&value) = self.arrivals.get(&key) {
            return Ok(value);
        }
        let dtype = self.assignment.graph.tensor_dtypes()[tensor.index()];
        let shape = self.assignment.graph.tensor_shape(tensor);
        let receive = self.push_transfer(Transfer {
            payload: Payload::Tensor(tensor),
            source,
            source_space,
            destination: device,
            destination_space: space,
            bytes: shape.size_bytes(dtype),
            edge,
            is_once: self.is_preloaded(edge),
            sent: Some(sent),
            received: None,
        })?;
        if is_streamed {
            self.send_after(receive, after);
        }
        let value = self.push_value(receive, tensor, device, space)?;
        if let Some(transfer) = self.plan.transfers.last_mut() {
            transfer.received = Some(value);
        }
        if is_shared {
            self.arrivals.insert(key, value);
        }
        Ok(value)
    }

    /// Adds the step of an `Identity` of a streamed constant, if it has none yet.
    fn ensure_executed(&mut self, node: NodeId, after: &[StepId]) -> Result<(), PartitionError> {
        match self.executes[node.index()] {
            NONE => self.execute(node, after),
            _ => Ok(()),
        }
    }

    /// Makes the send before a receive wait for steps of its own body.
    fn send_after(&mut self, receive: StepId, after: &[StepId]) {
        let send = StepId(receive.0 - 1);
        debug_assert!(matches!(self.plan.step(send).kind, StepKind::Send(_)));
        let body = self.plan.step(send).body;
        for &step in after {
            if self.plan.step(step).body == body {
                self.edges.push((step, send));
            }
        }
    }

    /// Returns the step on `device` to wait for instead of `producer`; `None` if there is nothing
    /// to wait for.
    fn control_arrival(
        &mut self,
        producer: NodeId,
        device: DeviceId,
        edge: u32,
    ) -> Result<Option<StepId>, PartitionError> {
        if self
            .pruned
            .is_fed_placeholder(self.assignment.graph, producer)
        {
            return Ok(None);
        }
        let source = self.assignment.device(producer);
        self.ensure_executed(producer, &[])?;
        let runs = StepId(self.executes[producer.index()]);
        if source == device {
            return Ok(Some(runs));
        }
        if let Some(&step) = self.control_arrivals.get(&(producer, device)) {
            return Ok(Some(step));
        }
        let receive = self.push_transfer(Transfer {
            payload: Payload::Control(producer),
            source,
            source_space: MemorySpace::Device,
            destination: device,
            destination_space: MemorySpace::Device,
            bytes: Some(0),
            edge,
            is_once: self.is_preloaded(edge),
            sent: None,
            received: None,
        })?;
        self.control_arrivals.insert((producer, device), receive);
        Ok(Some(receive))
    }

    /// Checks whether an edge comes from a node that does not run, and is not streamed.
    fn is_preloaded(&self, edge: u32) -> bool {
        let graph = self.assignment.graph;
        self.assignment.columns.is_preloaded(graph, edge as usize)
    }

    /// Adds a send and a receive; returns the receive.
    fn push_transfer(&mut self, transfer: Transfer) -> Result<StepId, PartitionError> {
        let id = TransferId(to_u32(self.plan.transfers.len())?);
        let inputs = transfer.sent.into_iter().collect();
        let kind = StepKind::Send(id);
        let producer = transfer.payload.producer(self.assignment.graph);
        let body = self.bodies.of_outputs(self.assignment.graph, producer);
        let send = self.push_step(kind, transfer.source, inputs, MOVES_FIRST, body)?;
        if let Payload::Control(producer) = transfer.payload {
            let runs = StepId(self.executes[producer.index()]);
            self.edges.push((runs, send));
        }
        let kind = StepKind::Receive(id);
        let (to, inputs) = (transfer.destination, SmallVec::new());
        let receive = self.push_step(kind, to, inputs, MOVES_FIRST, body)?;
        self.edges.push((send, receive));
        self.plan.transfers.push(transfer);
        Ok(receive)
    }

    fn push_step(
        &mut self,
        kind: StepKind,
        device: DeviceId,
        inputs: SmallVec<[ValueId; 3]>,
        priority: i32,
        body: BodyId,
    ) -> Result<StepId, PartitionError> {
        let id = StepId(to_u32(self.plan.steps.len())?);
        for &input in &inputs {
            self.plan.values[input.index()].n_readers += 1;
            self.edges.push((self.writers[input.index()], id));
        }
        self.plan.steps.push(Step {
            kind,
            device,
            inputs,
            first_output: to_u32(self.plan.values.len())?,
            n_outputs: 0,
            n_waits: 0,
            priority,
            queue: 0,
            body,
        });
        Ok(id)
    }

    /// Adds the next output of the step that was added last.
    fn push_value(
        &mut self,
        writer: StepId,
        tensor: TensorId,
        device: DeviceId,
        space: MemorySpace,
    ) -> Result<ValueId, PartitionError> {
        let id = ValueId(to_u32(self.plan.values.len())?);
        self.plan.values.push(Value {
            tensor,
            device,
            space,
            n_readers: 0,
        });
        self.writers.push(writer);
        self.plan.steps[writer.index()].n_outputs += 1;
        Ok(id)
    }

    /// Returns the value that the producer of a tensor writes.
    fn home(&mut self, tensor: TensorId) -> Result<ValueId, PartitionError> {
        let (node, slot) = self.assignment.graph.producer(tensor);
        self.ensure_executed(node, &[])?;
        let step = &self.plan.steps[self.executes[node.index()] as usize];
        #[expect(
            clippy::cast_possible_truncation,
            reason = "tensor ids are 32 bits wide"
        )]
        Ok(ValueId(step.first_output + slot as u32))
    }

    fn input_space(&self, node: NodeId, slot: usize, tensor: TensorId) -> MemorySpace {
        let Assignment {
            graph, host_memory, ..
        } = self.assignment;
        let device = self.assignment.device(node);
        self.space(
            device,
            host_memory.reads_on_host(graph, node, device, slot, tensor),
        )
    }

    fn output_space(&self, node: NodeId, tensor: TensorId) -> MemorySpace {
        let Assignment {
            graph, host_memory, ..
        } = self.assignment;
        let device = self.assignment.device(node);
        self.space(device, host_memory.writes_on_host(graph, device, tensor))
    }

    fn space(&self, device: DeviceId, on_host: bool) -> MemorySpace {
        if on_host && !self.assignment.has_one_memory[device.index()] {
            MemorySpace::Host
        } else {
            MemorySpace::Device
        }
    }

    /// Builds the rows of edges and the partitions.
    fn finish(mut self) -> Result<ExecutionPlan, PartitionError> {
        to_u32(self.edges.len())?;
        let n_steps = self.plan.steps.len();
        let mut offsets = vec![0u32; n_steps + 1];
        for &(from, to) in &self.edges {
            offsets[from.index() + 1] += 1;
            self.plan.steps[to.index()].n_waits += 1;
        }
        for step in 0..n_steps {
            offsets[step + 1] += offsets[step];
        }
        let mut next = offsets.clone();
        let mut items = vec![0u32; self.edges.len()];
        for &(from, to) in &self.edges {
            let slot = &mut next[from.index()];
            items[*slot as usize] = to.0;
            *slot += 1;
        }
        self.plan.successors = Csr { offsets, items };

        let mut partitions: Vec<Partition> = (0..to_u32(self.assignment.has_one_memory.len())?)
            .map(|device| Partition {
                device: DeviceId(device),
                steps: Vec::new(),
            })
            .collect();
        for (id, step) in (0u32..).zip(&self.plan.steps) {
            partitions[step.device.index()].steps.push(StepId(id));
        }
        partitions.retain(|partition| !partition.steps.is_empty());
        self.plan.partitions = partitions;
        Ok(self.plan)
    }
}

fn to_u32(n: usize) -> Result<u32, PartitionError> {
    u32::try_from(n)
        .ok()
        .filter(|&n| n < NONE)
        .ok_or(PartitionError::TooLarge)
}
