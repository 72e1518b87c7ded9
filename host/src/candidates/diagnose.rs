//! All that keeps a graph from being placed, at once: [`super::enumerate`] stops at the first.

use std::sync::Arc;

use serde::Serialize;

use crate::candidates::colocate::check_kernels;
use crate::candidates::enumerate::Asked;
use crate::candidates::error::CandidatesError;
use crate::candidates::explain::Explainer;
use crate::candidates::inspect::Inspector;
use crate::candidates::options::PlacementOptions;
use crate::candidates::refusal::Constraint;
use crate::candidates::refusal::Refusal;
use crate::candidates::refusal::Suggestion;
use crate::candidates::report::Facts;
use crate::candidates::support::Supports;
use crate::candidates::support::runs_anywhere;
use crate::device::DeviceSet;
use crate::device::KernelRegistry;
use crate::device::create_kernel;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::ops::OpRegistry;

/// The clashes of a graph: all nodes that nothing has a kernel for, then the sets of constraints
/// that no device meets, each without what mends an earlier one; of nodes that are tied together
/// the first 16. Empty where [`super::enumerate`] succeeds.
///
/// The search is bounded by work, some seconds: what it does not get to is missing, and may be all
/// of it.
///
/// # Errors
/// [`CandidatesError`] for what is no clash: no devices, a malformed request, a pin or default
/// device that does not exist, a call that cannot be looked into.
pub fn refusals(
    graph: &Arc<Graph>,
    device_set: &Arc<DeviceSet>,
    kernels: &KernelRegistry,
    options: &PlacementOptions,
) -> Result<Vec<Refusal>, CandidatesError> {
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
    check_kernels(&facts, pinned, options, &mut supports, |node, error| {
        match error {
            // That its device has no kernel is a clash of two constraints.
            CandidatesError::PinNotLegal { .. } | CandidatesError::AssignedDevice { .. }
                if has_kernel(node) =>
            {
                culprits.push(node.0);
            }
            error => found.push(without_kernel(&facts, node, &error)),
        }
        Ok(())
    })?;
    // What nothing has a kernel for is reported; from here on it may be anywhere.
    supports.lift_missing(facts.types);
    let mut inspector = Inspector::new(graph, options);
    let explainer = Explainer::new(&facts, options, pinned, &supports, &mut inspector, None);
    found.extend(explainer?.refusals(culprits));
    Ok(found)
}

fn without_kernel(facts: &Facts<'_>, node: NodeId, error: &CandidatesError) -> Refusal {
    let (name, op) = (facts.graph.node_name(node), facts.graph.op(node));
    let request = &facts.requests[facts.graph.requested_ids()[node.index()] as usize];
    let known = |device_type: &str| facts.types.names.iter().any(|name| name == device_type);
    let constraint = match error {
        CandidatesError::NodeDef { source, .. } => {
            return Refusal {
                constraints: vec![Constraint::Definition {
                    node: name.to_owned(),
                    op: op.to_owned(),
                    problem: source.to_string(),
                }],
                suggestions: Vec::new(),
            };
        }
        CandidatesError::NoSuchDevice { request, .. } => Constraint::Request {
            node: name.to_owned(),
            request: request.clone(),
            devices: Vec::new(),
        },
        _ => Constraint::Kernels {
            node: name.to_owned(),
            op: op.to_owned(),
            device_types: Vec::new(),
        },
    };
    // The first device is a CPU, which is what kernels are written for first.
    let first = facts.types.of_device[0] as usize;
    let wanted = request.device_type.as_deref().filter(|name| known(name));
    Refusal {
        constraints: vec![constraint],
        suggestions: vec![Suggestion::Kernel {
            op: op.to_owned(),
            device_type: wanted.unwrap_or(&facts.types.names[first]).to_owned(),
        }],
    }
}

/// A node that no device of the set has a kernel for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UnsupportedNode {
    /// The function whose body it is in; `None` = the graph itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function: Option<String>,
    /// The node.
    pub node: String,
    /// Its op.
    pub op: String,
    /// Why.
    pub reason: String,
}

/// Every node that no device of the set can execute, in node order, those of function bodies last.
/// Kernels are made, and dropped: one that refuses a node's attributes says so here already.
/// Placement lets an op that nobody defines, such as a function's name, be anywhere, as TensorFlow
/// does; here it is listed. In a function body, whose element types depend on the call, ops alone
/// are looked at. `ops` fills in what nodes leave out, in a graph that has not been checked before.
///
/// # Errors
/// As [`refusals`].
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
                true => "it calls a function by its name, which is not executed".to_owned(),
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
    for function in graph.functions() {
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

/// Why a kernel refuses a node, if those of all device types that have one do. Constants and what
/// is fed need none.
fn refused_by_all(
    facts: &Facts<'_>,
    ops: Option<&OpRegistry>,
    node: NodeId,
    supports: &Supports,
) -> Option<String> {
    let op = facts.graph.op(node);
    if op == "Const" || op.starts_with("Placeholder") {
        return None;
    }
    let supported = &supports.sets[supports.of_node(facts.graph, node) as usize];
    let mut first_error = None;
    for &(number, _) in supported {
        let mut of_type = facts.devices.iter().zip(&facts.types.of_device);
        let device = of_type.find(|&(_, &device_type)| device_type == number);
        // A device that executes nothing itself may have any kernel.
        let device = device.and_then(|((_, device), _)| device.as_kernel_device())?;
        match create_kernel(facts.kernels, ops, facts.graph, node, device) {
            Ok(_) => return None,
            Err(error) => {
                first_error.get_or_insert_with(|| error.to_string());
            }
        }
    }
    first_error
}

/// In one line, without what the row says already.
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
