//! Checks nodes against their ops in order, infers shapes, and adds them to the graph.

use std::sync::Arc;

use super::ImportError;
use super::ImportOptions;
use super::attrs::AttrReader;
use super::attrs::Owner;
use super::attrs::text;
use super::error::AttrError;
use super::functions::Ops;
use super::order::Order;
use super::order::Source;
use super::proto::NodeDef;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::ops::Known;
use crate::ops::OpAssembler;
use crate::ops::OpDef;
use crate::ops::OpInput;
use crate::ops::OpNode;
use crate::ops::OpNodeError;
use crate::ops::ShapeError;
use crate::ops::TypedSlot;
use crate::ops::input_shapes;
use crate::tensor::PartialShape;

/// Adds nodes to a graph.
pub(super) struct NodeAdder<'a> {
    pub(super) ops: &'a Ops<'a>,
    pub(super) options: &'a ImportOptions,
    pub(super) order: &'a Order,
    pub(super) assembler: OpAssembler,
    pub(super) reader: AttrReader,
    /// Ids of the nodes of the file; undefined before they are added.
    ids: Vec<NodeId>,
    back_edges: Vec<PendingBackEdge>,
    /// Functions that nodes call or name, with repetitions.
    called: Vec<Arc<str>>,
}

/// A back edge whose producer has not been added yet.
struct PendingBackEdge {
    from: u32,
    slot: u32,
    to: NodeId,
    input: u32,
    takes: TypedSlot,
}

impl<'a> NodeAdder<'a> {
    pub(super) fn new(
        ops: &'a Ops<'a>,
        options: &'a ImportOptions,
        producer_version: i32,
        order: &'a Order,
        reader: AttrReader,
        file_size_bytes: usize,
    ) -> Self {
        Self {
            ops,
            options,
            order,
            // One attribute can request billions of outputs, but consumed outputs are named in the
            // file.
            assembler: OpAssembler::new(
                options.name.clone(),
                producer_version,
                (1 << 16) + file_size_bytes,
            ),
            reader,
            ids: vec![NodeId(0); order.nodes.len()],
            back_edges: Vec::new(),
            called: Vec::new(),
        }
    }

    /// Returns the functions that the nodes added so far call or name.
    pub(super) fn take_called(&mut self) -> Vec<Arc<str>> {
        std::mem::take(&mut self.called)
    }

    /// Adds the node at a position of the file; all of its producers have been added.
    pub(super) fn add(&mut self, index: u32, node: &NodeDef) -> Result<(), ImportError> {
        let name = String::from_utf8_lossy(&node.name);
        let op_name = String::from_utf8_lossy(&node.op);
        let ops = self.ops;
        let op = ops.get(&op_name).ok_or_else(|| ImportError::UnknownOp {
            node: name.to_string(),
            op: op_name.to_string(),
            others: Vec::new(),
        })?;
        let owner = Owner {
            node: &name,
            op: &op_name,
        };
        let attrs = ops.read_attrs(owner, &node.attr, op, &mut self.reader)?;
        ops.called(&op_name, &attrs, &mut self.called);
        for (attr, value) in attrs.iter() {
            if let AttrValue::Placeholder(name) = value {
                return Err(owner.error(attr, AttrError::Placeholder(name.to_string())));
            }
        }
        let (attrs, declared_shapes) = split_declared_shapes(attrs);
        let device = text(&node.device).map_err(|error| owner.error("device", error))?;
        let sources = self.order.inputs(index);
        let takes = check_input_count(owner, op, &attrs, sources)?;
        let inputs = self.check_inputs(owner, node, sources, &takes)?;
        let given = self.options.input_shapes.get(&*name);
        let inferred = self
            .assembler
            .infer(op, &attrs, &inputs, |shapes| {
                refine(shapes, &declared_shapes, given)
            })
            .map_err(|error| refused(owner, &inputs, error))?;
        let edges: Vec<Input> = sources
            .iter()
            .filter(|source| !source.is_back)
            .map(|source| {
                let producer = self.ids[source.node as usize];
                match source.slot {
                    Some(slot) => Input::Data {
                        node: producer,
                        slot,
                    },
                    None => Input::Control(producer),
                }
            })
            .collect();
        let id = self.assembler.append(
            &OpNode {
                name: &name,
                op,
                attrs: &attrs,
                edges: &edges,
                requested_device: device,
            },
            inferred,
        )?;
        self.ids[index as usize] = id;
        for ((input, source), &takes) in (0..).zip(sources).zip(&takes) {
            if let (true, Some(slot)) = (source.is_back, source.slot) {
                self.back_edges.push(PendingBackEdge {
                    from: source.node,
                    slot,
                    to: id,
                    input,
                    takes,
                });
            }
        }
        Ok(())
    }

    /// Closes the loops after all nodes have been added.
    pub(super) fn close_loops(&mut self, nodes: &[NodeDef]) -> Result<(), ImportError> {
        for edge in std::mem::take(&mut self.back_edges) {
            let from = self.ids[edge.from as usize];
            let to = self.order.nodes[edge.to.index()] as usize;
            let (name, op) = (
                String::from_utf8_lossy(&nodes[to].name),
                String::from_utf8_lossy(&nodes[to].op),
            );
            let owner = Owner {
                node: &name,
                op: &op,
            };
            let source = Source {
                node: edge.from,
                slot: Some(edge.slot),
                is_back: true,
            };
            let input = edge.input as usize;
            self.check_input(
                owner, &nodes[to], input, source, from, edge.slot, edge.takes,
            )?;
            self.assembler
                .graph_mut()
                .add_back_input(from, edge.slot, edge.to, edge.input)?;
        }
        Ok(())
    }

    fn check_inputs(
        &self,
        owner: Owner<'_>,
        node: &NodeDef,
        sources: &[Source],
        takes: &[TypedSlot],
    ) -> Result<Vec<OpInput>, ImportError> {
        let mut inputs = Vec::with_capacity(takes.len());
        for (input, (&source, &takes)) in sources.iter().zip(takes).enumerate() {
            let Some(slot) = source.slot.filter(|_| !source.is_back) else {
                inputs.push(OpInput {
                    dtype: takes.dtype,
                    shape: PartialShape::unknown(),
                    known: Known::Nothing,
                });
                continue;
            };
            let producer = self.ids[source.node as usize];
            let output = self.check_input(owner, node, input, source, producer, slot, takes)?;
            inputs.push(OpInput {
                dtype: output.dtype,
                shape: output.shape,
                known: self.assembler.known(producer, slot),
            });
        }
        Ok(inputs)
    }

    fn check_input(
        &self,
        owner: Owner<'_>,
        node: &NodeDef,
        input: usize,
        source: Source,
        producer: NodeId,
        slot: u32,
        takes: TypedSlot,
    ) -> Result<Output, ImportError> {
        let text = || {
            let text = node.input.get(input).cloned().unwrap_or_default();
            String::from_utf8_lossy(&text).into_owned()
        };
        debug_assert!(source.slot == Some(slot), "data inputs have a slot");
        let output = self.assembler.graph().output(producer, slot as usize);
        let output = output.ok_or_else(|| ImportError::InvalidInput {
            node: owner.node.to_owned(),
            op: owner.op.to_owned(),
            input,
            text: text(),
            problem: "the node has no such output".to_owned(),
        })?;
        if !takes.accepts(output.dtype, output.is_ref) {
            return Err(ImportError::InputType {
                node: owner.node.to_owned(),
                op: owner.op.to_owned(),
                input,
                expected: takes.dtype,
                expected_ref: takes.is_ref,
                producer: text(),
                found: output.dtype,
                found_ref: output.is_ref,
            });
        }
        Ok(output)
    }
}

/// Merges the output shapes of the file and the options into the inferred ones.
fn refine(
    shapes: &mut [PartialShape],
    declared: &[PartialShape],
    given: Option<&PartialShape>,
) -> Result<(), ShapeError> {
    fn agree(shape: &mut PartialShape, said: &PartialShape, who: &str) -> Result<(), ShapeError> {
        let merged = shape.merge(said).ok_or_else(|| {
            ShapeError::new(format!(
                "the output has shape {shape}, but {who} specify {said}"
            ))
        })?;
        *shape = merged;
        Ok(())
    }
    if declared.len() == shapes.len() {
        for (shape, declared) in shapes.iter_mut().zip(declared) {
            agree(shape, declared, "the file's `_output_shapes`")?;
        }
    }
    if let (Some(given), Some(shape)) = (given, shapes.first_mut()) {
        agree(shape, given, "the import options")?;
    }
    Ok(())
}

fn refused(owner: Owner<'_>, inputs: &[OpInput], error: OpNodeError) -> ImportError {
    let shape = |inputs: String, source: ShapeError| ImportError::Shape {
        node: owner.node.to_owned(),
        op: owner.op.to_owned(),
        inputs,
        source,
    };
    match error {
        OpNodeError::TooManyOutputs => ImportError::OutOfProportion {
            node: owner.node.to_owned(),
            op: owner.op.to_owned(),
            what: "outputs",
        },
        OpNodeError::Signature(error) => {
            shape("not read".to_owned(), ShapeError::new(error.to_string()))
        }
        OpNodeError::Shape(error) => shape(input_shapes(inputs), error),
    }
}

fn check_input_count(
    owner: Owner<'_>,
    op: &OpDef,
    attrs: &AttrSet,
    sources: &[Source],
) -> Result<Vec<TypedSlot>, ImportError> {
    let found = sources
        .iter()
        .filter(|source| source.slot.is_some())
        .count();
    let signature = |error: crate::ops::SignatureError| ImportError::InvalidInput {
        node: owner.node.to_owned(),
        op: owner.op.to_owned(),
        input: 0,
        text: String::new(),
        problem: error.to_string(),
    };
    // Counted before they are laid out: an attribute may request billions of inputs.
    let expected = op.n_inputs(attrs).map_err(signature)?;
    if expected != found {
        return Err(ImportError::InputCount {
            node: owner.node.to_owned(),
            op: owner.op.to_owned(),
            expected,
            found,
        });
    }
    op.input_slots(attrs).map_err(signature)
}

/// Removes `_output_shapes`, which is a hint for the importer; kept on the node it would
/// distinguish otherwise equal nodes.
fn split_declared_shapes(attrs: AttrSet) -> (AttrSet, Vec<PartialShape>) {
    let Some(AttrValue::List(shapes)) = attrs.get("_output_shapes") else {
        return (attrs, Vec::new());
    };
    let shapes = shapes.iter().map(|value| match value {
        AttrValue::Shape(shape) => shape.clone(),
        _ => PartialShape::unknown(),
    });
    let shapes = shapes.collect();
    let rest = attrs.iter().filter(|(name, _)| *name != "_output_shapes");
    let rest = AttrSet::new(rest.map(|(name, value)| (name.into(), value.clone())));
    (rest, shapes)
}
