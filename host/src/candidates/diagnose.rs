//! All conflicts of a graph at once; [`super::enumerate`] stops at the first.

use std::sync::Arc;

use hashbrown::HashMap;
use hashbrown::hash_map::Entry;
use serde::Serialize;

use crate::candidates::colocate::check_kernels;
use crate::candidates::conflict::Conflict;
use crate::candidates::conflict::Constraint;
use crate::candidates::conflict::Suggestion;
use crate::candidates::enumerate::Asked;
use crate::candidates::error::CandidatesError;
use crate::candidates::explain::Explainer;
use crate::candidates::facts::Facts;
use crate::candidates::inspect::Inspector;
use crate::candidates::options::PlacementOptions;
use crate::candidates::support::Supports;
use crate::candidates::support::runs_anywhere;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::device::create_kernel;
use crate::functions::has_calls;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::OpRegistry;
use crate::ops::decides_dead_tensors;

/// Returns the conflicts of a graph: first all nodes without a kernel, then the sets of constraints
/// that no device meets. Each set is found without the constraint whose removal resolves an earlier
/// one. Of nodes that are tied together, the first 16 conflicts are listed. Empty if
/// [`super::enumerate`] succeeds.
///
/// The search is bounded to some seconds of work; conflicts that it does not reach are missing.
///
/// # Errors
/// [`CandidatesError`] for other problems: no devices, a malformed request, a pin or default device
/// that does not exist, a call that cannot be inspected.
pub fn conflicts(
    graph: &Arc<Graph>,
    device_set: &Arc<DeviceSet>,
    kernels: &KernelRegistry,
    options: &PlacementOptions,
) -> Result<Vec<Conflict>, CandidatesError> {
    let asked = Asked::of(graph, device_set, options)?;
    let facts = asked.facts(graph, device_set, kernels, options);
    let pinned = asked.pinned.as_deref();
    let mut supports = Supports::of(&facts)?;
    let of_class = supports.of_class.iter();
    let of_class: Vec<bool> = of_class
        .map(|&id| !supports.sets[id as usize].is_empty())
        .collect();
    let has_kernel = |node: NodeId| of_class[graph.class_ids()[node.index()] as usize];
    let (mut found, mut culprits) = (Vec::new(), Vec::new());
    let mut of_cause = HashMap::new();
    check_kernels(&facts, pinned, options, &mut supports, |node, error| {
        match error {
            // A pin to a device without a kernel is a conflict of two constraints.
            CandidatesError::PinNotLegal { .. } | CandidatesError::AssignedDevice { .. }
                if has_kernel(node) =>
            {
                culprits.push(node.0);
            }
            error => {
                let of_node = without_kernel(&facts, node, &error);
                merge(&mut found, &mut of_cause, graph.node_name(node), of_node);
            }
        }
        Ok(())
    })?;
    // Nodes without a kernel are reported. From here on they may be on any device.
    supports.lift_missing(facts.types);
    let mut inspector = Inspector::new(graph, options);
    let explainer = Explainer::new(&facts, options, pinned, &supports, &mut inspector, None);
    found.extend(explainer?.conflicts(culprits));
    Ok(found)
}

/// Adds the conflict of one node, or only the node to the conflict of the same cause, whose
/// position is in `of_cause`.
fn merge(
    found: &mut Vec<Conflict>,
    of_cause: &mut HashMap<[String; 3], usize>,
    node: &str,
    of_node: Conflict,
) {
    if let Some(cause) = cause(&of_node) {
        match of_cause.entry(cause) {
            Entry::Occupied(position) => {
                let constraints = found[*position.get()].constraints.iter_mut();
                for nodes in constraints.filter_map(Constraint::nodes_mut) {
                    nodes.push(node.to_owned());
                }
                return;
            }
            Entry::Vacant(position) => {
                position.insert(found.len());
            }
        }
    }
    found.push(of_node);
}

/// Returns what nodes without a kernel share if they have the same conflict: op, device type of the
/// suggested kernel, and the request if it is the cause. `None` if no other node has the conflict.
fn cause(conflict: &Conflict) -> Option<[String; 3]> {
    let [Suggestion::Kernel { op, device_type }] = &conflict.suggestions[..] else {
        return None;
    };
    let request = match &conflict.constraints[..] {
        [Constraint::Request { request, .. }] => request.clone(),
        _ => String::new(),
    };
    Some([op.clone(), device_type.clone(), request])
}

fn without_kernel(facts: &Facts<'_>, node: NodeId, error: &CandidatesError) -> Conflict {
    let (name, op) = (facts.graph.node_name(node), facts.graph.op(node));
    let request = &facts.requests[facts.graph.requested_ids()[node.index()] as usize];
    let known = |device_type: &str| facts.types.names.iter().any(|name| name == device_type);
    let constraint = match error {
        CandidatesError::NodeDef { source, .. } => {
            return Conflict {
                constraints: vec![Constraint::Definition {
                    node: name.to_owned(),
                    op: op.to_owned(),
                    problem: source.to_string(),
                }],
                suggestions: Vec::new(),
            };
        }
        CandidatesError::NoSuchDevice { request, .. } => Constraint::Request {
            nodes: vec![name.to_owned()],
            request: request.clone(),
            devices: Vec::new(),
            available: facts.device_names(),
        },
        _ => Constraint::Kernels {
            nodes: vec![name.to_owned()],
            op: op.to_owned(),
            device_types: Vec::new(),
        },
    };
    // The first device is a CPU, for which kernels are usually written first.
    let first = facts.types.of_device[0] as usize;
    let wanted = request.device_type.as_deref().filter(|name| known(name));
    Conflict {
        constraints: vec![constraint],
        suggestions: vec![Suggestion::Kernel {
            op: op.to_owned(),
            device_type: wanted.unwrap_or(&facts.types.names[first]).to_owned(),
        }],
    }
}

/// A node without a kernel on any device of the set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnsupportedNode {
    /// The function whose body contains it; `None` for the graph itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The node.
    pub node: String,
    /// Its op.
    pub op: String,
    /// The reason.
    pub reason: String,
}

/// Returns every node that no device of the set can execute, in node order, with those of function
/// bodies last. Kernels are created and dropped, so kernels that reject a node's attributes are
/// found, too. As in TensorFlow, placement allows an undefined op, such as a function's name, on
/// any device; here it is listed. In function bodies, whose dtypes depend on the call, only ops are
/// checked. `ops` supplies default attributes in a graph that has not been checked.
///
/// # Errors
/// As [`conflicts`].
pub fn unsupported_nodes(
    graph: &Arc<Graph>,
    device_set: &Arc<DeviceSet>,
    kernels: &KernelRegistry,
    options: &PlacementOptions,
    ops: Option<&OpRegistry>,
) -> Result<Vec<UnsupportedNode>, CandidatesError> {
    let asked = Asked::of(graph, device_set, options)?;
    let facts = asked.facts(graph, device_set, kernels, options);
    let mut supports = Supports::of(&facts)?;
    let mut reasons = vec![None; graph.n_nodes()];
    check_kernels(&facts, None, options, &mut supports, |node, error| {
        reasons[node.index()] = Some(reason(&error));
        Ok(())
    })?;
    let mut found = Vec::new();
    for (node, reason) in graph.nodes().zip(reasons) {
        let op = graph.op(node);
        let reason = reason.or_else(|| {
            let is_function = graph.find_function(op).is_some();
            runs_anywhere(&facts, op).then(|| match is_function {
                true => "calling a function by its name is not supported".to_owned(),
                false => "the op is not defined".to_owned(),
            })
        });
        let reason = reason.or_else(|| refused_by_all(&facts, ops, node, &supports));
        found.extend(reason.map(|reason| UnsupportedNode {
            function: None,
            node: graph.node_name(node).to_owned(),
            op: op.to_owned(),
            reason,
        }));
    }
    let has_kernel = |op: &str| {
        let mut defs = kernels.of_op(op).iter();
        defs.any(|def| facts.types.names.contains(&def.device_type))
    };
    // The nodes of functions that a lowered graph called are in the graph.
    let functions = has_calls(graph).then(|| graph.functions());
    for function in functions.unwrap_or_default() {
        for node in function.nodes.iter().filter(|node| !has_kernel(&node.op)) {
            found.push(UnsupportedNode {
                function: Some(function.name.to_string()),
                node: node.name.to_string(),
                op: node.op.to_string(),
                reason: format!("no kernel on [{}]", facts.types.names.join(", ")),
            });
        }
    }
    Ok(found)
}

/// Returns why a kernel rejects a node, if the kernels of all its device types do. Constants,
/// placeholders, and ops that the executor itself executes need no kernel.
fn refused_by_all(
    facts: &Facts<'_>,
    ops: Option<&OpRegistry>,
    node: NodeId,
    supports: &Supports,
) -> Option<String> {
    let op = facts.graph.op(node);
    if op == "Const" || op.starts_with("Placeholder") || decides_dead_tensors(op) {
        return None;
    }
    let supported = &supports.sets[supports.of_node(facts.graph, node) as usize];
    let mut first_error = None;
    for &(number, _) in supported {
        let mut of_type = facts.devices.iter().zip(&facts.types.of_device);
        let device = of_type.find(|&(_, &device_type)| device_type == number);
        // A device that executes nothing in this process may have any kernel.
        let device = device.and_then(|((_, device), _)| device.as_kernel_device())?;
        // It prepares nodes together with others.
        if device.as_partition_device().is_some() {
            return None;
        }
        match create_kernel(facts.kernels, ops, facts.graph, node, device) {
            Ok(_) => return None,
            Err(error) => {
                first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    first_error
}

/// Formats an error as one line, without the node and op of the row.
fn reason(error: &CandidatesError) -> String {
    match error {
        CandidatesError::NoKernel {
            dtypes,
            device_types,
            has_mismatch: true,
            registered,
            ..
        } => {
            let lines = registered.lines().map(str::trim);
            let lines: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
            let registered = lines.join("; ");
            format!("no kernel for ({dtypes}) on [{device_types}]; registered: {registered}")
        }
        CandidatesError::NoKernel { device_types, .. } => format!("no kernel on [{device_types}]"),
        CandidatesError::NodeDef { source, .. } => source.to_string(),
        error => error.to_string(),
    }
}
