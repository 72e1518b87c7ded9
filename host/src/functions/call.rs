//! Graphs that consist of one call: placeholders for the arguments of a function, and its results.

use std::sync::Arc;

use super::body;
use super::lower::LowerError;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Graph;
use crate::graph::GraphAssembler;
use crate::graph::Input;
use crate::graph::NodeId;
use crate::graph::NodeSpec;
use crate::graph::Output;
use crate::graph::Work;
use crate::tensor::DType;
use crate::tensor::PartialShape;

/// A graph that calls a function of another graph's library.
#[derive(Debug)]
pub(crate) struct CallGraph {
    pub(crate) graph: Graph,
    /// The placeholders, in the order of the arguments.
    pub(crate) args: Vec<String>,
    /// The nodes whose output 0 is a result, in order.
    pub(crate) results: Vec<String>,
}

/// Makes a graph that calls a function with these attributes. `devices`: per argument the requested
/// device; missing ones are not requested. `device`: that of the call, and thus of all nodes of the
/// function that request no other one.
///
/// # Errors
/// [`LowerError`] if there is no such function, or the attributes do not fit it.
pub(crate) fn call_graph(
    library: &Graph,
    function: &str,
    attrs: &AttrSet,
    device: &str,
    devices: &[String],
) -> Result<CallGraph, LowerError> {
    let failed = |problem: String| LowerError::Call {
        node: function.to_owned(),
        op: "call".to_owned(),
        problem,
    };
    let found = library.find_function(function).ok_or_else(|| {
        let names = library.functions().iter().map(|function| &*function.name);
        let names: Vec<&str> = names.take(N_NAMES_MAX).collect();
        failed(format!(
            "the graph has no function of this name; it has: {}",
            names.join(", ")
        ))
    })?;
    let signature = body::signature(found, attrs);
    let args = signature
        .input_slots(attrs)
        .map_err(|error| failed(error.to_string()))?;
    let results = body::result_slots(found, attrs).map_err(failed)?;
    let mut assembler = GraphAssembler::new(function);
    for function in library.functions() {
        assembler.add_function(function.clone());
    }
    let mut add =
        |name: &str, op: &str, inputs: &[Input], device: &str, attrs, dtypes: &[DType]| {
            let outputs = dtypes.iter().map(|&dtype| Output {
                dtype,
                is_ref: false,
                shape: PartialShape::unknown(),
            });
            let outputs: Vec<Output> = outputs.collect();
            assembler.add_node(&NodeSpec {
                name,
                op,
                inputs,
                requested_device: device,
                attrs,
                outputs: &outputs,
                stateful: false,
                work: Work::default(),
            })
        };
    let mut arg_names = Vec::with_capacity(args.len());
    let mut inputs = Vec::with_capacity(args.len());
    for (index, slot) in args.iter().enumerate() {
        let name = format!("arg{index}");
        let attrs = AttrSet::new([
            (Arc::from("dtype"), type_attr(slot.dtype)),
            (
                Arc::from("shape"),
                AttrValue::Shape(PartialShape::unknown()),
            ),
        ]);
        let device = devices.get(index).map_or("", String::as_str);
        let node: NodeId = add(&name, "Placeholder", &[], device, attrs, &[slot.dtype])?;
        inputs.push(Input::Data { node, slot: 0 });
        arg_names.push(name);
    }
    let dtypes: Vec<DType> = results.iter().map(|slot| slot.dtype).collect();
    let call = add("call", function, &inputs, device, attrs.clone(), &dtypes)?;
    let mut result_names = Vec::with_capacity(dtypes.len());
    for (slot, &dtype) in (0..).zip(&dtypes) {
        let name = format!("result{slot}");
        let attrs = AttrSet::new([(Arc::from("T"), type_attr(dtype))]);
        let input = Input::Data { node: call, slot };
        add(&name, "Identity", &[input], "", attrs, &[dtype])?;
        result_names.push(name);
    }
    Ok(CallGraph {
        // These nodes are complete.
        graph: match library.is_checked() {
            true => assembler.finish_checked(),
            false => assembler.finish(),
        },
        args: arg_names,
        results: result_names,
    })
}

/// Functions that a message lists at most.
const N_NAMES_MAX: usize = 8;

fn type_attr(dtype: DType) -> AttrValue {
    AttrValue::Type {
        dtype,
        is_ref: false,
    }
}
