//! Calls that placement inspects (TensorFlow `InspectingPlacer`): if a function passes a resource
//! from an argument to a result, the producer of the argument and the readers of the result must
//! share a device, although the call itself may be on another one.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::candidates::calls::CallGroups;
use crate::candidates::calls::CallInspector;
use crate::candidates::calls::GroupLimits;
use crate::candidates::calls::called;
use crate::candidates::calls::called_function;
use crate::candidates::calls::calls_to_inspect;
use crate::candidates::colocate::colocation_groups;
use crate::candidates::colocate::parse_requests;
use crate::candidates::error::CandidatesError;
use crate::candidates::facts::Facts;
use crate::candidates::index::to_u32;
use crate::candidates::isolate::isolated;
use crate::candidates::options::PlacementOptions;
use crate::functions::body;
use crate::graph::AttrSet;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::names::DeviceName;

/// Nested calls use the stack of the thread.
const CALL_DEPTH_MAX: usize = 64;

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

impl CallInspector for Inspector<'_> {
    fn calls(&self, graph: &Graph) -> Result<Vec<NodeId>, CandidatesError> {
        calls_to_inspect(graph, self.library, self.options.op_arguments.as_deref())
    }

    fn look_into(
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
        let body = body::instantiate(function, attrs, library, &|op| ops.definition(op))
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
}
