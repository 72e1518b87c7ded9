//! Leaves out the nodes and functions that a signature does not need: savers, training, other
//! signatures. They may use ops that are not known.

use hashbrown::HashMap;
use hashbrown::HashSet;

use super::flow::function_name;
use crate::import::Parts;
use crate::import::proto::NodeDef;
use crate::import::rewrite::by_name;
use crate::import::rewrite::functions_of;
use crate::import::rewrite::name;
use crate::import::rewrite::op;
use crate::import::rewrite::producer;

/// Returns the nodes that these tensors or nodes need, and the functions that they reach. Names
/// that the graph does not have are ignored.
pub(super) fn only_needed(parts: &Parts, roots: &[String]) -> Parts {
    let positions = by_name(&parts.nodes);
    let mut is_needed = vec![false; parts.nodes.len()];
    let position = |input: &str| positions.get(producer(input)).copied();
    let mut pending: Vec<usize> = roots.iter().filter_map(|root| position(root)).collect();
    while let Some(index) = pending.pop() {
        if std::mem::replace(&mut is_needed[index], true) {
            continue;
        }
        let inputs = parts.nodes[index].input.iter();
        let inputs = inputs.filter_map(|input| std::str::from_utf8(input).ok());
        pending.extend(inputs.filter_map(position));
    }
    let nodes = parts.nodes.iter().zip(&is_needed);
    let nodes: Vec<NodeDef> = nodes
        .filter(|(_, is_needed)| **is_needed)
        .map(|(node, _)| node.clone())
        .collect();
    let is_reached = reached(parts, &nodes);
    let functions = parts.functions.iter().zip(&is_reached);
    Parts {
        functions: functions
            .filter(|(_, is_reached)| **is_reached)
            .map(|(function, _)| function.clone())
            .collect(),
        nodes,
        producer_version: parts.producer_version,
    }
}

/// Returns whether nodes reach each function of the library.
fn reached(parts: &Parts, nodes: &[NodeDef]) -> Vec<bool> {
    let names = parts.functions.iter().map(function_name);
    let positions: HashMap<&str, usize> = names.zip(0..).collect();
    let mut is_reached = vec![false; parts.functions.len()];
    let mut pending: Vec<&[NodeDef]> = vec![nodes];
    while let Some(nodes) = pending.pop() {
        let mut called: HashSet<String> = HashSet::new();
        for node in nodes {
            called.insert(op(node).to_owned());
            called.extend(functions_of(node).into_iter().map(|(_, function)| function));
        }
        for function in called {
            if let Some(&index) = positions.get(function.as_str())
                && !std::mem::replace(&mut is_reached[index], true)
            {
                pending.push(&parts.functions[index].node_def);
            }
        }
    }
    is_reached
}

/// Returns whether a graph has the node of a tensor or operation.
pub(super) fn has_node(parts: &Parts, tensor: &str) -> bool {
    let wanted = producer(tensor);
    parts.nodes.iter().any(|node| name(node) == wanted)
}
