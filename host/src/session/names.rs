//! Finds nodes and tensors by the names that callers use.

use crate::error::Error;
use crate::error::NameRole;
use crate::graph::Graph;
use crate::graph::NodeId;
use crate::graph::TensorId;

/// Finds a tensor by `node` or `node:slot`, or by the name of an input or output of the graph's
/// signature. If an input and an output have one name, a
/// feed is the input, and anything else the output.
///
/// # Errors
/// [`Error::UnknownNode`], with the nearest existing name, or [`Error::NoSuchOutput`].
pub fn find_tensor(graph: &Graph, role: NameRole, name: &str) -> Result<TensorId, Error> {
    let tensor = argument(graph, role, name).unwrap_or(name);
    let (node, slot) = split(tensor);
    let id = find(graph, role, name, node)?;
    let n_outputs = graph.output_range(id).len();
    (slot < n_outputs)
        .then(|| graph.output(id, slot))
        .flatten()
        .ok_or_else(|| Error::NoSuchOutput {
            role,
            name: name.to_owned(),
            node: node.to_owned(),
            n_outputs,
        })
}

/// Returns the tensor that the graph's signature has under this name.
fn argument<'g>(graph: &'g Graph, role: NameRole, name: &str) -> Option<&'g str> {
    let signature = graph.signature()?;
    let (input, output) = (signature.input(name), signature.output(name));
    let argument = match role {
        NameRole::Feed => input.or(output),
        NameRole::Node | NameRole::Fetch | NameRole::Target => output.or(input),
    };
    argument.map(|argument| argument.tensor.as_str())
}

/// Finds a node by its name.
///
/// # Errors
/// [`Error::UnknownNode`], with a similar name if there is one.
pub fn find_node(graph: &Graph, name: &str) -> Result<NodeId, Error> {
    find(graph, NameRole::Node, name, name)
}

/// Finds a node that is only to be executed.
pub(super) fn find_target(graph: &Graph, name: &str) -> Result<NodeId, Error> {
    find(graph, NameRole::Target, name, name)
}

fn find(graph: &Graph, role: NameRole, name: &str, node: &str) -> Result<NodeId, Error> {
    graph.find_node(node).ok_or_else(|| Error::UnknownNode {
        role,
        name: name.to_owned(),
        node: node.to_owned(),
        suggestion: nearest(graph, node),
    })
}

/// Splits the name of a tensor into node and slot.
pub(super) fn split(name: &str) -> (&str, usize) {
    match name.rsplit_once(':') {
        Some((node, digits)) if is_number(digits) => (node, digits.parse().unwrap_or(usize::MAX)),
        _ => (name, 0),
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// The node name with the fewest edits to `wanted`, if at most a third of its letters would have to
/// change. Otherwise the shortest name whose last part contains `wanted`, in letters of either
/// case: `resnet/head/Softmax` for `softmax`.
pub(super) fn nearest(graph: &Graph, wanted: &str) -> Option<String> {
    similar(graph, wanted).or_else(|| containing(graph, wanted))
}

fn containing(graph: &Graph, wanted: &str) -> Option<String> {
    let wanted = wanted.to_lowercase();
    if wanted.is_empty() {
        return None;
    }
    let last_part = |name: &str| name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let names = graph.node_names().iter();
    let found = names.filter(|name| last_part(name).contains(&wanted));
    found.min_by_key(|name| name.len()).map(str::to_owned)
}

fn similar(graph: &Graph, wanted: &str) -> Option<String> {
    let most = (wanted.chars().count() / 3).max(1);
    let mut best: Option<(usize, &str)> = None;
    let arguments = graph.signature().into_iter();
    let arguments = arguments.flat_map(|it| it.inputs.iter().chain(&it.outputs));
    let arguments = arguments.map(|argument| argument.name.as_str());
    for name in arguments.chain(graph.node_names().iter()) {
        let limit = best.map_or(most, |(edits, _)| edits - 1);
        if let Some(edits) = edits_within(wanted, name, limit) {
            best = Some((edits, name));
            if edits == 0 {
                break;
            }
        }
    }
    best.map(|(_, name)| name.to_owned())
}

/// Insertions, deletions and substitutions between two strings (Levenshtein); `None` if there are
/// more than `limit`.
fn edits_within(a: &str, b: &str, limit: usize) -> Option<usize> {
    if a.len().abs_diff(b.len()) > limit * 4 {
        return None;
    }
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, from) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, &to) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(from != to);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
        if row.iter().all(|&edits| edits > limit) {
            return None;
        }
    }
    row.last().copied().filter(|&edits| edits <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::fake::Sketch;

    #[test]
    fn tensors_are_found_by_node_and_slot() {
        let sketch = Sketch::parse("conv1/bias = TwoHeads() @ 0\nx = Const() @ 0");
        let find = |name| {
            let found = find_tensor(&sketch.graph, NameRole::Fetch, name);
            found.map_err(|err| err.to_string())
        };
        assert_eq!(find("conv1/bias"), Ok(TensorId(0)));
        assert_eq!(find("conv1/bias:1"), Ok(TensorId(1)));
        assert_eq!(
            find("conv1/bias:2").unwrap_err(),
            "fetch `conv1/bias:2`: node `conv1/bias` has 2 outputs"
        );
        let huge = format!("x:{}9", usize::MAX);
        assert!(find(&huge).unwrap_err().ends_with("has 1 output"));
        assert_eq!(
            find("conv1/bais:0").unwrap_err(),
            "fetch `conv1/bais:0`: the graph has no node `conv1/bais`; did you mean `conv1/bias`?"
        );
        assert_eq!(
            find("BIAS").unwrap_err(),
            "fetch `BIAS`: the graph has no node `BIAS`; did you mean `conv1/bias`?"
        );
        assert_eq!(
            find("softmax").unwrap_err(),
            "fetch `softmax`: the graph has no node `softmax`"
        );
        assert!(find("").is_err());
    }

    #[test]
    fn edits_are_counted_up_to_a_limit() {
        assert_eq!(edits_within("kitten", "sitting", 3), Some(3));
        assert_eq!(edits_within("kitten", "sitting", 2), None);
        assert_eq!(edits_within("", "ab", 2), Some(2));
        assert_eq!(edits_within("größe", "große", 1), Some(1));
    }
}
