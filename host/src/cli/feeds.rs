//! Feeds and fetches of a run: arrays of an archive or seeded random values; named fetches or all
//! results.

use std::collections::BTreeMap;

use anyhow::Context;
use anyhow::Result;
use anyhow::anyhow;
use anyhow::bail;

use super::npz::NpzReader;
use super::npz::Wanted;
use super::npz::feed_memory;
use super::random::SplitMix;
use crate::error::NameRole;
use crate::graph::Graph;
use crate::graph::NONE;
use crate::graph::NodeId;
use crate::graph::TensorId;
use crate::session::find_tensor;
use crate::tensor::Allocator;
use crate::tensor::DType;
use crate::tensor::Shape;
use crate::tensor::Tensor;

/// Tensors to feed, by `name:slot`.
pub(super) type Feeds = BTreeMap<String, Tensor>;

/// Random feeds, and the shapes that were assumed for them.
#[derive(Debug)]
pub(super) struct RandomFeeds {
    /// The values.
    pub(super) feeds: Feeds,
    /// Placeholders with an unknown dimension, and the shape that was assumed.
    pub(super) assumed: Vec<(String, Shape)>,
}

/// Returns the default fetches: the outputs of the graph's signature, or those that no node reads
/// and that always have a value.
pub(super) fn default_fetches(graph: &Graph) -> Vec<String> {
    if let Some(signature) = graph.signature() {
        let outputs = signature.outputs.iter();
        return outputs.map(|output| output.name.clone()).collect();
    }
    graph
        .nodes()
        .filter(|&node| graph.successors().row(node.index()).is_empty())
        .filter(|&node| !graph.is_placeholder(node) && graph.has_one_value_per_run(node))
        .flat_map(|node| graph.output_range(node))
        .map(tensor_id)
        .map(|tensor| graph.tensor_name(tensor))
        .collect()
}

/// Returns the name of a fetched tensor: that of the graph's signature, or `node:slot`.
pub(super) fn fetch_name(graph: &Graph, tensor: TensorId) -> String {
    let outputs = graph.signature().into_iter().flat_map(|it| &it.outputs);
    let is_tensor =
        |name: &str| find_tensor(graph, NameRole::Fetch, name).is_ok_and(|it| it == tensor);
    let mut names = outputs.map(|output| &output.name);
    match names.find(|name| is_tensor(name)) {
        Some(name) => name.clone(),
        None => graph.tensor_name(tensor),
    }
}

/// Reads all arrays `in/NAME` of an archive, by the tensor that they feed.
pub(super) fn read_feeds(archive: &mut NpzReader, graph: &Graph) -> Result<Feeds> {
    let mut feeds = Feeds::new();
    for entry in archive.names() {
        let Some(name) = entry.strip_prefix("in/") else {
            continue;
        };
        let tensor = find_tensor(graph, NameRole::Feed, name)?;
        let value = archive.read(&entry, Some(&wanted(graph, tensor)))?;
        let name = graph.tensor_name(tensor);
        if feeds.insert(name.clone(), value).is_some() {
            bail!("two arrays feed tensor `{name}`, one of them `{entry}`; keep one");
        }
    }
    Ok(feeds)
}

/// Reads all arrays `out/FETCH` of an archive, by the fetch that they are compared with.
pub(super) fn read_expected(archive: &mut NpzReader, graph: &Graph) -> Result<Feeds> {
    let mut expected = Feeds::new();
    for entry in archive.names() {
        let Some(name) = entry.strip_prefix("out/") else {
            continue;
        };
        let tensor = find_tensor(graph, NameRole::Fetch, name)?;
        let value = archive.read(&entry, Some(&wanted(graph, tensor)))?;
        let name = fetch_name(graph, tensor);
        if expected.insert(name.clone(), value).is_some() {
            bail!("two arrays are expected for tensor `{name}`, one of them `{entry}`; keep one");
        }
    }
    if expected.is_empty() {
        let wanted = default_fetches(graph).into_iter();
        let wanted: Vec<String> = wanted.map(|name| format!("out/{name}")).collect();
        return Err(no_array("out/FETCH", archive, &wanted));
    }
    Ok(expected)
}

/// Names in a message.
const NAMES_SHOWN_MAX: usize = 8;

/// The error for an archive without an array of a kind: what it has, and what the graph wants.
pub(super) fn no_array(kind: &str, archive: &NpzReader, wanted: &[String]) -> anyhow::Error {
    let list = |names: &[String]| {
        let shown = names.iter().take(NAMES_SHOWN_MAX);
        let mut shown: Vec<String> = shown.map(|name| format!("`{name}`")).collect();
        if names.len() > NAMES_SHOWN_MAX {
            shown.push(format!("and {} more", names.len() - NAMES_SHOWN_MAX));
        }
        match shown.is_empty() {
            true => "none".to_owned(),
            false => shown.join(", "),
        }
    };
    anyhow!(
        "the archive has no array `{kind}`; its arrays: {}; wanted: {}",
        list(&archive.names()),
        list(wanted)
    )
}

/// The arrays that feed the placeholders of a graph.
pub(super) fn wanted_feeds(graph: &Graph) -> Vec<String> {
    if let Some(signature) = graph.signature() {
        let inputs = signature.inputs.iter();
        return inputs.map(|input| format!("in/{}", input.name)).collect();
    }
    let nodes = graph.nodes().filter(|&node| graph.is_placeholder(node));
    nodes
        .map(|node| format!("in/{}", graph.node_name(node)))
        .collect()
}

/// The type and shape that the graph has for a tensor.
pub(super) fn wanted(graph: &Graph, tensor: TensorId) -> Wanted {
    Wanted {
        dtype: graph.tensor_dtypes()[tensor.index()],
        shape: graph.tensor_shape(tensor),
    }
}

/// Makes values for the placeholders that the fetches need and `given` does not feed. The value of
/// a placeholder depends on the seed and its name alone: floats uniform in [-1, 1), integers 0 or
/// 1, booleans either.
pub(super) fn random_feeds(
    graph: &Graph,
    fetches: &[String],
    given: &Feeds,
    seed: u64,
) -> Result<RandomFeeds> {
    let mut result = RandomFeeds {
        feeds: Feeds::new(),
        assumed: Vec::new(),
    };
    let memory = feed_memory();
    for node in needed_placeholders(graph, fetches, given)? {
        let Some(tensor) = graph.output(node, 0) else {
            continue;
        };
        let name = graph.node_name(node);
        let (shape, is_assumed) = feed_shape(graph, node, tensor)?;
        let dtype = graph.tensor_dtypes()[tensor.index()];
        let mut random = SplitMix::new(seed, name);
        let value = random_tensor(dtype, shape.clone(), &mut random, &memory).with_context(|| {
            format!("placeholder `{name}` cannot be given random values; pass --feeds F.npz with `in/{name}`")
        })?;
        if is_assumed {
            result.assumed.push((name.to_owned(), shape));
        }
        result.feeds.insert(graph.tensor_name(tensor), value);
    }
    Ok(result)
}

/// Returns the placeholders from which a fetch can be reached without passing a fed tensor.
pub(super) fn needed_placeholders(
    graph: &Graph,
    fetches: &[String],
    given: &Feeds,
) -> Result<Vec<NodeId>> {
    let mut needed = vec![false; graph.n_nodes()];
    let mut pending = Vec::new();
    for fetch in fetches {
        let tensor = find_tensor(graph, NameRole::Fetch, fetch)?;
        pending.push((graph.producer(tensor).0, graph.tensor_name(tensor)));
    }
    let mut placeholders = Vec::new();
    while let Some((node, via)) = pending.pop() {
        if given.contains_key(&via) || std::mem::replace(&mut needed[node.index()], true) {
            continue;
        }
        // What waits for a placeholder without reading it waits for its feed.
        let is_fed = |tensor| given.contains_key(&graph.tensor_name(tensor));
        if graph.is_placeholder(node) && !graph.output(node, 0).is_some_and(is_fed) {
            placeholders.push(node);
        }
        for edge in graph.predecessors().range(node.index()) {
            let producer = NodeId(graph.predecessors().items[edge]);
            let via = match graph.edge_tensors()[edge] {
                NONE => String::new(),
                tensor => graph.tensor_name(TensorId(tensor)),
            };
            pending.push((producer, via));
        }
    }
    placeholders.sort_unstable();
    Ok(placeholders)
}

/// Returns the shape to feed, and whether a dimension was assumed: an unknown one, usually the
/// batch, is taken as 1.
fn feed_shape(graph: &Graph, node: NodeId, tensor: TensorId) -> Result<(Shape, bool)> {
    let shape = graph.tensor_shape(tensor);
    let Some(dims) = shape.dims() else {
        let name = graph.node_name(node);
        bail!(
            "placeholder `{name}` has no known shape, so no random values can be made; pass --feeds F.npz with `in/{name}`"
        );
    };
    Ok((
        dims.iter().map(|dim| dim.unwrap_or(1)).collect(),
        dims.contains(&None),
    ))
}

fn random_tensor(
    dtype: DType,
    shape: Shape,
    random: &mut SplitMix,
    memory: &dyn Allocator,
) -> Result<Tensor> {
    let Some(element) = dtype.size_bytes() else {
        bail!("a {dtype} tensor has no random values");
    };
    let mut tensor = Tensor::zeros(memory, dtype, shape)?;
    let bytes = tensor.as_bytes_mut().context("memory of the host")?;
    for bytes in bytes.chunks_exact_mut(element) {
        let unit = random.unit();
        match dtype {
            DType::F32 => bytes.copy_from_slice(&unit.to_le_bytes()),
            DType::F64 => bytes.copy_from_slice(&f64::from(unit).to_le_bytes()),
            DType::F16 => bytes.copy_from_slice(&half::f16::from_f32(unit).to_le_bytes()),
            DType::BF16 => bytes.copy_from_slice(&half::bf16::from_f32(unit).to_le_bytes()),
            DType::Complex64 => {
                let parts = [unit, random.unit()].map(f32::to_le_bytes);
                bytes.copy_from_slice(parts.as_flattened());
            }
            DType::Complex128 => {
                let parts = [unit, random.unit()].map(|part| f64::from(part).to_le_bytes());
                bytes.copy_from_slice(parts.as_flattened());
            }
            // 0 or 1, little-endian.
            _ => bytes[0] = u8::from(unit >= 0.0),
        }
    }
    Ok(tensor)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "a graph holds fewer than 2^32 tensors"
)]
fn tensor_id(index: usize) -> TensorId {
    TensorId(index as u32)
}

#[cfg(test)]
mod tests {
    use super::super::npz;
    use super::*;
    use crate::graph::AttrSet;
    use crate::graph::GraphAssembler;
    use crate::graph::Input;
    use crate::graph::NodeSpec;
    use crate::graph::Output;
    use crate::graph::Work;
    use crate::tensor::HostAllocator;
    use crate::tensor::PartialShape;

    /// a: `[?,3]` float, b: bool scalar, c: unknown shape; sum reads a and b, other reads c.
    fn graph() -> Graph {
        let mut assembler = GraphAssembler::new("feeds");
        let mut add = |name, op, inputs: &[NodeId], dtype, shape| {
            let inputs: Vec<Input> = inputs
                .iter()
                .map(|&node| Input::Data { node, slot: 0 })
                .collect();
            assembler
                .add_node(&NodeSpec {
                    name,
                    op,
                    inputs: &inputs,
                    requested_device: "",
                    attrs: AttrSet::default(),
                    outputs: &[Output {
                        dtype,
                        is_ref: false,
                        shape,
                    }],
                    stateful: false,
                    work: Work::default(),
                })
                .expect("a node")
        };
        let unknown = PartialShape::unknown;
        let shape = PartialShape::new(&[None, Some(3)]);
        let a = add("a", "Placeholder", &[], DType::F32, shape);
        let b = add("b", "Placeholder", &[], DType::Bool, PartialShape::scalar());
        let c = add("c", "Placeholder", &[], DType::F32, unknown());
        add("sum", "Sum", &[a, b], DType::F32, unknown());
        add("other", "Identity", &[c], DType::F32, unknown());
        assembler.finish()
    }

    #[test]
    fn one_tensor_is_fed_once() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("feeds.npz");
        let value = Tensor::from_values([3], &[1f32, 2., 3.]).expect("fits");
        npz::write(&path, [("in/c", &value), ("in/c:0", &value)]).expect("written");
        let mut archive = NpzReader::open(&path).expect("an archive");
        let error = read_feeds(&mut archive, &graph()).expect_err("twice");
        assert!(
            error.to_string().contains("two arrays feed tensor `c:0`"),
            "{error}"
        );
    }

    fn random(fetch: &str, seed: u64) -> Result<RandomFeeds> {
        random_feeds(&graph(), &[fetch.to_owned()], &Feeds::new(), seed)
    }

    #[test]
    fn only_what_the_fetches_need_gets_random_values() {
        let random = random("sum", 1).expect("known shapes");
        let shapes: Vec<String> = random
            .feeds
            .iter()
            .map(|(name, tensor)| format!("{name} {tensor:?}"))
            .collect();
        assert_eq!(shapes, ["a:0 Tensor<float, [1,3]>", "b:0 Tensor<bool, []>"]);
        assert_eq!(random.assumed, [("a".to_owned(), Shape::new(&[1, 3]))]);
    }

    #[test]
    fn random_feeds_depend_on_the_seed_and_nothing_else() {
        let values = |seed| {
            let random = random("sum", seed).expect("known shapes");
            let values = random.feeds["a:0"]
                .as_slice::<f32>()
                .expect("floats")
                .to_vec();
            assert!(
                values.iter().all(|value| (-1.0..1.0).contains(value)),
                "{values:?}"
            );
            values
        };
        assert_eq!(values(1), values(1));
        assert_ne!(values(1), values(2));
    }

    #[test]
    fn feeds_that_do_not_fit_are_not_made() {
        let memory = HostAllocator::new("memory for feeds", 1 << 20);
        for dtype in [DType::F32, DType::I8, DType::Complex128] {
            let random = &mut SplitMix::new(1, "x");
            let error =
                random_tensor(dtype, [1 << 32].into(), random, &memory).expect_err("too large");
            assert!(error.to_string().contains("out of memory"), "{error}");
            assert!(random_tensor(dtype, [16].into(), random, &memory).is_ok());
        }
    }

    #[test]
    fn a_placeholder_without_a_shape_asks_for_feeds() {
        let err = format!("{:#}", random("other:0", 1).expect_err("unknown rank"));
        assert!(
            err.contains("placeholder `c`") && err.contains("--feeds"),
            "{err}"
        );
    }

    #[test]
    fn a_fed_tensor_needs_nothing_before_it() {
        let graph = graph();
        let given = Feeds::from([(
            "c:0".to_owned(),
            Tensor::from_values([1], &[1f32]).expect("fits"),
        )]);
        let random = random_feeds(&graph, &["other:0".to_owned()], &given, 1).expect("fed");
        assert!(random.feeds.is_empty());
    }

    #[test]
    fn what_waits_for_a_fed_placeholder_makes_no_other_value() {
        let mut assembler = GraphAssembler::new("graph");
        let mut add = |name: &str, op: &str, inputs: &[Input]| {
            let outputs = [Output {
                dtype: DType::F32,
                is_ref: false,
                shape: PartialShape::scalar(),
            }];
            let spec = NodeSpec {
                name,
                op,
                inputs,
                requested_device: "",
                attrs: AttrSet::default(),
                outputs: &outputs,
                stateful: false,
                work: Work::default(),
            };
            assembler.add_node(&spec).expect("a new name")
        };
        let x = add("x", "Placeholder", &[]);
        add("y", "Abs", &[Input::Control(x)]);
        let graph = assembler.finish();
        let value = Tensor::from_values(Shape::scalar(), &[1f32]).expect("fits");
        let given = Feeds::from([("x:0".to_owned(), value)]);
        let made = |given| random_feeds(&graph, &["y:0".to_owned()], given, 1).expect("a scalar");
        assert!(made(&given).feeds.is_empty());
        assert_eq!(made(&Feeds::new()).feeds.len(), 1);
    }

    #[test]
    fn outputs_without_readers_are_fetched() {
        assert_eq!(default_fetches(&graph()), ["sum:0", "other:0"]);
    }
}
