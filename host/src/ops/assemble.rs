//! Adds nodes of registered ops to a graph; shared by the graph builder and the importer.
//!
//! Adding has two steps, because the builder adds constants of its own between them: a node that is
//! refused leaves the graph unchanged.

use rustc_hash::FxHashMap;

use super::definition::OpDef;
use super::definition::SignatureError;
use super::definition::TypedSlot;
use super::infer::InferenceContext;
use super::infer::Known;
use super::infer::OpInput;
use super::infer::ShapeError;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::GraphError;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::PartialShape;

/// A [`GraphAssembler`] that uses op definitions. The number and types of a node's outputs come
/// from the op's signature. Shapes, values known before a run, and work come from the op's
/// functions.
#[derive(Debug)]
pub(crate) struct OpAssembler {
    assembler: GraphAssembler,
    producer_version: i32,
    /// Known values of outputs.
    known: FxHashMap<(NodeId, u32), Known>,
    n_outputs_left: usize,
    n_folded_left: usize,
}

/// Inferred properties of a node with certain attributes and inputs.
#[derive(Debug)]
pub(crate) struct Inferred {
    pub(crate) outputs: Vec<Output>,
    /// One entry per output, or fewer if no values are known.
    known: Vec<Known>,
    work: Work,
}

/// A node to be added to the graph.
pub(crate) struct OpNode<'a> {
    pub(crate) name: &'a str,
    pub(crate) op: &'a OpDef,
    /// Attributes, complete with the op's defaults.
    pub(crate) attrs: &'a AttrSet,
    /// Data inputs without those of back edges, then control inputs.
    pub(crate) edges: &'a [Input],
    pub(crate) requested_device: &'a str,
}

/// Why the outputs of a node cannot be inferred.
#[derive(Debug)]
pub(crate) enum OpNodeError {
    /// More outputs than the assembler's limit.
    TooManyOutputs,
    /// The number or types of outputs depend on missing attributes.
    Signature(SignatureError),
    /// Inputs or attributes contradict the op's shape rule.
    Shape(ShapeError),
}

impl OpAssembler {
    /// Returns an empty graph. All nodes together have at most `n_items_max` outputs, each counted
    /// with the dimensions of its node's inputs, and at most as many elements of known values are
    /// kept. Beyond that limit, shapes are merely less precise.
    pub(crate) fn new(name: impl Into<String>, producer_version: i32, n_items_max: usize) -> Self {
        Self {
            assembler: GraphAssembler::new(name),
            producer_version,
            known: FxHashMap::default(),
            n_outputs_left: n_items_max,
            n_folded_left: n_items_max,
        }
    }

    /// Returns the graph so far.
    pub(crate) fn graph(&self) -> &GraphAssembler {
        &self.assembler
    }

    /// Returns the graph so far, to add back edges and functions.
    pub(crate) fn graph_mut(&mut self) -> &mut GraphAssembler {
        &mut self.assembler
    }

    /// Returns the finished graph.
    pub(crate) fn finish(self) -> Graph {
        self.assembler.finish_checked()
    }

    /// Returns the finished graph, with nodes that were not checked against definitions.
    pub(crate) fn finish_unchecked(self) -> Graph {
        self.assembler.finish()
    }

    /// Returns what is known of the value of an output.
    pub(crate) fn known(&self, node: NodeId, slot: u32) -> Known {
        self.known.get(&(node, slot)).cloned().unwrap_or_default()
    }

    /// Infers the outputs and the work of a node, without adding it.
    pub(crate) fn infer(
        &mut self,
        op: &OpDef,
        attrs: &AttrSet,
        inputs: &[OpInput],
        refine: impl FnOnce(&mut [PartialShape]) -> Result<(), ShapeError>,
    ) -> Result<Inferred, OpNodeError> {
        let slots = self.output_slots(op, attrs, inputs)?;
        let context = InferenceContext::new(op, attrs, inputs, self.producer_version);
        let shapes = op.infer_shapes(&context, slots.len());
        let mut shapes = shapes.map_err(OpNodeError::Shape)?;
        refine(&mut shapes).map_err(OpNodeError::Shape)?;
        let outputs = slots.iter().zip(shapes).map(|(slot, shape)| Output {
            dtype: slot.dtype,
            is_ref: slot.is_ref,
            shape,
        });
        let outputs: Vec<Output> = outputs.collect();
        let work = op.work(&context, &outputs);
        let mut known = op.fold(&context, &outputs);
        known.truncate(outputs.len());
        Ok(Inferred {
            outputs,
            known,
            work,
        })
    }

    /// Appends a node with its inferred properties.
    pub(crate) fn append(
        &mut self,
        node: &OpNode<'_>,
        inferred: Inferred,
    ) -> Result<NodeId, GraphError> {
        let id = self.assembler.add_node(&NodeSpec {
            name: node.name,
            op: node.op.name(),
            inputs: node.edges,
            requested_device: node.requested_device,
            attrs: node.attrs.clone(),
            outputs: &inferred.outputs,
            stateful: node.op.is_stateful(),
            work: inferred.work,
        })?;
        self.remember(id, inferred.known);
        Ok(id)
    }

    /// Appends an argument of a function, with what is known of it.
    pub(crate) fn append_arg(&mut self, name: &str, arg: OpInput) -> Result<NodeId, GraphError> {
        let output = Output {
            dtype: arg.dtype,
            is_ref: false,
            shape: arg.shape,
        };
        let id = self.assembler.add_node(&NodeSpec {
            name,
            op: "_Arg",
            inputs: &[],
            requested_device: "",
            attrs: AttrSet::default(),
            outputs: &[output],
            stateful: false,
            work: Work::default(),
        })?;
        self.remember(id, vec![arg.known]);
        Ok(id)
    }

    /// Returns what is known of an output of an added node.
    pub(crate) fn op_input(&self, node: NodeId, slot: u32) -> Option<OpInput> {
        let output = self.assembler.output(node, slot as usize)?;
        Some(OpInput {
            dtype: output.dtype,
            shape: output.shape,
            known: self.known(node, slot),
        })
    }

    fn output_slots(
        &mut self,
        op: &OpDef,
        attrs: &AttrSet,
        inputs: &[OpInput],
    ) -> Result<Vec<TypedSlot>, OpNodeError> {
        // Counted before they are laid out: an attribute may request billions of outputs.
        let n_outputs = op.n_outputs(attrs).map_err(OpNodeError::Signature)?;
        // An output also counts its dimensions, usually no more than those of an input.
        let rank = inputs.iter().filter_map(|input| input.shape.rank()).max();
        let cost = n_outputs.saturating_mul(1 + rank.unwrap_or(0));
        let left = self.n_outputs_left.checked_sub(cost);
        self.n_outputs_left = left.ok_or(OpNodeError::TooManyOutputs)?;
        op.output_slots(attrs).map_err(OpNodeError::Signature)
    }

    fn remember(&mut self, node: NodeId, known: Vec<Known>) {
        for (slot, known) in (0..).zip(known) {
            let n_elements = match &known {
                Known::Nothing => continue,
                Known::Ints(value) => value.values().len().max(1),
                Known::Literal(_) | Known::Handle(..) => 1,
            };
            let Some(left) = self.n_folded_left.checked_sub(n_elements) else {
                return;
            };
            self.n_folded_left = left;
            self.known.insert((node, slot), known);
        }
    }
}

/// Returns the shapes of all inputs, for error messages.
pub(crate) fn input_shapes(inputs: &[OpInput]) -> String {
    if inputs.is_empty() {
        return "none".to_owned();
    }
    let shapes: Vec<_> = inputs.iter().map(|input| input.shape.to_string()).collect();
    shapes.join(", ")
}
