//! Which tensor of the checkpoint a variable is restored from. The graph tells: its restore op runs
//! nodes that assign outputs of `RestoreV2` to variables.

use hashbrown::HashMap;

use super::flow::Flow;
use super::flow::NodeAt;
use super::prune::only_needed;
use crate::import::Parts;
use crate::import::literal_of;
use crate::import::proto::NodeDef;
use crate::import::proto::Value;
use crate::import::rewrite::attr;
use crate::import::rewrite::by_name;
use crate::import::rewrite::data_inputs;
use crate::import::rewrite::op;
use crate::import::rewrite::variable_of;
use crate::tensor::Literal;
use crate::tensor::LiteralData;

/// Where the value of a variable is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Source {
    /// Name in the checkpoint.
    pub(super) tensor: String,
    /// The part of a partitioned variable, as `RestoreV2` takes it; empty means the whole tensor.
    pub(super) slice: String,
}

/// Returns the sources of the variables that a node of the graph restores, by [`variable_of`].
pub(super) fn sources(parts: &Parts, restore_op: &str) -> HashMap<(String, String), Source> {
    let parts = only_needed(parts, &[restore_op.to_owned()]);
    let flow = Flow::new(&parts);
    let mut reader = Reader {
        flow: &flow,
        names: HashMap::new(),
        lists: HashMap::new(),
    };
    let mut sources = HashMap::new();
    for &scope in &flow.scopes {
        for node in flow.nodes(scope) {
            if op(node) != "AssignVariableOp" {
                continue;
            }
            let inputs: Vec<&str> = data_inputs(node).collect();
            let [variable, value] = inputs[..] else {
                continue;
            };
            if let Some((variable, source)) = reader.source(scope, variable, value) {
                sources.insert(variable, source);
            }
        }
    }
    sources
}

/// Reads constants of `RestoreV2` nodes, each once.
struct Reader<'a> {
    flow: &'a Flow<'a>,
    /// Positions of nodes by name, per scope.
    names: HashMap<usize, HashMap<&'a str, usize>>,
    /// By node and input.
    lists: HashMap<(NodeAt, usize), Option<Literal>>,
}

impl Reader<'_> {
    /// Returns a variable and what is assigned to it, if both are certain.
    fn source(
        &mut self,
        scope: usize,
        variable: &str,
        value: &str,
    ) -> Option<((String, String), Source)> {
        let flow = self.flow;
        let variables = flow.class(flow.class_of(scope, variable)?);
        let values = flow.class(flow.class_of(scope, value)?);
        if variables.has_other_source || values.has_other_source {
            return None;
        }
        let mut candidates = variables.variables.iter();
        let (Some(&(scope, index)), None) = (candidates.next(), candidates.next()) else {
            return None;
        };
        let mut candidates = values.restored.iter();
        let (Some(&(at, slot)), None) = (candidates.next(), candidates.next()) else {
            return None;
        };
        let source = Source {
            tensor: self.string(at, 1, slot)?,
            slice: self.string(at, 2, slot)?,
        };
        Some((variable_of(&flow.nodes(scope)[index]), source))
    }

    /// Returns element `slot` of a constant that is input `input` of a node.
    fn string(&mut self, at: NodeAt, input: usize, slot: usize) -> Option<String> {
        if !self.lists.contains_key(&(at, input)) {
            let list = self.strings(at, input);
            self.lists.insert((at, input), list);
        }
        let literal = self.lists.get(&(at, input))?.as_ref()?;
        let LiteralData::Strings(strings) = literal.data() else {
            return None;
        };
        if slot >= literal.shape().n_elements() {
            return None;
        }
        // The last one repeats; no string at all means empty strings.
        let string = strings.get(slot).or(strings.last());
        let string = string.map_or(&[][..], |string| string);
        Some(String::from_utf8_lossy(string).into_owned())
    }

    fn strings(&mut self, at: NodeAt, input: usize) -> Option<Literal> {
        let nodes = self.flow.nodes(at.0);
        let names = self.names.entry(at.0).or_insert_with(|| by_name(nodes));
        let mut node: &NodeDef = &nodes[at.1];
        let mut input = data_inputs(node).nth(input)?;
        // Identities of a damaged file may form a cycle.
        for _ in 0..nodes.len() {
            node = &nodes[*names.get(input.split(':').next()?)?];
            match op(node) {
                "Identity" => input = data_inputs(node).next()?,
                "Const" => {
                    let Some(Value::Tensor(tensor)) = attr(node, "value") else {
                        return None;
                    };
                    return literal_of(&tensor).ok();
                }
                _ => return None,
            }
        }
        None
    }
}
