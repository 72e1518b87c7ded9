//! Resolves inputs and sorts nodes into TensorFlow's import order.
//!
//! Of all nodes whose inputs are numbered, the first one of the file comes next. An input of a
//! `Merge` that comes from a `NextIteration` closes a loop and is not waited for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use hashbrown::HashMap;

use super::ImportError;
use super::proto::NodeDef;

/// Maximum number of names in the error about a cycle.
const CYCLE_NAMES_MAX: usize = 16;

/// Source of an input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    /// Position of the producer in the file.
    pub(super) node: u32,
    /// Index of the output; `None` for a control input.
    pub(super) slot: Option<u32>,
    /// Whether it closes a loop.
    pub(super) is_back: bool,
}

/// The resolved inputs of all nodes, and the order of the nodes.
#[derive(Debug)]
pub(super) struct Order {
    /// Positions in the file, in import order.
    pub(super) nodes: Vec<u32>,
    offsets: Vec<u32>,
    sources: Vec<Source>,
}

impl Order {
    /// Returns the inputs of the node at this position of the file, in the order of the file.
    pub(super) fn inputs(&self, node: u32) -> &[Source] {
        let node = node as usize;
        &self.sources[self.offsets[node] as usize..self.offsets[node + 1] as usize]
    }

    /// Resolves inputs and orders nodes.
    pub(super) fn new(nodes: &[NodeDef]) -> Result<Self, ImportError> {
        let (offsets, sources) = resolve(nodes)?;
        let mut order = Self {
            nodes: Vec::with_capacity(nodes.len()),
            offsets,
            sources,
        };
        let mut pending: Vec<u32> = (0..to_u32(nodes.len()))
            .map(|node| to_u32(order.waited_for(node).count()))
            .collect();
        let consumers = order.consumers(nodes.len());
        let mut ready: BinaryHeap<Reverse<u32>> = (0..to_u32(nodes.len()))
            .filter(|&node| pending[node as usize] == 0)
            .map(Reverse)
            .collect();
        while let Some(Reverse(node)) = ready.pop() {
            order.nodes.push(node);
            for &consumer in consumers.row(node as usize) {
                let left = &mut pending[consumer as usize];
                *left -= 1;
                if *left == 0 {
                    ready.push(Reverse(consumer));
                }
            }
        }
        if order.nodes.len() < nodes.len() {
            return Err(order.cycle(nodes, &pending));
        }
        Ok(order)
    }

    fn waited_for(&self, node: u32) -> impl Iterator<Item = u32> + '_ {
        let inputs = self.inputs(node).iter();
        inputs
            .filter(|source| !source.is_back)
            .map(|source| source.node)
    }

    fn consumers(&self, n_nodes: usize) -> crate::graph::Csr {
        let mut offsets = vec![0u32; n_nodes + 1];
        for source in self.sources.iter().filter(|source| !source.is_back) {
            offsets[source.node as usize + 1] += 1;
        }
        for node in 0..n_nodes {
            offsets[node + 1] += offsets[node];
        }
        let mut next = offsets.clone();
        let mut items = vec![0; offsets[n_nodes] as usize];
        for consumer in 0..to_u32(n_nodes) {
            for producer in self.waited_for(consumer) {
                let slot = &mut next[producer as usize];
                items[*slot as usize] = consumer;
                *slot += 1;
            }
        }
        crate::graph::Csr { offsets, items }
    }

    /// Finds a cycle. Every pending node waits for another pending one, so following producers from
    /// any of them leads into a cycle.
    fn cycle(&self, nodes: &[NodeDef], pending: &[u32]) -> ImportError {
        let is_pending = |node: u32| pending[node as usize] > 0;
        let mut position = vec![None; nodes.len()];
        let mut path = Vec::new();
        let mut node = (0..to_u32(nodes.len()))
            .find(|&node| is_pending(node))
            .expect("a node is pending");
        let start = loop {
            if let Some(start) = position[node as usize] {
                break start;
            }
            position[node as usize] = Some(path.len());
            path.push(node);
            node = self
                .waited_for(node)
                .find(|&producer| is_pending(producer))
                .expect("a pending node waits for one that is pending");
        };
        let cycle = &path[start..];
        // The path goes from consumer to producer; readers expect the other direction.
        let names = cycle.iter().rev().take(CYCLE_NAMES_MAX);
        ImportError::Cycle {
            nodes: names.map(|&node| name(&nodes[node as usize])).collect(),
            n_omitted: cycle.len().saturating_sub(CYCLE_NAMES_MAX),
        }
    }
}

fn resolve(nodes: &[NodeDef]) -> Result<(Vec<u32>, Vec<Source>), ImportError> {
    let mut by_name: HashMap<&[u8], u32> = HashMap::with_capacity(nodes.len());
    for (index, node) in nodes.iter().enumerate() {
        if let Some(first) = by_name.insert(&node.name, to_u32(index)) {
            return Err(ImportError::DuplicateName {
                node: name(node),
                first: first as usize,
                second: index,
            });
        }
    }
    let n_inputs: usize = nodes.iter().map(|node| node.input.len()).sum();
    let mut offsets = Vec::with_capacity(nodes.len() + 1);
    let mut sources: Vec<Source> = Vec::with_capacity(n_inputs);
    offsets.push(0);
    for node in nodes {
        let first = sources.len();
        for (index, text) in node.input.iter().enumerate() {
            let error = |problem: &str| ImportError::InvalidInput {
                node: name(node),
                op: String::from_utf8_lossy(&node.op).into_owned(),
                input: index,
                text: String::from_utf8_lossy(text).into_owned(),
                problem: problem.to_owned(),
            };
            let (producer, slot) =
                parse(text).ok_or_else(|| error("expected `node`, `node:output` or `^node`"))?;
            let &producer = by_name
                .get(producer)
                .ok_or_else(|| error("there is no such node"))?;
            let after_control = sources[first..].last().is_some_and(|s| s.slot.is_none());
            if slot.is_some() && after_control {
                return Err(error("a data input follows a control input"));
            }
            sources.push(Source {
                node: producer,
                slot,
                is_back: false,
            });
        }
        mark_back_edges(nodes, node, &mut sources[first..]);
        offsets.push(
            u32::try_from(sources.len())
                .map_err(|_| ImportError::Graph(crate::graph::GraphError::TooLarge(name(node))))?,
        );
    }
    Ok((offsets, sources))
}

/// Marks back edges. A merge without inputs from outside its loop would never start, so its loop is
/// a cycle.
fn mark_back_edges(nodes: &[NodeDef], node: &NodeDef, inputs: &mut [Source]) {
    if !matches!(&*node.op, b"Merge" | b"RefMerge") {
        return;
    }
    let is_back = |source: &Source| {
        let op = &*nodes[source.node as usize].op;
        source.slot.is_some() && matches!(op, b"NextIteration" | b"RefNextIteration")
    };
    let enters = |source: &Source| source.slot.is_some() && !is_back(source);
    if inputs.iter().any(enters) {
        for source in inputs {
            source.is_back = is_back(source);
        }
    }
}

/// Parses `node`, `node:output` or `^node`; the output is `None` for control.
fn parse(text: &[u8]) -> Option<(&[u8], Option<u32>)> {
    if let Some(node) = text.strip_prefix(b"^") {
        return Some((node, None));
    }
    match text.iter().rposition(|&byte| byte == b':') {
        None => Some((text, Some(0))),
        Some(colon) => {
            let digits = std::str::from_utf8(&text[colon + 1..]).ok()?;
            if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
                return None;
            }
            Some((&text[..colon], Some(digits.parse().ok()?)))
        }
    }
}

fn name(node: &NodeDef) -> String {
    String::from_utf8_lossy(&node.name).into_owned()
}

/// Converts positions; the importer refuses more nodes than fit.
fn to_u32(n: usize) -> u32 {
    u32::try_from(n).expect("files have fewer than 2^32 nodes")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &'static str, op: &'static str, inputs: &[&'static str]) -> NodeDef {
        NodeDef {
            name: name.into(),
            op: op.into(),
            input: inputs.iter().map(|&input| input.into()).collect(),
            ..NodeDef::default()
        }
    }

    fn names(nodes: &[NodeDef]) -> Result<Vec<String>, ImportError> {
        let order = Order::new(nodes)?;
        Ok(order
            .nodes
            .iter()
            .map(|&i| name(&nodes[i as usize]))
            .collect())
    }

    #[test]
    fn of_the_nodes_that_are_ready_the_first_of_the_file_comes_next() {
        let nodes = [
            node("e", "Op", &["d", "b"]),
            node("d", "Op", &["c"]),
            node("c", "Op", &[]),
            node("b", "Op", &[]),
            node("a", "Op", &["^c"]),
        ];
        // After c, both d (position 1) and b (3) are ready; then e (0) becomes ready and precedes a
        // (4).
        assert_eq!(names(&nodes).unwrap(), ["c", "d", "b", "e", "a"]);
    }

    #[test]
    fn a_loop_closes_through_next_iteration_and_merge() {
        let nodes = [
            node("merge", "Merge", &["enter", "next"]),
            node("enter", "Enter", &[]),
            node("next", "NextIteration", &["body"]),
            node("body", "Op", &["merge:0"]),
        ];
        assert_eq!(names(&nodes).unwrap(), ["enter", "merge", "body", "next"]);
        let order = Order::new(&nodes).unwrap();
        let back: Vec<_> = order
            .inputs(0)
            .iter()
            .map(|source| source.is_back)
            .collect();
        assert_eq!(back, [false, true]);
    }

    #[test]
    fn a_cycle_is_named_node_by_node() {
        let nodes = [
            node("x", "Op", &[]),
            node("outside", "Op", &["c"]),
            node("a", "Op", &["x", "c"]),
            node("b", "Op", &["a"]),
            node("c", "Op", &["b"]),
        ];
        let error = names(&nodes).unwrap_err().to_string();
        assert_eq!(error, "the nodes `a` -> `b` -> `c` form a cycle");
        let own = [node("a", "Op", &["^a"])];
        assert_eq!(
            names(&own).unwrap_err().to_string(),
            "the nodes `a` form a cycle"
        );
        // Nothing enters this loop from outside.
        let closed = [
            node("merge", "Merge", &["next"]),
            node("next", "NextIteration", &["merge"]),
        ];
        assert!(matches!(names(&closed), Err(ImportError::Cycle { .. })));
    }

    #[test]
    fn long_cycles_are_shortened() {
        const NAMES: [&str; 20] = [
            "a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q",
            "r", "s", "t",
        ];
        let nodes: Vec<_> = (0..20)
            .map(|i| node(NAMES[i], "Op", &[NAMES[(i + 19) % 20]]))
            .collect();
        let error = names(&nodes).unwrap_err().to_string();
        assert!(error.contains("(4 more)"), "{error}");
    }

    #[test]
    fn inputs_are_read_as_tensorflow_writes_them() {
        assert_eq!(parse(b"a"), Some((b"a".as_slice(), Some(0))));
        assert_eq!(parse(b"a:12"), Some((b"a".as_slice(), Some(12))));
        assert_eq!(parse(b"^a"), Some((b"a".as_slice(), None)));
        for bad in [b"a:".as_slice(), b"a:x", b"a:-1", b"a:99999999999"] {
            assert_eq!(parse(bad), None, "{}", bad.escape_ascii());
        }
    }

    #[test]
    fn inputs_that_lead_nowhere_are_named() {
        let check = |inputs: &[&'static str], expected: &str| {
            let nodes = [node("x", "Op", &[]), node("y", "Sum", inputs)];
            let error = names(&nodes).unwrap_err().to_string();
            assert_eq!(error, format!("node `y` (Sum): {expected}"));
        };
        check(&["x", "z:1"], "input 1 `z:1`: there is no such node");
        check(&["^z"], "input 0 `^z`: there is no such node");
        check(&[""], "input 0 ``: there is no such node");
        check(
            &["x:"],
            "input 0 `x:`: expected `node`, `node:output` or `^node`",
        );
        check(
            &["^x", "x"],
            "input 1 `x`: a data input follows a control input",
        );
        let twice = [node("x", "Op", &[]), node("x", "Op", &[])];
        let error = names(&twice).unwrap_err().to_string();
        assert_eq!(error, "nodes 0 and 1 of the file have the same name, `x`");
    }
}
