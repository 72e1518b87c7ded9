//! What a graph consists of, without an import: also for graphs with ops that are not known.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::VariableInfo;
use super::flow::function_name;
use super::load::is_variable;
use super::load::variable_info;
use crate::import;
use crate::import::ImportError;
use crate::import::ImportOptions;
use crate::import::Parts;
use crate::import::rewrite::op;

/// What a graph consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct GraphSummary {
    /// Number of nodes, without those of functions.
    pub n_nodes: usize,
    /// The ops of nodes and of functions, with the number of their nodes. Calls of functions are
    /// among them.
    pub ops: BTreeMap<String, usize>,
    /// The functions and the number of their nodes, in the order of the library.
    pub functions: Vec<(String, usize)>,
    /// The variables, by name.
    pub variables: Vec<VariableInfo>,
}

impl GraphSummary {
    /// Reads a GraphDef.
    ///
    /// # Errors
    /// [`ImportError`] if the bytes are malformed.
    pub fn of_graph_def(
        bytes: impl Into<Bytes>,
        options: &ImportOptions,
    ) -> Result<Self, ImportError> {
        let parts = import::split_file(&bytes.into(), options)?;
        let nodes = parts.nodes.iter().filter(|node| is_variable(node));
        let mut variables: Vec<VariableInfo> = nodes.map(variable_info).collect();
        variables.sort_by(|left, right| left.name.cmp(&right.name));
        Ok(Self::of(&parts, variables))
    }

    pub(super) fn of(parts: &Parts, variables: Vec<VariableInfo>) -> Self {
        let functions = parts.functions.iter();
        let bodies = functions.clone().flat_map(|function| &function.node_def);
        let mut ops = BTreeMap::new();
        for node in parts.nodes.iter().chain(bodies) {
            *ops.entry(op(node).to_owned()).or_insert(0) += 1;
        }
        Self {
            n_nodes: parts.nodes.len(),
            ops,
            functions: functions
                .map(|function| (function_name(function).to_owned(), function.node_def.len()))
                .collect(),
            variables,
        }
    }
}
