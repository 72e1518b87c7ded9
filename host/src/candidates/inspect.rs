//! Calls that placement inspects (TensorFlow `InspectingPlacer`): if a function passes a resource
//! from an argument to a result, the producer of the argument and the readers of the result must
//! share a device, although the call itself may be on another one.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::candidates::body;
use crate::candidates::colocate::colocation_groups;
use crate::candidates::colocate::parse_requests;
use crate::candidates::error::CandidatesError;
use crate::candidates::isolate::isolated;
use crate::candidates::options::OpArguments;
use crate::candidates::options::PlacementOptions;
use crate::candidates::report::Facts;
use crate::candidates::support::SupportedTypes;
use crate::candidates::support::to_u32;
use crate::graph::AttrSet;
use crate::graph::AttrValue;
use crate::graph::Function;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;
use crate::tensor::DType;

/// Nested calls use the stack of the thread.
const CALL_DEPTH_MAX: usize = 64;

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

/// Returns the calls of a graph whose functions return a resource; none if ops are not defined.
///
/// # Errors
/// [`CandidatesError::CalledFunction`] for a function that is missing or does not fit the call.
pub(super) fn calls_to_inspect(
    graph: &Graph,
    library: &Graph,
    ops: Option<&dyn OpArguments>,
) -> Result<Vec<NodeId>, CandidatesError> {
    let is_call = |op: &str| ["PartitionedCall", "StatefulPartitionedCall"].contains(&op);
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
fn called<'a>(
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

fn called_function(
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

/// Inspects functions, once per function and attributes.
#[derive(Debug)]
pub(super) struct Inspector<'a> {
    /// The graph with the function library.
    library: &'a Graph,
    options: &'a PlacementOptions,
    known: HashMap<(Arc<str>, AttrSet), Arc<CallGroups>>,
    /// The functions under inspection, outermost first.
    stack: Vec<Arc<str>>,
}

impl<'a> Inspector<'a> {
    pub(super) fn new(library: &'a Graph, options: &'a PlacementOptions) -> Self {
        Self {
            library,
            options,
            known: HashMap::new(),
            stack: Vec::new(),
        }
    }

    /// Returns the calls of the graph, or of a body, to inspect.
    ///
    /// # Errors
    /// As [`calls_to_inspect`].
    pub(super) fn calls(&self, graph: &Graph) -> Result<Vec<NodeId>, CandidatesError> {
        calls_to_inspect(graph, self.library, self.options.op_arguments.as_deref())
    }

    /// Returns the constraints that a call's function puts on the neighbours of the call.
    ///
    /// # Errors
    /// [`CandidatesError::RecursiveCall`]; [`CandidatesError::CalledFunction`];
    /// [`CandidatesError::InFunction`] if the body cannot be placed.
    pub(super) fn look_into(
        &mut self,
        facts: &Facts<'_>,
        call: NodeId,
    ) -> Result<Arc<CallGroups>, CandidatesError> {
        let graph = facts.graph;
        let library = self.library;
        let (Some((function, attrs)), Some(ops)) = (
            called(graph, library, call)?,
            self.options.op_arguments.as_deref(),
        ) else {
            let problem = "its definition is unknown".to_owned();
            return Err(called_function(graph, call, "?", problem));
        };
        let key = (Arc::clone(&function.name), attrs.clone());
        if let Some(known) = self.known.get(&key) {
            return Ok(Arc::clone(known));
        }
        if self.stack.contains(&function.name) || self.stack.len() >= CALL_DEPTH_MAX {
            return Err(CandidatesError::RecursiveCall {
                node: graph.node_name(call).to_owned(),
                function: function.name.to_string(),
                stack: self.stack.join(" > "),
                depth_max: CALL_DEPTH_MAX,
            });
        }
        let body = body::instantiate(function, attrs, library, ops)
            .map_err(|problem| called_function(graph, call, &function.name, problem))?;
        self.stack.push(Arc::clone(&function.name));
        let found = self.groups_of(facts, &body);
        self.stack.pop();
        let found = Arc::new(found.map_err(|source| CandidatesError::InFunction {
            function: function.name.to_string(),
            node: graph.node_name(call).to_owned(),
            source: Box::new(source),
        })?);
        self.known.insert(key, Arc::clone(&found));
        Ok(found)
    }

    fn groups_of(
        &mut self,
        caller: &Facts<'_>,
        body: &body::Body,
    ) -> Result<CallGroups, CandidatesError> {
        let isolated = isolated(&body.graph, &self.calls(&body.graph)?)?;
        let graph = isolated.as_ref().unwrap_or(&body.graph);
        let requests = parse_requests(graph, &DeviceName::default())?;
        let facts = Facts {
            graph,
            requests: &requests,
            is_body: true,
            ..*caller
        };
        let (mut supports, mut groups) = colocation_groups(&facts, None, self.options, self)?;
        let mut of_root: HashMap<u32, u32> = HashMap::new();
        let mut limits = Vec::new();
        let mut numbers = |names: &[String]| -> Vec<u32> {
            let nodes = names.iter().filter_map(|name| graph.find_node(name));
            nodes
                .map(|node| {
                    let (root, state) = groups.of_node(node.0, &mut supports);
                    *of_root.entry(root).or_insert_with(|| {
                        limits.push(GroupLimits {
                            requested: state.requested,
                            resource: state.resource,
                            supported: supports.sets[state.support as usize].clone(),
                        });
                        to_u32(limits.len() - 1)
                    })
                })
                .collect()
        };
        let (args, results) = (numbers(&body.args), numbers(&body.results));
        Ok(CallGroups {
            args,
            results,
            groups: limits,
        })
    }
}
