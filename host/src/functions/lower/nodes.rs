//! Adds single nodes, with what the registry infers about them.

use std::sync::Arc;

use super::Caller;
use super::LowerError;
use super::Lowerer;
use super::Scope;
use super::Source;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::Output;
use crate::names::DeviceName;
use crate::ops::Inferred;
use crate::ops::Known;
use crate::ops::OpDef;
use crate::ops::OpInput;
use crate::ops::OpNode;
use crate::ops::OpNodeError;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// A new node. Data inputs precede control inputs.
pub(super) struct New<'a> {
    pub(super) name: String,
    pub(super) op: &'a str,
    pub(super) device: &'a str,
    pub(super) attrs: Vec<(&'a str, AttrValue)>,
    pub(super) inputs: Vec<Input>,
}

impl Lowerer<'_> {
    pub(super) fn merge(
        &mut self,
        caller: &Caller<'_>,
        name: &str,
        dtype: DType,
        inputs: Vec<Input>,
    ) -> Result<NodeId, LowerError> {
        let n_inputs = i64::try_from(inputs.len()).unwrap_or(i64::MAX);
        self.add(New {
            name: format!("{}/{name}", caller.name),
            op: "Merge",
            device: &caller.device,
            attrs: vec![("T", type_attr(dtype)), ("N", AttrValue::Int(n_inputs))],
            inputs,
        })
    }

    pub(super) fn identity(
        &mut self,
        caller: &Caller<'_>,
        name: String,
        source: Source,
        control: Option<NodeId>,
    ) -> Result<Source, LowerError> {
        let dtype = self.dtype(source);
        let inputs = std::iter::once(source.data()).chain(control.map(Input::Control));
        let node = self.add(New {
            name,
            op: "Identity",
            device: &caller.device,
            attrs: vec![("T", type_attr(dtype))],
            inputs: inputs.collect(),
        })?;
        Ok(Source {
            node,
            slot: 0,
            is_guarded: true,
        })
    }

    /// Returns a condition as a boolean: numbers other than 0 are true.
    pub(super) fn predicate(
        &mut self,
        caller: &Caller<'_>,
        source: Source,
    ) -> Result<Source, LowerError> {
        let dtype = self.dtype(source);
        if dtype == DType::Bool {
            return Ok(source);
        }
        if dtype.size_bytes().is_none() {
            return Err(caller.error(format!("its condition is {dtype}, expected bool")));
        }
        let node = self.add(New {
            name: format!("{}/to_bool", caller.name),
            op: "Cast",
            device: &caller.device,
            attrs: vec![("SrcT", type_attr(dtype)), ("DstT", type_attr(DType::Bool))],
            inputs: vec![source.data()],
        })?;
        Ok(Source {
            node,
            slot: 0,
            ..source
        })
    }

    pub(super) fn add(&mut self, new: New<'_>) -> Result<NodeId, LowerError> {
        let definition = self.definition(new.op, &new.name)?;
        let attrs = new.attrs.into_iter();
        let attrs = AttrSet::new(attrs.map(|(name, value)| (name.into(), value)));
        let attrs = self.completed(&definition, attrs, &new.name)?;
        self.append(&new.name, &definition, &attrs, &new.inputs, new.device, &[])
    }

    pub(super) fn definition(&self, op: &str, node: &str) -> Result<Arc<OpDef>, LowerError> {
        self.ops.get(op).cloned().ok_or_else(|| LowerError::Call {
            node: node.to_owned(),
            op: op.to_owned(),
            problem: "the op registry does not define this op, which calls are lowered to".into(),
        })
    }

    pub(super) fn completed(
        &self,
        definition: &OpDef,
        attrs: AttrSet,
        node: &str,
    ) -> Result<AttrSet, LowerError> {
        if !self.is_checked {
            return Ok(attrs);
        }
        let listed = attrs
            .iter()
            .map(|(name, value)| (name.into(), value.clone()));
        let completed = definition.complete_attrs(listed.collect());
        completed.map_err(|(attr, _)| LowerError::Call {
            node: node.to_owned(),
            op: definition.name().to_owned(),
            problem: format!("attribute `{attr}` is missing or wrong"),
        })
    }

    /// Adds a node of a defined op. `shapes`: what the graph knows of its outputs.
    pub(super) fn append(
        &mut self,
        name: &str,
        op: &OpDef,
        attrs: &AttrSet,
        edges: &[Input],
        device: &str,
        shapes: &[PartialShape],
    ) -> Result<NodeId, LowerError> {
        let inputs = edges.iter().filter_map(|edge| match *edge {
            Input::Data { node, slot } => Some(self.op_input(Source {
                node,
                slot,
                is_guarded: false,
            })),
            Input::Control(_) => None,
        });
        let mut inputs: Vec<OpInput> = inputs.collect();
        let failed = |problem: String| LowerError::Call {
            node: name.to_owned(),
            op: op.name().to_owned(),
            problem,
        };
        let slots = op
            .input_slots(attrs)
            .map_err(|error| failed(error.to_string()))?;
        // Inputs that close a loop are added later.
        for slot in slots.iter().skip(inputs.len()) {
            inputs.push(OpInput {
                dtype: slot.dtype,
                shape: PartialShape::unknown(),
                known: Known::Nothing,
            });
        }
        let inferred = self.assembler.infer(op, attrs, &inputs, |inferred| {
            for (shape, known) in inferred.iter_mut().zip(shapes) {
                if let Some(merged) = shape.merge(known) {
                    *shape = merged;
                }
            }
            Ok(())
        });
        let inferred = inferred.map_err(|error| failed(problem(error)))?;
        self.append_inferred(name, op, attrs, edges, device, inferred)
    }

    pub(super) fn append_inferred(
        &mut self,
        name: &str,
        op: &OpDef,
        attrs: &AttrSet,
        edges: &[Input],
        device: &str,
        inferred: Inferred,
    ) -> Result<NodeId, LowerError> {
        let node = OpNode {
            name,
            op,
            attrs,
            edges,
            requested_device: device,
        };
        Ok(self.assembler.append(&node, inferred)?)
    }

    pub(super) fn output(&self, source: Source) -> Output {
        let output = self
            .assembler
            .graph()
            .output(source.node, source.slot as usize);
        output.expect("sources are outputs of nodes that have been added")
    }

    pub(super) fn dtype(&self, source: Source) -> DType {
        self.output(source).dtype
    }

    pub(super) fn op_input(&self, source: Source) -> OpInput {
        let output = self.output(source);
        OpInput {
            dtype: output.dtype,
            shape: output.shape,
            known: self.assembler.known(source.node, source.slot),
        }
    }
}

/// Returns the requested device of a node of a function: what the node does not say, its caller
/// says.
pub(super) fn merged_device(of_node: &str, of_caller: &str) -> String {
    match (of_node, of_caller) {
        ("", device) | (device, "") => device.to_owned(),
        (of_node, of_caller) => {
            let names = (
                DeviceName::parse_full(of_node),
                DeviceName::parse_full(of_caller),
            );
            match names {
                (Ok(mut name), Ok(caller)) => {
                    name.merge_unset(&caller);
                    name.request_text()
                }
                _ => of_node.to_owned(),
            }
        }
    }
}

/// Returns the attributes of a node of a function, with colocation by the nodes' new names.
pub(super) fn within(attrs: &AttrSet, scope: &Scope<'_>) -> AttrSet {
    const COLOCATED: &[u8] = b"loc:@";
    let Some(AttrValue::List(classes)) = attrs.get("_class") else {
        return attrs.clone();
    };
    let renamed = classes.iter().filter_map(|class| {
        let AttrValue::Bytes(text) = class else {
            return Some(class.clone());
        };
        let Some(name) = text.strip_prefix(COLOCATED) else {
            return Some(class.clone());
        };
        let name = std::str::from_utf8(name).ok()?;
        let node = scope.graph.find_node(name)?;
        // Arguments are nodes of the caller.
        (scope.graph.op(node) != "_Arg").then(|| {
            let name = format!("loc:@{}{name}", scope.prefix);
            AttrValue::Bytes(name.as_bytes().into())
        })
    });
    let renamed = AttrValue::List(renamed.collect());
    AttrSet::new(attrs.iter().map(|(name, value)| match name {
        "_class" => (name.into(), renamed.clone()),
        _ => (name.into(), value.clone()),
    }))
}

pub(super) fn problem(error: OpNodeError) -> String {
    match error {
        OpNodeError::TooManyOutputs => "it has too many outputs".to_owned(),
        OpNodeError::Signature(error) => error.to_string(),
        OpNodeError::Shape(error) => error.to_string(),
    }
}

pub(super) fn type_attr(dtype: DType) -> AttrValue {
    AttrValue::Type {
        dtype,
        is_ref: false,
    }
}
