//! Shapes of a graph for feeds of known shapes, which say more than the graph (TensorFlow's
//! `ShapeRefiner`).

use std::collections::hash_map::Entry;

use rustc_hash::FxHashMap;

use super::definition::OpDef;
use super::infer::InferenceContext;
use super::infer::Known;
use super::infer::OpInput;
use super::registry::OpRegistry;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::graph::TensorId;
use crate::tensor::PartialShape;
use crate::tensor::Shape;

/// The shapes of the tensors that depend on feeds.
#[derive(Debug)]
pub(crate) struct RefinedShapes<'a> {
    graph: &'a Graph,
    ops: &'a OpRegistry,
    /// More precise shapes than the graph's.
    shapes: FxHashMap<TensorId, PartialShape>,
    known: FxHashMap<TensorId, Known>,
}

impl<'a> RefinedShapes<'a> {
    /// Infers the shapes of all tensors that `targets` depend on, given those of the fed tensors.
    /// The graph must have been checked against `ops` ([`Graph::is_checked`]). Where the rule of an
    /// op is not met, the shapes of the graph remain: the kernel reports the contradiction.
    pub(crate) fn new(
        graph: &'a Graph,
        ops: &'a OpRegistry,
        fed: impl IntoIterator<Item = (TensorId, Shape)>,
        targets: impl IntoIterator<Item = TensorId>,
    ) -> Self {
        let fed = fed
            .into_iter()
            .map(|(tensor, shape)| (tensor, shape.into()));
        let mut refined = Self {
            graph,
            ops,
            shapes: fed.collect(),
            known: FxHashMap::default(),
        };
        // Nodes are in topological order but for the back edges of loops, whose tensors keep the
        // shapes of the graph here.
        for node in refined.nodes_before(targets) {
            refined.refine(node);
        }
        refined
    }

    /// Returns the shape of a tensor.
    pub(crate) fn shape(&self, tensor: TensorId) -> PartialShape {
        let refined = self.shapes.get(&tensor);
        refined.map_or_else(|| self.graph.tensor_shape(tensor), Clone::clone)
    }

    /// Returns the nodes that tensors depend on if the fed tensors are given.
    fn nodes_before(&self, targets: impl IntoIterator<Item = TensorId>) -> Vec<NodeId> {
        let mut is_needed = vec![false; self.graph.n_nodes()];
        let mut tensors: Vec<TensorId> = targets.into_iter().collect();
        while let Some(tensor) = tensors.pop() {
            if self.shapes.contains_key(&tensor) {
                continue;
            }
            let (node, _) = self.graph.producer(tensor);
            if !std::mem::replace(&mut is_needed[node.index()], true) {
                tensors.extend(self.graph.data_inputs(node));
            }
        }
        self.graph
            .nodes()
            .filter(|node| is_needed[node.index()])
            .collect()
    }

    fn refine(&mut self, node: NodeId) {
        let Some(op) = self.ops.get(self.graph.op(node)) else {
            return;
        };
        let tensors = self.graph.output_range(node);
        let Some((outputs, known)) = self.infer(op, node, tensors.len()) else {
            return;
        };
        let mut known = known.into_iter();
        for (index, output) in tensors.zip(outputs) {
            let known = known.next();
            // A fed tensor is what is fed, whatever its node computes.
            if let Entry::Vacant(place) = self.shapes.entry(tensor_id(index)) {
                place.insert(output.shape);
                self.known
                    .insert(tensor_id(index), known.unwrap_or_default());
            }
        }
    }

    fn infer(
        &self,
        op: &OpDef,
        node: NodeId,
        n_outputs: usize,
    ) -> Option<(Vec<Output>, Vec<Known>)> {
        let attrs = self.graph.attrs(node);
        let inputs = self.graph.all_data_inputs(node).into_iter();
        let inputs: Vec<OpInput> = inputs
            .map(|tensor| OpInput {
                dtype: self.graph.tensor_dtypes()[tensor.index()],
                shape: self.shape(tensor),
                known: self.known.get(&tensor).cloned().unwrap_or_default(),
            })
            .collect();
        let context = InferenceContext::new(op, attrs, &inputs, 0);
        let shapes = op.infer_shapes(&context, n_outputs).ok()?;
        let tensors = self.graph.output_range(node);
        let outputs = tensors.map(tensor_id).zip(shapes);
        let outputs: Vec<Output> = outputs
            .map(|(tensor, shape)| {
                let of_graph = self.graph.tensor_shape(tensor);
                Output {
                    dtype: self.graph.tensor_dtypes()[tensor.index()],
                    is_ref: self.graph.tensor_is_ref(tensor),
                    shape: of_graph.merge(&shape).unwrap_or(of_graph),
                }
            })
            .collect();
        let known = op.fold(&context, &outputs);
        Some((outputs, known))
    }
}

fn tensor_id(index: usize) -> TensorId {
    TensorId(u32::try_from(index).unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builder::GraphBuilder;

    #[test]
    fn shapes_follow_from_what_is_fed() {
        let b = GraphBuilder::new("refined");
        let unknown = PartialShape::new(&[None, Some(6)]);
        let x = b.placeholder::<f32>("x", unknown).unwrap();
        let y = b.named("y").add(x, x).unwrap();
        let shape = b.named("shape").shape_of(y).unwrap();
        b.named("filled").reshape(y, shape).unwrap();
        let graph = b.finish();
        let tensor =
            |name: &str| tensor_id(graph.output_range(graph.find_node(name).unwrap()).start);
        let names = ["y", "filled"];
        let ops = OpRegistry::default();
        let fed = [(tensor("x"), Shape::new(&[4, 6]))];
        let refined = RefinedShapes::new(&graph, &ops, fed, names.map(tensor));
        for name in names {
            let known = refined.shape(tensor(name)).to_shape();
            assert_eq!(known, Some(Shape::new(&[4, 6])), "{name}");
            assert_eq!(graph.tensor_shape(tensor(name)).to_shape(), None, "{name}");
        }
    }
}
