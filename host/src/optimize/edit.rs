//! Edits of a graph.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use rustc_hash::FxHashSet;

use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::GraphError;
use crate::graph::Input;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::graph::Work;
use crate::graph::is_control_flow;
use crate::ops::InferenceContext;
use crate::ops::Known;
use crate::ops::OpInput;
use crate::ops::OpRegistry;
use crate::tensor::Literal;

/// The version of TensorFlow's graphs whose rules of shape inference hold: the newest.
const PRODUCER_VERSION: i32 = i32::MAX;

/// The prefix of a colocation class.
const COLOCATED: &[u8] = b"loc:@";

/// What an edited node reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Source {
    /// A tensor of the graph.
    Tensor(TensorId),
    /// An output of an inserted node.
    Inserted { index: usize, slot: u32 },
}

impl Source {
    /// Returns output `slot` of the inserted node whose output 0 this is.
    pub(super) fn slot(self, slot: usize) -> Self {
        match self {
            Self::Inserted { index, .. } => Self::Inserted {
                index,
                slot: u32::try_from(slot).unwrap_or(NONE),
            },
            Self::Tensor(_) => self,
        }
    }
}

/// A node that an edit makes.
#[derive(Debug, Clone)]
pub(super) struct New {
    pub(super) op: &'static str,
    pub(super) attrs: AttrSet,
    pub(super) inputs: Vec<Source>,
    pub(super) outputs: Vec<Output>,
}

/// A node that an edit adds in front of another one.
#[derive(Debug)]
struct Inserted {
    name: String,
    requested_device: String,
    before: NodeId,
    new: New,
}

/// The changes of one pass to a graph. Every name that both graphs have means the same tensors in
/// both.
#[derive(Debug)]
pub(super) struct Edit<'g> {
    graph: &'g Graph,
    ops: &'g OpRegistry,
    /// Nodes that remain as they are, see [`kept_nodes`].
    kept: &'g [bool],
    replaced: FxHashMap<NodeId, New>,
    removed: FxHashSet<NodeId>,
    inserted: Vec<Inserted>,
    /// Their names.
    names: FxHashSet<String>,
    /// Nodes whose value other nodes have taken over: feeding them would miss those.
    absorbed: FxHashSet<NodeId>,
}

/// An edited graph.
#[derive(Debug)]
pub(super) struct Edited {
    pub(super) graph: Graph,
    /// Names of nodes that remain, whose values other nodes have taken over.
    pub(super) absorbed: Vec<String>,
}

/// Returns which nodes may not be removed or replaced: nodes of control flow, those that another
/// one names as its neighbour, and those that `is_kept` accepts.
pub(super) fn kept_nodes(graph: &Graph, is_kept: impl Fn(NodeId) -> bool) -> Vec<bool> {
    let fixed = |node: NodeId| is_control_flow(graph.op(node)) || is_kept(node);
    let mut kept: Vec<bool> = graph.nodes().map(fixed).collect();
    let mut keep = |node: NodeId| kept[node.index()] = true;
    for class in graph.classes() {
        let Some(AttrValue::List(names)) = class.attrs.get("_class") else {
            continue;
        };
        for name in names.iter() {
            if let AttrValue::Bytes(name) = name
                && let Some(name) = name.strip_prefix(COLOCATED)
                && let Some(node) = std::str::from_utf8(name)
                    .ok()
                    .and_then(|name| graph.find_node(name))
            {
                keep(node);
            }
        }
    }
    for edge in graph.back_inputs() {
        keep(edge.from);
        keep(edge.to);
    }
    for &node in graph.back_edges() {
        keep(NodeId(node));
    }
    kept
}

impl<'g> Edit<'g> {
    pub(super) fn new(graph: &'g Graph, ops: &'g OpRegistry, kept: &'g [bool]) -> Self {
        Self {
            graph,
            ops,
            kept,
            replaced: FxHashMap::default(),
            removed: FxHashSet::default(),
            inserted: Vec::new(),
            names: FxHashSet::default(),
            absorbed: FxHashSet::default(),
        }
    }

    pub(super) fn graph(&self) -> &'g Graph {
        self.graph
    }

    /// Returns whether a node may be replaced or removed: nothing outside of the graph names it, it
    /// has no effects, and no order of its own.
    pub(super) fn is_free(&self, node: NodeId) -> bool {
        !self.kept[node.index()] && !self.graph.class(node).stateful && !has_order(self.graph, node)
    }

    /// Returns the only reader of a node whose outputs after the first are not read, if it reads
    /// the first once.
    pub(super) fn only_reader(&self, node: NodeId) -> Option<NodeId> {
        let successors = self.graph.successors();
        let range = successors.range(node.index());
        let [reader] = successors.items[range.clone()] else {
            return None;
        };
        let edge = self.graph.successor_edges()[range.start] as usize;
        let is_first =
            self.graph.edge_tensors()[edge] == self.graph.output(node, 0).map_or(NONE, |it| it.0);
        (is_first && !self.is_back_input(node)).then_some(NodeId(reader))
    }

    fn is_back_input(&self, node: NodeId) -> bool {
        self.kept[node.index()]
            && self
                .graph
                .back_inputs()
                .iter()
                .any(|edge| edge.from == node)
    }

    /// Returns the constant that a tensor is in all runs, with its literal.
    pub(super) fn constant(&self, tensor: TensorId) -> Option<(NodeId, &'g Arc<Literal>)> {
        let node = self.graph.constant_of(tensor)?;
        // A constant that waits for a branch is dead if that is not taken.
        if !self.graph.is_preloaded(node) {
            return None;
        }
        Some((node, self.graph.attrs(node).tensor("value")?))
    }

    /// Records that other nodes take over the value of a constant, and of what passes it on to
    /// `tensor`.
    pub(super) fn absorb(&mut self, tensor: TensorId) {
        let mut node = self.graph.producer(tensor).0;
        loop {
            self.absorbed.insert(node);
            match self.graph.data_inputs(node).next() {
                Some(input) => node = self.graph.producer(input).0,
                None => return,
            }
        }
    }

    /// Gives a node another op, under its name and on its requested device. The new one has all
    /// outputs that are read.
    pub(super) fn replace(&mut self, node: NodeId, new: New) {
        self.replaced.insert(node, new);
    }

    /// Removes a node that no remaining node reads.
    pub(super) fn remove(&mut self, node: NodeId) {
        self.removed.insert(node);
    }

    /// Adds a node in front of another one, on the same requested device. Returns its output 0.
    pub(super) fn insert(&mut self, before: NodeId, suffix: &str, new: New) -> Source {
        let name = self.unique(format!("{}/{suffix}", self.graph.node_name(before)));
        self.names.insert(name.clone());
        self.inserted.push(Inserted {
            name,
            requested_device: self.graph.requested(before).to_owned(),
            before,
            new,
        });
        Source::Inserted {
            index: self.inserted.len() - 1,
            slot: 0,
        }
    }

    /// Returns the name, with a number behind it if it is in use.
    fn unique(&self, name: String) -> String {
        let is_free =
            |name: &str| self.graph.find_node(name).is_none() && !self.names.contains(name);
        if is_free(&name) {
            return name;
        }
        let mut numbered = (1usize..).map(|number| format!("{name}_{number}"));
        numbered.find(|name| is_free(name)).unwrap_or(name)
    }

    /// Returns the outputs of a node.
    pub(super) fn outputs(&self, node: NodeId) -> Vec<Output> {
        outputs_of(self.graph, node)
    }

    /// Returns the edited graph; `None` if nothing has changed. Nodes that nothing reads any more
    /// are left out.
    ///
    /// # Errors
    /// [`GraphError`] if the graph would exceed 32-bit ids, or a name is in use.
    pub(super) fn finish(mut self) -> Result<Option<Edited>, GraphError> {
        if self.replaced.is_empty() && self.removed.is_empty() {
            return Ok(None);
        }
        self.remove_unread();
        let graph = self.graph;
        let mut assembler = GraphAssembler::new(graph.name());
        let mut ids: Vec<NodeId> = Vec::with_capacity(graph.n_nodes());
        let mut inserted_ids: Vec<NodeId> = vec![NodeId(NONE); self.inserted.len()];
        let mut order: Vec<usize> = (0..self.inserted.len()).collect();
        order.sort_by_key(|&index| self.inserted[index].before);
        let mut waiting = order.into_iter().peekable();
        let mut origin = Origin::default();
        let mut inputs = Vec::new();
        for node in graph.nodes() {
            origin.enter(&mut assembler, graph.function_of(node));
            while let Some(index) = waiting.next_if(|&index| self.inserted[index].before == node) {
                let Inserted {
                    name,
                    requested_device,
                    new,
                    ..
                } = &self.inserted[index];
                let data = inputs_of(&new.inputs, graph, &ids, &inserted_ids);
                let work = self.work(&assembler, new, &data);
                inserted_ids[index] = assembler.add_node(&NodeSpec {
                    name,
                    op: new.op,
                    inputs: &data,
                    requested_device,
                    attrs: new.attrs.clone(),
                    outputs: &new.outputs,
                    stateful: false,
                    work,
                })?;
            }
            if self.removed.contains(&node) {
                ids.push(NodeId(NONE));
                continue;
            }
            let new = self.replaced.get(&node);
            let id = match new {
                Some(new) => {
                    let data = inputs_of(&new.inputs, graph, &ids, &inserted_ids);
                    let work = self.work(&assembler, new, &data);
                    assembler.add_node(&NodeSpec {
                        name: graph.node_name(node),
                        op: new.op,
                        inputs: &data,
                        requested_device: graph.requested(node),
                        attrs: new.attrs.clone(),
                        outputs: &new.outputs,
                        stateful: false,
                        work,
                    })?
                }
                None => {
                    inputs.clear();
                    inputs.extend(edges_of(graph, node, &ids));
                    let index = node.index();
                    assembler.add_node(&NodeSpec {
                        name: graph.node_name(node),
                        op: graph.op(node),
                        inputs: &inputs,
                        requested_device: graph.requested(node),
                        attrs: graph.attrs(node).clone(),
                        outputs: &outputs_of(graph, node),
                        stateful: graph.class(node).stateful,
                        work: Work {
                            flops: graph.flops()[index],
                            traffic_bytes: graph.traffic_bytes()[index],
                            resident_bytes: graph.resident_bytes()[index],
                            workspace_bytes: graph.workspace_bytes()[index],
                        },
                    })?
                }
            };
            if graph.sinkless().binary_search(&node).is_ok() {
                assembler.mark_sinkless(id);
            }
            ids.push(id);
        }
        origin.enter(&mut assembler, None);
        for edge in graph.back_inputs() {
            let (from, slot) = graph.producer(edge.tensor);
            let slot = u32::try_from(slot).unwrap_or(NONE);
            assembler.add_back_input(ids[from.index()], slot, ids[edge.to.index()], edge.input)?;
        }
        let with_tensor: FxHashSet<(u32, u32)> = graph
            .back_inputs()
            .iter()
            .map(|edge| (edge.from.0, edge.to.0))
            .collect();
        for &[from, to] in graph.back_edges().as_chunks::<2>().0 {
            if !with_tensor.contains(&(from, to)) {
                assembler.add_back_edge(ids[from as usize], ids[to as usize]);
            }
        }
        for function in graph.functions() {
            assembler.add_function(function.clone());
        }
        let mut edited = match graph.is_checked() {
            true => assembler.finish_checked(),
            false => assembler.finish(),
        };
        edited.copy_interface(graph);
        let absorbed = self.absorbed.difference(&self.removed);
        Ok(Some(Edited {
            graph: edited,
            absorbed: absorbed
                .map(|&node| graph.node_name(node).to_owned())
                .collect(),
        }))
    }

    /// Removes what only removed nodes have read, and what only that has read, and so on.
    fn remove_unread(&mut self) {
        let graph = self.graph;
        let mut n_readers: Vec<u32> = graph
            .nodes()
            .map(|node| u32::try_from(graph.successors().row(node.index()).len()).unwrap_or(NONE))
            .collect();
        for new in self
            .replaced
            .values()
            .chain(self.inserted.iter().map(|it| &it.new))
        {
            for source in &new.inputs {
                if let Source::Tensor(tensor) = source {
                    n_readers[graph.producer(*tensor).0.index()] += 1;
                }
            }
        }
        let gone = self.removed.iter().chain(self.replaced.keys());
        let mut gone: Vec<NodeId> = gone.copied().collect();
        while let Some(node) = gone.pop() {
            for &producer in graph.predecessors().row(node.index()) {
                let left = &mut n_readers[producer as usize];
                *left -= 1;
                let producer = NodeId(producer);
                let is_unread = *left == 0
                    && !self.kept[producer.index()]
                    && !graph.class(producer).stateful
                    && !graph.is_placeholder(producer);
                if is_unread
                    && !self.replaced.contains_key(&producer)
                    && self.removed.insert(producer)
                {
                    gone.push(producer);
                }
            }
        }
    }

    /// Returns the cost of a new node.
    fn work(&self, assembler: &GraphAssembler, new: &New, inputs: &[Input]) -> Work {
        let Some(op) = self.ops.get(new.op) else {
            return Work::default();
        };
        let inputs = inputs.iter().filter_map(|input| match *input {
            Input::Data { node, slot } => {
                let output = assembler.output(node, slot as usize)?;
                Some(OpInput {
                    dtype: output.dtype,
                    shape: output.shape,
                    known: Known::Nothing,
                })
            }
            Input::Control(_) => None,
        });
        let inputs: Vec<OpInput> = inputs.collect();
        let context = InferenceContext::new(op, &new.attrs, &inputs, PRODUCER_VERSION);
        op.work(&context, &new.outputs)
    }
}

/// The function that the nodes come from that are being added.
#[derive(Default)]
struct Origin {
    function: Option<Arc<str>>,
    first_node: usize,
}

impl Origin {
    fn enter(&mut self, assembler: &mut GraphAssembler, function: Option<&str>) {
        if self.function.as_deref() == function {
            return;
        }
        if let Some(function) = &self.function {
            assembler.set_function(self.first_node, function);
        }
        self.function = function.map(Arc::from);
        self.first_node = assembler.n_nodes();
    }
}

/// Returns whether a node waits for another one without reading it, or another one waits for it.
fn has_order(graph: &Graph, node: NodeId) -> bool {
    let into = graph.predecessors().range(node.index());
    let mut from = graph.successors().range(node.index());
    let is_control = |edge: usize| graph.edge_tensors()[edge] == NONE;
    into.into_iter().any(is_control)
        || from.any(|place| is_control(graph.successor_edges()[place] as usize))
}

fn outputs_of(graph: &Graph, node: NodeId) -> Vec<Output> {
    let outputs = (0..graph.output_range(node).len()).filter_map(|slot| graph.output(node, slot));
    let outputs = outputs.map(|tensor| Output {
        dtype: graph.tensor_dtypes()[tensor.index()],
        is_ref: graph.tensor_is_ref(tensor),
        shape: graph.tensor_shape(tensor),
    });
    outputs.collect()
}

fn edges_of<'a>(
    graph: &'a Graph,
    node: NodeId,
    ids: &'a [NodeId],
) -> impl Iterator<Item = Input> + 'a {
    graph.predecessors().range(node.index()).map(move |edge| {
        let producer = ids[graph.predecessors().items[edge] as usize];
        match graph.edge_tensors()[edge] {
            NONE => Input::Control(producer),
            tensor => data(graph, TensorId(tensor), ids),
        }
    })
}

fn data(graph: &Graph, tensor: TensorId, ids: &[NodeId]) -> Input {
    let (node, slot) = graph.producer(tensor);
    Input::Data {
        node: ids[node.index()],
        slot: u32::try_from(slot).unwrap_or(NONE),
    }
}

fn inputs_of(
    sources: &[Source],
    graph: &Graph,
    ids: &[NodeId],
    inserted_ids: &[NodeId],
) -> Vec<Input> {
    let inputs = sources.iter().map(|source| match *source {
        Source::Tensor(tensor) => data(graph, tensor, ids),
        Source::Inserted { index, slot } => Input::Data {
            node: inserted_ids[index],
            slot,
        },
    });
    inputs.collect()
}
