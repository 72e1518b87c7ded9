//! Graphs built in Rust: those of TensorFlow's models, node by node, and random ones against plain arithmetic.

use std::path::PathBuf;
use std::sync::Arc;

use placewright::builder::BuildError;
use placewright::builder::Conv2d;
use placewright::builder::Float;
use placewright::builder::GraphBuilder;
use placewright::builder::Number;
use placewright::builder::Padding;
use placewright::builder::Pool2d;
use placewright::builder::Scope;
use placewright::builder::Value;
use placewright::candidates::Proposal;
use placewright::device::DeviceOptions;
use placewright::graph::AttrSet;
use placewright::graph::Graph;
use placewright::graph::NodeId;
use placewright::graph::TensorId;
use placewright::import::ImportOptions;
use placewright::import::import_graph;
use placewright::ops::OpRegistry;
use placewright::session::Session;
use placewright::tensor::Literal;
use placewright::tensor::Tensor;
use proptest::prelude::*;

use crate::npz;

#[path = "../../host/examples/custom_op.rs"]
mod custom_op;

fn model(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/models")
        .join(file)
}

fn import(file: &str) -> Graph {
    let bytes = std::fs::read(model(file)).unwrap();
    import_graph(bytes, &OpRegistry::default(), &ImportOptions::default()).unwrap()
}

/// The weights of an imported model, by the names of their constants.
struct Weights<'a>(&'a Graph);

impl Weights<'_> {
    fn get(&self, name: &str) -> Literal {
        let node = self.0.find_node(name).unwrap();
        Literal::clone(self.0.attrs(node).tensor("value").unwrap())
    }
}

/// A dense layer, of any type of numbers.
fn dense<T: Number>(
    b: &Scope,
    x: Value<T>,
    (w, bias): (&str, &str),
    weights: &Weights<'_>,
) -> Result<Value<T>, BuildError> {
    // In the file, the product stands between weights and bias.
    let product = b.matmul(x, b.named(w).literal(weights.get(w))?)?;
    b.bias_add(product, b.named(bias).literal(weights.get(bias))?)
}

fn mlp(weights: &Weights<'_>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("mlp");
    let x = b.placeholder::<f32>("x", [1, 784])?;
    let x = b.relu(dense(&b, x, ("w0", "b0"), weights)?)?;
    let x = b.relu(dense(&b, x, ("w1", "b1"), weights)?)?;
    let x = dense(&b, x, ("w2", "b2"), weights)?;
    b.named("probs").softmax(x)?;
    Ok(b.finish())
}

fn convolution<T: Float>(
    b: &Scope,
    x: Value<T>,
    padding: Padding,
    (filters, bias): (&str, &str),
    weights: &Weights<'_>,
) -> Result<Value<T>, BuildError> {
    let filters = b.literal(weights.get(filters))?;
    let x = b.conv2d(x, filters, Conv2d::new(padding))?;
    b.tanh(b.bias_add(x, b.literal(weights.get(bias))?)?)
}

fn lenet(weights: &Weights<'_>) -> Result<Graph, BuildError> {
    let b = GraphBuilder::new("lenet");
    let halved = Pool2d::new([2, 2], Padding::Valid);
    let x = b.placeholder::<f32>("x", [1, 28, 28, 1])?;
    let x = convolution(&b, x, Padding::Same, ("Const", "Const_1"), weights)?;
    let x = b.avg_pool(x, halved)?;
    let x = convolution(&b, x, Padding::Valid, ("Const_2", "Const_3"), weights)?;
    let x = b.reshape(b.max_pool(x, halved)?, [-1, 400])?;
    let x = b.tanh(dense(&b, x, ("Const_4", "Const_5"), weights)?)?;
    let x = b.tanh(dense(&b, x, ("Const_6", "Const_7"), weights)?)?;
    let x = dense(&b, x, ("Const_8", "Const_9"), weights)?;
    b.named("probs").softmax(x)?;
    Ok(b.finish())
}

/// All that stages after the importer read of a node, but the values of constants.
fn describe(graph: &Graph, node: NodeId) -> (String, Vec<(String, String)>, f64, [u64; 3]) {
    let inputs = graph.data_inputs(node).map(|id| graph.tensor_name(id));
    let outputs = graph.output_range(node).map(|id| {
        let shape = graph.tensor_shape(TensorId(u32::try_from(id).unwrap()));
        format!("{} {shape}", graph.tensor_dtypes()[id])
    });
    let attrs: &AttrSet = graph.attrs(node);
    let attrs = attrs.iter().filter(|(name, _)| *name != "value");
    (
        format!(
            "{} {} {:?} {:?} {:?}",
            graph.node_name(node),
            graph.op(node),
            inputs.collect::<Vec<_>>(),
            outputs.collect::<Vec<_>>(),
            graph.requested(node),
        ),
        attrs
            .map(|(name, value)| (name.to_owned(), format!("{value:?}")))
            .collect(),
        graph.flops()[node.index()],
        [
            graph.traffic_bytes()[node.index()],
            graph.resident_bytes()[node.index()],
            graph.workspace_bytes()[node.index()],
        ],
    )
}

fn run(graph: Graph, x: &Tensor) -> Tensor {
    let session = Session::builder().with_graph(graph).build().unwrap();
    session
        .run(&[("x", x.clone())], &["probs"])
        .unwrap()
        .remove(0)
}

#[test]
fn a_model_built_in_rust_is_the_graph_that_tensorflow_wrote() {
    type Build = fn(&Weights<'_>) -> Result<Graph, BuildError>;
    let models: [(&str, Build); 2] = [("mlp", mlp), ("lenet", lenet)];
    for (name, build) in models {
        let imported = import(&format!("{name}.skel.pb"));
        let built = build(&Weights(&imported)).unwrap();
        assert_eq!(built.n_nodes(), imported.n_nodes(), "{name}");
        for node in imported.nodes() {
            assert_eq!(describe(&built, node), describe(&imported, node), "{name}");
        }
        let arrays = npz::read(&model(&format!("{name}.npz")));
        let x = &arrays["in/x"];
        let (built, imported) = (run(built, x), run(imported, x));
        assert_eq!(
            built.as_bytes().unwrap(),
            imported.as_bytes().unwrap(),
            "{name}"
        );
        let expected = arrays["out/probs:0"].as_slice::<f32>().unwrap();
        let found = built.as_slice::<f32>().unwrap();
        assert_eq!(found.len(), expected.len(), "{name}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (found - expected).abs() <= 1e-5,
                "{name}: {found}, expected {expected}"
            );
        }
    }
}

#[test]
fn the_example_runs_its_op_in_graphs_of_both_kinds_on_two_devices() {
    let outcomes = custom_op::run().unwrap();
    let expected: [&[f32]; 2] = [
        // The average of 3 samples is 2, 1, 2, 1 .. in the second row.
        &[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0],
        // Averages of 4 samples.
        &[2.5, 3.5, 4.5, 5.5, 6.5, 1.5, 1.5, 1.5, 1.5, 1.5],
    ];
    assert_eq!(outcomes.len(), expected.len());
    for (outcome, expected) in outcomes.iter().zip(expected) {
        assert_eq!(
            outcome.y.as_slice::<f32>().unwrap(),
            expected,
            "{}",
            outcome.graph
        );
        let is_there = |op: &str, device: &str| {
            let mut placed = outcome.placed.iter();
            placed.any(|(_, o, d)| o.contains(op) && d.ends_with(device))
        };
        assert!(is_there("MovingAverage", ""), "{}", outcome.graph);
        for device in ["CPU:0", "CPU:1"] {
            assert!(
                is_there("", device),
                "{}: nothing on {device}",
                outcome.graph
            );
        }
        assert!(outcome.n_transfers > 0, "{}", outcome.graph);
    }
}

/// Shapes that all broadcast to each other.
const SHAPES: [[usize; 2]; 4] = [[2, 3], [1, 3], [2, 1], [1, 1]];

/// A tensor as plain arithmetic sees it.
#[derive(Debug, Clone)]
struct Plain {
    shape: [usize; 2],
    values: Vec<i32>,
}

impl Plain {
    fn at(&self, [row, column]: [usize; 2]) -> i32 {
        let [rows, columns] = self.shape;
        self.values[(row % rows) * columns + column % columns]
    }

    fn combine(&self, other: &Self, operation: impl Fn(i32, i32) -> i32) -> Self {
        let shape = [0, 1].map(|axis| self.shape[axis].max(other.shape[axis]));
        let [rows, columns] = shape;
        let indices = (0..rows).flat_map(|row| (0..columns).map(move |column| [row, column]));
        let values = indices.map(|index| operation(self.at(index), other.at(index)));
        Self {
            shape,
            values: values.collect(),
        }
    }
}

fn step(
    b: &Scope,
    kind: u8,
    (x, plain_x): &(Value<i32>, Plain),
    (y, plain_y): &(Value<i32>, Plain),
) -> Result<(Value<i32>, Plain), BuildError> {
    let (x, y) = (*x, *y);
    let plain = |operation: fn(i32, i32) -> i32| plain_x.combine(plain_y, operation);
    Ok(match kind {
        0 => (b.add(x, y)?, plain(i32::wrapping_add)),
        1 => (b.sub(x, y)?, plain(i32::wrapping_sub)),
        2 => (b.mul(x, y)?, plain(i32::wrapping_mul)),
        3 => (b.maximum(x, y)?, plain(i32::max)),
        4 => (b.minimum(x, y)?, plain(i32::min)),
        5 => (
            b.add(x, 17)?,
            plain_x.combine(plain_x, |x, _| x.wrapping_add(17)),
        ),
        6 => (b.neg(x)?, plain_x.combine(plain_x, |x, _| x.wrapping_neg())),
        _ => {
            let chosen = b.select(b.less(x, y)?, x, y)?;
            (chosen, plain(|x, y| if x < y { x } else { y }))
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn random_graphs_compute_what_plain_arithmetic_does(
        fed in prop::collection::vec((0..SHAPES.len(), prop::array::uniform6(any::<i32>())), 1..4),
        steps in prop::collection::vec(
            (0..8u8, any::<prop::sample::Index>(), any::<prop::sample::Index>()),
            1..12,
        ),
    ) {
        let b = GraphBuilder::new("random");
        let mut values: Vec<(Value<i32>, Plain)> = Vec::new();
        let mut feeds = Vec::new();
        for (shape, elements) in fed {
            let shape = SHAPES[shape];
            let plain = Plain { shape, values: elements[..shape[0] * shape[1]].to_vec() };
            let x = b.placeholder::<i32>("x", shape).unwrap();
            feeds.push((b.name(x).unwrap(), Tensor::from_values(shape, &plain.values).unwrap()));
            values.push((x, plain));
        }
        for (kind, x, y) in steps {
            let (x, y) = (x.index(values.len()), y.index(values.len()));
            let made = step(&b, kind, &values[x], &values[y]).unwrap();
            prop_assert_eq!(b.shape(made.0).unwrap(), made.1.shape.into());
            values.push(made);
        }
        let names: Vec<String> = values.iter().map(|(v, _)| b.tensor_name(*v).unwrap()).collect();
        let graph = Arc::new(b.finish());
        let mut devices = DeviceOptions::default();
        devices.device_count.insert("CPU".to_owned(), 2);
        let session = Session::builder()
            .with_graph(Arc::clone(&graph))
            .with_device_options(devices)
            .with_proposal(Proposal {
                devices: (0..2).cycle().take(graph.n_nodes()).collect(),
                ..Proposal::default()
            })
            .build()
            .unwrap();
        let feeds: Vec<(&str, Tensor)> = feeds.iter().map(|(n, t)| (n.as_str(), t.clone())).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for (found, (_, plain)) in session.run(&feeds, &names).unwrap().iter().zip(&values) {
            prop_assert_eq!(found.shape().dims(), plain.shape);
            prop_assert_eq!(found.as_slice::<i32>().unwrap(), plain.values.as_slice());
        }
    }
}
