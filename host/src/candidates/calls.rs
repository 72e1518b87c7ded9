//! Calls whose functions tie the neighbours of the call to each other.

use std::sync::Arc;

use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::options::OpArguments;
use crate::candidates::types::SupportedTypes;
use crate::functions::body;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::ops::CallOp;
use crate::tensor::DType;

/// The constraints that the body of a function puts on the neighbours of a call.
#[derive(Debug)]
pub(super) struct CallGroups {
    /// Group of each argument, as an index into `groups`.
    pub(super) args: Vec<u32>,
    /// Group of each result, as an index into `groups`.
    pub(super) results: Vec<u32>,
    pub(super) groups: Vec<GroupLimits>,
}

/// The constraints of a colocation group of a body.
#[derive(Debug)]
pub(super) struct GroupLimits {
    pub(super) requested: DeviceName,
    pub(super) resource: DeviceName,
    pub(super) supported: SupportedTypes,
}

/// Finds the constraints that called functions put on the neighbours of their calls.
///
/// Colocation asks an inspector about the calls of a graph, and an inspector colocates the bodies
/// of functions in the same way. The trait names what the first needs of the second, so that
/// their files depend on each other in one direction only.
pub(super) trait CallInspector {
    /// Returns the calls of the graph, or of a body, to inspect.
    ///
    /// # Errors
    /// As [`calls_to_inspect`].
    fn calls(&self, graph: &Graph) -> Result<Vec<NodeId>, CandidatesError>;

    /// Returns the constraints that a call's function puts on the neighbours of the call.
    ///
    /// # Errors
    /// [`CandidatesError::RecursiveCall`]; [`CandidatesError::CalledFunction`];
    /// [`CandidatesError::InFunction`] if the body cannot be placed.
    fn look_into(
        &mut self,
        facts: &Facts<'_>,
        call: NodeId,
    ) -> Result<Arc<CallGroups>, CandidatesError>;
}

/// Returns the calls of a graph whose functions return a resource; none if ops are not defined.
///
/// # Errors
/// [`CandidatesError::CalledFunction`] for a function that is missing or does not fit the call.
pub(super) fn calls_to_inspect(
    graph: &Graph,
    library: &Graph,
    ops: Option<&dyn OpArguments>,
) -> Result<Vec<NodeId>, CandidatesError> {
    let is_call = |op: &str| CallOp::of(op) == Some(CallOp::Partitioned);
    let has_calls = graph.op_names().iter().any(|op| is_call(op));
    if ops.is_none() || !has_calls {
        return Ok(Vec::new());
    }
    let mut of_class: Vec<Option<bool>> = vec![None; graph.classes().len()];
    let mut calls = Vec::new();
    for node in graph.nodes().filter(|&node| is_call(graph.op(node))) {
        let needs = &mut of_class[graph.class_ids()[node.index()] as usize];
        let needs = match *needs {
            Some(needs) => needs,
            None => *needs.insert(gives_resource(graph, library, node)?),
        };
        if needs {
            calls.push(node);
        }
    }
    Ok(calls)
}

fn gives_resource(graph: &Graph, library: &Graph, call: NodeId) -> Result<bool, CandidatesError> {
    let Some((function, attrs)) = called(graph, library, call)? else {
        return Ok(false);
    };
    let slots = body::result_slots(function, attrs)
        .map_err(|problem| called_function(graph, call, &function.name, problem))?;
    Ok(slots.iter().any(|slot| slot.dtype == DType::Resource))
}

/// Returns the function that a call names, and the attributes that the call passes to it.
pub(super) fn called<'a>(
    graph: &'a Graph,
    library: &'a Graph,
    call: NodeId,
) -> Result<Option<(&'a Function, &'a AttrSet)>, CandidatesError> {
    let Some(AttrValue::Function(name, attrs)) = graph.attrs(call).get("f") else {
        return Ok(None);
    };
    match library.find_function(name) {
        Some(function) => Ok(Some((function, attrs))),
        None => {
            let problem = "it is not in the function library of the graph".to_owned();
            Err(called_function(graph, call, name, problem))
        }
    }
}

/// Returns the function name of a call; empty if it has none.
pub(super) fn called_name(graph: &Graph, call: NodeId) -> &str {
    match graph.attrs(call).get("f") {
        Some(AttrValue::Function(name, _)) => name,
        _ => "",
    }
}

/// Creates the error of a call whose function is missing or does not fit.
pub(super) fn called_function(
    graph: &Graph,
    call: NodeId,
    function: &str,
    problem: String,
) -> CandidatesError {
    CandidatesError::CalledFunction {
        node: graph.node_name(call).to_owned(),
        function: function.to_owned(),
        problem: problem.into(),
    }
}
