//! Checks of nodes against the definitions of their ops.

use super::definition::AttrFault;
use super::definition::OpDef;
use super::definition::SignatureError;
use super::definition::TypedSlot;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;

/// How a node contradicts the definition of its op. Callers add the names of node and op.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NodeDefError {
    /// The node lacks an attribute, and the op has no default for it.
    #[error("attribute `{0}` is missing, and the op has no default for it")]
    MissingAttr(String),
    /// The op has no such attribute.
    #[error("the op has no attribute `{0}`; unchecked attributes start with `_`")]
    UnknownAttr(String),
    /// The attribute has another kind, or its value is not allowed.
    #[error("attribute `{attr}` {problem}")]
    InvalidAttr {
        /// The attribute.
        attr: String,
        /// What is wrong, as text.
        problem: String,
    },
    /// The number or types of arguments cannot be determined.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The number of inputs or outputs differs.
    #[error("the node has {found} {what}; its attributes require {expected}")]
    Arity {
        /// `data inputs` or `outputs`.
        what: &'static str,
        /// The number that the attributes require.
        expected: usize,
        /// The number that the node has.
        found: usize,
    },
    /// The type of an input or output differs.
    #[error("{what} {slot} is {}; the node's attributes require {}", slot_name(*.found), slot_name(*.expected))]
    Type {
        /// `input` or `output`.
        what: &'static str,
        /// The slot.
        slot: usize,
        /// The type that the attributes require.
        expected: TypedSlot,
        /// The type that the node has.
        found: TypedSlot,
    },
}

impl OpDef {
    /// Checks a node of this op: attributes (presence, kind, allowed values), and the numbers and
    /// types of data inputs and outputs. Returns its attributes, complete with the op's defaults.
    /// Nodes from the graph builder or the importer are already checked ([`Graph::is_checked`]).
    ///
    /// # Errors
    /// [`NodeDefError`] for the first contradiction.
    ///
    /// # Panics
    /// If the graph has no such node.
    pub fn check_node(&self, graph: &Graph, node: NodeId) -> Result<AttrSet, NodeDefError> {
        let attrs = graph.attrs(node).iter();
        let attrs = attrs.map(|(name, value)| (name.into(), value.clone()));
        let attrs = self
            .complete_attrs(attrs.collect())
            .map_err(|(attr, fault)| {
                let attr = attr.to_string();
                match fault {
                    AttrFault::Missing => NodeDefError::MissingAttr(attr),
                    AttrFault::Unknown => NodeDefError::UnknownAttr(attr),
                    AttrFault::Invalid(problem) => NodeDefError::InvalidAttr { attr, problem },
                }
            })?;
        let slot = |tensor: TensorId| TypedSlot {
            dtype: graph.tensor_dtypes()[tensor.index()],
            is_ref: graph.tensor_is_ref(tensor),
        };
        // Includes inputs from back edges.
        let inputs = graph.all_data_inputs(node);
        let inputs: Vec<TypedSlot> = inputs.into_iter().map(slot).collect();
        let outputs =
            (0..graph.output_range(node).len()).filter_map(|slot| graph.output(node, slot));
        let outputs: Vec<TypedSlot> = outputs.map(slot).collect();
        // Counted before they are laid out: an attribute may request billions.
        let n_inputs = self.n_inputs(&attrs)?;
        check_arity("data inputs", n_inputs, inputs.len())?;
        let n_outputs = self.n_outputs(&attrs)?;
        check_arity("outputs", n_outputs, outputs.len())?;
        for (slot, (takes, &found)) in self
            .input_slots(&attrs)?
            .into_iter()
            .zip(&inputs)
            .enumerate()
        {
            if !takes.accepts(found.dtype, found.is_ref) {
                return Err(mismatch("input", slot, takes, found));
            }
        }
        for (slot, (makes, &found)) in self
            .output_slots(&attrs)?
            .into_iter()
            .zip(&outputs)
            .enumerate()
        {
            if makes != found {
                return Err(mismatch("output", slot, makes, found));
            }
        }
        Ok(attrs)
    }
}

fn check_arity(what: &'static str, expected: usize, found: usize) -> Result<(), NodeDefError> {
    if expected == found {
        return Ok(());
    }
    Err(NodeDefError::Arity {
        what,
        expected,
        found,
    })
}

fn mismatch(
    what: &'static str,
    slot: usize,
    expected: TypedSlot,
    found: TypedSlot,
) -> NodeDefError {
    NodeDefError::Type {
        what,
        slot,
        expected,
        found,
    }
}

fn slot_name(slot: TypedSlot) -> String {
    let dtype = slot.dtype;
    if slot.is_ref {
        format!("a reference to {dtype}")
    } else {
        dtype.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::AttrValue;
    use crate::graph::GraphAssembler;
    use crate::graph::Input;
    use crate::graph::NodeSpec;
    use crate::graph::Output;
    use crate::graph::Work;
    use crate::tensor::DType;
    use crate::tensor::PartialShape;

    fn output(dtype: DType, is_ref: bool) -> Output {
        Output {
            dtype,
            is_ref,
            shape: PartialShape::unknown(),
        }
    }

    /// Checks a node of `Blend(images: N * T, weight: float) -> (image: T)` with `n_images` images
    /// of type `found`.
    fn check(
        attrs: &[(&str, AttrValue)],
        n_images: usize,
        found: DType,
        outputs: &[Output],
    ) -> Result<AttrSet, String> {
        let op = OpDef::new(
            "Blend",
            &["images: N * T", "weight: float"],
            &["image: T"],
            &[
                "N: int >= 1",
                "T: {float, double}",
                "mode: {'MAX', 'MEAN'} = 'MEAN'",
            ],
        )
        .unwrap();
        let mut assembler = GraphAssembler::new("check");
        let mut add = |name: &str, inputs: &[Input], attrs: AttrSet, outputs: &[Output]| {
            let spec = NodeSpec {
                name,
                op: "Blend",
                inputs,
                requested_device: "",
                attrs,
                outputs,
                stateful: false,
                work: Work::default(),
            };
            assembler.add_node(&spec).unwrap()
        };
        let source = [output(found, true), output(DType::F32, false)];
        let source = add("source", &[], AttrSet::default(), &source);
        let mut inputs = vec![
            Input::Data {
                node: source,
                slot: 0,
            };
            n_images
        ];
        inputs.push(Input::Data {
            node: source,
            slot: 1,
        });
        let attrs = attrs
            .iter()
            .map(|(name, value)| ((*name).into(), value.clone()));
        let node = add("node", &inputs, AttrSet::new(attrs), outputs);
        let graph = assembler.finish();
        assert!(!graph.is_checked());
        op.check_node(&graph, node)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_node_that_fits_gets_the_defaults() {
        let attrs = [
            ("N", AttrValue::Int(2)),
            ("T", DType::F64.into()),
            ("_own", AttrValue::Bool(true)),
        ];
        // A reference may be read as a value.
        let attrs = check(&attrs, 2, DType::F64, &[output(DType::F64, false)]).unwrap();
        assert_eq!(attrs.text("mode"), Some("MEAN"));
        assert_eq!(attrs.bool("_own"), Some(true));
    }

    #[test]
    fn each_contradiction_is_named() {
        let float = output(DType::F32, false);
        let (n, t) = (("N", AttrValue::Int(1)), ("T", DType::F32.into()));
        let refused = |attrs: &[(&str, AttrValue)], n_images, found, outputs: &[Output]| {
            check(attrs, n_images, found, outputs).unwrap_err()
        };
        let with = |attr: (&'static str, AttrValue)| [n.clone(), t.clone(), attr];
        let one = |attrs: &[(&str, AttrValue)]| {
            refused(attrs, 1, DType::F32, std::slice::from_ref(&float))
        };
        assert_eq!(
            one(std::slice::from_ref(&n)),
            "attribute `T` is missing, and the op has no default for it"
        );
        assert!(
            one(&with(("more", AttrValue::Int(1)))).starts_with("the op has no attribute `more`")
        );
        let text = |text: &[u8]| AttrValue::Bytes(text.into());
        assert_eq!(
            one(&with(("mode", text(b"MIN")))),
            "attribute `mode` is `MIN`; allowed: MAX, MEAN"
        );
        assert_eq!(
            one(&with(("mode", AttrValue::Int(1)))),
            "attribute `mode` must be of kind string, found int"
        );
        let fits = [n, t];
        assert_eq!(
            refused(&fits, 2, DType::F32, std::slice::from_ref(&float)),
            "the node has 3 data inputs; its attributes require 2"
        );
        assert_eq!(
            refused(&fits, 1, DType::F32, &[float.clone(), float.clone()]),
            "the node has 2 outputs; its attributes require 1"
        );
        assert_eq!(
            refused(&fits, 1, DType::I32, &[float]),
            "input 0 is a reference to int32; the node's attributes require float"
        );
        assert_eq!(
            refused(&fits, 1, DType::F32, &[output(DType::F64, false)]),
            "output 0 is double; the node's attributes require float"
        );
        let many = [("N", AttrValue::Int(i64::MAX)), ("T", DType::F32.into())];
        let message = refused(&many, 1, DType::F32, &[output(DType::F32, false)]);
        assert!(
            message.starts_with("the node has 2 data inputs"),
            "{message}"
        );
    }
}
